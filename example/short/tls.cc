// TLS with certificates on both sides. The server greets its caller by the name
// in the caller's certificate. The argument is a folder that
// tools/make_test_ca has made. Server and client are in one process.

#include <iostream>
#include <memory>
#include <string>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

namespace {

class GreetImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest&, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    // Verified and never null: the server requires a certificate.
    response->set_body("hello, " + controller->peer_identity()->subject);
  }
};

void Call(const std::string& uri, const flare::TlsClientOptions& tls) {
  flare::RpcChannel channel(uri, {.tls = tls});
  auto reply = echo::EchoService_SyncStub(&channel).Echo(echo::EchoRequest());
  std::cout << (reply ? reply->body() : "refused") << '\n';
}

int Entry(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = std::string(argv[1]) + "/";
  flare::Server::Options options;
  options.tls = flare::TlsServerOptions{
      .certificates = {{folder + "server.crt", folder + "server.key"}},
      .client_ca = folder + "ca.crt",
      .client_certificates = flare::ClientCertificates::kRequire};
  flare::Server server(options);
  server.AddProtocol("flare");
  server.AddService(std::make_unique<GreetImpl>());
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  if (!server.Start()) return 1;

  const std::string uri = "tls+flare://" + server.endpoint().ToString();
  flare::TlsClientOptions tls;
  tls.ca = folder + "ca.crt";
  Call(uri, tls);  // Shows no certificate.
  tls.certificate = folder + "client.crt";
  tls.key = folder + "client.key";
  Call(uri, tls);

  server.Stop();
  server.Join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
