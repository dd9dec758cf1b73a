// Pools for objects that are made and dropped per message: objects that stay
// constructed, and raw memory of a fixed size.
//
//   Call* call = ObjectPool<Call>::Get();      // maybe used before: reset it
//   ObjectPool<Call>::Put(call);
//   PooledPtr<Call> owned = MakePooled<Call>();  // goes back by itself
//
//   void* node = PoolAllocate<sizeof(Node)>();  // uninitialised memory
//   PoolFree<sizeof(Node)>(node);
//
// Each thread keeps a small stack of free items per pool; Get and Put are a
// handful of instructions there. A thread whose stack runs empty or full moves
// half a stack from or to a list shared by the threads of its NUMA node, under
// a mutex. Items beyond both come from the general allocator and return to it:
// so pools are bounded, and in steady state allocate nothing.
//
// Thread-safe; an item may be put back by another thread than the one that got
// it. Never suspends a fiber. Usable until the very end of a thread: its items
// go to the shared list when it exits.
//
// Don't use it for objects that are large and rare, which would only occupy
// caches.

#ifndef FLARE_BASE_OBJECT_POOL_H_
#define FLARE_BASE_OBJECT_POOL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "flare/base/cpu.h"
#include "flare/base/sanitizer.h"

#ifdef FLARE_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace flare {

// The shared part of a pool: one bounded list of free items per NUMA node.
// Use it through the pools below.
class PoolDepot {
 public:
  // Keeps at most `capacity` items per node.
  explicit PoolDepot(std::size_t capacity) : capacity_(capacity) {}

  // Moves up to `n` items to `out`; returns how many.
  std::size_t Take(void** out, std::size_t n);
  // Keeps up to `n` items of `items`, from its start; returns how many: none if
  // there is no memory to keep them in.
  std::size_t Put(void* const* items, std::size_t n) noexcept;

 private:
  // More share shelves, of a cache line each. With sockets that are cut up
  // there may be 16.
  static constexpr std::size_t kMaxNodes = 32;

  struct alignas(kCacheLine) Shelf {
    std::mutex mutex;
    std::vector<void*> items;
  };

  Shelf& ThisNodesShelf();

  const std::size_t capacity_;
  Shelf shelves_[kMaxNodes];
};

// The end of a thread, for the items that it keeps of one pool.
struct PoolThreadExit {
  void (*run)();
  PoolThreadExit* next;
};

// At the end of the calling thread runs `exit`, which must live until then, the
// last one first. Needs memory only for the first of a thread. False: the
// thread has come too far in its end.
bool AtPoolThreadExit(PoolThreadExit* exit) noexcept;

// From here on the calling thread may use a pool for the first time though
// there is no memory. Without it the C library ends the process then.
void PrepareThreadForPools();

// A pool of pointers. `Policy` has
//   kThreadCache, kShared   how many items a thread / a node keeps,
//   static void* Create(), static void Destroy(void*),
//   static void OnGet(void*), OnPut(void*)   called on each Get and Put.
//
// Get and Put are never inlined: they touch thread-local storage, whose
// address a caller that runs on a fiber must not keep across a suspension.
template <class Policy>
class PointerPool {
 public:
  [[gnu::noinline]] static void* Get() {
    Cache& cache = cache_;
    void* item = cache.count ? cache.items[--cache.count] : Refill(cache);
    Policy::OnGet(item);
    return item;
  }

  [[gnu::noinline]] static void Put(void* item) noexcept {
    Policy::OnPut(item);
    Cache& cache = cache_;
    if (cache.count < cache.limit) {
      cache.items[cache.count++] = item;
    } else {
      PutSlow(cache, item);
    }
  }

 private:
  static constexpr std::uint32_t kBatch = Policy::kThreadCache / 2;
  static_assert(kBatch > 0, "A thread must keep at least two items.");

  // Trivially constructed and destroyed, so that the hot path needs no check
  // whether it was initialised. `limit` is zero before the thread's first use
  // and after EndThread() has run.
  struct Cache {
    std::uint32_t count;
    std::uint32_t limit;
    bool exited;
    void* items[Policy::kThreadCache];
    PoolThreadExit exit;
  };

  static void EndThread() {
    Cache& cache = cache_;
    cache.limit = 0;
    cache.exited = true;
    while (cache.count)
      Evict(cache, cache.count < kBatch ? cache.count : kBatch);
  }

  static PoolDepot& Depot() {
    // Never destroyed: threads may outlive static objects. It isn't allocated:
    // giving memory back must not need memory.
    alignas(PoolDepot) static std::byte place[sizeof(PoolDepot)];
    static PoolDepot* const depot = ::new (place) PoolDepot(Policy::kShared);
    return *depot;
  }

  // Makes the cache usable, if this thread isn't exiting.
  static void Open(Cache& cache) {
    if (cache.limit || cache.exited) return;
    cache.exit.run = &EndThread;
    if (AtPoolThreadExit(&cache.exit)) {
      cache.limit = Policy::kThreadCache;
    } else {
      cache.exited = true;
    }
  }

  [[gnu::noinline]] static void* Refill(Cache& cache) {
    Open(cache);
    if (cache.exited) {
      void* item = nullptr;
      return Depot().Take(&item, 1) ? item : Policy::Create();
    }
    cache.count = static_cast<std::uint32_t>(Depot().Take(cache.items, kBatch));
    return cache.count ? cache.items[--cache.count] : Policy::Create();
  }

  [[gnu::noinline]] static void PutSlow(Cache& cache, void* item) noexcept {
    Open(cache);
    if (cache.exited) {
      if (!Depot().Put(&item, 1)) Policy::Destroy(item);
      return;
    }
    if (cache.count == Policy::kThreadCache) Evict(cache, kBatch);
    cache.items[cache.count++] = item;
  }

  // Gives the `n` items put first, the coldest, to the shared list; those that
  // it refuses to the allocator.
  static void Evict(Cache& cache, std::uint32_t n) noexcept {
    for (std::size_t i = Depot().Put(cache.items, n); i < n; ++i) {
      Policy::Destroy(cache.items[i]);
    }
    std::copy(cache.items + n, cache.items + cache.count, cache.items);
    cache.count -= n;
  }

  static inline constinit thread_local Cache cache_{};
};

// How many free objects of type `T` are kept; specialise to change.
template <class T>
struct ObjectPoolTraits {
  static constexpr std::size_t kThreadCache = 64;
  static constexpr std::size_t kShared = 4096;
};

// A pool of `T` that stay constructed while they wait, with whatever memory
// they own: the user resets them, before Put or after Get. `T` must be
// default-constructible and its constructor must not use its own pool.
template <class T>
class ObjectPool {
 public:
  // Never null. The object may have been used before.
  static T* Get() { return static_cast<T*>(Pool::Get()); }
  // `object` must come from Get(), or from `new`.
  static void Put(T* object) noexcept { Pool::Put(object); }

 private:
  struct Policy {
    static constexpr std::size_t kThreadCache =
        ObjectPoolTraits<T>::kThreadCache;
    static constexpr std::size_t kShared = ObjectPoolTraits<T>::kShared;
    static void* Create() { return new T(); }
    static void Destroy(void* object) { delete static_cast<T*>(object); }
    static void OnGet(void*) {}
    static void OnPut(void*) {}
  };
  using Pool = PointerPool<Policy>;
};

template <class T>
struct PoolDeleter {
  void operator()(T* object) const noexcept { ObjectPool<T>::Put(object); }
};

// A pooled object that goes back to its pool by itself.
template <class T>
using PooledPtr = std::unique_ptr<T, PoolDeleter<T>>;

template <class T>
PooledPtr<T> MakePooled() {
  return PooledPtr<T>(ObjectPool<T>::Get());
}

// Raw memory of `kSize` bytes. AddressSanitizer sees memory in the pool as
// freed: touching it is reported.
template <std::size_t kSize, std::size_t kAlign, std::size_t kKeptByThread,
          std::size_t kKeptByNode>
struct RawMemoryPolicy {
  static constexpr std::size_t kThreadCache = kKeptByThread;
  static constexpr std::size_t kShared = kKeptByNode;

  static void* Create() {
    return ::operator new(kSize, std::align_val_t(kAlign));
  }
  static void Destroy(void* memory) {
    OnGet(memory);
    ::operator delete(memory, std::align_val_t(kAlign));
  }
  static void OnGet([[maybe_unused]] void* memory) {
#ifdef FLARE_ASAN
    ASAN_UNPOISON_MEMORY_REGION(memory, kSize);
#endif
  }
  static void OnPut([[maybe_unused]] void* memory) {
#ifdef FLARE_ASAN
    ASAN_POISON_MEMORY_REGION(memory, kSize);
#endif
  }
};

// Sizes are rounded up to a multiple of 32, so that similar ones share.
constexpr std::size_t PoolSizeClass(std::size_t size) {
  return (size + 31) / 32 * 32;
}

template <std::size_t kSize>
using RawPool = PointerPool<
    RawMemoryPolicy<PoolSizeClass(kSize), (kSize > 32 ? 64 : 32), 128, 8192>>;

// `kSize` bytes of uninitialised memory, aligned to at least 32. For small
// nodes (up to about a kilobyte). Never null.
template <std::size_t kSize>
void* PoolAllocate() {
  return RawPool<kSize>::Get();
}

// Gives memory of PoolAllocate<kSize> back.
template <std::size_t kSize>
void PoolFree(void* memory) noexcept {
  RawPool<kSize>::Put(memory);
}

}  // namespace flare

#endif  // FLARE_BASE_OBJECT_POOL_H_
