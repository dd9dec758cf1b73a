// An eventfd that offers a task for each of its events, the first when it is
// registered.
#ifndef FLARE_IO_TESTING_EVENT_SOURCE_H_
#define FLARE_IO_TESTING_EVENT_SOURCE_H_

#include <sys/eventfd.h>

#include <cstdint>

#include "flare/fiber/task.h"
#include "flare/io/descriptor.h"
#include "flare/io/fd.h"
#include "gtest/gtest.h"

namespace flare::io::testing {

class EventSource final : public Descriptor {
 public:
  // The task is the caller's, which makes no event while it is queued.
  explicit EventSource(fiber::Task* task)
      : Descriptor(UniqueFd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC))),
        task_(task) {}

  void OnEvents(std::uint32_t, fiber::TaskList* ready) override {
    ready->PushBack(task_);
  }

  // Makes an event.
  void Touch() { ASSERT_EQ(::eventfd_write(fd(), 1), 0); }

 private:
  fiber::Task* const task_;
};

}  // namespace flare::io::testing

#endif  // FLARE_IO_TESTING_EVENT_SOURCE_H_
