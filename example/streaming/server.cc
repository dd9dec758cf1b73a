// Methods of all four kinds in blocking style: docs/streaming.md. With the
// client of this folder:
//
//   ./server --address=127.0.0.1:5573
//
// With --tls_certificate and --tls_key it speaks TLS; ../web/ says what for.

#include "flare/rpc/server.h"

#include <gflags/gflags.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "example/rpc/tls_server_flags.h"
#include "example/streaming/demo.flare.pb.h"
#include "flare/base/endpoint.h"
#include "flare/init.h"
#include "glog/logging.h"

DEFINE_string(address, "127.0.0.1:5573",
              "Where to listen: a port on an "
              "address, or unix:/path.");

namespace demo = example::streaming;
using flare::StreamError;
using flare::StreamReader;
using flare::StreamWriter;

class DemoImpl : public demo::SyncDemo {
  void Echo(const demo::Text& request, demo::Text* response,
            flare::RpcServerController*) override {
    response->set_text(request.text());
  }

  void Sum(StreamReader<demo::Number> reader, demo::Number* response,
           flare::RpcServerController*) override {
    std::int64_t sum = 0;
    for (const demo::Number& number : reader) sum += number.value();
    if (reader.error() != StreamError::EndOfStream) return;  // It has left.
    response->set_value(sum);
  }

  void Count(const demo::Number& request, StreamWriter<demo::Number> writer,
             flare::RpcServerController* controller) override {
    if (request.value() < 0) {
      return controller->SetFailed(1001, "There is nothing to count.");
    }
    demo::Number number;
    for (std::int64_t i = 1; i <= request.value(); ++i) {
      number.set_value(i);
      // Waits while the client reads more slowly. False: it has left.
      if (!writer.Write(number)) return;
    }
    writer.Close();  // Else the call fails.
  }

  void Chat(StreamReader<demo::Text> reader, StreamWriter<demo::Text> writer,
            flare::RpcServerController*) override {
    demo::Text answer;
    for (const demo::Text& text : reader) {
      answer.set_text("You said: " + text.text());
      if (!writer.Write(answer)) return;
    }
    writer.Close();
  }
};

int Entry(int, char**) {
  const auto address = flare::EndpointFromString(FLAGS_address);
  if (!address) {
    LOG(ERROR) << "Bad --address: " << address.error().message();
    return 1;
  }
  auto tls = example::TlsFromServerFlags();
  if (!tls) {
    LOG(ERROR) << tls.error().message();
    return 1;
  }
  flare::Server::Options options;
  options.tls = *std::move(tls);
  // Web pages' calls share a connection of HTTP/2.
  if (options.tls) options.tls->alpn = {"h2", "http/1.1"};
  flare::Server server(std::move(options));
  server.AddProtocols({"flare", "grpc", "http+pb", "http+proto3-json"});
  server.AddService(std::make_unique<DemoImpl>());
  server.ListenOn(*address);
  if (!server.Start()) return 1;
  flare::WaitForQuitSignal();
  server.Stop();
  server.Join();
  return 0;
}

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
