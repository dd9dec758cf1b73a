// The handshakes that go on at a server. They take turns at the CPU, so that
// calls don't queue behind thousands of them; and when there are as many as
// may go on, the one that began first makes way for the next one, so that
// peers who never end theirs don't shut others out.
//
//   Begin(e);                        // until End(e)
//   if (!BeginStep(e)) return;       // e->OnTurn() comes: then as from here
//   <the step: some 200 us of CPU time>
//   EndStep();
//
// Thread-safe; nothing blocks.
#ifndef FLARE_IO_HANDSHAKES_H_
#define FLARE_IO_HANDSHAKES_H_

#include <cstddef>
#include <functional>

#include "flare/base/intrusive_list.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"

namespace flare::io {

class Handshakes {
  struct ByAge;
  struct ByTurn;

 public:
  // One of them; its owner's.
  class Entry : private IntrusiveListNode<ByAge>,
                private IntrusiveListNode<ByTurn> {
   public:
    virtual ~Entry() = default;
    // A step that had to wait may begin. Schedules it.
    virtual void OnTurn() = 0;
    // Returns a function that ends the handshake, in favour of another one, and
    // that may be called after the entry is gone. Called with a lock held: must
    // do no more than take references for it.
    virtual std::function<void()> MakeWay() = 0;

   private:
    friend class Handshakes;
    template <class, class>
    friend class flare::IntrusiveList;
  };

  // So many steps run at a time, at least one.
  explicit Handshakes(std::size_t steps_at_once);

  void Begin(Entry* entry);
  // Call it any number of times, but not while the entry waits for its turn.
  void End(Entry* entry);

  // Has the oldest one make way. False: there is none.
  bool MakeRoom();

  // True: the step may begin. False: OnTurn() will say so, once; it may be
  // called before this returns. Between Begin() and End().
  [[nodiscard]] bool BeginStep(Entry* entry);
  // After BeginStep() was true, and after OnTurn().
  void EndStep();

 private:
  const std::size_t steps_at_once_;
  Spinlock lock_;
  IntrusiveList<Entry, ByAge> going_on_ FLARE_GUARDED_BY(lock_);
  IntrusiveList<Entry, ByTurn> waiting_ FLARE_GUARDED_BY(lock_);
  std::size_t steps_ FLARE_GUARDED_BY(lock_) = 0;
};

}  // namespace flare::io

#endif  // FLARE_IO_HANDSHAKES_H_
