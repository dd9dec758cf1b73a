// The dynamic table of HPACK (RFC 7541, 2.3.2 and 4): the latest fields of one
// direction of a connection, as many as its size allows.
//
//   HpackTable table(4096);
//   table.Insert("content-type", "application/grpc");
//   table.Latest(1).name;    // The field that was inserted last.
//
// Not thread-safe; nothing blocks. Memory grows with the content, to four times
// the table's size at most, and inserting into a table that has its size
// allocates nothing.
#ifndef FLARE_RPC_HTTP2_HPACK_TABLE_H_
#define FLARE_RPC_HTTP2_HPACK_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace flare::rpc {

class HpackTable {
 public:
  // A field counts for as many bytes more than it has.
  static constexpr std::size_t kFieldOverhead = 32;

  struct Field {
    std::string_view name;
    std::string_view value;
    std::uint32_t mark;
  };

  explicit HpackTable(std::size_t max_size) : max_size_(max_size) {}

  std::size_t max_size() const { return max_size_; }
  std::size_t size() const { return size_; }
  // Fields in the table.
  std::uint32_t count() const { return count_; }
  // Fields that were ever inserted, modulo 2^32. The field at `distance` was
  // the one of number inserted() - distance.
  std::uint32_t inserted() const { return inserted_; }

  // Drops the oldest fields until the rest fits.
  void SetMaxSize(std::size_t size);

  // Drops the oldest fields that the new one leaves no room for. A field larger
  // than the table empties it, and isn't there itself. Neither text may lie in
  // the table. `mark` is the caller's.
  void Insert(std::string_view name, std::string_view value,
              std::uint32_t mark);

  // From 1, the latest, to count(), the oldest. The views are valid until the
  // next call that isn't const.
  Field Latest(std::uint32_t distance) const {
    const Entry& entry = entries_[(inserted_ - distance) & mask_];
    const char* const bytes = bytes_.get() + (entry.at - bytes_at_);
    return {{bytes, entry.name_size},
            {bytes + entry.name_size, entry.value_size},
            entry.mark};
  }

 private:
  // Positions count all bytes that were ever inserted, modulo 2^32.
  struct Entry {
    std::uint32_t at;
    std::uint32_t name_size;
    std::uint32_t value_size;
    std::uint32_t mark;

    std::uint32_t bytes() const { return name_size + value_size; }
  };

  Entry& At(std::uint32_t number) { return entries_[number & mask_]; }
  void DropOldest();
  void MakeRoomForEntry();
  void MakeRoomForBytes(std::size_t size);

  std::size_t max_size_;
  std::size_t size_ = 0;
  // A ring of a power of two.
  std::vector<Entry> entries_;
  std::uint32_t mask_ = 0;
  std::uint32_t count_ = 0;
  std::uint32_t inserted_ = 0;
  // One behind the other, so each text is in one piece. bytes_at_ is the
  // position of the first one.
  std::unique_ptr<char[]> bytes_;
  std::size_t capacity_ = 0;
  std::uint32_t bytes_at_ = 0;
  std::uint32_t bytes_end_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HPACK_TABLE_H_
