#include "flare/rpc/memcached_reply.h"

#include <ostream>

#include "flare/base/string.h"

namespace flare {

std::uint64_t MemcachedReply::number() const {
  // A counter that has got shorter may have blanks at its end.
  return TryParse<std::uint64_t>(Trim(value)).value_or(0);
}

std::string MemcachedReply::ToString() const {
  switch (outcome) {
    case Outcome::kOk:
      return '"' + OneLine(value) + '"';
    case Outcome::kNotFound:
      return "not found";
    case Outcome::kNotStored:
      return "not stored";
    case Outcome::kExists:
      return "exists";
  }
  return "";
}

std::ostream& operator<<(std::ostream& out, const MemcachedReply& reply) {
  return out << reply.ToString();
}

}  // namespace flare
