// How much of a connection's output its peer has taken, as far as the kernel
// says. By one thread at a time.
#ifndef FLARE_IO_TAKEN_OUTPUT_H_
#define FLARE_IO_TAKEN_OUTPUT_H_

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <cstdint>

#include "flare/base/clock.h"

namespace flare::io {

class TakenOutput {
 public:
  // Looks at the socket, to which `sent` bytes have been given by now, or a few
  // more: count them before the call, so that bytes sent meanwhile look as if
  // they weren't taken. One system call; doesn't block.
  void Look(int fd, std::int64_t sent) {
    // Bytes that were not acknowledged. Another kind of socket: none.
    if (fd < 0 || ::ioctl(fd, SIOCOUTQ, &in_kernel_) != 0) in_kernel_ = 0;
    // It doesn't ask whether there is less than before: bytes that the peer has
    // taken may have been made up for since.
    if (sent - in_kernel_ > taken_) {
      taken_ = sent - in_kernel_;
      taken_at_ns_ = NowNs();
    }
  }

  // Whether the kernel held bytes at the last look.
  bool left() const { return in_kernel_ != 0; }
  // When a look last found more bytes taken than the one before; 0: none has.
  std::int64_t taken_at_ns() const { return taken_at_ns_; }

 private:
  int in_kernel_ = 0;
  std::int64_t taken_ = 0;
  std::int64_t taken_at_ns_ = 0;
};

}  // namespace flare::io

#endif  // FLARE_IO_TAKEN_OUTPUT_H_
