// Errors in descriptions of services, by the interface of protobuf's version.

#ifndef FLARE_EXAMPLE_RPC_DESCRIPTOR_ERRORS_H_
#define FLARE_EXAMPLE_RPC_DESCRIPTOR_ERRORS_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/common.h>

#include <string>
#include <string_view>

namespace example {

// Keeps the first error; later ones mostly follow from it.
class FirstDescriptorError final
    : public google::protobuf::DescriptorPool::ErrorCollector {
 public:
#if GOOGLE_PROTOBUF_VERSION < 4022000
  void AddError(const std::string& file, const std::string& element,
                const google::protobuf::Message*, ErrorLocation,
                const std::string& message) override {
#else
  void RecordError(std::string_view file, std::string_view element,
                   const google::protobuf::Message*, ErrorLocation,
                   std::string_view message) override {
#endif
    if (!text_.empty()) return;
    text_.append(file).append(": ").append(element).append(": ");
    text_ += message;
  }

  // "file: element: what is wrong"; empty: nothing is.
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace example

#endif  // FLARE_EXAMPLE_RPC_DESCRIPTOR_ERRORS_H_
