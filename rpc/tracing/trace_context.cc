#include "flare/rpc/tracing/trace_context.h"

#include <algorithm>
#include <random>

#include "flare/base/random.h"
#include "flare/base/string.h"

namespace flare {
namespace {

void AppendHex(std::uint64_t value, int digits, std::string* text) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    text->push_back("0123456789abcdef"[(value >> shift) & 15]);
  }
}

// --- tracestate ------------------------------------------------------------

bool IsKeyStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}
bool IsKeyChar(char c) {
  return IsKeyStart(c) || c == '_' || c == '-' || c == '*' || c == '/' ||
         c == '@';
}

bool IsKey(std::string_view key) {
  constexpr std::size_t kMaxKeyBytes = 256;
  return !key.empty() && key.size() <= kMaxKeyBytes && IsKeyStart(key[0]) &&
         std::all_of(key.begin(), key.end(), IsKeyChar) &&
         std::count(key.begin(), key.end(), '@') <= 1;
}

bool IsValue(std::string_view value) {
  constexpr std::size_t kMaxValueBytes = 256;
  return !value.empty() && value.size() <= kMaxValueBytes &&
         value.back() != ' ' &&
         std::all_of(value.begin(), value.end(), [](char c) {
           return c >= ' ' && c <= '~' && c != '=' && c != ',';
         });
}

std::string_view KeyOf(std::string_view member) {
  return member.substr(0, member.find('='));
}

bool IsMember(std::string_view member) {
  const std::string_view key = KeyOf(member);
  return key.size() < member.size() && IsKey(key) &&
         IsValue(member.substr(key.size() + 1));
}

// Appends those of one header. False: one is malformed, or there are too many.
bool TakeMembers(std::string_view header,
                 std::vector<std::string_view>* members) {
  constexpr std::size_t kMaxMembers = 32;
  for (std::string_view member : Split(header, ',')) {
    member = Trim(member);
    if (member.empty()) continue;  // Allowed.
    if (!IsMember(member) || members->size() == kMaxMembers) return false;
    for (const std::string_view other : *members) {
      if (KeyOf(other) == KeyOf(member)) return false;
    }
    members->push_back(member);
  }
  return true;
}

void Shorten(std::vector<std::string_view>* members) {
  constexpr std::size_t kLargeMember = 128;
  const auto size = [members] {
    std::size_t bytes = members->empty() ? 0 : members->size() - 1;
    for (const std::string_view member : *members) bytes += member.size();
    return bytes;
  };
  while (size() > kMaxTracestateBytes) {
    const auto largest =
        std::max_element(members->begin(), members->end(),
                         [](auto a, auto b) { return a.size() < b.size(); });
    if (largest->size() > kLargeMember) {
      members->erase(largest);
    } else {
      members->pop_back();
    }
  }
}

// --- ids -------------------------------------------------------------------

// Two sequences of a thread, so that a trace id is one of 2^128.
struct IdSource {
  IdSource() {
    std::random_device random;
    for (std::uint64_t* const seed : {&high, &low}) {
      *seed = std::uint64_t{random()} << 32 | random();
    }
  }
  std::uint64_t high;
  std::uint64_t low;
};

std::uint64_t NextOf(std::uint64_t* state) {
  std::uint64_t id;
  do {
    id = MixBits((*state)++);
  } while (id == 0);
  return id;
}

// noinline, and the asm: a fiber that has moved must not use the thread of
// before (docs/proofs.md).
[[gnu::noinline]] IdSource* MyIdSource() {
  thread_local IdSource source;
  IdSource* mine = &source;
  asm volatile("" : "+r"(mine) : : "memory");
  return mine;
}

}  // namespace

std::optional<std::uint64_t> ParseHexId(std::string_view digits) {
  if (digits.empty() || digits.size() > 16) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : digits) {
    const bool decimal = c >= '0' && c <= '9';
    if (!decimal && !(c >= 'a' && c <= 'f')) return std::nullopt;
    value = value << 4 |
            static_cast<std::uint64_t>(decimal ? c - '0' : c - 'a' + 10);
  }
  return value;
}

std::string TraceId::ToString() const {
  std::string text;
  text.reserve(32);
  AppendHex(high, 16, &text);
  AppendHex(low, 16, &text);
  return text;
}

std::string SpanIdToString(std::uint64_t span_id) {
  std::string text;
  AppendHex(span_id, 16, &text);
  return text;
}

std::string TraceContext::ToTraceparent() const {
  std::string text = "00-";
  text.reserve(55);
  AppendHex(trace_id.high, 16, &text);
  AppendHex(trace_id.low, 16, &text);
  text.push_back('-');
  AppendHex(span_id, 16, &text);
  text.push_back('-');
  AppendHex((sampled ? 1u : 0u) | (random ? 2u : 0u), 2, &text);
  return text;
}

std::optional<TraceContext> ParseTraceparent(std::string_view value) {
  constexpr std::size_t kSize = 55;  // That of version 0.
  if (value.size() < kSize || value[2] != '-' || value[35] != '-' ||
      value[52] != '-') {
    return std::nullopt;
  }
  const auto version = ParseHexId(value.substr(0, 2));
  const auto high = ParseHexId(value.substr(3, 16));
  const auto low = ParseHexId(value.substr(19, 16));
  const auto span = ParseHexId(value.substr(36, 16));
  const auto flags = ParseHexId(value.substr(53, 2));
  if (!version || !high || !low || !span || !flags) return std::nullopt;
  if (*version == 0xff || (*high | *low) == 0 || *span == 0) {
    return std::nullopt;
  }
  if (value.size() > kSize && (*version == 0 || value[kSize] != '-')) {
    return std::nullopt;
  }
  return TraceContext{.trace_id = {.high = *high, .low = *low},
                      .span_id = *span,
                      .sampled = (*flags & 1) != 0,
                      .random = (*flags & 2) != 0};
}

std::string JoinTracestate(const std::vector<std::string_view>& values) {
  std::vector<std::string_view> members;
  for (const std::string_view value : values) {
    if (!TakeMembers(value, &members)) return "";
  }
  Shorten(&members);
  return Join(members, ",");
}

TraceId NewTraceId() {
  IdSource* const source = MyIdSource();
  return {.high = NextOf(&source->high), .low = NextOf(&source->low)};
}

std::uint64_t NewSpanId() { return NextOf(&MyIdSource()->low); }

}  // namespace flare
