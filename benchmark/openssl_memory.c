// Counts the memory that OpenSSL holds in a process. Built and preloaded by
// benchmark/idle_tls_memory:
//
//   cc -O2 -shared -fPIC openssl_memory.c -o openssl_memory.so -lcrypto
//   FLARE_OPENSSL_MEMORY_FILE=/tmp/held LD_PRELOAD=./openssl_memory.so program
//
// The file, of at least 16 bytes, is mapped: two integers of 64 bits, the bytes
// and the blocks that OpenSSL has now. A block's bytes are those that the
// allocator has reserved for it.
//
// Only for programs that load libcrypto as a shared library, and that have not
// used it before this library's constructor runs.

#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <openssl/crypto.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct Held {
  int64_t bytes;
  int64_t blocks;
};

static struct Held* held;

static void Count(void* block, int sign) {
  if (block == NULL) return;
  const int64_t size = (int64_t)malloc_usable_size(block);
  __atomic_fetch_add(&held->bytes, sign * size, __ATOMIC_RELAXED);
  __atomic_fetch_add(&held->blocks, sign, __ATOMIC_RELAXED);
}

static void* Allocate(size_t size, const char* file, int line) {
  (void)file;
  (void)line;
  void* block = malloc(size);
  Count(block, 1);
  return block;
}

static void* Reallocate(void* block, size_t size, const char* file, int line) {
  (void)file;
  (void)line;
  Count(block, -1);
  void* grown = realloc(block, size);
  // Without memory the old block stays.
  Count(grown == NULL && size != 0 ? block : grown, 1);
  return grown;
}

static void Free(void* block, const char* file, int line) {
  (void)file;
  (void)line;
  Count(block, -1);
  free(block);
}

__attribute__((constructor)) static void Begin(void) {
  const char* path = getenv("FLARE_OPENSSL_MEMORY_FILE");
  if (path == NULL) return;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  void* mapped = fd < 0 ? MAP_FAILED
                        : mmap(NULL, sizeof(struct Held),
                               PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    perror(path);
    exit(1);
  }
  close(fd);
  held = mapped;
  if (CRYPTO_set_mem_functions(&Allocate, &Reallocate, &Free) != 1) {
    fprintf(stderr, "openssl_memory: OpenSSL has memory already\n");
    exit(1);
  }
}
