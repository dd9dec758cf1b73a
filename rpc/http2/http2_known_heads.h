// The latest heads that a server has read, by their bytes: where the same bytes
// come again, the fields needn't be decoded and checked again.
//
//   if (const auto place = heads.Find(block)) Use(heads.check(*place));
//   else heads.Keep(block, check, [&](std::size_t place) { return ...; });
//   if (decoder's table has changed) heads.Clear();
//
// Not thread-safe; nothing blocks. Keep() may throw std::bad_alloc.
#ifndef FLARE_RPC_HTTP2_HTTP2_KNOWN_HEADS_H_
#define FLARE_RPC_HTTP2_HTTP2_KNOWN_HEADS_H_

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "flare/rpc/http2/http2_head.h"

namespace flare::rpc {

class Http2KnownHeads {
 public:
  static constexpr std::size_t kPlaces = 4;

  std::optional<std::size_t> Find(std::string_view block) const {
    if (block.empty()) return std::nullopt;  // As places are that hold none.
    for (std::size_t place = 0; place != kPlaces; ++place) {
      if (heads_[place].block == block) return place;
    }
    return std::nullopt;
  }
  // The result of its check.
  const Http2HeadCheck& check(std::size_t place) const {
    return heads_[place].check;
  }

  // keep(place) keeps what its user has made of the fields, in place of an
  // earlier one; false: it doesn't.
  template <class KeepPlace>
  void Keep(std::string_view block, const Http2HeadCheck& check,
            KeepPlace&& keep) {
    if (block.size() > kMaxSize) return;
    Head& head = heads_[next_];
    head.block.clear();
    if (!keep(next_)) return;
    head.block.assign(block);
    head.check = check;
    next_ = (next_ + 1) % kPlaces;
  }

  // The same bytes may mean other fields from now on.
  void Clear() {
    for (Head& head : heads_) head.block.clear();
  }

 private:
  // Longer blocks aren't kept.
  static constexpr std::size_t kMaxSize = 512;

  struct Head {
    std::string block;
    Http2HeadCheck check;
  };
  std::array<Head, kPlaces> heads_;
  std::size_t next_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP2_KNOWN_HEADS_H_
