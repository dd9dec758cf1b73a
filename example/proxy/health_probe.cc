#include "example/proxy/health_probe.h"

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <utility>

#include "example/proxy/config_value.h"
#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/ref_ptr.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/stream_connection.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http/http_recognition.h"
#include "flare/rpc/http/http_text.h"

namespace example::proxy {
namespace {

using flare::Status;

// More than any status line or head of an interim response needs.
constexpr std::size_t kMaxHead = 16 << 10;

constexpr auto kFullBacklogPause = std::chrono::milliseconds(10);

std::string HttpRequestText(const HealthCheckConfig& config,
                            const std::string& name) {
  std::string host = config.host;
  if (host.empty()) {
    // Without the address that tells those of one name apart.
    host = flare::rpc::HttpHostOf(
        name.starts_with("unix:") ? name : name.substr(0, name.find('@')));
  }
  return "GET " + config.path + " HTTP/1.1\r\nHost: " + host +
         "\r\nUser-Agent: flare-tcp_proxy\r\nAccept: */*\r\n"
         "Connection: close\r\n\r\n";
}

class Probe : public flare::io::StreamHandler {
 public:
  Probe(const HealthCheckConfig& config, std::string first_bytes)
      : config_(config), first_bytes_(std::move(first_bytes)) {}

  Status Run(const flare::Endpoint& address, const std::stop_token& stop,
             std::chrono::steady_clock::time_point deadline) {
    flare::io::StreamConnection::Options options;
    options.max_input = 4 * kMaxHead;
    connection_ = flare::io::StreamConnection::Connect(
        address, flare::fiber::GetCurrentSchedulingGroupIndex(), this, options);
    connection_->Start();
    if (!closed_.WaitUntil(stop, deadline)) {
      connection_->Close(
          stop.stop_requested()
              ? Status(ECANCELED, "the check was stopped")
              : Status(ETIMEDOUT,
                       "nothing within " + FormatDuration(config_.timeout)));
      closed_.Wait();
    }
    return result_;
  }

  void OnConnected() override {
    const bool is_http = config_.type == HealthCheckConfig::Type::kHttp;
    if (!first_bytes_.empty()) {
      (void)connection_->Write(flare::CreateBufferSlow(first_bytes_));
    }
    if (is_http) return;
    decided_ = true;
    if (first_bytes_.empty()) {
      connection_->Close(Checked());
    } else {
      connection_->CloseAfterFlush(Checked());
    }
  }

  bool OnData(flare::Buffer& in, std::size_t*, std::string*) override {
    while (!decided_ && LookAtHead(&in)) {
    }
    if (decided_) in.Clear();
    return true;
  }

  void OnClosed(const Status& why) override {
    if (!decided_) {
      result_ = why.code() == ESHUTDOWN
                    ? Status(EPROTO, "closed without an answer")
                    : why;
    }
    closed_.Set();
  }

 private:
  static Status Checked() { return Status(ESHUTDOWN, "checked"); }

  // True: it was one that another one follows, and is taken off.
  bool LookAtHead(flare::Buffer* in) {
    using flare::rpc::HeadEnd;
    std::size_t size = 0;
    const auto end = flare::rpc::FindHeadEnd(*in, kMaxHead, &scanned_, &size);
    const bool has_first_line = end == HeadEnd::kFound || scanned_ != 0;
    if (!flare::rpc::MayBeHttpResponse(*in) ||
        (end != HeadEnd::kIncomplete && !has_first_line)) {
      result_ = Status(EPROTO, "the answer is no HTTP");
    } else if (!has_first_line) {
      return false;
    } else if (!Decide(*in)) {
      if (end == HeadEnd::kIncomplete) return false;
      if (end == HeadEnd::kFound) {
        in->Skip(size);
        scanned_ = 0;
        return true;
      }
      result_ = Status(EPROTO, "an interim response is no HTTP");
    }
    decided_ = true;
    connection_->Close(Checked());
    return false;
  }

  // By the first line, which is there, and no field. False: this is no final
  // response, and not the one that is waited for.
  bool Decide(const flare::Buffer& in) {
    std::string line = flare::FlattenSlow(in, kMaxHead);
    line.resize(line.find("\r\n"));
    flare::rpc::HttpHead head;
    if (const auto fault = flare::rpc::ParseResponseHead(
            line.append("\r\n\r\n"), /*max_fields=*/0, &head)) {
      result_ =
          Status(EPROTO, "the answer is no HTTP: " + std::string(fault.text));
    } else if (head.status != config_.status) {
      // 101 ends HTTP on this connection.
      if (head.status < 200 && head.status != 101) return false;
      result_ =
          Status(EPROTO, "status " + std::to_string(head.status) +
                             " rather than " + std::to_string(config_.status));
    }
    return true;
  }

  const HealthCheckConfig& config_;
  const std::string first_bytes_;
  flare::RefPtr<flare::io::StreamConnection> connection_;
  std::size_t scanned_ = 0;  // Of the answer, for FindHeadEnd().
  bool decided_ = false;     // result_ is about the server.
  Status result_;
  flare::fiber::Event closed_;
};

Status Stopped() { return Status(ECANCELED, "the check was stopped"); }

}  // namespace

Status ProbeServer(const HealthCheckConfig& config, const std::string& name,
                   const flare::Endpoint& address, const std::string& header,
                   const std::stop_token& stop) {
  if (stop.stop_requested()) return Stopped();
  std::string first_bytes = header;
  if (config.type == HealthCheckConfig::Type::kHttp) {
    first_bytes += HttpRequestText(config, name);
  }
  const auto deadline = flare::ReadSteadyClock() + config.timeout;
  for (;;) {
    Status status = Probe(config, first_bytes).Run(address, stop, deadline);
    // The backlog of a Unix socket is full: no event tells when it isn't.
    if (status.code() != EAGAIN ||
        flare::ReadSteadyClock() + kFullBacklogPause >= deadline) {
      return status;
    }
    if (!flare::this_fiber::SleepFor(stop, kFullBacklogPause)) return Stopped();
  }
}

}  // namespace example::proxy
