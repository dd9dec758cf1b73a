// The protoc plugin `protoc-gen-flare-rpc`: for every x.proto it writes
// x.flare.pb.h and x.flare.pb.cc, beside protoc's own x.pb.h and x.pb.cc and
// include the former.
//
//   protoc --cpp_out=out --flare-rpc_out=out dir/x.proto
//
// with `protoc-gen-flare-rpc` in $PATH (or named by --plugin). Files that
// import "flare/rpc/rpc_options.proto" need --proto_path=.
// --proto_path=<where flare is>/include besides. Bazel users write
// `flare_proto_library` (tools/bazel/flare.bzl) and need not know.
//
// The generated classes are described in service_code.h, in flare/rpc/stub.h
// and in the comments of x.flare.pb.h. Files without services give (nearly)
// empty outputs, so that a build rule may count on both files.

#ifndef TOOLS_PROTOC_PLUGIN_GENERATOR_H_
#define TOOLS_PROTOC_PLUGIN_GENERATOR_H_

#include <google/protobuf/compiler/code_generator.h>
#include <google/protobuf/descriptor.h>

#include <cstdint>
#include <string>

namespace flare::protoc_plugin {

// Stateless, hence safe to call from several threads.
class Generator : public google::protobuf::compiler::CodeGenerator {
 public:
  // Fails with a text that names the file, the line (when protoc passes it on)
  // and the cure, for:
  //   - a parameter: there are none,
  //   - a service in a file with `optimize_for = LITE_RUNTIME`, which has no
  //     descriptors to dispatch by.
  bool Generate(const google::protobuf::FileDescriptor* file,
                const std::string& parameter,
                google::protobuf::compiler::GeneratorContext* context,
                std::string* error) const override;

  std::uint64_t GetSupportedFeatures() const override;
};

}  // namespace flare::protoc_plugin

#endif  // TOOLS_PROTOC_PLUGIN_GENERATOR_H_
