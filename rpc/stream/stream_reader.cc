#include "flare/rpc/stream_reader.h"

#include "flare/base/buffer.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

MessageReader::MessageReader(RefPtr<CallStream> stream, bool only_one)
    : StreamSide(std::move(stream)), only_one_(only_one) {}

flare::Status MessageReader::status() const {
  if (stream_ == nullptr) {
    return flare::Status(STATUS_INVALID_CHANNEL, "There is no stream.");
  }
  return stream_->status();
}

bool MessageReader::ReadNext(google::protobuf::Message* message) {
  if (!open()) return false;
  if (kept_ != nullptr) {
    message->CopyFrom(*kept_);
  } else if (!stream_->ReadMessage(message, expires_at_ns_, &error_)) {
    over_ = error_ != StreamError::Timeout;
    return false;
  }
  return !only_one_ || EndAfterMessage(message);
}

// The only message has come: has its call succeeded?
bool MessageReader::EndAfterMessage(google::protobuf::Message* message) {
  Buffer none;
  const bool more = stream_->Read(&none, expires_at_ns_, &error_);
  if (more) {
    error_ = StreamError::IoError;
  } else if (error_ == StreamError::Timeout) {
    if (kept_ != nullptr) return false;
    kept_.reset(message->New());
    kept_->CopyFrom(*message);
    return false;
  }
  over_ = true;
  if (error_ == StreamError::EndOfStream) return true;
  stream_->Cancel();
  return false;
}

void MessageReader::CloseReading() {
  if (!open()) return;
  over_ = true;
  error_ = StreamError::EndOfStream;
  stream_->CloseReading();
}

bool MessageReader::ReadyToRead() const {
  return !open() || (!only_one_ && stream_->ReadyToRead());
}

}  // namespace flare::rpc
