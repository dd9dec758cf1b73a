// The echo server on other threading models: an event loop per thread with the
// handler inside it (gdt), or IO threads and workers behind one shared queue
// (--thread_pool, gdt-tp). docs/baselines.md
//
//   gdt_server --port=5567 --threads=10
//   gdt_server --port=5567 --thread_pool --io_threads=2 --worker_threads=8

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/baseline/program.h"
#include "benchmark/baseline/server_connection.h"
#include "benchmark/baseline/serving.h"
#include "benchmark/baseline/worker_pool.h"
#include "example/rpc/work.h"
#include "flare/rpc/protocol_registry.h"
#include "glog/logging.h"

DEFINE_bool(thread_pool, false,
            "IO threads and workers behind one queue, rather than handlers in "
            "the event loops.");
DEFINE_int32(io_threads, 0, "With --thread_pool. 0: half of --threads.");
DEFINE_int32(worker_threads, 0,
             "With --thread_pool. 0: what --io_threads leaves of --threads.");

DEFINE_string(work, "none",
              "The work of each call: none, sleep_thread, spin (sleep_fiber "
              "sleeps the thread, too).");
DEFINE_int32(work_us, 50, "How many microseconds of it.");
DEFINE_string(work_dist, "fixed",
              "Always so many (fixed), or that on average (poisson).");

namespace baseline {
namespace {

struct Threads {
  std::size_t loops = 0;
  std::size_t workers = 0;  // 0: handlers run in the loops.
};

flare::Expected<Threads, flare::Status> DealThreads() {
  const auto total = ThreadsFromFlags();
  if (!total) return total.error();
  for (const int threads : {FLAGS_io_threads, FLAGS_worker_threads}) {
    if (threads >= 0 && threads <= kMaxThreads) continue;
    return flare::Status(
        EINVAL, "--io_threads and --worker_threads must be between 0 and " +
                    std::to_string(kMaxThreads) + ".");
  }
  if (!FLAGS_thread_pool) {
    if (FLAGS_io_threads == 0 && FLAGS_worker_threads == 0) {
      return Threads{*total, 0};
    }
    return flare::Status(EINVAL,
                         "--io_threads and --worker_threads go with "
                         "--thread_pool.");
  }
  Threads threads{static_cast<std::size_t>(FLAGS_io_threads),
                  static_cast<std::size_t>(FLAGS_worker_threads)};
  const auto rest = [&](std::size_t taken) {
    return *total > taken ? *total - taken : 1;
  };
  if (threads.loops == 0) {
    threads.loops = threads.workers == 0 ? std::max<std::size_t>(*total / 2, 1)
                                         : rest(threads.workers);
  }
  if (threads.workers == 0) threads.workers = rest(threads.loops);
  return threads;
}

int Main() {
  const auto address = ListenAddressFromFlags();
  if (!address) return RefuseFlags(address.error().message());
  const auto threads = DealThreads();
  if (!threads) return RefuseFlags(threads.error().message());
  const auto work =
      example::MakeWorkSource(FLAGS_work, FLAGS_work_us, FLAGS_work_dist);
  if (!work) return RefuseFlags(work.error().message());

  BlockQuitSignals();
  example::RequestCounter requests;
  const auto protocols =
      flare::rpc::ServerProtocolSet::FromNames({"flare", "http+pb"});
  CHECK(protocols) << protocols.error();
  // Destroyed in the opposite order: the workers before the connections whose
  // calls they have, these before the handlers.
  std::vector<std::unique_ptr<CallHandler>> handlers;
  LoopServer server("gdt_server", threads->loops);
  std::optional<WorkerPool> workers;
  if (threads->workers != 0) {
    LOG(INFO) << "Handlers run in " << threads->workers << " worker(s).";
    workers.emplace(threads->workers, *work);
  }
  for (std::size_t i = 0; i != server.size(); ++i) {
    if (workers) {
      handlers.push_back(std::make_unique<PoolHandler>(&*workers));
    } else {
      handlers.push_back(std::make_unique<InlineHandler>(*work));
    }
  }
  return server.Run(
      *address,
      [&](flare::io::UniqueFd fd, std::size_t index) {
        return std::make_unique<ServerConnection>(
            std::move(fd), *protocols, handlers[index].get(), &requests);
      },
      requests);
}

}  // namespace
}  // namespace baseline

int main(int argc, char** argv) {
  baseline::BeginProgram(argc, argv,
                         "echoes, by event loops; see docs/baselines.md");
  return baseline::Main();
}
