// Which calls rpc_proxy passes on, and where to.
//
// A route is "pattern=channel": the pattern a method ("pkg.Service.Method"), a
// service ("pkg.Service") or "*", the channel a URI as RpcChannel takes. The
// more precise pattern wins. Descriptors tell the names that a pattern may
// have, as protoc --descriptor_set_out writes them; without them, each method
// has a route of its own, and its messages are passed on as they are, which all
// protocols except those of JSON and text can do.

#ifndef EXAMPLE_PROXY_RPC_ROUTES_H_
#define EXAMPLE_PROXY_RPC_ROUTES_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace example::proxy {

// Pattern and URI, in the order in which they were given.
using RpcRoutes = std::vector<std::pair<std::string, std::string>>;

// "pattern=uri;pattern=uri". Fails with a text that names the piece that can't
// be read, or the pattern that is there twice.
flare::Expected<RpcRoutes, flare::Status> ParseRpcRoutes(std::string_view text);

// The output of protoc --include_imports --descriptor_set_out=`path`. Fails if
// the file can't be read or isn't one. Blocks the thread.
flare::Expected<google::protobuf::FileDescriptorSet, flare::Status>
ReadDescriptorSet(const std::string& path);

// A file that declares the methods which `routes` name, all of messages without
// fields: their content is kept as unknown fields. Fails if a pattern is no
// method's name.
flare::Expected<google::protobuf::FileDescriptorSet, flare::Status>
DeclareOpaqueMethods(const RpcRoutes& routes);

// Descriptors, and for each method that has a route its URI.
class RoutedMethods {
 public:
  // Fails if the set is inconsistent (a file is missing, say), if a pattern
  // names nothing that is in it, or if nothing would be routed.
  static flare::Expected<RoutedMethods, flare::Status> Build(
      const google::protobuf::FileDescriptorSet& set, const RpcRoutes& routes);

  // Services of which at least one method is routed, and where each of their
  // methods goes: to an empty URI if it isn't routed. The descriptors live as
  // long as pool(), and have no options of methods: limits there
  // (rpc_options.proto) are the servers' own.
  using Methods =
      std::map<const google::protobuf::MethodDescriptor*, std::string>;
  const std::map<const google::protobuf::ServiceDescriptor*, Methods>&
  services() const {
    return services_;
  }
  const std::shared_ptr<const google::protobuf::DescriptorPool>& pool() const {
    return pool_;
  }

 private:
  RoutedMethods() = default;

  std::shared_ptr<const google::protobuf::DescriptorPool> pool_;
  std::map<const google::protobuf::ServiceDescriptor*, Methods> services_;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_RPC_ROUTES_H_
