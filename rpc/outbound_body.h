// The body of an outgoing message: bytes, or a protobuf message that is
// serialised straight into the frame, which saves a Buffer of its own.
//
// A plain value that isn't thread-safe; nothing blocks.
#ifndef FLARE_RPC_OUTBOUND_BODY_H_
#define FLARE_RPC_OUTBOUND_BODY_H_

#include <cstddef>
#include <utility>

#include "flare/base/buffer.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace flare::rpc {

class OutboundBody {
 public:
  OutboundBody() = default;
  // Implicit: most bodies are bytes.
  OutboundBody(Buffer bytes) : bytes_(std::move(bytes)) {}
  // In protobuf's binary format. `size` is the last result of
  // message.ByteSizeLong(); from then until the body is taken `message` stays
  // as it is.
  OutboundBody(const google::protobuf::Message& message, std::size_t size)
      : message_(&message), message_size_(size) {}

  std::size_t size() const {
    return message_ != nullptr ? message_size_ : bytes_.size();
  }
  bool empty() const { return size() == 0; }
  bool is_message() const { return message_ != nullptr; }
  void Clear() { *this = OutboundBody(); }

  // Takes the body, whose bytes are appended to *out.
  void AppendTo(BufferBuilder* out) &&;
  // Takes the body as bytes.
  [[nodiscard]] Buffer ToBuffer() &&;

 private:
  void AppendMessage(BufferBuilder* out);

  Buffer bytes_;
  const google::protobuf::Message* message_ = nullptr;  // instead of bytes
  std::size_t message_size_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_OUTBOUND_BODY_H_
