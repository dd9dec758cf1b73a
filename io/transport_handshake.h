// The handshake of an accepted connection's transport: of limited length, and
// among others with which it takes turns at the CPU (handshakes.h).
//
//   handshake = TransportHandshake::Begin(socket, &read_task);
//   ...
//   in the reader's role, for each step:
//   if (!handshake->BeginStep()) return;   // read_task comes, with the role
//   transport->Handshake();
//   handshake->EndStep();
//   ... and in the end, in any case:
//   handshake->End();
//
// Used in the reader's role. Nothing blocks. Rules: stream_connection.cc [SC8],
// [SC9].
#ifndef FLARE_IO_TRANSPORT_HANDSHAKE_H_
#define FLARE_IO_TRANSPORT_HANDSHAKE_H_

#include <functional>
#include <memory>

#include "flare/fiber/task.h"
#include "flare/fiber/timer.h"
#include "flare/io/handshakes.h"
#include "flare/io/stream_socket.h"

namespace flare::io {

class TransportHandshake final : private fiber::Timer,
                                 private Handshakes::Entry {
 public:
  // Before the reader can run. `step` is its task. Null: the transport's
  // handshake may take as long as it likes.
  static std::unique_ptr<TransportHandshake> Begin(StreamSocket* socket,
                                                   fiber::Task* step);

  // False: the task of the step is queued, or will be, and has the reader's
  // role.
  [[nodiscard]] bool BeginStep();
  void EndStep();

  // It is done, or given up.
  void End() noexcept;

 private:
  TransportHandshake(StreamSocket* socket, fiber::Task* step);

  static void OnTimeout(fiber::Timer* timer);
  // Handshakes::Entry
  void OnTurn() override;
  std::function<void()> MakeWay() override;

  StreamSocket* const socket_;
  fiber::Task* const step_;
  Handshakes* const all_;  // Null: none to take turns with.
  bool has_turn_ = false;
};

}  // namespace flare::io

#endif  // FLARE_IO_TRANSPORT_HANDSHAKE_H_
