// Makes the frames that one side of an HTTP/2 connection sends (RFC 9113,
// section 6), and compresses their fields. When a frame may be sent is for its
// user to know.
//
//   Http2FrameWriter writer;
//   writer.Fields(id, {{":status", "200"}}, /*end=*/false);
//   writer.Header({.length = ..., .type = Http2FrameType::kData, ...});
//   writer.output()->Append(bytes);
//   connection->Write(writer.Take());
//
// Not thread-safe; nothing blocks. Without memory functions throw
// std::bad_alloc, and its output is good for nothing.
#ifndef FLARE_RPC_HTTP2_HTTP2_FRAME_WRITER_H_
#define FLARE_RPC_HTTP2_HTTP2_FRAME_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/rpc/http2/hpack.h"
#include "flare/rpc/http2/http2_frame.h"

namespace flare::rpc {

struct Http2Field {
  std::string_view name;  // In lower case.
  std::string_view value;
  HpackIndexing indexing = HpackIndexing::kAdd;
};

// Fields that are sent again and again. The writer keeps the block that they
// make, while its table is the same. For one connection only.
class Http2FixedFields {
 public:
  // `fields` must outlive it.
  explicit Http2FixedFields(std::span<const Http2Field> fields)
      : fields_(fields) {}

  std::span<const Http2Field> fields() const { return fields_; }

 private:
  friend class Http2FrameWriter;

  const std::span<const Http2Field> fields_;
  std::string block_;
  std::uint64_t version_ = 0;  // The encoder's version that the block is for.
};

class Http2FrameWriter {
 public:
  // The most that a frame's payload takes here.
  static constexpr std::size_t kMaxFrameSize = 16384;

  Http2FrameWriter() = default;
  Http2FrameWriter(const Http2FrameWriter&) = delete;
  Http2FrameWriter& operator=(const Http2FrameWriter&) = delete;

  // Until Take() frames are written to *builder, which is empty. Without
  // effect if something was written already.
  void WriteBy(BufferBuilder* builder) {
    if (output_ == nullptr) output_ = builder;
  }
  // All that was written since the last time.
  Buffer Take();
  void Drop() noexcept;

  // For the payload behind Header().
  BufferBuilder* output() {
    if (output_ == nullptr) output_ = &own_output_.emplace();
    return output_;
  }
  void Header(const Http2FrameHeader& header) {
    header.Store(output()->Reserve(Http2FrameHeader::kSize));
  }
  void Settings(
      std::initializer_list<std::pair<Http2Setting, std::uint32_t>> settings);
  // A frame whose payload is numbers of 32 bits.
  void Numbers(Http2FrameType type, std::int32_t stream,
               std::initializer_list<std::uint32_t> numbers);
  void Reset(std::int32_t id, Http2Error error);
  void WindowUpdate(std::int32_t id, std::size_t bytes);
  void GoAway(std::int32_t last_id, Http2Error error, std::string_view text);
  // HEADERS, and CONTINUATION for bytes that one frame has no room for.
  // `fields`: a range of structs with the members of Http2Field.
  template <class FieldRange>
  void Fields(std::int32_t id, const FieldRange& fields, bool end) {
    Encode(fields, &block_);
    WriteBlock(id, block_, end);
  }
  void Fixed(std::int32_t id, Http2FixedFields* fields, bool end);

  // The peer's SETTINGS_HEADER_TABLE_SIZE.
  void SetMaxTableSize(std::uint32_t bytes) { encoder_.SetMaxTableSize(bytes); }

 private:
  template <class FieldRange>
  void Encode(const FieldRange& fields, std::string* block) {
    block->clear();
    for (const auto& field : fields) {
      encoder_.Encode(field.name, field.value, field.indexing, block);
    }
  }
  void WriteBlock(std::int32_t id, std::string_view block, bool end);

  std::optional<BufferBuilder> own_output_;
  BufferBuilder* output_ = nullptr;  // Null: nothing is written.
  HpackEncoder encoder_;
  std::string block_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP2_FRAME_WRITER_H_
