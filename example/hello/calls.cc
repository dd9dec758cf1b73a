// Calls with attachments, compression, an end of one's own and a future:
// docs/calls.md. With example/rpc/server:
//
//   ./calls flare://127.0.0.1:5567

#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/base/buffer.h"
#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/interceptor.h"

namespace echo = example::protobuf_echo;
using std::chrono::milliseconds;

void WithAttachment(const echo::EchoService_SyncStub& stub) {
  echo::EchoRequest request;
  request.set_body("body");
  flare::RpcClientController controller;
  controller.SetTimeout(milliseconds(500));
  // Of the request and its attachment; the service chooses for the reply.
  controller.SetCompressionAlgorithm(flare::rpc::COMPRESSION_ALGORITHM_ZSTD);
  std::string bytes(100'000, 'a');
  controller.SetRequestAttachment(flare::MakeForeignBuffer(std::move(bytes)));
  auto reply = stub.Echo(request, &controller);
  if (!reply) {
    std::cout << reply.error().ToString() << '\n';
    return;
  }
  const flare::Buffer& attachment = controller.GetResponseAttachment();
  std::cout << reply->body() << ", and " << attachment.ByteSize()
            << " bytes beside it: " << flare::FlattenSlow(attachment, 3)
            << "...\n";
}

void CancelledAfterAWhile(const echo::EchoService_SyncStub& stub) {
  echo::EchoRequest request;  // Of a server that sleeps for a second.
  request.set_work(echo::SLEEP_FIBER);
  request.set_work_us(1'000'000);
  flare::RpcClientController controller;
  controller.SetTimeout(milliseconds(5000));
  // From any fiber or thread. The server is told where the protocol can.
  flare::Future<> canceller = flare::fiber::Async([&] {
    flare::this_fiber::SleepFor(milliseconds(50));
    controller.StartCancel();
  });
  auto reply = stub.Echo(request, &controller);
  std::cout << (controller.IsCanceled() ? "cancelled" : "not cancelled")
            << '\n';
  flare::fiber::BlockingGet(std::move(canceller));  // It uses the controller.
}

void TwoAtOnce(flare::RpcChannel* channel) {
  const echo::EchoService_AsyncStub stub(channel);
  echo::EchoRequest one;
  one.set_body("one");
  echo::EchoRequest two;
  two.set_body("two");
  auto first = stub.Echo(one);  // Doesn't block.
  auto second = stub.Echo(two);
  for (auto* future : {&first, &second}) {
    auto reply = flare::fiber::BlockingGet(future);
    std::cout << (reply ? reply->body() : reply.error().ToString()) << '\n';
  }
}

// Long calls of large messages, which don't make other calls wait.
bool OpenForReports(const std::string& uri, flare::RpcChannel* channel) {
  flare::RpcChannel::Options options;
  options.timeout = std::chrono::seconds(30);
  options.maximum_packet_size = 64 << 20;
  options.max_connections_per_server = 2;
  options.pool = flare::ConnectionPool::Create();  // Shares with no other.
  return channel->Open(uri, options);
}

class LogFailures : public flare::ClientInterceptor {
 public:
  void Intercept(flare::ClientInterceptedCall& call,
                 flare::ClientNext& next) override {
    next.Run();  // Returns when the call has ended.
    if (!call.controller().Failed()) return;
    std::cout << call.method().full_name() << ": "
              << call.controller().ErrorText() << '\n';
  }
};

// One call at a time on each connection, and code around each call.
bool OpenPooled(const std::string& uri, flare::RpcChannel* channel) {
  return channel->Open(uri,
                       {.interceptors = {std::make_shared<LogFailures>()},
                        .connection_kind = flare::ConnectionKind::kPooled});
}

void WithOptions(const std::string& uri) {
  for (const auto open : {OpenForReports, OpenPooled}) {
    flare::RpcChannel channel;
    if (!open(uri, &channel)) return;
    echo::EchoRequest request;
    request.set_body("optional");
    auto reply = echo::EchoService_SyncStub(&channel).Echo(request);
    std::cout << (reply ? reply->body() : reply.error().ToString()) << '\n';
  }
}

int Entry(int argc, char** argv) {
  flare::RpcChannel channel;
  if (argc != 2 || !channel.Open(argv[1])) return 1;
  const echo::EchoService_SyncStub stub(&channel);
  WithAttachment(stub);
  CancelledAfterAWhile(stub);
  TwoAtOnce(&channel);
  WithOptions(argv[1]);
  return 0;
}

// On stderr, and only what is wrong; servers have files (docs/debugging.md).
FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(minloglevel, 1);

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
