// The common part of the servers of this folder: threads that each run an event
// loop, a listening socket whose connections are spread over them, and running
// until a signal comes.

#ifndef BENCHMARK_BASELINE_SERVING_H_
#define BENCHMARK_BASELINE_SERVING_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/baseline/event_loop.h"
#include "example/rpc/serving.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"

namespace baseline {

// From --ip and --port. The error names the unreadable one.
flare::Expected<flare::Endpoint, flare::Status> ListenAddressFromFlags();

class LoopServer {
 public:
  // The object for a connection to be served by loop `index`. Called by the
  // thread that accepts; must be thread-safe towards the loops.
  using NewConnection = std::function<std::unique_ptr<Watched>(
      flare::io::UniqueFd fd, std::size_t index)>;

  LoopServer(std::string name, std::size_t loops);
  // Destroys the connections, after Run().
  ~LoopServer();

  std::size_t size() const { return loops_.size(); }
  EventLoop* loop(std::size_t index) { return loops_[index].get(); }

  // Listens and serves until the process is told to quit, by a thread for each
  // loop; the calling one accepts, and logs each second the count of
  // `requests`. Each connection goes to the loop that has the fewest. Returns
  // the program's exit status: kBadFlags if it can't listen. No thread that
  // might take signals may have been started before BlockQuitSignals().
  int Run(const flare::Endpoint& address, const NewConnection& new_connection,
          const example::RequestCounter& requests);

 private:
  class Acceptor;

  std::size_t PickLoop();

  const std::string name_;
  std::vector<std::unique_ptr<EventLoop>> loops_;
  std::vector<std::thread> threads_;
  std::size_t last_picked_ = 0;
};

// From here on SIGINT, SIGTERM and SIGQUIT wait until LoopServer::Run takes
// them, also for threads that are started later.
void BlockQuitSignals();

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_SERVING_H_
