// The service of server.cc with futures and coroutines: no method blocks its
// fiber.

#include <gflags/gflags.h>

#include <memory>
#include <utility>

#include "example/streaming/demo.flare.pb.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/coroutine.h"
#include "flare/init.h"
#include "flare/rpc/server.h"

DEFINE_string(address, "127.0.0.1:5573",
              "Where to listen: a port on an "
              "address, or unix:/path.");

namespace demo = example::streaming;
using flare::AsyncStreamReader;
using flare::AsyncStreamWriter;
using flare::Future;
using flare::MakeReadyFuture;

class DemoImpl : public demo::AsyncDemo {
  Future<> Echo(const demo::Text& request, demo::Text* response,
                flare::RpcServerController*) override {
    response->set_text(request.text());
    return MakeReadyFuture<>();
  }

  // Coroutines: request, response and controller live until the future that
  // they return is ready.
  Future<> Sum(AsyncStreamReader<demo::Number> reader, demo::Number* response,
               flare::RpcServerController*) override {
    while (auto number = co_await reader.Read()) {
      response->set_value(response->value() + number->value());
    }
  }

  Future<> Count(const demo::Number& request,
                 AsyncStreamWriter<demo::Number> writer,
                 flare::RpcServerController* controller) override {
    if (request.value() < 0) {
      controller->SetFailed(1001, "There is nothing to count.");
      co_return;
    }
    demo::Number number;
    while (number.value() < request.value()) {
      number.set_value(number.value() + 1);
      if (!co_await writer.Write(number)) co_return;
    }
    co_await writer.Close();
  }

  Future<> Chat(AsyncStreamReader<demo::Text> reader,
                AsyncStreamWriter<demo::Text> writer,
                flare::RpcServerController*) override {
    while (auto text = co_await reader.Read()) {
      text->set_text("You said: " + text->text());
      if (!co_await writer.Write(*std::move(text))) co_return;
    }
    co_await writer.Close();
  }
};

int Entry(int, char**) {
  flare::Server server;
  server.AddProtocol("flare");
  server.AddService(std::make_unique<DemoImpl>());
  server.ListenOn(flare::MustParseEndpoint(FLAGS_address));
  if (!server.Start()) return 1;
  flare::WaitForQuitSignal();
  server.Stop();
  server.Join();
  return 0;
}

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
