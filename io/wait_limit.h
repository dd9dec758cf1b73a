// When a call on a socket gives up waiting: at a time, or when a stop is
// requested. Calls take it as an argument, made of times and tokens:
//
//   socket.Read(buffer);                                  // waits for ever
//   socket.Read(buffer, seconds(5));
//   socket.Read(buffer, steady_clock::now() + seconds(5));
//   socket.Read(buffer, stop);                            // a std::stop_token
//   socket.Read(buffer, {stop, seconds(5)});
//
//   const WaitLimit limit(seconds(5));  // 5 s from here on for all of them
//   while (...) socket.Read(buffer, limit);
//
// An operation that can be done at once is done, whatever the limit: with a
// length of 0 calls only try. A value; nothing blocks.

#ifndef FLARE_IO_WAIT_LIMIT_H_
#define FLARE_IO_WAIT_LIMIT_H_

#include <chrono>
#include <stop_token>

#include "flare/base/clock.h"
#include "flare/fiber/sync/wait_list.h"

namespace flare::io {

// A token must outlive the calls that it is given to. No callback of it may
// suspend its fiber (fiber/mutex.h).
class WaitLimit : public fiber::WaitLimit {
 public:
  WaitLimit() = default;  // Never.

  template <class Rep, class Period>
  WaitLimit(std::chrono::duration<Rep, Period> length)  // NOLINT: implicit.
      : fiber::WaitLimit{ToSteadyNs(length)} {}
  template <class Clock, class Duration>
  WaitLimit(std::chrono::time_point<Clock, Duration> at)  // NOLINT: implicit.
      : fiber::WaitLimit{ToSteadyNs(at)} {}
  WaitLimit(const std::stop_token& stop)  // NOLINT: implicit.
      : fiber::WaitLimit{kNoDeadline, &stop} {}
  template <class Rep, class Period>
  WaitLimit(const std::stop_token& stop,
            std::chrono::duration<Rep, Period> length)
      : fiber::WaitLimit{ToSteadyNs(length), &stop} {}
  template <class Clock, class Duration>
  WaitLimit(const std::stop_token& stop,
            std::chrono::time_point<Clock, Duration> at)
      : fiber::WaitLimit{ToSteadyNs(at), &stop} {}
};

}  // namespace flare::io

#endif  // FLARE_IO_WAIT_LIMIT_H_
