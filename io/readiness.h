// Two small state machines between edge-triggered events and the tasks that
// serve them. Each owns its atomic word; see readiness.cc for the rules.

#ifndef FLARE_IO_READINESS_H_
#define FLARE_IO_READINESS_H_

#include <atomic>
#include <cstdint>

namespace flare::io {

// Input: idle -> reading -> reading-again. At most one reader, no lost edge.
//
//   poller:  if (r.Signal()) submit the reader;
//   reader:  for (;;) {
//              switch (r.Begin()) {
//                case kLeft:    return;       // paused; touch nothing any more
//                case kStopped: finish(); return;
//                case kRead:    break;
//              }
//              if (drained = read()) if (r.Finish()) return;
//            }
//
// A reader that gets kStopped keeps its role for ever, so its actions then are
// done once and after everything else that a reader did.
class Readiness {
 public:
  enum class Turn {
    kRead,
    kLeft,
    kBroken,  // No read: paused, and the connection has broken. Still the role.
    kStopped,
  };

  // With `held`, it starts with the reader's role taken, by its owner, which
  // gives it up by Finish(), or schedules the reader.
  explicit Readiness(bool held = false) noexcept;

  // An edge has come. `hang_up`: the peer has ended its direction (or sent
  // something else than plain data), so that from now on a short read does not
  // mean there is nothing more to learn. True: the caller must schedule the
  // reader. `broken`: it is of no use any more, which a reader that is paused
  // is to hear of, too.
  [[nodiscard]] bool Signal(bool hang_up = false, bool broken = false) noexcept;

  // No reader begins until Resume(), but to hear kBroken; edges are remembered.
  void Pause() noexcept;
  // True: the caller must schedule the reader.
  [[nodiscard]] bool Resume() noexcept;

  // For ever; stronger than Pause(). True: the caller must schedule the reader.
  [[nodiscard]] bool Stop() noexcept;

  // The reader, before each read. Edges so far are forgotten: the read sees
  // their causes.
  [[nodiscard]] Turn Begin() noexcept;

  // The reader, when it has read everything. True: it has left its role and
  // must touch nothing any more. False: go on with Begin().
  [[nodiscard]] bool Finish() noexcept;

  // Any Signal(true) so far?
  bool hang_up() const noexcept;

 private:
  std::atomic<std::uint32_t> state_{0};
};

// Output: a flusher that met a full socket waits for the edge that says there
// is room. idle -> armed -> waiting, or armed -> edge seen.
//
//   flusher: send() == EAGAIN: w.Arm(); send() again;
//            still EAGAIN: if (w.Wait()) return; else send() again;
//   poller:  if (w.OnWritable()) submit the flusher;
//
// While no flusher is in trouble an event costs one load.
class WritableWait {
 public:
  // The flusher: from here on no edge is lost.
  void Arm() noexcept;
  // The flusher, armed: true: it waits now, has left, and must touch nothing
  // any more. False: an edge came since Arm(); the wait is disarmed.
  [[nodiscard]] bool Wait() noexcept;
  // The flusher, armed: it got on without waiting.
  void Disarm() noexcept;

  // There may be room, or a reason to stop waiting. True: the caller must
  // schedule the flusher. Any thread.
  [[nodiscard]] bool OnWritable() noexcept;

 private:
  std::atomic<std::uint32_t> state_{0};
};

}  // namespace flare::io

#endif  // FLARE_IO_READINESS_H_
