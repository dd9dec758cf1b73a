// Calls that end when nobody waits for them any more: docs/cancellation.md.

#include <chrono>
#include <iostream>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/fiber/async.h"
#include "flare/fiber/channel.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/future.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;
using std::chrono::seconds;

namespace {

class PatientImpl : public echo::SyncEchoService {
 public:
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    // Waits end with the call if they are given its token.
    const std::stop_token stop = controller->GetStopToken();
    if (request.body() == "wait") {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return ready_; })) {
        return controller->SetFailed("nobody waits for it any more");
      }
    } else if (!flare::this_fiber::SleepFor(stop, seconds(10))) {
      return controller->SetFailed("nobody waits for it any more");
    }
    response->set_body(request.body());
  }

 private:
  flare::fiber::Mutex mutex_;
  flare::fiber::ConditionVariable changed_;
  bool ready_ = false;
};

class BusyImpl : public echo::SyncEchoService {
 public:
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    // Work that doesn't wait looks now and then. It lets others run, too.
    while (!controller->IsCanceled()) {
      flare::this_fiber::Yield();
      if (DoSomeOf(request)) return response->set_body("done");
    }
    // A method that just returns has answered, and its caller may still wait.
    controller->SetFailed("nobody waits for it any more");
  }

 private:
  static bool DoSomeOf(const echo::EchoRequest&) { return false; }
};

class SharingImpl : public echo::SyncEchoService {
 public:
  void Echo(const echo::EchoRequest&, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    // Fibers of Async() and TaskGroup find the call that they work for.
    flare::fiber::Channel<std::string> results;
    auto child = flare::fiber::Async([&results] {
      const auto stop = flare::fiber::ExecutionContext::Current()->stop_token();
      if (flare::this_fiber::SleepFor(stop, seconds(10))) {
        static_cast<void>(results.Send("done"));
      }
      results.Close();
    });
    auto result = results.Receive();
    flare::fiber::BlockingGet(std::move(child));
    if (result) return response->set_body(*result);
    controller->SetFailed("nobody waits for it any more");
  }
};

// Prints how a call of `service` ends that gives up after a while.
void Call(const std::string& body,
          std::unique_ptr<echo::SyncEchoService> service) {
  flare::Server server;
  server.AddProtocol("flare");
  server.AddService(std::move(service));
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  if (!server.Start()) return;
  const echo::EchoService_SyncStub stub("flare://" +
                                        server.endpoint().ToString());
  echo::EchoRequest request;
  request.set_body(body);
  flare::RpcClientController controller;
  controller.SetTimeout(std::chrono::milliseconds(100));
  auto reply = stub.Echo(request, &controller);
  server.Stop();
  // Long before ten seconds: the handler has noticed.
  if (server.Join() != 0) std::cout << "left behind: ";
  std::cout << body << ": " << (reply ? "answered" : "ended in time") << '\n';
}

int Entry(int, char**) {
  Call("sleep", std::make_unique<PatientImpl>());
  Call("wait", std::make_unique<PatientImpl>());
  Call("busy", std::make_unique<BusyImpl>());
  Call("shared", std::make_unique<SharingImpl>());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
