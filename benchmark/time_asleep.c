// How long a program's threads sleep, as they see it: from before nanosleep()
// or clock_nanosleep() to when they run again.
//
//   gcc -O2 -shared -fPIC benchmark/time_asleep.c -o time_asleep.so -ldl
//   LD_PRELOAD=./time_asleep.so server --work=sleep_thread ...
//
// At the end of the program it prints "N sleeps of T us" to standard error.
// With handlers that do nothing but sleep, T is the mean service time.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

static atomic_long total_ns;
static atomic_long sleeps;

static long now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000L + now.tv_nsec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec* request,
                    struct timespec* rest) {
  static int (*original)(clockid_t, int, const struct timespec*,
                         struct timespec*);
  if (!original) original = dlsym(RTLD_NEXT, "clock_nanosleep");
  const long begin = now_ns();
  const int result = original(clock, flags, request, rest);
  total_ns += now_ns() - begin;
  ++sleeps;
  return result;
}

int nanosleep(const struct timespec* request, struct timespec* rest) {
  // The one returns its error, the other sets errno.
  const int error = clock_nanosleep(CLOCK_REALTIME, 0, request, rest);
  if (error == 0) return 0;
  errno = error;
  return -1;
}

__attribute__((destructor)) static void report(void) {
  if (sleeps == 0) return;
  fprintf(stderr, "%ld sleeps of %.1f us\n", (long)sleeps,
          (double)total_ns / (double)sleeps / 1000);
}
