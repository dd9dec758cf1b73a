// A protocol of your own: the client's side, and a server and a channel that
// use it. Server and client are in one process.

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "example/short/line_protocol.h"
#include "flare/base/buffer.h"
#include "flare/base/string.h"
#include "flare/init.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

namespace {

class LineClient : public rpc::ClientProtocol {
 public:
  explicit LineClient(const rpc::Limits& limits)
      : max_body_(limits.max_packet_size) {}

  std::string_view name() const override { return "line"; }
  rpc::ProtocolTraits traits() const override { return {}; }
  rpc::PayloadFormat format() const override {
    return rpc::PayloadFormat::kProtobuf;
  }
  flare::Status Write(rpc::OutboundRequest&& request,
                      flare::BufferBuilder* out) const override {
    out->Append("call ", std::to_string(request.correlation_id), " ",
                request.method, " ", std::to_string(request.body.size()), "\n");
    std::move(request.body).AppendTo(out);
    return {};
  }
  rpc::CutResult Cut(flare::Buffer& in, rpc::InboundResponse* response,
                     std::size_t* need, std::string* error) override {
    return CutMessage(max_body_, in, &response->scratch, &response->body, need,
                      error);
  }
  rpc::ParseResult Parse(rpc::InboundResponse* response) const override {
    const auto words = flare::Split(response->scratch, ' ');
    const auto id = flare::TryParse<std::uint64_t>(words[1]);
    const auto status = flare::TryParse<int>(words[2]);
    if (!id || !status) return rpc::ParseResult::kClose;
    response->correlation_id = *id;
    response->status = *status;
    if (*status != 0) {
      response->scratch = flare::FlattenSlow(response->body);
      response->description = response->scratch;
    }
    return rpc::ParseResult::kOk;
  }

 private:
  const std::size_t max_body_;
};

class EchoImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    if (request.body().empty()) return controller->SetFailed(1001, "no body");
    response->set_body(request.body());
  }
};

void Call(const echo::EchoService_SyncStub& stub, const std::string& body) {
  echo::EchoRequest request;
  request.set_body(body);
  auto reply = stub.Echo(request);
  std::cout << (reply ? reply->body() : reply.error().ToString()) << '\n';
}

int Entry(int, char**) {
  // Before servers and channels name it.
  rpc::RegisterServerProtocol(
      "line", [](const rpc::Limits& limits, rpc::ReplySink* sink) {
        return std::make_unique<LineServer>(limits, sink);
      });
  rpc::RegisterClientProtocol("line",
                              [](const rpc::Limits& limits, std::string_view) {
                                return std::make_unique<LineClient>(limits);
                              });

  flare::Server server;
  server.AddProtocols({"flare", "line"});
  server.AddService(std::make_unique<EchoImpl>());
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  if (!server.Start()) return 1;
  const echo::EchoService_SyncStub stub("line://" +
                                        server.endpoint().ToString());
  Call(stub, "hello");
  Call(stub, "");
  server.Stop();
  server.Join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
