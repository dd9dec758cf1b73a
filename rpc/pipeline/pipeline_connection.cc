#include "flare/rpc/pipeline/pipeline_connection.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/client/client_side.h"

namespace flare::rpc {
namespace {

// A host that is gone is noticed by its kernel's silence, also while nothing
// has to be sent.
constexpr std::chrono::seconds kAskHostAfter{5};
constexpr std::chrono::seconds kAskHostAgainAfter{2};
constexpr std::int64_t kMinHostTimeoutNs = 10'000'000'000;
constexpr std::int64_t kMaxHostTimeoutNs = 900'000'000'000;

io::StreamConnection::Options StreamOptionsOfPipeline() {
  io::StreamConnection::Options options;
  // The reader leaves nothing, unless it is paused.
  options.max_input = 2 * PipelineConnection::kMaxRead;
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

PipelineConnection::PipelineConnection(const Endpoint& peer,
                                       std::unique_ptr<io::Transport> transport,
                                       const Limits& limits, Role role,
                                       std::weak_ptr<Owner> owner)
    : role_(role),
      limits_(limits),
      stream_(io::StreamConnection::Connect(
          peer, fiber::GetCurrentSchedulingGroupIndex(), this,
          StreamOptionsOfPipeline(), std::move(transport))),
      owner_(std::move(owner)) {}

void PipelineConnection::HoldItself() {
  Ref();  // [PX4]
  ConnectionBorn();
}

bool PipelineConnection::closed() const {
  ScopedLock guard(lock_);
  return closed_ || !failure_.ok();
}

flare::Status PipelineConnection::failure() const {
  ScopedLock guard(lock_);
  return failure_;
}

PipelineConnection::Submitted PipelineConnection::Submit(
    PipelineExchange* exchange) {
  bool write = false;
  bool silent = false;
  Submitted submitted;
  {
    ScopedLock guard(lock_);
    submitted = Enqueue(exchange, &write);
    // With a full queue no request comes to Await(), which looks, too.
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

PipelineConnection::Submitted PipelineConnection::Enqueue(
    PipelineExchange* exchange, bool* write) {
  if (closed_ || !failure_.ok()) return Submitted::kClosed;
  if (refuses_) return Submitted::kRefused;
  if (!queue_.empty() &&
      (outstanding_ + exchange->expected > limits_.max_outstanding ||
       outstanding_bytes_ + exchange->size > limits_.max_outstanding_bytes)) {
    return Submitted::kOverloaded;
  }
  outstanding_ += exchange->expected;
  outstanding_bytes_ += exchange->size;
  exchange->Ref();
  queue_.PushBack(exchange);  // [PX1]
  if (first_unsent_ == nullptr) first_unsent_ = exchange;
  *write = !std::exchange(writing_, true);  // [PX2]
  return Submitted::kTaken;
}

bool PipelineConnection::TakeUnsent(Buffer* out) {
  out->Clear();
  const std::int64_t now = NowNs();
  ScopedLock guard(lock_);
  for (auto* each = std::exchange(first_unsent_, nullptr); each != nullptr;
       each = each->next) {
    each->sent = true;
    each->sent_ns = now;
    out->Append(std::move(each->bytes));
  }
  if (out->empty()) writing_ = false;  // [PX2]
  return !out->empty();
}

flare::Status PipelineConnection::Await(PipelineExchange* exchange,
                                        const WaitLimit& limit) {
  if (exchange->done.WaitUntil(limit.stop, limit.at)) return exchange->failure;
  bool silent = false;
  {
    ScopedLock guard(lock_);
    if (exchange->done.IsSet()) return exchange->failure;
    exchange->abandoned = true;  // [PX3]
    silent = IsSilent();
  }
  flare::Status why = limit.Exceeded("waiting for the reply; it may have run",
                                     {PIPELINE_TIMEOUT, PIPELINE_CANCELLED});
  if (silent) CloseAsSilent();
  return why;
}

void PipelineConnection::CloseAsSilent() {
  Close(flare::Status(PIPELINE_CONNECTION_LOST,
                      "the server has sent nothing for max_silence, " +
                          std::to_string(ToNs(limits_.max_silence) / kNsPerMs) +
                          " ms"));
}

bool PipelineConnection::IsSilent() const {
  if (role_ == Role::kSession || queue_.empty()) return false;
  const PipelineExchange* const oldest = queue_.Front();
  const std::int64_t since =
      std::max(oldest->sent_ns, stream_->last_received_ns());
  return oldest->sent && NowNs() - since >= ToNs(limits_.max_silence);
}

void PipelineConnection::Close(const flare::Status& why) {
  {
    ScopedLock guard(lock_);
    if (failure_.ok()) failure_ = why;
  }
  stream_->Close(why);
}

// --- the stream's callbacks --------------------------------------------------

void PipelineConnection::OnConnected() {
  {
    ScopedLock guard(lock_);
    connected_ = true;
  }
  WatchForDeadHost();
  opened_.Set();
}

void PipelineConnection::WatchForDeadHost() {
  // Neither does anything to a Unix socket.
  io::SetKeepAlive(stream_->fd(), kAskHostAfter, kAskHostAgainAfter);
  io::SetTcpUserTimeout(
      stream_->fd(),
      static_cast<int>(std::clamp(ToNs(limits_.max_silence), kMinHostTimeoutNs,
                                  kMaxHostTimeoutNs) /
                       kNsPerMs));
}

PipelineExchange* PipelineConnection::AwaitsReply() const {
  PipelineExchange* const first = queue_.Front();
  return first != nullptr && first->sent ? first : nullptr;
}

RefPtr<PipelineExchange> PipelineConnection::CountReply() {
  PipelineExchange* const first = queue_.Front();
  --outstanding_;
  if (++first->received != first->expected) return nullptr;
  outstanding_bytes_ -= first->size;
  return RefPtr<PipelineExchange>(adopt_ref, queue_.PopFront());  // [PX1]
}

void PipelineConnection::NoteMalformed(const std::string& error) {
  ScopedLock guard(lock_);
  if (failure_.ok()) {
    failure_ =
        flare::Status(PIPELINE_MALFORMED_REPLY, "the server's reply: " + error);
  }
}

void PipelineConnection::OnClosed(const flare::Status& why) {
  const flare::Status failure = NoteEnd(why);  // So nothing is taken any more.
  const std::string& text = failure.message();
  const auto unsent =
      StatusOf(PIPELINE_FAIL_TO_CONNECT, "not sent: ", text, "");
  const auto lost =
      StatusOf(PIPELINE_CONNECTION_LOST, "", text, "; it may have run");
  // Only the request that it is for has a malformed reply.
  const auto of_first =
      failure.code() == PIPELINE_MALFORMED_REPLY
          ? StatusOf(failure.code(), "", text, "; it may have run")
          : lost;
  Queue left;
  {
    ScopedLock guard(lock_);
    closed_ = true;
    first_unsent_ = nullptr;
    for (bool first = true; !queue_.empty(); first = false) {
      PipelineExchange* const exchange = queue_.PopFront();
      exchange->failure = !exchange->sent ? unsent : first ? of_first : lost;
      left.PushBack(exchange);
    }
    OnEnd();
  }
  while (!left.empty()) {
    RefPtr<PipelineExchange> exchange(adopt_ref, left.PopFront());
    exchange->done.Set();
  }
  opened_.Set();
  if (const auto owner = owner_.lock()) owner->OnGone(this, failure);
  ConnectionGone();
  Deref();  // [PX4]
}

flare::Status PipelineConnection::NoteEnd(const flare::Status& why) {
  bool connected = false;
  {
    ScopedLock guard(lock_);
    if (!failure_.ok()) return failure_;
    connected = connected_;
  }
  const flare::Status broke =
      connected ? StatusOf(PIPELINE_CONNECTION_LOST,
                           "the connection broke: ", why.message(), "")
                : StatusOf(PIPELINE_FAIL_TO_CONNECT, "", why.message(), "");
  ScopedLock guard(lock_);
  if (failure_.ok()) failure_ = broke;
  return failure_;
}

}  // namespace flare::rpc
