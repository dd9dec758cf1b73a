// Descriptors that were opened after others were closed, for tests that nothing
// is written to a closed one whose number another has got.
//
//   const NewEvents events;  // Some have got the numbers that are free now.
//   ... code that must not write to a closed descriptor ...
//   EXPECT_EQ(events.written(), 0U);

#ifndef FLARE_FIBER_TESTING_NEW_EVENTS_H_
#define FLARE_FIBER_TESTING_NEW_EVENTS_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

namespace flare::fiber::testing {

// Eventfds. Those that couldn't be opened are left out.
class NewEvents {
 public:
  NewEvents() {
    for (int& event : events_) event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  }
  ~NewEvents() {
    for (const int event : events_) close(event);
  }

  NewEvents(const NewEvents&) = delete;
  NewEvents& operator=(const NewEvents&) = delete;

  // The sum of the values written to them since the last call.
  std::uint64_t written() const {
    std::uint64_t sum = 0;
    for (const int event : events_) {
      std::uint64_t count = 0;
      if (read(event, &count, sizeof(count)) == sizeof(count)) sum += count;
    }
    return sum;
  }

 private:
  int events_[100];
};

}  // namespace flare::fiber::testing

#endif  // FLARE_FIBER_TESTING_NEW_EVENTS_H_
