// A memory barrier on all running threads of the process, by system call: it
// lets a hot path go without a fence when its partner is rare.
//
// A thread that does  store A; (compiler barrier); load B  and another that
// does store B; MembarrierAll(); load A  can't both miss the other's store.

#ifndef FLARE_FIBER_MEMBARRIER_H_
#define FLARE_FIBER_MEMBARRIER_H_

namespace flare::fiber {

// Does this kernel have it (Linux 4.14)? Registers the process the first time.
bool MembarrierAvailable();

// A few microseconds. Only if it is available.
void MembarrierAll();

}  // namespace flare::fiber

#endif  // FLARE_FIBER_MEMBARRIER_H_
