// For session.cc: a session's events, and its sockets.

#ifndef EXAMPLE_PROXY_SESSION_SIDE_H_
#define EXAMPLE_PROXY_SESSION_SIDE_H_

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>
#include <utility>

#include "example/proxy/session.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/io/descriptor.h"
#include "flare/io/epoll_poller.h"
#include "flare/io/fd.h"
#include "flare/io/socket_options.h"

namespace example::proxy {

// Bits of `events_`: the lower six bits of a side's EPOLL* events, EPOLLRDHUP
// moved to the last of them, for the client and the upstream; and our own.
inline constexpr std::uint32_t kEventMask = 0x3f;
inline constexpr std::uint32_t kMovedRdhup = 0x20;
inline constexpr unsigned kClientShift = 0;
inline constexpr unsigned kUpstreamShift = 6;
inline constexpr std::uint32_t kStart = 1U << 12;
inline constexpr std::uint32_t kTime = 1U << 13;
inline constexpr std::uint32_t kCutAsked = 1U << 14;
inline constexpr std::uint32_t kQueued = 1U << 15;
inline constexpr std::uint32_t kLookAsked = 1U << 16;
inline constexpr std::uint32_t kTurn = 1U << 17;
inline constexpr std::uint32_t kMakeWay = 1U << 18;
static_assert((EPOLLIN | EPOLLPRI | EPOLLOUT | EPOLLERR | EPOLLHUP) <
              kMovedRdhup);

inline std::uint32_t PackEvents(std::uint32_t events, unsigned shift) {
  return ((events & (kMovedRdhup - 1)) |
          ((events & EPOLLRDHUP) != 0 ? kMovedRdhup : 0))
         << shift;
}

inline std::uint32_t UnpackEvents(std::uint32_t events, unsigned shift) {
  const std::uint32_t packed = (events >> shift) & kEventMask;
  return (packed & (kMovedRdhup - 1)) |
         ((packed & kMovedRdhup) != 0 ? std::uint32_t{EPOLLRDHUP} : 0);
}

// One of the two sockets, as the poller knows it.
class Session::Side final : public flare::io::Descriptor {
 public:
  Side(flare::io::UniqueFd fd, unsigned shift, Session* session)
      : Descriptor(std::move(fd)),
        shift_(shift),
        session_(flare::ref_ptr, session) {}

  void OnEvents(std::uint32_t events, flare::fiber::TaskList* ready) override {
    if (session_->Signal(PackEvents(events, shift_))) {
      ready->PushBack(session_.Get());
    }
  }

  flare::Status Register() {
    flare::Status status =
        flare::io::EpollPoller::OfGroup(session_->home_)->Register(this);
    registered_ = status.ok();
    return status;
  }

  void Close() {
    if (registered_) {
      flare::io::EpollPoller::OfGroup(session_->home_)->Retire(this);
    }
    registered_ = false;
    CloseFd();
  }

 private:
  const unsigned shift_;
  const flare::RefPtr<Session> session_;  // [SE3]
  bool registered_ = false;
};

// For either socket.
inline void SetSocketOptions(int fd, const ProxyConfig& config) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(
      config.tcp_user_timeout);
  if (ms.count() > 0) {
    flare::io::SetTcpUserTimeout(fd, static_cast<int>(ms.count()));
  }
  if (config.tcp_keepalive.count() > 0) {
    const auto seconds = [](std::chrono::nanoseconds time) {
      return std::chrono::ceil<std::chrono::seconds>(time);
    };
    flare::io::SetKeepAlive(fd, seconds(config.tcp_keepalive),
                            seconds(config.tcp_keepalive_interval));
  }
}

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_SESSION_SIDE_H_
