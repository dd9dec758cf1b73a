// How a suspended fiber is looked at while it may be resumed:
//
//  [FL1] Everything is copied out of its memory by ReadOwnMemory(), which can't
//        fault, and only the copies are followed.
//  [FL2] The carrier is read before and after its stack. It has a stack pointer
//        from the switch away from it until just before the switch back, so if
//        it says the same both times the copy is taken for the stack as it was
//        in between. It may still have been resumed and suspended again at the
//        very same place, or (AArch64) its stack have been seen to change
//        before its pointer: then the backtrace is right where both agree, and
//        bounded by the copy elsewhere.
//  [FL3] A mutex lives as long as a fiber waits for it, and names its holder
//        only while that one holds it [MU5]. So the holder is read before and
//        after its description, and counts if it is the same both times and the
//        waiter still waits then [FL2].
#include "flare/fiber/fiber_list.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/diagnostics/debug_layout.h"
#include "flare/fiber/diagnostics/thread_stacks.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/scheduler/runtime_state.h"
#include "flare/fiber/scheduler/scheduling_group.h"
#include "flare/fiber/scheduler/thread_stack.h"
#include "flare/fiber/scheduler/worker_state.h"

namespace flare::fiber {
namespace {

// Frames beyond are not shown.
constexpr std::size_t kMostStackCopied = 32768;
constexpr std::size_t kMostNamesShown = 8;

struct Running {
  std::uintptr_t carrier;
  std::size_t group;
  std::size_t worker;
};

std::vector<Running> ReadWorkers() {
  std::vector<Running> running;
  for (std::size_t g = 0; g < MustBeRunning()->groups.size(); ++g) {
    SchedulingGroup* const group = GetGroup(g);
    const std::uint64_t idle = group->idle_mask();
    for (std::size_t w = 0; w < group->size(); ++w) {
      if ((idle >> w & 1) != 0) continue;
      running.push_back({ReadCurrentCarrier(*group->worker(w)), g, w});
    }
  }
  return running;
}

FiberSnapshot Describe(std::uintptr_t place, const CarrierView& view) {
  FiberSnapshot fiber;
  fiber.id = view.fiber_id;
  fiber.carrier = reinterpret_cast<const void*>(place);
  fiber.name = ReadName(view.name);
  fiber.entry = reinterpret_cast<const void*>(view.entry);
  if (view.execution_context != nullptr) {
    fiber.works_for = ExecutionContext::DescribeOwner(view.execution_context);
    CarrierView after;  // [FL2]
    if (!ReadCarrier(place, &after) ||
        after.execution_context != view.execution_context) {
      fiber.works_for.clear();
    }
  }
  return fiber;
}

// The backtrace of the fiber suspended at `stack_pointer`, below its carrier at
// `place`.
Backtrace WalkSuspended(std::uintptr_t stack_pointer, std::uintptr_t place,
                        std::vector<char>* buffer) {
  buffer->resize(
      std::min<std::size_t>(place - stack_pointer, kMostStackCopied));
  const std::size_t got =
      ReadOwnMemory(reinterpret_cast<const void*>(stack_pointer),
                    buffer->data(), buffer->size());  // [FL1]
  if (got < kContextBytes) return Backtrace();
  char frame[kContextBytes];
  std::copy_n(buffer->data(), kContextBytes, frame);
  const SavedContext context = ReadContext(frame);
  return WalkFramePointers(context.return_address, context.frame_pointer,
                           {stack_pointer, std::span(buffer->data(), got)});
}

// All memory for stacks, as if it was in one piece.
class StackMemory {
 public:
  StackMemory() : regions_(ListStackRegions()) {}

  const std::vector<StackRegion>& regions() const { return regions_; }

  std::uintptr_t OffsetOf(std::uintptr_t address) const {
    std::uintptr_t before = 0;
    for (const StackRegion& region : regions_) {
      const std::uintptr_t size = region.stacks * region.stack_size;
      if (address - region.low < size) return before + (address - region.low);
      before += size;
    }
    return 0;
  }

  // The place of the carrier of the stack that `address` lies in; 0: none.
  std::uintptr_t CarrierAt(std::uintptr_t address) const {
    for (const StackRegion& region : regions_) {
      const std::uintptr_t offset = address - region.low;
      if (offset >= region.stacks * region.stack_size) continue;
      return address - offset % region.stack_size + region.stack_size -
             kCarrierBytes;
    }
    return 0;
  }

 private:
  const std::vector<StackRegion> regions_;
};

// Name, id and place, as far as known.
std::string Identify(const FiberSnapshot& fiber) {
  std::string text;
  if (!fiber.name.empty()) text += '"' + fiber.name + "\" ";
  if (fiber.id != 0) text += "id " + std::to_string(fiber.id) + ' ';
  char place[32];
  std::snprintf(place, sizeof(place), "on 0x%zx", fiber.place);
  text += place;
  if (!fiber.works_for.empty()) text += " for " + fiber.works_for;
  return text;
}

// Names the holders of mutexes.
class Holders {
 public:
  explicit Holders(const StackMemory& memory) : memory_(memory) {}

  // "" if nobody is known to hold what a fiber waits for [FL3].
  std::string Of(const WaitReason& reason) {
    const std::uintptr_t address = ReadHolder(reason);
    if (address == 0) return "";
    std::string name = NameOf(address);
    return ReadHolder(reason) == address ? name : "";
  }

 private:
  // The fiber or thread in whose stack `address` lies.
  std::string NameOf(std::uintptr_t address) {
    if (const std::uintptr_t place = memory_.CarrierAt(address)) {
      CarrierView view;
      if (!ReadCarrier(place, &view)) return "";
      FiberSnapshot holder = Describe(place, view);
      holder.place = memory_.OffsetOf(place);
      return Identify(holder);
    }
    if (!threads_) RunOnThreadStack([&] { threads_.emplace(); });
    const pid_t thread = threads_->ThreadAt(address);
    return thread == 0 ? "" : "thread " + std::to_string(thread);
  }

  const StackMemory& memory_;
  std::optional<ThreadStacks> threads_;  // Once there is a need.
};

// False: no suspended fiber there.
bool ReadSuspended(std::uintptr_t low, std::uintptr_t place, Holders* holders,
                   std::vector<char>* buffer, FiberSnapshot* fiber) {
  CarrierView before;
  if (!ReadCarrier(place, &before) || !before.suspended) return false;
  *fiber = Describe(place, before);
  fiber->state = FiberState::kSuspended;
  fiber->waits_for = ReadName(before.reason.what);
  fiber->waits_on = before.reason.object;
  fiber->suspended_ns =
      std::max<std::int64_t>(0, NowNs() - before.suspended_at_ns);
  if (before.stack_pointer < low || before.stack_pointer >= place) return true;
  std::string held_by = holders->Of(before.reason);
  const Backtrace backtrace =
      WalkSuspended(before.stack_pointer, place, buffer);
  CarrierView after;
  if (ReadCarrier(place, &after) && before == after) {  // [FL2] [FL3]
    fiber->held_by = std::move(held_by);
    fiber->backtrace = backtrace;
  }
  return true;
}

constexpr std::string_view kClosure = "flare::fiber::ClosureTask<";

bool IsClosure(const std::string& name) {
  return name.compare(0, kClosure.size(), kClosure) == 0;
}

// Returns F of "flare::fiber::ClosureTask<F>::...", the part between the
// brackets.
std::string ClosureOf(const std::string& name) {
  int depth = 1;
  std::size_t at = kClosure.size();
  for (; at < name.size() && depth != 0; ++at) {
    const bool arrow = name[at] == '>' && name[at - 1] == '-';
    if (name[at] == '<') ++depth;
    if (name[at] == '>' && !arrow) --depth;
  }
  return depth == 0 ? name.substr(kClosure.size(), at - kClosure.size() - 1)
                    : name;
}

std::size_t GroupOf(const void* stacks) {
  for (std::size_t g = 0; g < MustBeRunning()->groups.size(); ++g) {
    if (GetGroup(g)->stacks() == stacks) return g;
  }
  return 0;
}

std::string Seconds(std::int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f s", static_cast<double>(ns) * 1e-9);
  return text;
}

// Suspended fibers that are at the same place.
struct Gathered {
  std::size_t count = 0;
  std::int64_t least_ns = 0;
  std::int64_t most_ns = 0;
  std::string names;  // The names of the first few.

  void Add(const FiberSnapshot& fiber) {
    least_ns = count == 0 ? fiber.suspended_ns
                          : std::min(least_ns, fiber.suspended_ns);
    most_ns = std::max(most_ns, fiber.suspended_ns);
    if (++count <= kMostNamesShown) {
      names += (count == 1 ? " " : ", ") + Identify(fiber);
      if (!fiber.held_by.empty()) names += " (held by " + fiber.held_by + ')';
    } else if (count == kMostNamesShown + 1) {
      names += ", ...";
    }
  }
};

struct Place {
  const void* entry;
  std::string waits_for;
  std::vector<std::uintptr_t> frames;

  auto operator<=>(const Place&) const = default;
};

void WritePlace(std::ostream& out, const Place& place, const Gathered& fibers) {
  out << fibers.count
      << " suspended: " << (place.waits_for.empty() ? "?" : place.waits_for)
      << ", " << Seconds(fibers.least_ns);
  if (fibers.count > 1) out << " to " << Seconds(fibers.most_ns);
  out << ';' << fibers.names << "\n    entry " << EntryName(place.entry)
      << '\n';
  Backtrace backtrace;
  for (const std::uintptr_t frame : place.frames) backtrace.Add(frame);
  out << backtrace.ToString();
}

void WriteFibers(std::ostream& out, const std::vector<FiberSnapshot>& running,
                 const std::map<Place, Gathered>& places, std::size_t suspended,
                 const DumpLimits& limits, bool all) {
  out << running.size() + suspended << " fibers: " << running.size()
      << " running, " << suspended << " suspended\n";
  for (const FiberSnapshot& fiber : running) {
    out << "running on worker " << fiber.group << '/' << fiber.worker << ": "
        << Identify(fiber) << "\n    entry " << EntryName(fiber.entry) << '\n';
  }
  std::vector<std::pair<const Place*, const Gathered*>> sorted;
  sorted.reserve(places.size());
  for (const auto& [place, fibers] : places)
    sorted.push_back({&place, &fibers});
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) {
                     return a.second->count > b.second->count;
                   });
  std::size_t written = 0;
  for (const auto& [place, fibers] : sorted) {
    if (written == limits.places) break;
    WritePlace(out, *place, *fibers);
    ++written;
  }
  if (written != sorted.size()) {
    out << sorted.size() - written << " more places are left out\n";
  }
  if (!all) out << "there are more fibers, which weren't looked at\n";
}

// Running fibers. False: `visit` returned false.
template <class Visitor>
bool VisitRunning(const StackMemory& memory, const Visitor& visit,
                  std::set<std::uintptr_t>* shown) {
  for (const Running& running : ReadWorkers()) {
    CarrierView view;
    if (!ReadCarrier(running.carrier, &view) || view.suspended ||
        view.entry == nullptr || !shown->insert(running.carrier).second) {
      continue;  // Between two tasks.
    }
    FiberSnapshot fiber = Describe(running.carrier, view);
    fiber.place = memory.OffsetOf(running.carrier);
    fiber.state = FiberState::kRunning;
    fiber.group = running.group;
    fiber.worker = static_cast<int>(running.worker);
    if (!visit(fiber)) return false;
  }
  return true;
}

// Calls `visit` for each fiber, and `go_on`, if given, for each stack, until
// one returns false. True: neither did.
template <class Visitor>
bool VisitWhile(const Visitor& visit,
                const std::function<bool()>& go_on = nullptr) {
  if (CurrentRuntime() == nullptr) return true;
  const StackMemory memory;
  std::set<std::uintptr_t> shown;
  if (!VisitRunning(memory, visit, &shown)) return false;
  Holders holders(memory);
  std::vector<char> buffer;
  std::uintptr_t before = 0;
  for (const StackRegion& region : memory.regions()) {
    const std::size_t group = GroupOf(region.owner);
    for (std::size_t i = 0; i < region.stacks; ++i) {
      if (go_on && !go_on()) return false;
      const std::uintptr_t low = region.low + i * region.stack_size;
      const std::uintptr_t place = low + region.stack_size - kCarrierBytes;
      FiberSnapshot fiber;
      if (shown.count(place) != 0 ||
          !ReadSuspended(low, place, &holders, &buffer, &fiber)) {
        continue;
      }
      fiber.place = before + (place - region.low);
      fiber.group = group;
      if (!visit(fiber)) return false;
    }
    before += region.stacks * region.stack_size;
  }
  return true;
}

}  // namespace

std::string EntryName(const void* entry) {
  if (entry == nullptr) return "none";
  std::string name = FunctionName(entry);
  return IsClosure(name) ? ClosureOf(name) : name;
}

void VisitFibers(const std::function<void(const FiberSnapshot&)>& visit) {
  VisitWhile([&](const FiberSnapshot& fiber) {
    visit(fiber);
    return true;
  });
}

std::vector<FiberSnapshot> ListFibers() {
  std::vector<FiberSnapshot> fibers;
  VisitFibers([&](const FiberSnapshot& fiber) { fibers.push_back(fiber); });
  return fibers;
}

void DumpFibers(std::ostream& out, const DumpLimits& limits) {
  std::vector<FiberSnapshot> running;
  std::map<Place, Gathered> places;
  std::size_t suspended = 0;
  const std::int64_t began_ns = NowNs();
  const auto gather = [&](const FiberSnapshot& fiber) {
    if (running.size() + suspended == limits.fibers) return false;
    if (fiber.state == FiberState::kRunning) {
      running.push_back(fiber);
      return true;
    }
    ++suspended;
    const auto frames = fiber.backtrace.frames();
    places[{fiber.entry, fiber.waits_for, {frames.begin(), frames.end()}}].Add(
        fiber);
    return true;
  };
  const bool all = VisitWhile(
      gather, [&] { return NowNs() - began_ns < limits.looking_ns; });
  RunOnThreadStack(
      [&] { WriteFibers(out, running, places, suspended, limits, all); });
}

}  // namespace flare::fiber
