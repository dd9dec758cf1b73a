#include "flare/rpc/http2/hpack_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace flare::rpc {
namespace {

constexpr std::size_t kLeastEntries = 16;
constexpr std::size_t kLeastBytes = 512;

}  // namespace

void HpackTable::SetMaxSize(std::size_t size) {
  max_size_ = size;
  while (size_ > max_size_) DropOldest();
}

void HpackTable::Insert(std::string_view name, std::string_view value,
                        std::uint32_t mark) {
  const std::size_t bytes = name.size() + value.size();
  const std::size_t size = bytes + kFieldOverhead;
  while (count_ != 0 && size_ + size > max_size_) DropOldest();
  if (size > max_size_) return;
  MakeRoomForEntry();
  MakeRoomForBytes(bytes);
  char* const to = bytes_.get() + (bytes_end_ - bytes_at_);
  std::copy(name.begin(), name.end(), to);
  std::copy(value.begin(), value.end(), to + name.size());
  At(inserted_) = {.at = bytes_end_,
                   .name_size = static_cast<std::uint32_t>(name.size()),
                   .value_size = static_cast<std::uint32_t>(value.size()),
                   .mark = mark};
  bytes_end_ += static_cast<std::uint32_t>(bytes);
  ++inserted_;
  ++count_;
  size_ += size;
}

void HpackTable::DropOldest() {
  size_ -= At(inserted_ - count_).bytes() + kFieldOverhead;
  --count_;
}

void HpackTable::MakeRoomForEntry() {
  if (count_ < entries_.size()) return;
  std::vector<Entry> larger(std::max(kLeastEntries, 2 * entries_.size()));
  const auto mask = static_cast<std::uint32_t>(larger.size() - 1);
  for (std::uint32_t n = inserted_ - count_; n != inserted_; ++n) {
    larger[n & mask] = At(n);
  }
  entries_ = std::move(larger);
  mask_ = mask;
}

// Moves the bytes to the front, of a larger block if they fill more than half
// of it: so a byte is moved once for each byte that is inserted, at most.
void HpackTable::MakeRoomForBytes(std::size_t size) {
  if (bytes_end_ - bytes_at_ + size <= capacity_) return;
  const std::uint32_t oldest =
      count_ == 0 ? bytes_end_ : At(inserted_ - count_).at;
  const std::size_t kept = bytes_end_ - oldest;
  const char* const from = bytes_.get() + (oldest - bytes_at_);
  const std::size_t wanted =
      std::bit_ceil(std::max(kLeastBytes, 2 * (kept + size)));
  if (wanted > capacity_) {
    auto larger = std::make_unique<char[]>(wanted);
    if (kept != 0) std::memcpy(larger.get(), from, kept);
    bytes_ = std::move(larger);
    capacity_ = wanted;
  } else {
    std::memmove(bytes_.get(), from, kept);
  }
  bytes_at_ = oldest;
}

}  // namespace flare::rpc
