#include "flare/rpc/http/http_head_memo.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "flare/rpc/http/http_text.h"

namespace flare::rpc {

HttpHeadMemo::Found HttpHeadMemo::Peek(std::string_view bytes,
                                       std::size_t limit,
                                       std::size_t max_fields,
                                       std::optional<HttpHead>* parsed) {
  if (known_ != nullptr) {
    if (const std::size_t size = known_->Match(bytes, limit)) [[likely]] {
      misses_to_pass_ = next_misses_ = 0;
      return {&known_->head, size};
    }
  }
  return Parse(bytes, limit, max_fields, parsed);
}

// Kept out of line: known heads need no frame for it.
[[gnu::noinline]] HttpHeadMemo::Found HttpHeadMemo::Parse(
    std::string_view bytes, std::size_t limit, std::size_t max_fields,
    std::optional<HttpHead>* parsed) {
  HttpHead& head = parsed->emplace();
  const auto size = parse_(bytes, limit, max_fields, &head);
  if (!size) return {};
  OnMiss(bytes.substr(0, *size), head);
  return {&head, *size};
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

// A mismatch has changed numbers in `head`, which isn't used then; the next
// match overwrites them.
std::size_t HttpHeadMemo::Known::Match(std::string_view bytes,
                                       std::size_t limit) {
  constexpr std::size_t kMaxDigits = 19;  // [HM3]
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
    if (!find_until(holes[i].begin)) return 0;
    const char* const digits = at;
    std::uint64_t value = 0;
    for (; at != end && *at >= '0' && *at <= '9'; ++at) {
      value = value * 10 + static_cast<std::uint64_t>(*at - '0');
    }
    const auto size = static_cast<std::size_t>(at - digits);
    if (size == 0 || size > kMaxDigits) return 0;
    head.*holes[i].number = {{digits, size}, value};
    found = holes[i].end;
  }
  if (!find_until(text.size())) return 0;
  const auto size = static_cast<std::size_t>(at - bytes.data());
  if (size > limit) return 0;
  // Nothing before the fields varies, and behind them is the empty line.
  head.fields = {bytes.data() + fields_begin, size - 2 - fields_begin};
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
  if (head.target.data() != nullptr) head.path = PathOfTarget(head.target);
  fields_begin = static_cast<std::size_t>(head.fields.data() - text.data());
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
