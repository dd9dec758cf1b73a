#include "example/rpc/http_connection.h"

#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "flare/fiber/timer.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/start/flags.h"

namespace example {
namespace {

flare::rpc::Limits LimitsFromFlags() {
  return {.max_packet_size =
              flare::rpc::ClientDefaultsFromFlags().max_packet_size};
}

flare::io::StreamConnection::Options StreamOptions() {
  // More than the protocol refuses by itself.
  flare::io::StreamConnection::Options options;
  options.max_input = LimitsFromFlags().max_packet_size + 65536;
  return options;
}

}  // namespace

HttpConnection::HttpConnection(const flare::Endpoint& peer, std::size_t group,
                               Waiter* waiter,
                               std::unique_ptr<flare::io::Transport> transport)
    : flare::fiber::Timer([](Timer* timer) {
        static_cast<HttpConnection*>(timer)->stream_->Close(
            flare::Status(ETIMEDOUT, "no reply until the deadline"));
      }),
      waiter_(waiter),
      stream_(flare::io::StreamConnection::Connect(
          peer, group, this, StreamOptions(), std::move(transport))),
      reader_(LimitsFromFlags()) {}

HttpConnection::~HttpConnection() = default;

bool HttpConnection::Send(const flare::Buffer& request,
                          std::int64_t deadline_ns) {
  // The request may end, and this and the owner's `request` with it, before
  // Write() has returned.
  flare::Buffer bytes(request);
  flare::RefPtr<flare::io::StreamConnection> stream;
  bool first = false;
  {
    flare::ScopedLock guard(lock_);
    if (closed_) return false;  // [HC4]
    stream = stream_;
    first = !std::exchange(started_, true);
    waiting_ = true;
    flare::fiber::ArmTimer(this, deadline_ns);  // [HC3]
  }
  // Whatever it returns: if the stream is closed, OnClosed() is to come.
  static_cast<void>(stream->Write(std::move(bytes)));
  if (first) stream->Start();
  return true;
}

void HttpConnection::Release() {
  // acq_rel: every use happens before the destruction [HC1].
  if (users_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void HttpConnection::CloseAndRelease() {
  stream_->Close(flare::Status(ECANCELED, "not needed any more"));
  gone_.Wait();
  Release();
}

void HttpConnection::OnConnected() { connected_ = true; }

bool HttpConnection::OnData(flare::Buffer& in, std::size_t* need,
                            std::string* error) {
  using flare::rpc::CutResult;
  flare::rpc::HttpHead head;
  switch (reader_.Read(in, &scratch_, &head, need, error)) {
    case CutResult::kMessage:
      break;
    case CutResult::kNeedMore:
      return true;
    default:
      return false;
  }
  if (reader_.too_large()) {
    *error = reader_.TooLarge();
    return false;
  }
  HttpReply reply;
  reply.status = head.status;
  reply.reason = head.reason;
  bool last = head.close || (head.minor_version == 0 && !head.keep_alive);
  reader_.Take(in, &reply.body);
  {
    flare::ScopedLock guard(lock_);
    // Too late, or never asked for: the connection isn't used any more [HC4].
    last = last || !in.empty() || !waiting_ || !flare::fiber::CancelTimer(this);
    if (!last) waiting_ = false;
  }
  if (last) {
    last_reply_ = std::move(reply);
    has_last_reply_ = true;
    error->assign("no more is sent over it after this reply");
    return false;
  }
  waiter_->OnReply(std::move(reply));
  return true;
}

flare::Status HttpConnection::Failure(const flare::Status& why) const {
  using namespace flare::rpc;  // NOLINT: its status codes.
  const std::string peer = stream_->remote_endpoint().ToString();
  if (why.code() == ETIMEDOUT) {
    return flare::Status(STATUS_TIMEOUT, peer + ": " + why.message());
  }
  if (!connected_) return flare::Status(STATUS_FAIL_TO_CONNECT, why.message());
  return flare::Status(STATUS_IO_ERROR,
                       "connection to " + peer + " broke: " + why.message());
}

void HttpConnection::OnClosed(const flare::Status& why) {
  bool waiting = false;
  {
    flare::ScopedLock guard(lock_);
    closed_ = true;
    waiting = std::exchange(waiting_, false);
    // It isn't armed any more when this returns, fired or not [HC3].
    if (waiting) static_cast<void>(flare::fiber::CancelTimer(this));
  }
  if (waiting) {
    HttpReply reply;
    if (has_last_reply_) {
      reply = std::move(last_reply_);
    } else {
      reply.failure = Failure(why);
    }
    waiter_->OnReply(std::move(reply));
  }
  gone_.Set();
  Release();  // [HC1]
}

}  // namespace example
