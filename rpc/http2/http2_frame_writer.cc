#include "flare/rpc/http2/http2_frame_writer.h"

#include <new>

#include "flare/rpc/wire/framing.h"

namespace flare::rpc {

Buffer Http2FrameWriter::Take() {
  if (output_ == nullptr) return Buffer();
  Buffer out = output_->DestructiveGet();
  output_ = nullptr;
  own_output_.reset();
  return out;
}

void Http2FrameWriter::Drop() noexcept {
  // The builder may be somebody else's.
  if (BufferBuilder* const output = std::exchange(output_, nullptr)) {
    try {
      static_cast<void>(output->DestructiveGet());
    } catch (const std::bad_alloc&) {  // It keeps its bytes.
    }
  }
  own_output_.reset();
}

void Http2FrameWriter::Settings(
    std::initializer_list<std::pair<Http2Setting, std::uint32_t>> settings) {
  Header({.length =
              static_cast<std::uint32_t>(settings.size() * kHttp2SettingSize),
          .type = Http2FrameType::kSettings});
  for (const auto& [setting, value] : settings) {
    char bytes[kHttp2SettingSize];
    PutBigEndian32(value,
                   PutBigEndian16(static_cast<std::uint16_t>(setting), bytes));
    output()->Append(std::string_view(bytes, sizeof(bytes)));
  }
}

void Http2FrameWriter::Numbers(Http2FrameType type, std::int32_t stream,
                               std::initializer_list<std::uint32_t> numbers) {
  Header({.length = static_cast<std::uint32_t>(numbers.size() *
                                               sizeof(std::uint32_t)),
          .type = type,
          .stream = stream});
  for (const std::uint32_t number : numbers) {
    char bytes[sizeof(number)];
    PutBigEndian32(number, bytes);
    output()->Append(std::string_view(bytes, sizeof(bytes)));
  }
}

void Http2FrameWriter::Reset(std::int32_t id, Http2Error error) {
  Numbers(Http2FrameType::kRstStream, id, {static_cast<std::uint32_t>(error)});
}

void Http2FrameWriter::WindowUpdate(std::int32_t id, std::size_t bytes) {
  Numbers(Http2FrameType::kWindowUpdate, id,
          {static_cast<std::uint32_t>(bytes)});
}

void Http2FrameWriter::GoAway(std::int32_t last_id, Http2Error error,
                              std::string_view text) {
  char numbers[8];
  PutBigEndian32(static_cast<std::uint32_t>(error),
                 PutBigEndian32(static_cast<std::uint32_t>(last_id), numbers));
  text = text.substr(0, kMaxFrameSize - sizeof(numbers));
  Header({.length = static_cast<std::uint32_t>(sizeof(numbers) + text.size()),
          .type = Http2FrameType::kGoAway});
  output()->Append(std::string_view(numbers, sizeof(numbers)));
  output()->Append(text);
}

void Http2FrameWriter::Fixed(std::int32_t id, Http2FixedFields* fields,
                             bool end) {
  const std::uint64_t version = encoder_.version();
  if (fields->version_ != version) [[unlikely]] {
    Encode(fields->fields_, &fields->block_);
    fields->version_ = encoder_.version() == version ? version : 0;
  }
  WriteBlock(id, fields->block_, end);
}

void Http2FrameWriter::WriteBlock(std::int32_t id, std::string_view block,
                                  bool end) {
  auto type = Http2FrameType::kHeaders;
  std::uint8_t flags = end ? kHttp2EndStream : 0;
  do {
    const std::string_view piece = block.substr(0, kMaxFrameSize);
    block.remove_prefix(piece.size());
    if (block.empty()) flags |= kHttp2EndHeaders;
    Header({.length = static_cast<std::uint32_t>(piece.size()),
            .type = type,
            .flags = flags,
            .stream = id});
    output()->Append(piece);
    type = Http2FrameType::kContinuation;
    flags = 0;
  } while (!block.empty());
}

}  // namespace flare::rpc
