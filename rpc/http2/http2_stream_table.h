// The open streams of one connection by their numbers: open addressing, with
// half of the places free at least. Allocates when there are more than ever
// before, so in steady state not at all.
//
// Not thread-safe; nothing blocks.
#ifndef FLARE_RPC_HTTP2_HTTP2_STREAM_TABLE_H_
#define FLARE_RPC_HTTP2_HTTP2_STREAM_TABLE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace flare::rpc {

template <class Stream>
class Http2StreamTable {
 public:
  // Null: there is none. 0 is no stream's number.
  Stream* Find(std::int32_t id) const {
    if (slots_.empty()) return nullptr;
    for (std::size_t i = HomeOf(id);; i = Next(i)) {
      if (slots_[i].id == id) return slots_[i].stream;
      if (slots_[i].stream == nullptr) return nullptr;
    }
  }

  // Needs that there is none of that number.
  void Insert(std::int32_t id, Stream* stream) {
    if ((size_ + 1) * 2 > slots_.size()) Grow();
    Place({id, stream});
    ++size_;
  }

  void Remove(std::int32_t id) {
    if (slots_.empty()) return;
    std::size_t hole = HomeOf(id);
    while (slots_[hole].id != id) {
      if (slots_[hole].stream == nullptr) return;
      hole = Next(hole);
    }
    --size_;
    // Later entries that aren't at their place move up, so that no search ends
    // early.
    for (std::size_t i = Next(hole); slots_[i].stream != nullptr; i = Next(i)) {
      const std::size_t home = HomeOf(slots_[i].id);
      if (((i - home) & mask()) < ((i - hole) & mask())) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole] = {};
  }

  std::size_t size() const { return size_; }

  // The table must not change meanwhile.
  template <class Code>
  void ForEach(Code&& code) const {
    for (const Slot& slot : slots_) {
      if (slot.stream != nullptr) code(slot.stream);
    }
  }

 private:
  static constexpr std::size_t kLeast = 16;

  struct Slot {
    std::int32_t id = 0;
    Stream* stream = nullptr;
  };

  std::size_t mask() const { return slots_.size() - 1; }
  std::size_t Next(std::size_t i) const { return (i + 1) & mask(); }
  // Numbers of one connection are mostly two apart.
  std::size_t HomeOf(std::int32_t id) const {
    const auto number = static_cast<std::uint32_t>(id) >> 1;
    return (number ^ (number * 0x9E3779B1u) >> 20) & mask();
  }
  void Place(const Slot& slot) {
    std::size_t i = HomeOf(slot.id);
    while (slots_[i].stream != nullptr) i = Next(i);
    slots_[i] = slot;
  }
  void Grow() {
    std::vector<Slot> before(std::max(kLeast, slots_.size() * 2));
    before.swap(slots_);
    for (const Slot& slot : before) {
      if (slot.stream != nullptr) Place(slot);
    }
  }

  std::vector<Slot> slots_;  // A power of two of them, or none.
  std::size_t size_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP2_STREAM_TABLE_H_
