// The service of server.cc with futures: no method blocks its fiber.

#include <gflags/gflags.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "example/streaming/demo.flare.pb.h"
#include "flare/base/endpoint.h"
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
using flare::Promise;

// The state of a call until its future is ready: its request, response and
// controller live that long, too. Each step runs when the one before it has
// ended. A chain of futures that return futures would grow with each message.
struct SumCall {
  AsyncStreamReader<demo::Number> reader;
  demo::Number* response;
  Promise<> ended;

  static void Next(std::shared_ptr<SumCall> call) {
    static_cast<void>(call->reader.Read().Then([call](auto number) {
      if (!number) return call->ended.SetValue();
      call->response->set_value(call->response->value() + number->value());
      Next(call);
    }));
  }
};

struct CountCall {
  std::int64_t up_to;
  AsyncStreamWriter<demo::Number> writer;
  demo::Number number;
  Promise<> ended;

  static void Next(std::shared_ptr<CountCall> call) {
    if (call->number.value() >= call->up_to) {
      static_cast<void>(call->writer.Close());
      return call->ended.SetValue();
    }
    call->number.set_value(call->number.value() + 1);
    static_cast<void>(call->writer.Write(call->number).Then([call](bool ok) {
      ok ? Next(call) : call->ended.SetValue();
    }));
  }
};

struct ChatCall {
  AsyncStreamReader<demo::Text> reader;
  AsyncStreamWriter<demo::Text> writer;
  Promise<> ended;

  static void Next(std::shared_ptr<ChatCall> call) {
    static_cast<void>(call->reader.Read().Then([call](auto text) {
      if (!text) {
        static_cast<void>(call->writer.Close());
        return call->ended.SetValue();
      }
      text->set_text("You said: " + text->text());
      static_cast<void>(
          call->writer.Write(*std::move(text)).Then([call](bool ok) {
            ok ? Next(call) : call->ended.SetValue();
          }));
    }));
  }
};

// Begins a call, whose future it returns.
template <class Call>
Future<> Begin(Call call) {
  auto shared = std::make_shared<Call>(std::move(call));
  Future<> ended = shared->ended.GetFuture();
  Call::Next(std::move(shared));
  return ended;
}

class DemoImpl : public demo::AsyncDemo {
  Future<> Echo(const demo::Text& request, demo::Text* response,
                flare::RpcServerController*) override {
    response->set_text(request.text());
    return MakeReadyFuture<>();
  }

  Future<> Sum(AsyncStreamReader<demo::Number> reader, demo::Number* response,
               flare::RpcServerController*) override {
    return Begin(SumCall{std::move(reader), response, {}});
  }

  Future<> Count(const demo::Number& request,
                 AsyncStreamWriter<demo::Number> writer,
                 flare::RpcServerController* controller) override {
    if (request.value() < 0) {
      controller->SetFailed(1001, "There is nothing to count.");
      return MakeReadyFuture<>();
    }
    return Begin(CountCall{request.value(), std::move(writer), {}, {}});
  }

  Future<> Chat(AsyncStreamReader<demo::Text> reader,
                AsyncStreamWriter<demo::Text> writer,
                flare::RpcServerController*) override {
    return Begin(ChatCall{std::move(reader), std::move(writer), {}});
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
