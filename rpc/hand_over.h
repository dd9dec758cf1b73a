// Hands the listening sockets of a server from the process that serves to its
// successor, such as the next version of the program. No connection is refused
// meanwhile: both processes have the sockets for a moment.
//
//   auto hand_over = flare::HandOver::Begin("/run/echo/hand_over", address);
//   if (!hand_over) return Complain(hand_over.error());
//   (*hand_over)->ListenOn(&server);
//   if (!server.Start()) return 1;  // The process before this one goes on.
//   auto ready = (*hand_over)->Ready([] { ::kill(::getpid(), SIGTERM); });
//   ...
//   hand_over->reset();  // Before the server stops.
//   server.Stop();
//
// The process that serves listens on a Unix socket at that path, which only
// processes of its user and of root may use. The successor connects, gets the
// sockets, starts, and says that it is ready. Only then the older process stops
// (`on_handed_over`). It goes on if the successor ends before, or isn't ready
// within a minute.
//
// For one server of a process, not for its admin port. docs/hand_over.md has
// more about it.
#ifndef FLARE_RPC_HAND_OVER_H_
#define FLARE_RPC_HAND_OVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"

namespace flare {

class Server;

// All functions: from one fiber or thread.
class HandOver {
 public:
  // Gets the sockets of the process that serves `address` at `path`; if there
  // is none, listens at `path` for successors, which wait until Ready().
  // Errors: the path can't be used, as it is a file that is no socket; that
  // process belongs to another user, serves another address (with port 0 any
  // port is right), or doesn't answer within five seconds. Blocks the fiber or
  // thread for so long.
  static Expected<std::unique_ptr<HandOver>, Status> Begin(
      std::string path, const Endpoint& address);

  // Ends the offer, so that the next process finds none. Before Server::Stop(),
  // unless `on_handed_over` has run. A successor that was given the sockets by
  // now, and isn't ready, serves all the same. Blocks the fiber or thread
  // for a moment.
  ~HandOver();

  HandOver(const HandOver&) = delete;
  HandOver& operator=(const HandOver&) = delete;

  // Has `server` listen, on the sockets of the process before this one if there
  // is one. Before Server::Start(). Once; fails as Server::ListenOn(). `server`
  // must outlive this object.
  bool ListenOn(Server* server, int backlog = 1024);

  // The server has started: the process before this one is told to stop, and
  // from now on the sockets are offered to a successor. When that one is ready,
  // `on_handed_over` runs on a thread of this library, once, and should have
  // the program stop. It must not destroy this object. Fails if the process
  // before this one has waited for too long and goes on: this one should stop.
  // Blocks the fiber or thread until that process has answered, for ten seconds
  // at most. Once.
  Status Ready(std::function<void()> on_handed_over);

 private:
  HandOver(std::string path, Endpoint address)
      : path_(std::move(path)), address_(std::move(address)) {}

  Status Connect(const Endpoint& at);
  Status Receive();
  Status AwaitRelease();
  void ListenAnew();
  void Own();
  void Run();
  bool Serve(int successor);
  void RemoveFile();

  const std::string path_;
  const Endpoint address_;
  Server* server_ = nullptr;
  std::function<void()> on_handed_over_;
  // The connection to the process before this one, until that lets go.
  io::UniqueFd predecessor_;
  // Those of that process, until ListenOn(); copies of the server's own from
  // Ready() on, as these may be closed at any moment by a quit signal.
  std::vector<io::UniqueFd> sockets_;
  // Where successors connect. Handed over with the sockets.
  io::UniqueFd door_;
  // The file of `door_`; 0: it isn't ours to remove.
  std::uint64_t file_device_ = 0;
  std::uint64_t file_inode_ = 0;
  io::UniqueFd quit_;  // An eventfd: the thread is to end.
  std::thread thread_;
};

}  // namespace flare

#endif  // FLARE_RPC_HAND_OVER_H_
