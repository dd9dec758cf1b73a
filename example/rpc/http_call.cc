#include "example/rpc/http_call.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "example/rpc/http_connection.h"
#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/event.h"
#include "flare/io/resolver.h"
#include "flare/io/tls_context.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/tls_names.h"

namespace example {
namespace {

constexpr std::string_view kScheme = "http://";

// A request without its body, in which only the length may change.
class RequestTemplate {
 public:
  RequestTemplate(const std::string& host, const std::string& path)
      : after_method_(" " + path + " HTTP/1.1\r\nHost: " +
                      flare::rpc::HttpHostOf(host) + "\r\n") {}

  // GET without a body, else POST.
  flare::Buffer Make(std::string_view body) const {
    flare::BufferBuilder request;
    request.Append(body.empty() ? "GET" : "POST");
    request.Append(after_method_);
    if (!body.empty()) {
      request.Append("Content-Type: text/plain\r\nContent-Length: ");
      request.Append(std::to_string(body.size()));
      request.Append("\r\n");
    }
    request.Append("\r\n");
    request.Append(body);
    return request.DestructiveGet();
  }

 private:
  const std::string after_method_;
};

struct HttpServer {
  flare::Endpoint endpoint;
  std::string host;                                  // And its port.
  std::shared_ptr<flare::io::TlsClientContext> tls;  // Null: without.
  RequestTemplate ordinary;
  RequestTemplate tail;
};

class HttpCall final : public Call, private HttpConnection::Waiter {
 public:
  HttpCall(const LoadOptions& options, const HttpServer& server,
           std::size_t group)
      : options_(options), server_(server), group_(group) {}

  ~HttpCall() override {
    if (connection_ != nullptr) connection_->CloseAndRelease();
  }

  void Start(const CallPlan& plan, google::protobuf::Closure* done) override {
    const std::int64_t deadline =
        flare::NowNs() + flare::ToNs(options_.timeout);
    MakeRequest(plan);
    done_ = done;
    if (done == nullptr) ended_.Reset();
    Send(deadline);
    // Here the call may have ended, and the next one may be under way.
    if (done == nullptr) ended_.Wait();
  }

  int status() const override {
    if (!reply_.failure.ok()) return reply_.failure.code();
    return reply_.status >= 200 && reply_.status < 300 ? 0 : reply_.status;
  }

  std::string error() const override {
    if (!reply_.failure.ok()) return reply_.failure.message();
    return "HTTP " + std::to_string(reply_.status) + " " + reply_.reason;
  }

  // Whatever its status.
  bool FailedByService() const override { return reply_.failure.ok(); }

  bool ReplyIsEcho() const override {
    return flare::FlattenSlow(reply_.body) ==
           options_.body.substr(0, made_for_.body_size);
  }

 private:
  // Unless it is the same as before.
  void MakeRequest(const CallPlan& plan) {
    if (!request_.empty() && plan.tail == made_for_.tail &&
        plan.body_size == made_for_.body_size) {
      return;
    }
    made_for_ = plan;
    request_ =
        (plan.tail ? server_.tail : server_.ordinary)
            .Make(std::string_view(options_.body).substr(0, plan.body_size));
  }

  void Send(std::int64_t deadline) {
    if (connection_ != nullptr) {
      if (connection_->Send(request_, deadline)) return;
      connection_->Release();
    }
    connection_ = new HttpConnection(
        server_.endpoint, group_, this,
        server_.tls == nullptr
            ? nullptr
            : server_.tls->NewTransport(server_.host, server_.host));
    // A new one can't be closed.
    static_cast<void>(connection_->Send(request_, deadline));
  }

  void OnReply(HttpReply reply) override {
    reply_ = std::move(reply);
    if (done_ == nullptr) return ended_.Set();
    done_->Run();
  }

  const LoadOptions& options_;
  const HttpServer& server_;
  const std::size_t group_;
  CallPlan made_for_;  // The plan that request_ was made for.
  flare::Buffer request_;
  HttpConnection* connection_ = nullptr;
  google::protobuf::Closure* done_ = nullptr;
  flare::fiber::Event ended_;  // Without done_.
  HttpReply reply_;
};

class HttpTarget final : public Target {
 public:
  HttpTarget(const LoadOptions& options, HttpServer server)
      : options_(options), server_(std::move(server)) {}

  std::unique_ptr<Call> NewCall(std::size_t group) const override {
    return std::make_unique<HttpCall>(options_, server_, group);
  }

 private:
  const LoadOptions& options_;
  const HttpServer server_;
};

std::string_view WithoutTls(std::string_view server_addr) {
  if (server_addr.starts_with(flare::rpc::kTlsPrefix)) {
    server_addr.remove_prefix(flare::rpc::kTlsPrefix.size());
  }
  return server_addr;
}

// Else its bytes would be no request, or another one.
bool IsRequestTarget(std::string_view path) {
  return std::all_of(path.begin(), path.end(),
                     [](char c) { return c > ' ' && c <= '~' && c != '#'; });
}

}  // namespace

bool IsPlainHttp(std::string_view server_addr) {
  server_addr = WithoutTls(server_addr);
  return server_addr.starts_with(kScheme) &&
         server_addr.find('/', kScheme.size()) != server_addr.npos;
}

flare::Expected<std::unique_ptr<Target>, flare::Status> OpenHttpTarget(
    const LoadOptions& options) {
  if (options.relay_stub || !options.attachment.empty() ||
      options.compression != flare::CompressionAlgorithm::kNone) {
    return flare::Status(EINVAL, "plain HTTP (" + options.server_addr +
                                     ") has no relay, attachments or "
                                     "compression; use http+pb://");
  }
  if (options.any_method != nullptr) {
    return flare::Status(EINVAL, "plain HTTP (" + options.server_addr +
                                     ") has no methods; use http+pb://");
  }
  if (!options.override_nslb.empty()) {
    return flare::Status(EINVAL, "plain HTTP (" + options.server_addr +
                                     ") goes to one server: --override_nslb "
                                     "has nothing to choose from");
  }
  const std::string rest(
      WithoutTls(options.server_addr).substr(kScheme.size()));
  const std::string host = rest.substr(0, rest.find('/'));
  const std::string path = rest.substr(host.size());
  if (host == "unix:") {
    return flare::Status(
        EINVAL, "plain HTTP (" + options.server_addr +
                    ") doesn't go over Unix sockets whose path can't be told "
                    "from the one asked for; write host:port, or unix:@name");
  }
  for (const std::string& target : {path, options.tail_path}) {
    if (IsRequestTarget(target)) continue;
    return flare::Status(EINVAL, "the path \"" + target +
                                     "\" can't be asked for; write %20 for a "
                                     "blank, %23 for #, and so on");
  }
  const auto endpoints = flare::io::Resolve(host);
  if (!endpoints) return endpoints.error();
  std::shared_ptr<flare::io::TlsClientContext> tls;
  if (options.tls) {
    auto made = flare::io::TlsClientContext::Get(
        *options.tls, {flare::rpc::AlpnNameOf("http")});
    if (!made) return made.error();
    tls = *std::move(made);
    if (tls->NewTransport(host, host) == nullptr) {
      return flare::Status(EINVAL, "no certificate can be for the host of " +
                                       options.server_addr +
                                       "; --tls_server_name may name another");
    }
  }
  return std::unique_ptr<Target>(std::make_unique<HttpTarget>(
      options, HttpServer{endpoints->front(), host, std::move(tls),
                          RequestTemplate(host, path),
                          RequestTemplate(host, options.tail_path)}));
}

}  // namespace example
