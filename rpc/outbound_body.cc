#include "flare/rpc/outbound_body.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>

#include <new>

#include "flare/base/zero_copy_stream.h"

namespace flare::rpc {

void OutboundBody::AppendTo(BufferBuilder* out) && {
  if (message_ != nullptr) {
    AppendMessage(out);
  } else if (!bytes_.empty()) {
    out->Append(std::move(bytes_));
  }
}

Buffer OutboundBody::ToBuffer() && {
  if (message_ == nullptr) return std::move(bytes_);
  BufferBuilder builder;
  AppendMessage(&builder);
  return builder.DestructiveGet();
}

void OutboundBody::AppendMessage(BufferBuilder* out) {
  if (message_size_ <= out->SizeAvailable()) {
    // Straight into the block that the frame is being built in.
    message_->SerializeWithCachedSizesToArray(
        reinterpret_cast<google::protobuf::uint8*>(out->data()));
    out->MarkWritten(message_size_);
    return;
  }
  out->ExpectBytes(message_size_);
  BufferOutputStream stream(out);
  bool complete;
  {
    google::protobuf::io::CodedOutputStream coded(&stream);
    message_->SerializeWithCachedSizes(&coded);
    coded.Trim();
    complete = !coded.HadError();
  }
  if (!complete) throw std::bad_alloc();  // The only error there is.
  stream.Flush();                         // Throws here, if it does.
}

}  // namespace flare::rpc
