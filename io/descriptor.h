// A file descriptor that an EpollPoller watches, and what to do on its events.

#ifndef FLARE_IO_DESCRIPTOR_H_
#define FLARE_IO_DESCRIPTOR_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "flare/base/ref_ptr.h"
#include "flare/fiber/task.h"
#include "flare/io/fd.h"

namespace flare::io {

class EpollPoller;

// Base of connections and listeners. Reference counted; the poller holds one
// reference from Register() until some time after Retire(), so that events of
// a batch fetched before the retirement still find a live object.
//
// The file descriptor stays open until CloseFd() or destruction. It must be
// retired first, and no thread may be inside a system call on it.
class Descriptor : public RefCounted<Descriptor> {
 public:
  virtual ~Descriptor() = default;

  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  // Called by the poller with EPOLL* bits, by one thread at a time, possibly
  // still once after Retire(). Must only note the events and append a task
  // embedded in the descriptor to `*ready` if one has to run: no system calls,
  // no locks, no allocation, nothing that runs the events' consequences.
  virtual void OnEvents(std::uint32_t events, fiber::TaskList* ready) = 0;

  // -1 once closed. Constant while the descriptor is registered.
  int fd() const noexcept { return fd_.get(); }

 protected:
  explicit Descriptor(UniqueFd fd) : fd_(std::move(fd)) {}

  // Before registration.
  void AdoptFd(UniqueFd fd) { fd_ = std::move(fd); }

  void CloseFd() { fd_.Reset(); }

 private:
  friend class EpollPoller;

  UniqueFd fd_;
  Descriptor* next_retired_ = nullptr;  // EpollPoller's.
};

}  // namespace flare::io

#endif  // FLARE_IO_DESCRIPTOR_H_
