#include "flare/rpc/tracing/baggage.h"

#include <algorithm>

#include "flare/base/percent.h"
#include "flare/base/string.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/wire/utf8.h"

namespace flare {
namespace {

// Visible ASCII except '"', ',', ';' and '\'.
bool IsValueChar(char c) {
  return c > ' ' && c <= '~' && c != '"' && c != ',' && c != ';' && c != '\\';
}

// "name=value;property=value;property", without blanks around the parts. Empty:
// it is malformed.
std::string NormalMember(std::string_view text) {
  std::string member;
  for (const std::string_view part : Split(text, ';', /*keep_empty=*/true)) {
    const std::size_t equals = part.find('=');
    const std::string_view name = rpc::TrimBlanks(part.substr(0, equals));
    if (!rpc::IsHttpToken(name)) return "";
    if (!member.empty()) member += ';';
    const bool first = member.empty();
    member += name;
    if (equals != part.npos) {
      const auto value = rpc::TrimBlanks(part.substr(equals + 1));
      if (!std::all_of(value.begin(), value.end(), IsValueChar)) return "";
      member += '=';
      member += value;
    } else if (first) {
      return "";
    }
  }
  return member;
}

}  // namespace

JoinedBaggage JoinBaggage(const std::vector<std::string_view>& values,
                          std::size_t max_bytes) {
  JoinedBaggage joined;
  std::size_t members = 0;
  for (const std::string_view value : values) {
    rpc::ForEachListMember(value, [&](std::string_view text) {
      const std::string member = NormalMember(text);
      if (member.empty()) return;
      const std::size_t comma = members == 0 ? 0 : 1;
      if (members == kMaxBaggageMembers ||
          joined.text.size() + comma + member.size() > max_bytes) {
        ++joined.dropped;
        return;
      }
      joined.text.append(comma, ',').append(member);
      ++members;
    });
  }
  return joined;
}

std::size_t CountBaggage(std::string_view baggage) {
  if (baggage.empty()) return 0;
  return 1 + static_cast<std::size_t>(
                 std::count(baggage.begin(), baggage.end(), ','));
}

std::optional<std::string> FindBaggage(std::string_view baggage,
                                       std::string_view name) {
  for (const std::string_view member : Split(baggage, ',')) {
    const std::string_view pair = member.substr(0, member.find(';'));
    const std::size_t equals = pair.find('=');
    if (pair.substr(0, equals) != name) continue;
    const std::string_view value = pair.substr(equals + 1);
    const std::string bytes =
        UnescapePercent(value).value_or(std::string(value));
    std::string scratch;
    return std::string(rpc::AsUtf8(bytes, &scratch, "\ufffd"));
  }
  return std::nullopt;
}

}  // namespace flare
