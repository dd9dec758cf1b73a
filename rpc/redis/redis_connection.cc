#include "flare/rpc/redis/redis_connection.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/client/client_side.h"

namespace flare::rpc {
namespace {

// A long string is read in pieces of up to this size.
constexpr std::size_t kMaxRedisRead = 1 << 20;

// A host that is gone is noticed by its kernel's silence, also while nothing
// has to be sent.
constexpr std::chrono::seconds kAskRedisAfter{5};
constexpr std::chrono::seconds kAskRedisAgainAfter{2};
constexpr std::int64_t kMinRedisTimeoutNs = 10'000'000'000;
constexpr std::int64_t kMaxRedisTimeoutNs = 900'000'000'000;

io::StreamConnection::Options StreamOptionsOfRedis() {
  io::StreamConnection::Options options;
  // The reader leaves nothing, unless it is paused.
  options.max_input = 2 * kMaxRedisRead;
  options.refuse_writes = false;  // max_outstanding_bytes is the limit.
  return options;
}

// Without a text if there is no memory for it.
flare::Status StatusOf(int code, std::string_view before, std::string_view text,
                       std::string_view after) noexcept {
  try {
    std::string whole(before);
    whole.append(text).append(after);
    return flare::Status(code, std::move(whole));
  } catch (const std::bad_alloc&) {
    return flare::Status(code);
  }
}

}  // namespace

// --- the user ----------------------------------------------------------------

RefPtr<RedisConnection> RedisConnection::Make(
    const Endpoint& peer, std::unique_ptr<io::Transport> transport,
    const RedisClientOptions& options, Role role, std::weak_ptr<Owner> owner) {
  RefPtr<RedisConnection> made(
      adopt_ref, new RedisConnection(peer, std::move(transport), options, role,
                                     std::move(owner)));
  made->Ref();  // [RX6]
  ConnectionBorn();
  return made;
}

RedisConnection::RedisConnection(const Endpoint& peer,
                                 std::unique_ptr<io::Transport> transport,
                                 const RedisClientOptions& options, Role role,
                                 std::weak_ptr<Owner> owner)
    : owner_(std::move(owner)),
      role_(role),
      max_outstanding_(options.max_outstanding),
      max_outstanding_bytes_(options.max_outstanding_bytes),
      max_unread_(std::max<std::size_t>(1, options.max_unread_messages)),
      max_unread_bytes_(std::max<std::size_t>(1, options.max_reply_size)),
      max_silence_ns_(ToNs(options.max_silence)),
      stream_(io::StreamConnection::Connect(
          peer, fiber::GetCurrentSchedulingGroupIndex(), this,
          StreamOptionsOfRedis(), std::move(transport))),
      reader_({.max_size = options.max_reply_size,
               .max_depth = options.max_reply_depth}) {}

bool RedisConnection::closed() const {
  ScopedLock guard(lock_);
  return closed_ || !failure_.ok();
}

flare::Status RedisConnection::failure() const {
  ScopedLock guard(lock_);
  return failure_;
}

RedisConnection::Submitted RedisConnection::Submit(RedisExchange* exchange) {
  bool write = false;
  bool silent = false;
  Submitted submitted;
  {
    ScopedLock guard(lock_);
    submitted = Enqueue(exchange, &write);
    // With a full queue no command comes to Await(), which looks, too.
    silent = submitted == Submitted::kOverloaded && IsSilent();
  }
  if (silent) {
    CloseAsSilent();
    return Submitted::kClosed;
  }
  if (!write) return submitted;
  Buffer out;
  // If it is closed OnClosed() is to come, or has been here.
  while (TakeUnsent(&out)) static_cast<void>(stream_->Write(std::move(out)));
  return submitted;
}

RedisConnection::Submitted RedisConnection::Enqueue(RedisExchange* exchange,
                                                    bool* write) {
  if (closed_ || !failure_.ok()) return Submitted::kClosed;
  if (subscribed_) return Submitted::kSubscribed;
  if (!queue_.empty() &&
      (outstanding_ + exchange->expected > max_outstanding_ ||
       outstanding_bytes_ + exchange->size > max_outstanding_bytes_)) {
    return Submitted::kOverloaded;
  }
  outstanding_ += exchange->expected;
  outstanding_bytes_ += exchange->size;
  exchange->Ref();
  queue_.PushBack(exchange);  // [RX1]
  if (first_unsent_ == nullptr) first_unsent_ = exchange;
  *write = !std::exchange(writing_, true);  // [RX2]
  return Submitted::kTaken;
}

bool RedisConnection::TakeUnsent(Buffer* out) {
  out->Clear();
  const std::int64_t now = NowNs();
  ScopedLock guard(lock_);
  for (auto* each = std::exchange(first_unsent_, nullptr); each != nullptr;
       each = each->next) {
    each->sent = true;
    each->sent_ns = now;
    out->Append(std::move(each->bytes));
  }
  if (out->empty()) writing_ = false;  // [RX2]
  return !out->empty();
}

flare::Status RedisConnection::Await(RedisExchange* exchange,
                                     const WaitLimit& limit) {
  if (exchange->done.WaitUntil(limit.stop, limit.at)) return exchange->failure;
  bool silent = false;
  {
    ScopedLock guard(lock_);
    if (exchange->done.IsSet()) return exchange->failure;
    exchange->abandoned = true;  // [RX3]
    silent = IsSilent();
  }
  flare::Status why = limit.Exceeded("waiting for the reply; it may have run",
                                     {REDIS_TIMEOUT, REDIS_CANCELLED});
  if (silent) CloseAsSilent();
  return why;
}

void RedisConnection::CloseAsSilent() {
  Close(flare::Status(REDIS_CONNECTION_LOST,
                      "the server has sent nothing for max_silence, " +
                          std::to_string(max_silence_ns_ / kNsPerMs) + " ms"));
}

bool RedisConnection::IsSilent() const {
  if (role_ == Role::kSession || queue_.empty()) return false;
  const RedisExchange* const oldest = queue_.Front();
  const std::int64_t since =
      std::max(oldest->sent_ns, stream_->last_received_ns());
  return oldest->sent && NowNs() - since >= max_silence_ns_;
}

flare::Status RedisConnection::Subscribe(Buffer bytes) {
  {
    ScopedLock guard(lock_);
    if (closed_) return failure_;
    if (!queue_.empty()) {
      return flare::Status(REDIS_INVALID_COMMAND,
                           "can't subscribe while another command waits for "
                           "its reply");
    }
    if (stream_->BufferedOutput() > max_outstanding_bytes_) {
      return flare::Status(REDIS_OVERLOADED,
                           "the server doesn't take the commands "
                           "(max_outstanding_bytes)");
    }
    subscribed_ = true;
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
          stream_->ResumeReading();  // [RX5]
        }
        return message;
      }
      if (closed_) return failure_;
      receiver_ = &changed;
    }
    if (changed.WaitUntil(limit.stop, limit.at)) continue;
    ScopedLock guard(lock_);
    if (receiver_ == nullptr) continue;  // It has just come.
    receiver_ = nullptr;                 // [RX4]
    return limit.Exceeded("waiting for a message",
                          {REDIS_TIMEOUT, REDIS_CANCELLED});
  }
}

void RedisConnection::Close(const flare::Status& why) {
  {
    ScopedLock guard(lock_);
    if (failure_.ok()) failure_ = why;
  }
  stream_->Close(why);
}

// --- the stream's callbacks --------------------------------------------------

void RedisConnection::NotifyReceiver() {
  if (receiver_ != nullptr) std::exchange(receiver_, nullptr)->Set();  // [RX4]
}

void RedisConnection::OnConnected() {
  {
    ScopedLock guard(lock_);
    connected_ = true;
  }
  WatchForDeadHost();
  opened_.Set();
}

void RedisConnection::WatchForDeadHost() {
  // Neither does anything to a Unix socket.
  io::SetKeepAlive(stream_->fd(), kAskRedisAfter, kAskRedisAgainAfter);
  io::SetTcpUserTimeout(
      stream_->fd(),
      static_cast<int>(
          std::clamp(max_silence_ns_, kMinRedisTimeoutNs, kMaxRedisTimeoutNs) /
          kNsPerMs));
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
        *need = std::min(reader_.expected(), kMaxRedisRead);
        return true;
      case RespReader::Result::kFailed: {
        *error = reader_.failure();
        ScopedLock guard(lock_);
        if (failure_.ok()) {
          failure_ = flare::Status(REDIS_MALFORMED_REPLY,
                                   "the server's reply: " + *error);
        }
        return false;
      }
    }
  }
  return true;
}

bool RedisConnection::TakeReply(RedisReply reply, std::string* error) {
  RefPtr<RedisExchange> complete;
  {
    ScopedLock guard(lock_);
    if (subscribed_ || reply.kind() == RedisReply::Kind::kPush) {
      TakeMessage(std::move(reply));
      return true;
    }
    RedisExchange* const first = queue_.Front();
    if (first == nullptr || !first->sent) {
      *error = "it has sent what no command asked for";
      // "ERR max number of clients reached"
      if (reply.is_error()) *error += ": " + reply.text();
      return false;
    }
    --outstanding_;
    const bool last = ++first->received == first->expected;
    if (!first->abandoned) {  // [RX3]
      if (last) {
        first->last = std::move(reply);
      } else {
        first->earlier.push_back(std::move(reply));
      }
    }
    if (!last) return true;
    outstanding_bytes_ -= first->size;
    complete = RefPtr<RedisExchange>(adopt_ref, queue_.PopFront());  // [RX1]
  }
  complete->done.Set();
  return true;
}

void RedisConnection::TakeMessage(RedisReply message) {
  if (role_ == Role::kShared) return;  // Nobody has subscribed.
  const std::size_t size = reader_.reply_size();
  messages_.push_back({std::move(message), size});
  unread_bytes_ += size;
  if (HasManyUnread() && !paused_) {
    paused_ = true;
    stream_->PauseReading();  // [RX5]
  }
  NotifyReceiver();
}

void RedisConnection::OnClosed(const flare::Status& why) {
  const flare::Status failure = NoteEnd(why);  // So nothing is taken any more.
  const std::string& text = failure.message();
  const auto unsent = StatusOf(REDIS_FAIL_TO_CONNECT, "not sent: ", text, "");
  const auto lost =
      StatusOf(REDIS_CONNECTION_LOST, "", text, "; it may have run");
  // Only the command that it is for has a malformed reply.
  const auto of_first =
      failure.code() == REDIS_MALFORMED_REPLY
          ? StatusOf(failure.code(), "", text, "; it may have run")
          : lost;
  Queue left;
  {
    ScopedLock guard(lock_);
    closed_ = true;
    first_unsent_ = nullptr;
    for (bool first = true; !queue_.empty(); first = false) {
      RedisExchange* const exchange = queue_.PopFront();
      exchange->failure = !exchange->sent ? unsent : first ? of_first : lost;
      left.PushBack(exchange);
    }
    NotifyReceiver();
  }
  while (!left.empty()) {
    RefPtr<RedisExchange> exchange(adopt_ref, left.PopFront());
    exchange->done.Set();
  }
  opened_.Set();
  if (const auto owner = owner_.lock()) owner->OnGone(this, failure);
  ConnectionGone();
  Deref();  // [RX6]
}

flare::Status RedisConnection::NoteEnd(const flare::Status& why) {
  bool connected = false;
  {
    ScopedLock guard(lock_);
    if (!failure_.ok()) return failure_;
    connected = connected_;
  }
  const flare::Status broke =
      connected ? StatusOf(REDIS_CONNECTION_LOST,
                           "the connection broke: ", why.message(), "")
                : StatusOf(REDIS_FAIL_TO_CONNECT, "", why.message(), "");
  ScopedLock guard(lock_);
  if (failure_.ok()) failure_ = broke;
  return failure_;
}

}  // namespace flare::rpc
