// Counts calls of the general allocator. Built and preloaded by
// benchmark/cost_per_request:
//
//   cc -O2 -shared -fPIC malloc_count.c -o malloc_count.so -ldl
//   FLARE_MALLOC_COUNT_FILE=/tmp/count LD_PRELOAD=./malloc_count.so program
//
// When the program exits, the file holds the number of calls that allocated
// (malloc and its relatives, operator new) and of those that freed. The calls
// go on to whatever allocator would have had them, be it jemalloc or libc.
//
// Leaves out allocations inside an allocator's own library, and by programs
// that are linked with theirs statically.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void* (*MallocFunction)(size_t);
typedef void* (*CallocFunction)(size_t, size_t);
typedef void* (*ReallocFunction)(void*, size_t);
typedef void* (*AlignedAllocFunction)(size_t, size_t);
typedef int (*PosixMemalignFunction)(void**, size_t, size_t);
typedef void* (*MallocxFunction)(size_t, int);
typedef void (*FreeFunction)(void*);

static MallocFunction next_malloc;
static CallocFunction next_calloc;
static ReallocFunction next_realloc;
static AlignedAllocFunction next_aligned_alloc;
static PosixMemalignFunction next_posix_memalign;
static MallocxFunction next_mallocx;
static FreeFunction next_free;

static uint64_t allocations;
static uint64_t frees;

static void CountAllocation(void) {
  __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
}

// dlsym itself may allocate; its memory while we look for the real functions
// comes from here and is never freed.
static char boot_memory[1 << 16] __attribute__((aligned(64)));
static size_t boot_used;
// volatile: the compiler believes that dlsym doesn't call back into this file,
// and would leave out stores that only such calls could see.
static volatile int resolving;

static void* BootAllocate(size_t size) {
  size_t rounded = (size + 63) & ~(size_t)63;
  if (rounded < size || rounded > sizeof(boot_memory) - boot_used) abort();
  void* memory = boot_memory + boot_used;
  boot_used += rounded;
  return memory;
}

static int IsBootMemory(const void* p) {
  return (const char*)p >= boot_memory &&
         (const char*)p < boot_memory + sizeof(boot_memory);
}

// Runs at the first allocation, before there is a second thread.
static void Resolve(void) {
  resolving = 1;
  next_calloc = (CallocFunction)dlsym(RTLD_NEXT, "calloc");
  next_realloc = (ReallocFunction)dlsym(RTLD_NEXT, "realloc");
  next_aligned_alloc = (AlignedAllocFunction)dlsym(RTLD_NEXT, "aligned_alloc");
  next_posix_memalign =
      (PosixMemalignFunction)dlsym(RTLD_NEXT, "posix_memalign");
  next_mallocx = (MallocxFunction)dlsym(RTLD_NEXT, "mallocx");
  next_free = (FreeFunction)dlsym(RTLD_NEXT, "free");
  next_malloc = (MallocFunction)dlsym(RTLD_NEXT, "malloc");
  resolving = 0;
}

void* malloc(size_t size) {
  if (!next_malloc) {
    if (resolving) return BootAllocate(size);
    Resolve();
  }
  CountAllocation();
  return next_malloc(size);
}

void* calloc(size_t count, size_t size) {
  if (!next_malloc) {
    // Fresh boot memory is zero.
    if (resolving) return BootAllocate(count * size);
    Resolve();
  }
  CountAllocation();
  return next_calloc(count, size);
}

void* realloc(void* p, size_t size) {
  if (IsBootMemory(p)) {
    void* moved = malloc(size);
    size_t available = (size_t)(boot_memory + sizeof(boot_memory) - (char*)p);
    if (moved) memcpy(moved, p, size < available ? size : available);
    return moved;
  }
  if (!next_malloc) Resolve();
  CountAllocation();
  return next_realloc(p, size);
}

void* aligned_alloc(size_t alignment, size_t size) {
  if (!next_malloc) Resolve();
  CountAllocation();
  return next_aligned_alloc(alignment, size);
}

void* memalign(size_t alignment, size_t size) {
  return aligned_alloc(alignment, size);
}

int posix_memalign(void** p, size_t alignment, size_t size) {
  if (!next_malloc) Resolve();
  CountAllocation();
  return next_posix_memalign(p, alignment, size);
}

void* mallocx(size_t size, int flags) {
  if (!next_malloc) Resolve();
  CountAllocation();
  if (!next_mallocx) abort();  // Only jemalloc has it.
  return next_mallocx(size, flags);
}

void free(void* p) {
  if (!p || IsBootMemory(p)) return;
  if (!next_malloc) {
    // From the dynamic linker itself; a few bytes are lost.
    if (resolving) return;
    Resolve();
  }
  __atomic_fetch_add(&frees, 1, __ATOMIC_RELAXED);
  next_free(p);
}

// operator new and new[]: plain, nothrow, aligned, aligned nothrow. Allocators
// that replace operator delete take back memory of their malloc there, too.
static void* MustAllocate(void* p) {
  if (!p) abort();  // C can't throw std::bad_alloc.
  return p;
}

void* _Znwm(size_t size) { return MustAllocate(malloc(size)); }
void* _Znam(size_t size) { return MustAllocate(malloc(size)); }
void* _ZnwmRKSt9nothrow_t(size_t size, const void* tag) {
  (void)tag;
  return malloc(size);
}
void* _ZnamRKSt9nothrow_t(size_t size, const void* tag) {
  (void)tag;
  return malloc(size);
}
void* _ZnwmSt11align_val_t(size_t size, size_t alignment) {
  return MustAllocate(aligned_alloc(alignment, size));
}
void* _ZnamSt11align_val_t(size_t size, size_t alignment) {
  return MustAllocate(aligned_alloc(alignment, size));
}
void* _ZnwmSt11align_val_tRKSt9nothrow_t(size_t size, size_t alignment,
                                         const void* tag) {
  (void)tag;
  return aligned_alloc(alignment, size);
}
void* _ZnamSt11align_val_tRKSt9nothrow_t(size_t size, size_t alignment,
                                         const void* tag) {
  (void)tag;
  return aligned_alloc(alignment, size);
}

__attribute__((destructor)) static void Report(void) {
  const char* name = getenv("FLARE_MALLOC_COUNT_FILE");
  if (!name) return;
  // Before fopen, which allocates.
  unsigned long long allocated =
      __atomic_load_n(&allocations, __ATOMIC_RELAXED);
  unsigned long long freed = __atomic_load_n(&frees, __ATOMIC_RELAXED);
  FILE* file = fopen(name, "w");
  if (!file) {
    fprintf(stderr, "malloc_count: can't write to %s: %s\n", name,
            strerror(errno));
    return;
  }
  fprintf(file, "allocations %llu\nfrees %llu\n", allocated, freed);
  fclose(file);
}
