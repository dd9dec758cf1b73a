// Calls with attachments, compression, an end of one's own and a future:
// docs/calls.md. With example/rpc/server:
//
//   ./calls flare://127.0.0.1:5567

#include <chrono>
#include <iostream>
#include <string>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/base/buffer.h"
#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"

namespace echo = example::protobuf_echo;
using std::chrono::milliseconds;

void WithAttachment(const echo::EchoService_SyncStub& stub) {
  echo::EchoRequest request;
  request.set_body("body");
  flare::RpcClientController controller;
  controller.SetTimeout(milliseconds(5000));
  // For the request and its attachment; the service chooses for the reply.
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
  echo::EchoRequest request;  // To a server that sleeps for a second.
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

int Entry(int argc, char** argv) {
  flare::RpcChannel channel;
  if (argc != 2 || !channel.Open(argv[1])) return 1;
  const echo::EchoService_SyncStub stub(&channel);
  WithAttachment(stub);
  CancelledAfterAWhile(stub);
  TwoAtOnce(&channel);
  return 0;
}

// Warnings and errors alone, on stderr; servers have files (docs/debugging.md).
FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(minloglevel, 1);

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
