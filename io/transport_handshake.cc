#include "flare/io/transport_handshake.h"

#include <cerrno>
#include <cstdint>
#include <string>

#include "flare/base/clock.h"
#include "flare/base/status.h"
#include "flare/fiber/long_task.h"
#include "flare/io/transport.h"

namespace flare::io {

std::unique_ptr<TransportHandshake> TransportHandshake::Begin(
    StreamSocket* socket, fiber::Task* step) {
  const std::int64_t timeout_ns = socket->transport()->handshake_timeout_ns();
  if (timeout_ns <= 0) return nullptr;
  std::unique_ptr<TransportHandshake> self(
      new TransportHandshake(socket, step));
  if (self->all_ != nullptr) self->all_->Begin(self.get());
  socket->Ref();  // The timer's [SC8].
  fiber::ArmTimer(self.get(), SaturatingAdd(NowNs(), timeout_ns));
  return self;
}

TransportHandshake::TransportHandshake(StreamSocket* socket, fiber::Task* step)
    : socket_(socket), step_(step), all_(socket->transport()->handshakes()) {
  set_callback(&TransportHandshake::OnTimeout);
}

bool TransportHandshake::BeginStep() {
  if (all_ == nullptr || has_turn_) return true;
  has_turn_ = true;  // When this or another task has the role.
  return all_->BeginStep(this) && !fiber::SubmitLast(step_);
}

void TransportHandshake::EndStep() {
  if (all_ == nullptr) return;
  has_turn_ = false;
  all_->EndStep();
}

void TransportHandshake::End() noexcept {
  if (all_ != nullptr) {
    if (has_turn_) all_->EndStep();  // The step came to nothing.
    all_->End(this);
  }
  if (fiber::CancelTimer(this)) socket_->Deref();  // [SC8]
}

void TransportHandshake::OnTurn() {
  // Called after the step of another one.
  fiber::SubmitToLast(socket_->group(), step_);  // [SC9]
}

std::function<void()> TransportHandshake::MakeWay() {
  StreamSocket* const socket = socket_;
  socket->Ref();
  return [socket] {
    socket->Close(Status::Lenient(
        ECONNABORTED,
        "TLS: the handshake made way for a newer one (max_handshakes)"));
    socket->Deref();
  };
}

void TransportHandshake::OnTimeout(fiber::Timer* timer) {
  StreamSocket* const socket = static_cast<TransportHandshake*>(timer)->socket_;
  const std::int64_t timeout_ns = socket->transport()->handshake_timeout_ns();
  socket->Close(Status::Lenient(
      ETIMEDOUT, "TLS: the handshake took longer than " +
                     std::to_string(timeout_ns / kNsPerMs) + " ms"));
  socket->Deref();
}

}  // namespace flare::io
