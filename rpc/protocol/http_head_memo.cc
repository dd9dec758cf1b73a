#include "flare/rpc/protocol/http_head_memo.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace flare::rpc {

std::optional<std::size_t> HttpHeadMemo::PeekRequest(std::string_view bytes,
                                                     std::size_t limit,
                                                     std::size_t max_fields,
                                                     HttpHead* out) {
  if (const auto size = Match(bytes, limit, out)) [[likely]]
    return size;
  const auto size = PeekRequestHead(bytes, limit, max_fields, out);
  if (size) OnMiss(bytes.substr(0, *size), *out);
  return size;
}

std::optional<std::size_t> HttpHeadMemo::PeekResponse(std::string_view bytes,
                                                      std::size_t limit,
                                                      std::size_t max_fields,
                                                      HttpHead* out) {
  if (const auto size = Match(bytes, limit, out)) [[likely]]
    return size;
  const auto size = PeekResponseHead(bytes, limit, max_fields, out);
  if (size) OnMiss(bytes.substr(0, *size), *out);
  return size;
}

std::optional<std::size_t> HttpHeadMemo::Match(std::string_view bytes,
                                               std::size_t limit,
                                               HttpHead* out) {
  constexpr std::size_t kMaxDigits = 19;  // [HM3]
  if (text_.empty()) return std::nullopt;
  HttpNumber numbers[std::tuple_size_v<decltype(holes_)>];
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  std::size_t known = 0;  // That much of text_ was found.
  const auto find_until = [&](std::size_t stop) {
    const std::size_t size = stop - known;
    if (static_cast<std::size_t>(end - at) < size ||
        std::memcmp(at, text_.data() + known, size) != 0) {
      return false;
    }
    at += size;
    return true;
  };
  for (std::size_t i = 0; i != hole_count_; ++i) {
    if (!find_until(holes_[i].begin)) return std::nullopt;
    const char* const digits = at;
    std::uint64_t value = 0;
    for (; at != end && *at >= '0' && *at <= '9'; ++at) {
      value = value * 10 + static_cast<std::uint64_t>(*at - '0');
    }
    const auto size = static_cast<std::size_t>(at - digits);
    if (size == 0 || size > kMaxDigits) return std::nullopt;
    numbers[i] = {{digits, size}, value};
    known = holes_[i].end;
  }
  if (!find_until(text_.size())) return std::nullopt;
  const auto size = static_cast<std::size_t>(at - bytes.data());
  if (size > limit) return std::nullopt;
  *out = head_;
  for (std::size_t i = 0; i != hole_count_; ++i) {
    out->*holes_[i].number = numbers[i];
  }
  // Nothing before the fields varies, and behind them is the empty line.
  const auto begin =
      static_cast<std::size_t>(head_.fields.data() - text_.data());
  out->fields = bytes.substr(begin, size - 2 - begin);
  misses_to_pass_ = next_misses_ = 0;
  return size;
}

void HttpHeadMemo::OnMiss(std::string_view text, const HttpHead& head) {
  if (misses_to_pass_ != 0) {
    --misses_to_pass_;
    return;
  }
  misses_to_pass_ = next_misses_;
  next_misses_ = std::min(2 * next_misses_ + 1, kMaxMisses);
  Remember(text, head);
}

void HttpHeadMemo::Remember(std::string_view text, const HttpHead& head) {
  text_.clear();
  hole_count_ = 0;
  if (text.size() > kMaxSize) return;
  text_.assign(text);
  head_ = head;
  for (std::string_view* view :
       {&head_.method_name, &head_.target, &head_.reason,
        &head_.content_length.text, &head_.content_type, &head_.rpc_seq_no.text,
        &head_.rpc_timeout.text, &head_.rpc_error_code, &head_.rpc_error_reason,
        &head_.fields}) {
    if (view->data() == nullptr) continue;
    *view = {text_.data() + (view->data() - text.data()), view->size()};
  }
  if (!head_.repeats_length) AddHole(&HttpHead::content_length);
  AddHole(&HttpHead::rpc_seq_no);
  AddHole(&HttpHead::rpc_timeout);
  std::sort(holes_.begin(), holes_.begin() + hole_count_,
            [](const Hole& a, const Hole& b) { return a.begin < b.begin; });
}

void HttpHeadMemo::AddHole(HttpNumber HttpHead::*number) {
  const HttpNumber& known = head_.*number;
  if (!known.value) return;  // [HM2]
  const auto begin = static_cast<std::size_t>(known.text.data() - text_.data());
  holes_[hole_count_++] = {begin, begin + known.text.size(), number};
}

}  // namespace flare::rpc
