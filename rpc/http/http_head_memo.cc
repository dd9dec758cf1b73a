#include "flare/rpc/http/http_head_memo.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace flare::rpc {

std::optional<std::size_t> HttpHeadMemo::Peek(std::string_view bytes,
                                              std::size_t limit,
                                              std::size_t max_fields,
                                              HttpHead* out) {
  if (const auto size = Match(bytes, limit, out)) [[likely]]
    return size;
  const auto size = parse_(bytes, limit, max_fields, out);
  if (size) OnMiss(bytes.substr(0, *size), *out);
  return size;
}

std::optional<std::size_t> HttpHeadMemo::Match(std::string_view bytes,
                                               std::size_t limit,
                                               HttpHead* out) {
  if (known_ == nullptr) return std::nullopt;
  const auto size = known_->Match(bytes, limit, out);
  if (size) misses_to_pass_ = next_misses_ = 0;
  return size;
}

void HttpHeadMemo::OnMiss(std::string_view text, const HttpHead& head) {
  if (misses_to_pass_ != 0) {
    --misses_to_pass_;
    return;
  }
  misses_to_pass_ = next_misses_;
  next_misses_ = std::min(2 * next_misses_ + 1, kMaxMisses);
  if (text.size() > kMaxSize) return;
  if (known_ == nullptr) known_ = std::make_unique<Known>();
  known_->Assign(text, head);
}

std::optional<std::size_t> HttpHeadMemo::Known::Match(std::string_view bytes,
                                                      std::size_t limit,
                                                      HttpHead* out) const {
  constexpr std::size_t kMaxDigits = 19;  // [HM3]
  HttpNumber numbers[std::tuple_size_v<decltype(holes)>];
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  std::size_t found = 0;  // of `text`
  const auto find_until = [&](std::size_t stop) {
    const std::size_t size = stop - found;
    if (static_cast<std::size_t>(end - at) < size ||
        std::memcmp(at, text.data() + found, size) != 0) {
      return false;
    }
    at += size;
    return true;
  };
  for (std::size_t i = 0; i != hole_count; ++i) {
    if (!find_until(holes[i].begin)) return std::nullopt;
    const char* const digits = at;
    std::uint64_t value = 0;
    for (; at != end && *at >= '0' && *at <= '9'; ++at) {
      value = value * 10 + static_cast<std::uint64_t>(*at - '0');
    }
    const auto size = static_cast<std::size_t>(at - digits);
    if (size == 0 || size > kMaxDigits) return std::nullopt;
    numbers[i] = {{digits, size}, value};
    found = holes[i].end;
  }
  if (!find_until(text.size())) return std::nullopt;
  const auto size = static_cast<std::size_t>(at - bytes.data());
  if (size > limit) return std::nullopt;
  *out = head;
  for (std::size_t i = 0; i != hole_count; ++i) {
    out->*holes[i].number = numbers[i];
  }
  // Nothing before the fields varies, and behind them is the empty line.
  const auto begin = static_cast<std::size_t>(head.fields.data() - text.data());
  out->fields = bytes.substr(begin, size - 2 - begin);
  return size;
}

void HttpHeadMemo::Known::Assign(std::string_view new_text,
                                 const HttpHead& new_head) {
  text.assign(new_text);
  head = new_head;
  for (std::string_view* view :
       {&head.method_name, &head.target, &head.reason,
        &head.content_length.text, &head.content_type, &head.origin,
        &head.rpc_seq_no.text, &head.rpc_timeout.text, &head.rpc_error_code,
        &head.rpc_error_reason, &head.fields}) {
    if (view->data() == nullptr) continue;
    *view = {text.data() + (view->data() - new_text.data()), view->size()};
  }
  hole_count = 0;
  if (!head.repeats_length) AddHole(&HttpHead::content_length);
  AddHole(&HttpHead::rpc_seq_no);
  AddHole(&HttpHead::rpc_timeout);
  std::sort(holes.begin(), holes.begin() + hole_count,
            [](const Hole& a, const Hole& b) { return a.begin < b.begin; });
}

void HttpHeadMemo::Known::AddHole(HttpNumber HttpHead::*number) {
  const HttpNumber& known = head.*number;
  if (!known.value) return;  // [HM2]
  const auto begin = static_cast<std::size_t>(known.text.data() - text.data());
  holes[hole_count++] = {begin, begin + known.text.size(), number};
}

}  // namespace flare::rpc
