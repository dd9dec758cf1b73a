#include "flare/rpc/http/http_text.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "flare/base/string.h"

namespace flare::rpc {

namespace {

// Letters, digits and `others`.
constexpr std::array<bool, 256> MakeChars(std::string_view others) {
  std::array<bool, 256> chars{};
  for (char c = 'a'; c <= 'z'; ++c) chars[c] = chars[ToUpper(c)] = true;
  for (char c = '0'; c <= '9'; ++c) chars[c] = true;
  for (char c : others) chars[c] = true;
  return chars;
}

constexpr auto kTokenChars = MakeChars("!#$%&'*+-.^_`|~");

// The kind of a byte in the field Host, as bits. 0: one of a name.
constexpr std::uint8_t kColon = 1;
constexpr std::uint8_t kBracket = 2;
constexpr std::uint8_t kWrong = 4;

constexpr std::array<std::uint8_t, 256> MakeHostChars() {
  std::array<std::uint8_t, 256> chars{};
  constexpr auto names = MakeChars("-._~%!$&'()*+,;=");
  for (std::size_t c = 0; c != chars.size(); ++c) {
    chars[c] = names[c] ? 0 : kWrong;
  }
  chars[':'] = kColon;
  chars['['] = chars[']'] = kBracket;
  return chars;
}

constexpr auto kHostChars = MakeHostChars();

// ":80", ":" or nothing.
bool IsPortOrNothing(std::string_view text) {
  return text.empty() || (text[0] == ':' &&
                          std::all_of(text.begin() + 1, text.end(), [](char c) {
                            return c >= '0' && c <= '9';
                          }));
}

// "[::1]:80". The address itself isn't checked.
bool IsInBrackets(std::string_view host) {
  const std::size_t end = host.find(']');
  return host.starts_with('[') && host.find('[', 1) == std::string_view::npos &&
         end != std::string_view::npos && end > 1 &&
         IsPortOrNothing(host.substr(end + 1));
}

std::string_view UpTo(std::string_view text, char c) {
  return text.substr(0, text.find(c));
}

// The size of the scheme of a target of the absolute form; 0: it is another
// one.
std::size_t SchemeSize(std::string_view target) {
  for (std::string_view scheme : {"http://", "https://"}) {
    if (IEquals(target.substr(0, scheme.size()), scheme)) return scheme.size();
  }
  return 0;
}

}  // namespace

bool IsHttpTokenChar(char c) {
  return kTokenChars[static_cast<unsigned char>(c)];
}

bool IsHttpToken(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return kTokenChars[static_cast<unsigned char>(c)];
  });
}

bool MayBeHttpHost(std::string_view text) {
  std::uint8_t found = 0;
  // To the end in any case, which costs less than to look.
  for (char c : text) found |= kHostChars[static_cast<unsigned char>(c)];
  if (found == 0) return true;
  if (found == kColon) return IsPortOrNothing(text.substr(text.find(':')));
  return found < kWrong && IsInBrackets(text);
}

bool IsHttpPathText(std::string_view text) {
  constexpr std::size_t kBlock = 16;
  using Bytes = std::uint8_t __attribute__((vector_size(kBlock)));
  if (text.size() < kBlock) {
    // Made up to a block.
    char block[kBlock];
    std::memset(block, 'a', sizeof(block));
    text.copy(block, text.size());
    return !text.empty() && IsHttpPathText({block, sizeof(block)});
  }
  Bytes wrong = {};
  const auto look_at = [&wrong](const char* block) {
    Bytes bytes;
    std::memcpy(&bytes, block, sizeof(bytes));
    wrong |= reinterpret_cast<Bytes>((bytes <= ' ') | (bytes > '~') |
                                     (bytes == '?') | (bytes == '#'));
  };
  const char* const last = text.data() + text.size() - kBlock;
  for (const char* at = text.data(); at < last; at += kBlock) look_at(at);
  look_at(last);  // It laps over the one before.
  std::uint64_t halves[2];
  std::memcpy(halves, &wrong, sizeof(halves));
  return (halves[0] | halves[1]) == 0;
}

std::string HttpHostOf(std::string_view server) {
  if (server.starts_with("unix:")) return "localhost";
  std::string host(server);
  if (const std::size_t zone = host.find('%');
      host.starts_with('[') && zone != host.npos) {
    host.erase(zone, host.find(']', zone) - zone);
  }
  return host;
}

bool IsAbsoluteTarget(std::string_view target) {
  const std::size_t begin = SchemeSize(target);
  const std::size_t end = target.find_first_of("/?#", begin);
  const std::string_view host = target.substr(begin, end - begin);
  return begin != 0 && !host.empty() && host[0] != ':' && MayBeHttpHost(host);
}

std::string_view HostOfTarget(std::string_view target) {
  if (target.starts_with('/')) return {};
  const std::size_t begin = SchemeSize(target);
  if (begin == 0) return {};
  return target.substr(begin, target.find_first_of("/?#", begin) - begin);
}

std::string_view PathOfTarget(std::string_view target,
                              std::string_view nothing) {
  if (!target.starts_with('/')) {
    if (const std::size_t scheme_size = SchemeSize(target)) {
      const std::size_t slash = target.find_first_of("/?#", scheme_size);
      if (slash == std::string_view::npos) return nothing;
      if (target[slash] != '/') return "/";
      target.remove_prefix(slash);
    }
  }
  return UpTo(UpTo(target, '?'), '#');
}

std::string_view QueryOfTarget(std::string_view target) {
  target = UpTo(target, '#');
  const std::size_t mark = target.find('?');
  return mark == std::string_view::npos ? std::string_view()
                                        : target.substr(mark + 1);
}

}  // namespace flare::rpc
