// Interceptors for authentication and logs, of a channel and of a server.
// Server and client are in one process.

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

namespace {

// For the server: one line for each call, also for those that are refused.
class Log : public flare::ServerInterceptor {
  void Intercept(flare::InterceptedCall& call,
                 flare::ServerNext& next) override {
    next.Run();
    std::cout << call.method() << ": " << (call.failed() ? "failed" : "ok")
              << '\n';
  }
};

// For the server: refuses calls without the token.
class CheckToken : public flare::ServerInterceptor {
 public:
  explicit CheckToken(std::string token) : expected_("Bearer " + token) {}

  void Intercept(flare::InterceptedCall& call,
                 flare::ServerNext& next) override {
    const auto& metadata = call.controller().GetRequestMetadata();
    if (metadata.Get("authorization") != expected_) {
      // 16 over gRPC, 401 over HTTP.
      return call.SetFailed(flare::rpc::STATUS_UNAUTHENTICATED,
                            "no token, or a wrong one");
    }
    next.Run();
  }

 private:
  const std::string expected_;
};

// For the channel: adds the token to each call.
class AddToken : public flare::ClientInterceptor {
 public:
  explicit AddToken(std::string token) : value_("Bearer " + token) {}

  void Intercept(flare::ClientInterceptedCall& call,
                 flare::ClientNext& next) override {
    call.controller().AddMetadata("authorization", value_);
    next.Run();
  }

 private:
  const std::string value_;
};

class EchoImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController*) override {
    response->set_body(request.body());
  }
};

std::string Call(const flare::Server& server, const std::string& token) {
  flare::RpcChannel channel(
      "flare://" + server.endpoint().ToString(),
      {.interceptors = {std::make_shared<AddToken>(token)}});
  echo::EchoRequest request;
  request.set_body("welcome");
  auto reply = echo::EchoService_SyncStub(&channel).Echo(request);
  return reply ? reply->body() : reply.error().message();
}

int Entry(int, char**) {
  flare::Server server;
  server.AddProtocol("flare");
  server.AddInterceptor(std::make_shared<Log>());  // The outer one.
  server.AddInterceptor(std::make_shared<CheckToken>("secret"));
  server.AddService(std::make_unique<EchoImpl>());
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  if (!server.Start()) return 1;
  const std::string guess = Call(server, "guess");
  const std::string secret = Call(server, "secret");
  std::cout << guess << '\n' << secret << '\n';
  server.Stop();
  server.Join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
