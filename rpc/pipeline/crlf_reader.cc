#include "flare/rpc/pipeline/crlf_reader.h"

#include <algorithm>
#include <utility>

#include "flare/base/string.h"

namespace flare::rpc {

std::string FaultOfLine(std::string_view what, std::string_view line) {
  return std::string(what) + ": \"" + OneLine(line.substr(0, 64)) + '"';
}

std::size_t CrLfReader::TakeLine(std::string_view bytes,
                                 std::string_view* line) {
  *line = {};
  if (std::exchange(handed_out_, false)) line_.clear();
  const std::size_t end = bytes.find('\n');
  const std::size_t taken = end == bytes.npos ? bytes.size() : end + 1;
  if (line_.size() + taken > kMaxLine) {
    too_long_ = true;
    failure_ = "a line of more than 64 KiB";
    return taken;
  }
  if (end == bytes.npos || !line_.empty()) line_.append(bytes.substr(0, taken));
  if (end == bytes.npos) return taken;
  std::string_view whole = line_.empty() ? bytes.substr(0, taken) : line_;
  if (whole.size() < 3 || whole[whole.size() - 2] != '\r') {
    failure_ = FaultOfLine("a line that doesn't end with CR LF", whole);
    return taken;
  }
  whole.remove_suffix(2);
  if (whole.find('\r') != whole.npos) {
    failure_ = FaultOfLine("a line with a CR within", whole);
    return taken;
  }
  handed_out_ = true;
  *line = whole;
  return taken;
}

std::size_t CrLfReader::TakeBlock(std::string_view bytes, std::string* block) {
  const std::size_t taken = std::min(left_, bytes.size());
  const std::size_t of_block = left_ > 2 ? std::min(left_ - 2, taken) : 0;
  block->append(bytes.substr(0, of_block));
  for (std::size_t i = of_block; i != taken; ++i) {
    if (bytes[i] != (left_ - i == 2 ? '\r' : '\n')) {
      failure_ = "a string is longer than its length says";
      return taken;
    }
  }
  left_ -= taken;
  return taken;
}

}  // namespace flare::rpc
