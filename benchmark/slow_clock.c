// A monotonic clock that goes FLARE_CLOCK_SLOWNESS (50) times slower than the
// kernel's, for a program that an instrument slows down as much: so it does its
// work by the time (looking for IO, maintenance, timers) about as often per
// request as it does in life.
//
//   gcc -O2 -shared -fPIC benchmark/slow_clock.c -o slow_clock.so
//   LD_PRELOAD=./slow_clock.so valgrind --tool=callgrind --cache-sim=yes ...
//
// Sleeps are not stretched: a thread that sleeps until a point in time wakes up
// too early for it, and sleeps again, many times if nothing else wakes it. So
// this is for programs that are busy. The other clocks are as they were.
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const long long kSecond = 1000000000;

static long long start_ns;
static long long slowness;

static long long Read(clockid_t clock, struct timespec* now) {
  syscall(SYS_clock_gettime, clock, now);
  return now->tv_sec * kSecond + now->tv_nsec;
}

__attribute__((constructor)) static void Start(void) {
  struct timespec now;
  const char* const wish = getenv("FLARE_CLOCK_SLOWNESS");
  slowness = wish != NULL && atoll(wish) > 0 ? atoll(wish) : 50;
  start_ns = Read(CLOCK_MONOTONIC, &now);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  if (clock != CLOCK_MONOTONIC || slowness == 0) {
    return (int)syscall(SYS_clock_gettime, clock, now);
  }
  const long long ns =
      start_ns + (Read(CLOCK_MONOTONIC, now) - start_ns) / slowness;
  now->tv_sec = ns / kSecond;
  now->tv_nsec = ns % kSecond;
  return 0;
}
