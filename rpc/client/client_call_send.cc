// The issuer's part of an attempt: finds a connection for the request and hands
// it over, or ends the attempt. client_call.cc has the rules of access.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/client/client_call.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

// How long WaitForRoom() waits before it looks whether the call has ended
// (cancelled, say): at first, and at most, as thousands of calls may wait.
constexpr std::int64_t kMinWaitSliceNs = 5'000'000;
constexpr std::int64_t kMaxWaitSliceNs = 80'000'000;

io::WriteResult SendOn(ClientConnection* connection, Buffer* bytes) {
  if (connection->OutputIsFull()) [[unlikely]] {
    return io::WriteResult::kOverLimit;
  }
  return connection->Send(std::move(*bytes));
}

}  // namespace

bool ClientCall::WaitsForReady() const {
  return controller_->wait_for_ready_set_ ? controller_->wait_for_ready_
                                          : route_->settings().wait_for_ready;
}

// Until when it may wait for the next attempt to connect.
std::int64_t ClientCall::Patience() const {
  return WaitsForReady() ? std::numeric_limits<std::int64_t>::max()
                         : deadline_ns_;
}

void ClientCall::SendRequest() {
  const std::int64_t now = NowNs();
  if (deadline_ns_ <= now) [[unlikely]]
    return FailTooLate();
  // A connection may close between Acquire and Insert; nothing was sent yet.
  for (int closed = 0;;) {
    auto connection = route_->Acquire(route_->connection_kind(),
                                      controller_->last_connection_, Patience(),
                                      controller_->balancing_key(), &choice_);
    if (!connection) {
      if (UseFailOver(connection.error().code())) continue;
      return FailUnsent(std::move(connection).error());
    }
    connection_ = *connection;
    if (!connection_->established()) [[unlikely]]
      KeepParts();
    id_ = connection_->calls().Insert(this);
    if (id_ != 0) break;
    if (!connection_->calls().closed() || ++closed == 3) return FailRefused();
    connection_->CloseIfThrough();  // This call may have kept it.
    std::exchange(connection_, nullptr)->Release(/*clean=*/false);
  }
  controller_->last_connection_ = connection_;
  controller_->remote_peer_ = connection_->peer();
  connection_->ExpectWait(deadline_ns_ - now);
  timer_armed_ = true;
  fiber::ArmTimer(this, deadline_ns_);
  if (!controller_->BeginAttempt(this)) {
    return FailAttempt(Outcome::kCancelled, {});
  }
  flare::Status status = WriteRequest(now);
  if (!status.ok()) FailAttempt(Outcome::kFailed, std::move(status));
}

// For another connection, if this one can't be made.
void ClientCall::KeepParts() {
  kept_ = true;
  body_ = std::move(body_).ToBuffer();
  if (!route_kept_) KeepRoute();
}

// The failures are functions of their own, which aren't inlined, since their
// texts would take most of the frame of SendRequest(). That lies on the stack
// of a fiber, and the fewer cache lines that takes, the better.
void ClientCall::FailTooLate() {
  FailAttempt(Outcome::kFailed, TooLateStatus());
}

flare::Status ClientCall::TooLateStatus() const {
  return flare::Status(STATUS_TIMEOUT,
                       "the deadline had passed before the request to " +
                           std::string(method_->full_name()) + " was sent");
}

void ClientCall::FailRefused() {
  if (!connection_->calls().closed()) {
    return FailUnsent(flare::Status(
        STATUS_OVERLOADED, "too many calls wait on the connection to " +
                               connection_->peer().ToString()));
  }
  flare::Status why = connection_->close_reason();
  if (why.ok()) {  // It isn't closed yet.
    why = flare::Status(
        STATUS_FAIL_TO_CONNECT,
        connection_->peer().ToString() + " stops, and takes no further calls");
  }
  FailUnsent(std::move(why));
}

// Before BeginAttempt(), which looks whether the call has been cancelled.
void ClientCall::FailUnsent(flare::Status why) {
  // acquire: the canceller's earlier changes are visible where the outcome is;
  // pairs with the store in StartCancel.
  const bool cancelled =
      controller_->cancel_requested_.load(std::memory_order_acquire);
  FailAttempt(cancelled ? Outcome::kCancelled : Outcome::kFailed,
              std::move(why));
}

flare::Status ClientCall::Send(Buffer bytes) {
  if (SendOn(connection_, &bytes) == io::WriteResult::kOverLimit) [[unlikely]] {
    return SendWithRoom(std::move(bytes));  // Nothing was taken.
  }
  return {};  // Queued; or closed, and the closing ends the call.
}

// Sends the bytes that Send() couldn't, as too much output is waiting: callers
// that block wait, others fail.
flare::Status ClientCall::SendWithRoom(Buffer bytes) {
  controller_->sent_ns_ = 0;
  // Only callers that block anyway can wait until the server takes more.
  if (done_ != nullptr) {
    return flare::Status(
        STATUS_OVERLOADED,
        "too many bytes wait to be sent to " + connection_->peer().ToString());
  }
  for (;;) {
    switch (WaitForRoom()) {
      case WaitEnd::kRoom:
        break;
      case WaitEnd::kEnded:
        return {};
      case WaitEnd::kTimedOut:
        return TimeoutStatus();
    }
    const std::int64_t now = NowNs();
    if (SendOn(connection_, &bytes) != io::WriteResult::kOverLimit) {
      controller_->sent_ns_ = now;
      return {};  // As in Send.
    }
  }
}

// A completer can't end the waiting, so it is interrupted to look for one.
ClientCall::WaitEnd ClientCall::WaitForRoom() {
  for (std::int64_t slice = kMinWaitSliceNs;;
       slice = std::min(2 * slice, kMaxWaitSliceNs)) {
    const std::int64_t now = NowNs();
    if (now >= deadline_ns_) return WaitEnd::kTimedOut;
    const auto result =
        connection_->WaitWritable(std::min(deadline_ns_, now + slice));
    // The closing ends the call.
    if (OtherHasLetGo() || result == io::RoomResult::kClosed) {
      return WaitEnd::kEnded;
    }
    if (result == io::RoomResult::kRoom) return WaitEnd::kRoom;
  }
}

}  // namespace flare::rpc
