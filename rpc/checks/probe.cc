#include "flare/rpc/checks/probe.h"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/checks/check_dialogue.h"
#include "flare/rpc/checks/server_check.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {
namespace {

using std::chrono::steady_clock;

// The largest answer that is read in one piece.
constexpr std::size_t kMaxInput = 2 << 20;

constexpr auto kFullBacklogPause = std::chrono::milliseconds(10);

flare::Status ProbeIsDone() { return flare::Status(ESHUTDOWN, "checked"); }

flare::Status ProbeIsStopped() {
  return flare::Status(ECANCELED, "the check was stopped");
}

std::string InMilliseconds(std::chrono::nanoseconds time) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(time);
  return std::to_string(ms.count()) + "ms";
}

// One connection of a check.
class Probe final : public io::StreamHandler, public StreamOutput {
 public:
  // `dialogue`: null if connecting is the whole check.
  Probe(const ServerCheck& check, std::unique_ptr<CheckDialogue> dialogue)
      : check_(check), dialogue_(std::move(dialogue)) {}

  flare::Status Run(const std::stop_token& stop,
                    steady_clock::time_point deadline) {
    std::unique_ptr<io::Transport> transport;
    if (check_.tls != nullptr) {
      transport = check_.tls->NewTransport(
          check_.host, check_.host + ' ' + check_.endpoint.ToString());
      if (transport == nullptr) {
        return flare::Status(EINVAL,
                             "TLS: there is no host name to verify, or no "
                             "memory");
      }
    }
    io::StreamConnection::Options options;
    options.max_input = kMaxInput;
    connection_ = io::StreamConnection::Connect(
        check_.endpoint, fiber::GetCurrentSchedulingGroupIndex(), this, options,
        std::move(transport));
    connection_->Start();
    if (!closed_.WaitUntil(stop, deadline)) {
      connection_->Close(
          stop.stop_requested()
              ? ProbeIsStopped()
              : flare::Status(ETIMEDOUT,
                              "nothing within " +
                                  InMilliseconds(check_.options.timeout)));
      closed_.Wait();
    }
    return result_;
  }

  void OnConnected() override {
    if (dialogue_ == nullptr) return EndConnected();
    BufferBuilder out;
    asked_ = true;
    if (flare::Status status = dialogue_->Ask(this, &out); !status.ok()) {
      return Decide(flare::Status(EPROTO, status.message()));
    }
    if (Buffer bytes = out.DestructiveGet(); !bytes.empty()) {
      (void)connection_->Write(std::move(bytes));
    }
  }

  bool OnData(Buffer& in, std::size_t* need, std::string*) override {
    if (!decided_ && dialogue_ != nullptr) {
      if (auto outcome = dialogue_->OnData(in, need)) {
        Decide(*std::move(outcome));
      }
    }
    if (decided_) in.Clear();
    return true;
  }

  void OnClosed(const flare::Status& why) override {
    if (!decided_) {
      result_ = why.code() == ESHUTDOWN
                    ? flare::Status(EPROTO, "closed without an answer")
                    : why;
    }
    if (asked_) dialogue_->OnClosed(why);
    closed_.Set();
  }

  // StreamOutput.
  bool WriteSoon(Buffer&& bytes) override {
    return connection_->Write(std::move(bytes)) == io::WriteResult::kOk;
  }
  void Abort(const flare::Status& why) override { connection_->Close(why); }
  void HoldInput() override {}
  void ReleaseInput() override {}

 private:
  void EndConnected() {
    decided_ = true;
    if (check_.first_bytes.empty()) return connection_->Close(ProbeIsDone());
    WriteSoon(CreateBufferSlow(check_.first_bytes));
    connection_->CloseAfterFlush(ProbeIsDone());
  }

  void Decide(flare::Status result) {
    decided_ = true;
    result_ = std::move(result);
    connection_->Close(ProbeIsDone());
  }

  const ServerCheck& check_;
  const std::unique_ptr<CheckDialogue> dialogue_;
  RefPtr<io::StreamConnection> connection_;
  bool asked_ = false;
  bool decided_ = false;  // result_ is about the server.
  flare::Status result_;
  fiber::Event closed_;
};

// Does `check` on one connection.
flare::Status CheckOnce(const ServerCheck& check, const std::stop_token& stop,
                        steady_clock::time_point deadline) {
  std::unique_ptr<CheckDialogue> dialogue;
  switch (check.options.kind) {
    case HealthCheckKind::kNone:
    case HealthCheckKind::kConnect:
      break;
    case HealthCheckKind::kHttp:
      dialogue = NewHttpDialogue(check);
      break;
    case HealthCheckKind::kGrpc:
    case HealthCheckKind::kCall: {
      auto made = NewCallDialogue(check);
      if (!made) return flare::Status(EPROTO, made.error().message());
      dialogue = *std::move(made);
      break;
    }
  }
  return Probe(check, std::move(dialogue)).Run(stop, deadline);
}

}  // namespace

flare::Status CheckServer(const ServerCheck& check,
                          const std::stop_token& stop) {
  if (stop.stop_requested()) return ProbeIsStopped();
  const auto deadline = ReadSteadyClock() + check.options.timeout;
  for (;;) {
    flare::Status status;
    try {
      status = CheckOnce(check, stop, deadline);
    } catch (const std::bad_alloc&) {
      return flare::Status(ENOMEM);
    }
    // The backlog of a Unix socket is full: no event tells when it isn't.
    if (status.code() != EAGAIN ||
        ReadSteadyClock() + kFullBacklogPause >= deadline) {
      return status;
    }
    if (!this_fiber::SleepFor(stop, kFullBacklogPause)) return ProbeIsStopped();
  }
}

bool IsShortage(int code) {
  return code == EMFILE || code == ENFILE || code == ENOBUFS ||
         code == ENOMEM || code == ENOSPC;
}

}  // namespace flare::rpc
