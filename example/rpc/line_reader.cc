#include "example/rpc/line_reader.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "flare/fiber/blocking_region.h"

namespace example {

LineReader::LineReader(int fd)
    : fd_(fd), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void LineReader::Stop() { flare::io::SignalEventFd(stop_.get()); }

LineReader::Got LineReader::ReadMore() {
  std::array<pollfd, 2> files{pollfd{fd_, POLLIN, 0},
                              pollfd{stop_.get(), POLLIN, 0}};
  if (poll(files.data(), files.size(), -1) < 0) {
    return errno == EINTR ? Got::kBytes : Got::kFailure;
  }
  if (files[1].revents != 0) return Got::kEnd;
  std::array<char, 1 << 14> piece;
  const ssize_t got = read(fd_, piece.data(), piece.size());
  if (got < 0) {
    return errno == EINTR || errno == EAGAIN ? Got::kBytes : Got::kFailure;
  }
  if (got == 0) return Got::kEnd;
  buffer_.append(piece.data(), static_cast<std::size_t>(got));
  return Got::kBytes;
}

flare::Expected<std::optional<std::string>, flare::Status> LineReader::Next() {
  while (true) {
    const std::size_t end = buffer_.find('\n', searched_);
    if (end != buffer_.npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      searched_ = 0;
      ++line_;
      return std::optional(std::move(line));
    }
    searched_ = buffer_.size();
    if (ended_) {
      if (buffer_.empty()) return std::optional<std::string>();
      buffer_ += '\n';  // The last line has no end.
      continue;
    }
    int error = 0;
    const Got got = flare::fiber::RunBlocking([&] {
      const Got outcome = ReadMore();
      error = errno;
      return outcome;
    });
    if (got == Got::kFailure) {
      return flare::StatusFromErrno(error, "can't read stdin");
    }
    ended_ = got == Got::kEnd;
  }
}

}  // namespace example
