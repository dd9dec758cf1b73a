// The servers of the process that have been started, and their stop if the
// program can't do it: told to quit, its fibers may wait for workers that calls
// hold. QuitWatcher (quit_signal.cc) looks for that.
#ifndef FLARE_RPC_START_RUNNING_SERVERS_H_
#define FLARE_RPC_START_RUNNING_SERVERS_H_

#include "flare/base/intrusive_list.h"

namespace flare::rpc {

// All functions: any thread; block it for a short lock.
class RunningServer : public IntrusiveListNode<> {
 public:
  RunningServer(const RunningServer&) = delete;
  RunningServer& operator=(const RunningServer&) = delete;

  // Whether there is one.
  static bool Any();

  // Has each one begin its stop, and begin no further call.
  static void StopAll();

 protected:
  RunningServer() = default;
  ~RunningServer() = default;

  // Between these two the server is one of them.
  void Add();
  void Remove();

 private:
  // On the thread that calls StopAll(). Must neither block nor call the above.
  virtual void StopAtOnce() = 0;

  struct All;
  static All& TheAll();
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_START_RUNNING_SERVERS_H_
