#include "example/rpc/serving.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>

#include "flare/base/clock.h"
#include "flare/fiber/event.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "glog/logging.h"

namespace example {

using namespace std::literals;

flare::Expected<flare::Endpoint> ParseListenAddress(const std::string& ip,
                                                    int port) {
  const bool is_v6 = ip.find(':') != std::string::npos;
  return flare::EndpointFromString((is_v6 ? "[" + ip + "]" : ip) + ":" +
                                   std::to_string(port));
}

flare::Status DoWork(const Work& work) {
  if (work.kind != WorkKind::kSleepFiber) {
    DoWorkOnThread(work);
    return flare::Status();
  }
  auto* const context = flare::fiber::ExecutionContext::Current();
  const auto stop =
      context != nullptr ? context->stop_token() : std::stop_token();
  if (flare::this_fiber::SleepFor(stop, work.length)) return flare::Status();
  return flare::Status(ECANCELED,
                       std::string("the call ends before its time: ") +
                           ToString(context->stop_cause()));
}

int ServeUntilQuitSignal(flare::Server* server, const RequestCounter& counter,
                         std::unique_ptr<flare::HandOver> hand_over,
                         const std::function<flare::Status()>& on_serving) {
  // From here on a signal ends this in good order, however early it comes.
  (void)flare::CheckForQuitSignal();
  if (!server->Start()) return 1;
  if (hand_over != nullptr) {
    const flare::Status ready =
        hand_over->Ready([] { ::kill(::getpid(), SIGTERM); });
    if (!ready.ok()) {
      LOG(ERROR) << ready.message();
      return 1;
    }
  }
  if (on_serving) {
    if (const flare::Status done = on_serving(); !done.ok()) {
      LOG(ERROR) << done.message();
      return 1;
    }
  }

  flare::fiber::Event quit;
  flare::Fiber waiter([&quit] {
    flare::WaitForQuitSignal();
    quit.Set();
  });

  std::uint64_t before = 0;
  for (auto next = flare::ReadSteadyClock() + 1s; !quit.WaitUntil(next);
       next += 1s) {
    const std::uint64_t now = counter.Total();
    LOG(INFO) << "Processed " << now - before << " request(s) in 1 second.";
    before = now;
  }
  waiter.join();

  hand_over.reset();
  server->Stop();
  server->Join();
  LOG(INFO) << "Processed " << counter.Total() << " request(s) in total.";
  return 0;
}

}  // namespace example
