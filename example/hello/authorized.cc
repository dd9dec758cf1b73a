// A server that lets only those call that may, and a client that shows its
// identity; see docs/security.md. With both in one process.

#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/rpc/access_control.h"
#include "flare/rpc/channel_credentials.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

namespace {

class EchoImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    response->set_body(controller->caller() + " says " + request.body());
  }
};

// The caller, by the token of "authorization: Bearer TOKEN".
flare::Expected<std::string> Authenticate(const flare::CallCredentials& call) {
  const auto token = call.BearerToken();
  if (!token) return std::string();  // Anonymous.
  if (*token == "secret-of-alice") return std::string("alice");
  if (*token == "secret-of-bob") return std::string("bob");
  return flare::Status(flare::rpc::STATUS_UNAUTHENTICATED,
                       "the token is unknown");
}

// Serves those that the rules of `rules_file` allow.
bool Serve(const std::string& rules_file, flare::Server* server) {
  auto access = flare::AccessControl::Create(
      {.authenticate = Authenticate, .rules_file = rules_file});
  if (!access) {
    std::cerr << access.error().message() << '\n';
    return false;
  }
  server->AddInterceptor(*access);
  server->AddService(std::make_unique<EchoImpl>());
  server->AddProtocol("flare");
  server->ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  return server->Start();
}

// Asks a token server, say; may block. Called again before the token expires.
flare::Expected<flare::Credential> FetchToken(const std::string& user) {
  return flare::Credential{
      .value = "Bearer secret-of-" + user,
      .expires = std::chrono::steady_clock::now() + std::chrono::hours(1)};
}

std::string Call(const flare::Server& server, const std::string& user) {
  // Over TLS nothing needs to be allowed.
  auto credentials = flare::ChannelCredentials::Create(
      [user] { return FetchToken(user); }, {.allow_plaintext = true});
  if (!credentials) return credentials.error().message();
  flare::RpcChannel channel;
  if (!channel.Open("flare://" + server.endpoint().ToString(),
                    {.credentials = *credentials})) {
    return "no channel";
  }
  const echo::EchoService_SyncStub stub(&channel);
  echo::EchoRequest request;
  request.set_body("hello");
  flare::RpcClientController controller;
  auto reply = stub.Echo(request, &controller);
  return reply ? reply->body() : reply.error().message();
}

int Entry(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: authorized RULES.json\n";
    return 2;
  }
  flare::Server server;
  if (!Serve(argv[1], &server)) return 1;
  for (const char* user : {"alice", "bob", "carol"}) {
    std::cout << Call(server, user) << '\n';
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
