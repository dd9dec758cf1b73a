// SIGHUP, the usual request to read the configuration again.
//
//   HangupSignal hangup([&] { Reload(); });

#ifndef EXAMPLE_PROXY_HANGUP_SIGNAL_H_
#define EXAMPLE_PROXY_HANGUP_SIGNAL_H_

#include <signal.h>

#include <atomic>
#include <functional>
#include <thread>

#include "flare/fiber/event.h"

namespace example::proxy {

// While one exists, SIGHUP doesn't end the process but has `on_hangup` run, on
// a fiber, which it may block. Signals that come during a run cause one more.
// One at a time in a process; inside the runtime's life.
class HangupSignal {
 public:
  // Ends the process, with exit status 1, if there is no thread or descriptor
  // for it.
  explicit HangupSignal(std::function<void()> on_hangup);
  // Waits for the end of a run. Blocks the fiber.
  ~HangupSignal();

  HangupSignal(const HangupSignal&) = delete;
  HangupSignal& operator=(const HangupSignal&) = delete;

 private:
  void Watch();

  const std::function<void()> on_hangup_;
  const int event_;  // An eventfd.
  std::atomic<bool> ending_{false};
  struct sigaction previous_;
  flare::fiber::Event ended_;
  std::thread watcher_;
};

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_HANGUP_SIGNAL_H_
