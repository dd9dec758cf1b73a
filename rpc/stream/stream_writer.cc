#include "flare/rpc/stream_writer.h"

namespace flare::rpc {

MessageWriter::MessageWriter(RefPtr<CallStream> stream)
    : StreamSide(std::move(stream)) {}

void MessageWriter::SetCompressed(bool compressed) {
  if (stream_ != nullptr) stream_->SetCompressed(compressed);
}

void MessageWriter::Close() {
  if (!open()) return;
  over_ = true;
  stream_->CloseWriting();
}

bool MessageWriter::WriteNext(const google::protobuf::Message& message,
                              bool last) {
  if (!open() || !stream_->WriteMessage(message, last, expires_at_ns_)) {
    return false;
  }
  over_ = last;
  return true;
}

bool MessageWriter::ReadyToWrite() const {
  return !open() || stream_->ReadyToWrite();
}

}  // namespace flare::rpc
