// HPACK (RFC 7541): the compression of header fields in HTTP/2. Each direction
// of a connection has one encoder at one end and one decoder at the other.
//
//   HpackDecoder decoder(HpackDecoder::Options{});
//   HpackResult result = decoder.Decode(block, [&](const HpackField& field) {
//     ... field.name, field.value ...
//   });
//   if (!result.error.empty()) ...  // COMPRESSION_ERROR, for that cause.
//
//   HpackEncoder encoder;
//   std::string block;
//   encoder.Encode(":status", "200", HpackIndexing::kAdd, &block);
//   encoder.Encode("grpc-message", text, HpackIndexing::kOmit, &block);
//
// A decoder gets all blocks of its connection, in order, also those of streams
// that are closed: each changes the table. An encoder's output must be sent, in
// order, for the same reason.
//
// Not thread-safe; nothing blocks. Tables allocate as they grow to their
// sizes, and not again. Without memory std::bad_alloc is thrown, and the
// object is of no use any more.
#ifndef FLARE_RPC_HTTP2_HPACK_H_
#define FLARE_RPC_HTTP2_HPACK_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "flare/rpc/http2/hpack_table.h"

namespace flare::rpc {

// SETTINGS_HEADER_TABLE_SIZE until a peer announces another value.
inline constexpr std::size_t kHpackTableSize = 4096;

struct HpackField {
  std::string_view name;
  std::string_view value;
  // Name and value have only characters that HTTP/2 allows (RFC 9113, 8.2.1):
  // a token in lower case, perhaps behind a colon, and no control characters
  // or surrounding blanks. Kept in the table with the field, so checking one
  // that repeats costs nothing.
  bool valid = true;
  // The sender wants no table to have it: a proxy passes that on.
  bool never_index = false;
};

struct HpackResult {
  // Why the block can't be decoded; empty if it was. The connection must end.
  std::string_view error;
  // The list was longer than Options::max_header_list: fields were left out.
  bool too_long = false;
  // The same bytes may mean other fields now.
  bool table_changed = false;
};

class HpackDecoder {
 public:
  struct Options {
    // As announced by SETTINGS_HEADER_TABLE_SIZE.
    std::size_t max_table_size = kHpackTableSize;
    // Bytes of names and values of a block, each field with 32 bytes more (RFC
    // 9113, 6.5.2). No field beyond it is delivered; the table stays right. A
    // block of kEndlessList times as much is an error: tables make it of few
    // bytes.
    std::size_t max_header_list = 64 << 10;
  };

  static constexpr std::size_t kEndlessList = 8;

  explicit HpackDecoder(const Options& options);

  // Decodes a whole block: the fragments of HEADERS and of its CONTINUATION
  // frames. Calls on_field(const HpackField&) for each field, in order, with
  // views that are valid during the call. Behind an error all further blocks
  // fail, too.
  template <class OnField>
  [[nodiscard]] HpackResult Decode(std::string_view block, OnField&& on_field) {
    using Code = std::remove_reference_t<OnField>;
    return DecodeBlock(
        block,
        [](void* code, const HpackField& field) {
          (*static_cast<Code*>(code))(field);
        },
        const_cast<std::remove_const_t<Code>*>(&on_field));
  }

 private:
  using Callback = void (*)(void* code, const HpackField& field);
  class Reader;
  // A literal may take its name alone from a table.
  struct Field : HpackField {
    bool valid_name = true;
  };

  HpackResult DecodeBlock(std::string_view block, Callback callback,
                          void* code);
  // The field of that number in both tables; false if there is none.
  bool Lookup(std::uint32_t index, Field* field) const;
  // These fail by setting error_.
  void ReadTableSize(Reader* reader, bool at_begin);
  void ReadIndexed(Reader* reader, Field* field);
  void ReadLiteral(Reader* reader, int prefix_bits, Field* field);
  void ReadString(Reader* reader, std::string* scratch, std::string_view* text);

  const Options options_;
  // A field's mark says that it is known to be valid.
  HpackTable table_;
  std::string_view error_;
  // For strings that don't lie in the block as they are.
  std::string name_;
  std::string value_;
};

// The form of a field that no table has. One that is in a table, as a whole, is
// sent as its number by all but kNever.
enum class HpackIndexing : std::uint8_t {
  // It goes to the table: it will be sent again on this connection.
  kAdd,
  // It doesn't: it has another value each time.
  kOmit,
  // ... and no proxy may add it, either: it is a secret, which the size of
  // blocks must not betray (RFC 7541, 7.1.3).
  kNever,
};

class HpackEncoder {
 public:
  // The peer's SETTINGS_HEADER_TABLE_SIZE, once it is acknowledged. Only
  // kHpackTableSize bytes of larger tables are used.
  void SetMaxTableSize(std::size_t size);

  // Appends the field to *block, which must hold one block from its begin on.
  // `name` is in lower case. None of both may point into *block.
  void Encode(std::string_view name, std::string_view value,
              HpackIndexing indexing, std::string* block);

  // While it is the same, so are the blocks that the same fields make. It is
  // never 0.
  std::uint64_t version() const { return version_; }

 private:
  // Numbers in both tables; 0: there is none.
  std::uint32_t FindDynamic(std::uint32_t hash, std::string_view name,
                            std::string_view value) const;
  std::uint32_t FindName(std::string_view name) const;
  void AppendTableSizes(std::string* block);
  void AppendLiteral(std::string_view name, std::string_view value,
                     HpackIndexing indexing, std::string* block) const;

  // A field's mark is its bucket's former value.
  HpackTable table_{kHpackTableSize};
  // By a field's hash, one more than the number, as HpackTable counts, of the
  // latest one that has it: the begin of a list that goes on by marks.
  // Fields that have left the table are at its end.
  std::array<std::uint32_t, 64> buckets_ = {};
  // The least size since the last block, and whether the peer must be told.
  std::size_t least_size_ = kHpackTableSize;
  bool size_changed_ = false;
  std::uint64_t version_ = 1;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HPACK_H_
