#include "flare/rpc/redis/redis_connection.h"

#include <algorithm>
#include <utility>

namespace flare::rpc {

// --- the user ----------------------------------------------------------------

RefPtr<RedisConnection> RedisConnection::Make(
    const Endpoint& peer, std::unique_ptr<io::Transport> transport,
    const RedisClientOptions& options, Role role, std::weak_ptr<Owner> owner) {
  RefPtr<RedisConnection> made(
      adopt_ref, new RedisConnection(peer, std::move(transport), options, role,
                                     std::move(owner)));
  made->HoldItself();
  return made;
}

RedisConnection::RedisConnection(const Endpoint& peer,
                                 std::unique_ptr<io::Transport> transport,
                                 const RedisClientOptions& options, Role role,
                                 std::weak_ptr<Owner> owner)
    : PipelineConnection(
          peer, std::move(transport),
          {.max_outstanding = options.max_outstanding,
           .max_outstanding_bytes = options.max_outstanding_bytes,
           .max_silence = options.max_silence},
          role, std::move(owner)),
      max_unread_(std::max<std::size_t>(1, options.max_unread_messages)),
      max_unread_bytes_(std::max<std::size_t>(1, options.max_reply_size)),
      reader_({.max_size = options.max_reply_size,
               .max_depth = options.max_reply_depth}) {}

flare::Status RedisConnection::Subscribe(Buffer bytes) {
  {
    ScopedLock guard(lock_);
    if (closed_) return failure_;
    if (!queue_.empty()) {
      return flare::Status(REDIS_INVALID_COMMAND,
                           "can't subscribe while another command waits for "
                           "its reply");
    }
    if (stream_->BufferedOutput() > limits_.max_outstanding_bytes) {
      return flare::Status(REDIS_OVERLOADED,
                           "the server doesn't take the commands "
                           "(max_outstanding_bytes)");
    }
    refuses_ = true;
  }
  if (stream_->Write(std::move(bytes)) == io::WriteResult::kOk) return {};
  return flare::Status(REDIS_CONNECTION_LOST, "the connection is closed");
}

Expected<RedisReply, flare::Status> RedisConnection::Receive(
    const WaitLimit& limit) {
  for (;;) {
    fiber::Event changed;
    {
      ScopedLock guard(lock_);
      if (!messages_.empty()) {
        RedisReply message = std::move(messages_.front().reply);
        unread_bytes_ -= messages_.front().size;
        messages_.pop_front();
        if (paused_ && !HasManyUnread()) {
          paused_ = false;
          stream_->ResumeReading();  // [RX2]
        }
        return message;
      }
      if (closed_) return failure_;
      receiver_ = &changed;
    }
    if (changed.WaitUntil(limit.stop, limit.at)) continue;
    ScopedLock guard(lock_);
    if (receiver_ == nullptr) continue;  // It has just come.
    receiver_ = nullptr;                 // [RX1]
    return limit.Exceeded("waiting for a message",
                          {REDIS_TIMEOUT, REDIS_CANCELLED});
  }
}

// --- the stream's callbacks --------------------------------------------------

void RedisConnection::NotifyReceiver() {
  if (receiver_ != nullptr) std::exchange(receiver_, nullptr)->Set();  // [RX1]
}

bool RedisConnection::paused() const {
  ScopedLock guard(lock_);
  return paused_;
}

bool RedisConnection::OnData(Buffer& in, std::size_t* need,
                             std::string* error) {
  RedisReply reply;
  while (!paused()) {
    switch (reader_.Read(&in, &reply)) {
      case RespReader::Result::kReply:
        if (!TakeReply(std::move(reply), error)) return false;
        break;
      case RespReader::Result::kNeedMore:
        *need = std::min(reader_.expected(), kMaxRead);
        return true;
      case RespReader::Result::kFailed:
        *error = reader_.failure();
        NoteMalformed(*error);
        return false;
    }
  }
  return true;
}

bool RedisConnection::TakeReply(RedisReply reply, std::string* error) {
  RefPtr<PipelineExchange> complete;
  {
    ScopedLock guard(lock_);
    if (refuses_ || reply.kind() == RedisReply::Kind::kPush) {
      TakeMessage(std::move(reply));
      return true;
    }
    auto* const first = static_cast<RedisExchange*>(AwaitsReply());
    if (first == nullptr) {
      *error = "it has sent what no command asked for";
      // "ERR max number of clients reached"
      if (reply.is_error()) *error += ": " + reply.text();
      return false;
    }
    if (!first->abandoned) {  // [PX3]
      if (first->received + 1 == first->expected) {
        first->last = std::move(reply);
      } else {
        first->earlier.push_back(std::move(reply));
      }
    }
    complete = CountReply();
  }
  if (complete != nullptr) complete->done.Set();
  return true;
}

void RedisConnection::TakeMessage(RedisReply message) {
  if (role_ == Role::kShared) return;  // Nobody has subscribed.
  const std::size_t size = reader_.reply_size();
  messages_.push_back({std::move(message), size});
  unread_bytes_ += size;
  if (HasManyUnread() && !paused_) {
    paused_ = true;
    stream_->PauseReading();  // [RX2]
  }
  NotifyReceiver();
}

}  // namespace flare::rpc
