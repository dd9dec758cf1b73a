// The lines of a pipe, a terminal or a file, until somebody needs no more.

#ifndef EXAMPLE_RPC_LINE_READER_H_
#define EXAMPLE_RPC_LINE_READER_H_

#include <cstddef>
#include <optional>
#include <string>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"

namespace example {

// One fiber or thread reads; Stop() is for any other one.
class LineReader {
 public:
  // Reads `fd`, which must live as long as this.
  explicit LineReader(int fd);

  // The next line, without its end; nothing: there is none, or Stop() has been
  // called. Blocks the fiber while it waits for more.
  flare::Expected<std::optional<std::string>, flare::Status> Next();

  // Ends a Next() that waits, and all later ones.
  void Stop();

  // The number of the line that Next() returned, from 1.
  std::size_t line() const { return line_; }

 private:
  enum class Got { kBytes, kEnd, kFailure };
  Got ReadMore();

  const int fd_;
  const flare::io::UniqueFd stop_;  // An eventfd.
  std::string buffer_;
  std::size_t searched_ = 0;  // Bytes of it that have no end of a line.
  bool ended_ = false;
  std::size_t line_ = 0;
};

}  // namespace example

#endif  // EXAMPLE_RPC_LINE_READER_H_
