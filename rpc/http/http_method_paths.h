// The paths of HTTP by which clients of brpc and tRPC call methods: POST to
// "/package.Service/Method", or to "/Service/Method" if only one service has
// that name. Handlers go first: a request to a path of theirs is no call, so
// with a default handler there are none.
//
// Set up before the server starts, by one thread; thread-safe afterwards.
// Nothing blocks.
#ifndef FLARE_RPC_HTTP_HTTP_METHOD_PATHS_H_
#define FLARE_RPC_HTTP_HTTP_METHOD_PATHS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_routes.h"

namespace google::protobuf {
class MethodDescriptor;
}  // namespace google::protobuf

namespace flare::rpc {

class HttpMethodPaths final : public HttpCallPaths {
 public:
  // `methods` are all that the server has. `routes` must outlive this object,
  // and be complete.
  using Methods = std::vector<const google::protobuf::MethodDescriptor*>;
  void SetUp(const Methods& methods, const HttpRoutes& routes);

  // Knows the paths of methods that aren't there, too, if their service is.
  bool Read(std::string_view path, std::string* method) const override;
  // True for methods with `option idempotency_level = NO_SIDE_EFFECTS`.
  bool MayGet(std::string_view path) const override;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  // By paths, those of methods and, up to the second slash, of services. Empty
  // where several have the same short one.
  using Names =
      std::unordered_map<std::string, std::string, Hash, std::equal_to<>>;

  Names methods_;
  Names services_;
  std::unordered_set<std::string> safe_;  // Full names of methods.
  const HttpRoutes* routes_ = nullptr;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_METHOD_PATHS_H_
