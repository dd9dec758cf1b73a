#include "flare/rpc/protocol.h"

#include <string>

namespace flare::rpc {

std::string SizeLimitText(std::string_view what, std::uint64_t size,
                          std::size_t limit, std::string_view by) {
  std::string text("a ");
  text.append(what).append(" of ").append(std::to_string(size));
  text.append(" bytes exceeds the limit of ").append(std::to_string(limit));
  text.append(" (").append(by).append(")");
  return text;
}

std::string_view CopyPrefix(const Buffer& in, std::size_t size,
                            std::string* scratch) {
  scratch->resize(size);
  return {scratch->data(), in.CopyTo(scratch->data(), size)};
}

}  // namespace flare::rpc
