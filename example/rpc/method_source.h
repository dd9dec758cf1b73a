// Services that a program learns of when it runs: from .proto files, from a
// descriptor set, or from descriptions that a server has sent.
//
//   auto source = MethodSource::FromProtoFiles({"echo_service.proto"}, {});
//   if (!source) return source.error();
//   auto method = (*source)->FindMethod("example.EchoService/Echo");
//   auto request = (*source)->NewMessage((*method)->input_type());

#ifndef EXAMPLE_RPC_METHOD_SOURCE_H_
#define EXAMPLE_RPC_METHOD_SOURCE_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/descriptor_database.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace example {

// Constant once it is made; all functions are thread-safe then, and none
// blocks. It must outlive its descriptors, and messages that it has made.
// protobuf's own files ("google/protobuf/...") and flare's options are known
// without being given.
class MethodSource {
 public:
  template <class T>
  using Result = flare::Expected<T, flare::Status>;
  using Made = Result<std::unique_ptr<MethodSource>>;

  ~MethodSource();
  MethodSource(const MethodSource&) = delete;
  MethodSource& operator=(const MethodSource&) = delete;

  // Reads `files`, each by its path on disk. Their imports are looked for in
  // `folders`; none: the working directory and the folders of the files. Fails
  // with EINVAL and a text: the file, the line, and the fault.
  static Made FromProtoFiles(const std::vector<std::string>& files,
                             const std::vector<std::string>& folders);
  // Reads a file that `protoc --include_imports --descriptor_set_out` wrote.
  static Made FromDescriptorSet(const std::string& file);
  // Takes these descriptions. `origin` names them in texts of failures.
  static Made FromDescriptions(const google::protobuf::FileDescriptorSet& set,
                               const std::string& origin);

  // Full names of the services in the files that were given, in order.
  std::vector<std::string> Services() const;

  // "package.Service.Method" or "package.Service/Method". The text of a failure
  // lists known names.
  Result<const google::protobuf::MethodDescriptor*> FindMethod(
      std::string_view name) const;

  // The .proto text of a service, a method with its messages, a message, or an
  // enum, by its full name.
  Result<std::string> Describe(std::string_view name) const;

  // An empty message of one of its types.
  std::unique_ptr<google::protobuf::Message> NewMessage(
      const google::protobuf::Descriptor* type) const;

 private:
  MethodSource();
  flare::Status LoadProtoFiles(const std::vector<std::string>& files,
                               const std::vector<std::string>& folders);
  flare::Status LoadDescriptions(const google::protobuf::FileDescriptorSet& set,
                                 const std::string& origin);
  std::string KnownServices() const;

  // The databases that the pool refers to are made before it.
  std::vector<std::unique_ptr<google::protobuf::DescriptorDatabase>> databases_;
  std::unique_ptr<google::protobuf::DescriptorPool::ErrorCollector> errors_;
  std::unique_ptr<google::protobuf::DescriptorPool> pool_;
  std::vector<const google::protobuf::FileDescriptor*> files_;
  // Makes each type's prototype when it is first asked for, behind a lock.
  mutable google::protobuf::DynamicMessageFactory messages_;
};

}  // namespace example

#endif  // EXAMPLE_RPC_METHOD_SOURCE_H_
