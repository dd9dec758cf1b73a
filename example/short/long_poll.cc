// A graceful stop with long polls open. Callers wait for news, maybe for
// minutes. When the server stops, each of them is answered at once, and asks
// the next server. Server and client are in one process.

#include <chrono>
#include <iostream>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/event.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/task_group.h"
#include "flare/init.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

namespace {

// The news, and the end of it.
class News : public flare::Server::Listener {
 public:
  // Waits for news until there is one, the server stops (OnStop), or `stop` is
  // requested, because the caller has left or its deadline has passed.
  std::string Wait(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    waiting_.Set();
    changed_.wait(lock, stop, [&] { return ended_ || !news_.empty(); });
    return news_;
  }

  void AwaitAPoll() { waiting_.Wait(); }

 private:
  // By Server::Stop(), before anything else.
  void OnStop() override {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  flare::fiber::Event waiting_;
  flare::fiber::Mutex mutex_;
  flare::fiber::ConditionVariable changed_;
  std::string news_;
  bool ended_ = false;
};

class PollImpl : public echo::SyncEchoService {
 public:
  explicit PollImpl(std::shared_ptr<News> news) : news_(std::move(news)) {}

  void Echo(const echo::EchoRequest&, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    response->set_body(news_->Wait(controller->GetStopToken()));
  }

 private:
  const std::shared_ptr<News> news_;
};

int Entry(int, char**) {
  const auto news = std::make_shared<News>();
  flare::Server server;
  server.AddProtocol("flare");
  server.AddService(std::make_unique<PollImpl>(news));
  server.AddListener(news);
  server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
  if (!server.Start()) return 1;

  const std::string uri = "flare://" + server.endpoint().ToString();
  flare::fiber::TaskGroup callers;
  callers.Spawn([&]() -> flare::Status {
    const echo::EchoService_SyncStub stub(uri);
    flare::RpcClientController call;
    call.SetTimeout(std::chrono::minutes(5));
    auto reply = stub.Echo(echo::EchoRequest(), &call);
    if (!reply) return reply.error();
    std::cout << (reply->body().empty() ? "no news" : reply->body()) << '\n';
    return {};
  });

  news->AwaitAPoll();
  server.Stop();  // A server of its own calls it behind WaitForQuitSignal().
  const std::size_t abandoned = server.Join();
  const flare::Status status = callers.Wait();
  std::cout << (status.ok() ? "answered" : status.ToString()) << ", "
            << abandoned << " calls abandoned\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
