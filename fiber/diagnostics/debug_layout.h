// The layout by which all fibers are found in memory, from inside
// (fiber_list.h) or outside (tools/gdb_fibers.py, in a live process or a core
// file): where the stacks are, and where on each its carrier keeps the fiber's
// description.
//
// Nothing here costs anything per fiber: whether a stack holds a suspended
// fiber is read from the stack itself.

#ifndef FLARE_FIBER_DEBUG_LAYOUT_H_
#define FLARE_FIBER_DEBUG_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "flare/fiber/scheduler/carrier.h"
#include "flare/fiber/stack/stack_regions.h"

namespace flare::fiber {

class WorkerState;

// For debuggers, which find it by its symbol, flare_debug_layout, in programs
// without type information. All words, so that it reads the same everywhere.
// Offsets are in bytes from the start of the carrier.
struct DebugLayout {
  std::uint64_t version;
  StackRegion* const* regions;  // Where the first one's address is.
  std::uint64_t carrier_bytes;  // A carrier starts so far below a stack's end.
  Task::Run resume_function;    // The value of `resume_run` in a carrier.
  std::uint64_t resume_run;
  std::uint64_t resume_carrier;  // The carrier's own address.
  std::uint64_t stack_pointer;
  std::uint64_t suspended;  // One byte.
  std::uint64_t suspended_at_ns;
  std::uint64_t fiber_id;
  std::uint64_t entry;
  std::uint64_t name;
  std::uint64_t reason_what;
  std::uint64_t reason_object;
};
extern "C" const DebugLayout flare_debug_layout;

// A copy of a carrier's description of its fiber.
struct CarrierView {
  std::uint64_t fiber_id = 0;
  Task::Run entry = nullptr;
  const char* name = nullptr;
  WaitReason reason;
  std::int64_t suspended_at_ns = 0;
  bool suspended = false;
  std::uintptr_t stack_pointer = 0;  // While suspended.
  const ExecutionContext* execution_context = nullptr;

  friend bool operator==(const CarrierView&, const CarrierView&);
};

// Reads the carrier that would be at `place`, even if that memory has another
// use now. False: there is none. Never faults; the copy may be torn if the
// carrier runs meanwhile. One system call.
bool ReadCarrier(std::uintptr_t place, CarrierView* view) noexcept;

// The text at `name`, which should be a literal but may be anything; 63 bytes
// of it at most. "" for nullptr. Never faults.
std::string ReadName(const char* name);

// An address in the stack of the fiber or thread that holds the Mutex, or the
// SharedMutex to write, that somebody waits for. 0: nobody holds it so, it is
// just changing hands, or it is no mutex. Never faults; the mutex may be gone,
// which the caller must find out (fiber_list.cc [FL3]).
std::uintptr_t ReadHolder(const WaitReason& reason) noexcept;

// Address of the carrier that `worker` runs on at the moment. Any thread.
std::uintptr_t ReadCurrentCarrier(const WorkerState& worker) noexcept;

// Where on the stack of a suspended fiber the innermost frame starts: of a
// context (context_<isa>.S) whose lowest bytes are `frame`.
inline constexpr std::size_t kContextBytes = 64;
struct SavedContext {
  std::uintptr_t return_address;
  std::uintptr_t frame_pointer;
};
SavedContext ReadContext(const char (&frame)[kContextBytes]) noexcept;

}  // namespace flare::fiber

#endif  // FLARE_FIBER_DEBUG_LAYOUT_H_
