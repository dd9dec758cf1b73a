#include "flare/rpc/websocket/websocket_decoder.h"

#include <algorithm>
#include <cerrno>

#include "flare/base/compression.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kMaxHeader = 14;

std::uint64_t BigEndian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (const char byte : bytes) {
    value = value << 8 | static_cast<unsigned char>(byte);
  }
  return value;
}

bool IsKnown(unsigned opcode) {
  return opcode <= static_cast<unsigned>(WebSocketOpcode::kBinary) ||
         (opcode >= static_cast<unsigned>(WebSocketOpcode::kClose) &&
          opcode <= static_cast<unsigned>(WebSocketOpcode::kPong));
}

}  // namespace

WebSocketDecoder::Result WebSocketDecoder::Next(Buffer& in) {
  if (fault_code_ != 0) return Result::kBroken;
  for (;;) {
    if (!in_frame_) {
      Header header{};
      Result result = ReadHeader(in, &header);
      if (result != Result::kMessage) return result;
      if (IsControl(header.opcode)) return ReadControl(header, in);
      result = BeginFrame(header, in);
      if (result != Result::kMessage) return result;
    }
    const Result result = ReadPayload(in);
    if (result != Result::kMessage || final_) return result;
  }
}

// --- headers -----------------------------------------------------------------

WebSocketDecoder::Result WebSocketDecoder::ReadHeader(const Buffer& in,
                                                      Header* header) {
  if (in.empty()) return Result::kNeedMore;
  char scratch[kMaxHeader];
  const std::string_view bytes = in.Peek(kMaxHeader, scratch);
  const auto first = static_cast<unsigned char>(bytes[0]);
  // The first byte alone may be wrong.
  const auto second = bytes.size() < 2
                          ? static_cast<unsigned char>(masked_ ? 0x80 : 0)
                          : static_cast<unsigned char>(bytes[1]);
  if (Result checked = CheckHeader(first, second);
      checked != Result::kMessage) {
    return checked;
  }
  if (bytes.size() < 2) return Result::kNeedMore;
  header->opcode = static_cast<WebSocketOpcode>(first & 0x0f);
  header->final = (first & 0x80) != 0;
  header->deflated = (first & kWebSocketDeflated) != 0;
  return ReadLength(bytes, header);
}

WebSocketDecoder::Result WebSocketDecoder::CheckHeader(unsigned char first,
                                                       unsigned char second) {
  // Only a message's first frame says that it is deflated.
  const unsigned deflated =
      limits_.inflates && !in_message_ &&
              !IsControl(static_cast<WebSocketOpcode>(first & 0x0f))
          ? kWebSocketDeflated
          : 0;
  if ((first & 0x70 & ~deflated) != 0) {
    return Break(kWebSocketProtocolError,
                 "a reserved bit is set, for which no extension was agreed on");
  }
  if (!IsKnown(first & 0x0f)) {
    return Break(kWebSocketProtocolError, "an opcode that is reserved");
  }
  const auto opcode = static_cast<WebSocketOpcode>(first & 0x0f);
  if (IsControl(opcode)) {
    if ((first & 0x80) == 0) {
      return Break(kWebSocketProtocolError, "a control frame in fragments");
    }
    if ((second & 0x7f) > kMaxWebSocketControl) {
      return Break(kWebSocketProtocolError,
                   "a control frame of more than 125 bytes");
    }
  } else if ((opcode == WebSocketOpcode::kContinuation) != in_message_) {
    return Break(kWebSocketProtocolError,
                 in_message_
                     ? "a message begins within another one"
                     : "a continuation without the beginning of a message");
  }
  if (((second & 0x80) != 0) != masked_) {
    return Break(kWebSocketProtocolError,
                 masked_ ? "a client's frame without a mask"
                         : "a server's frame with a mask");
  }
  return Result::kMessage;
}

// `bytes`: the header, and what follows.
WebSocketDecoder::Result WebSocketDecoder::ReadLength(std::string_view bytes,
                                                      Header* header) {
  const unsigned short_size = static_cast<unsigned char>(bytes[1]) & 0x7f;
  const std::size_t length_size = short_size == 126   ? 2
                                  : short_size == 127 ? 8
                                                      : 0;
  header->header_size = 2 + length_size + (masked_ ? mask_.size() : 0);
  header->size = short_size;
  if (length_size != 0) {
    if (bytes.size() < 2 + length_size) return Result::kNeedMore;
    header->size = BigEndian(bytes.substr(2, length_size));
    if (header->size < (length_size == 2 ? 126u : 0x10000u)) {
      return Break(kWebSocketProtocolError,
                   "a length in more bytes than it needs");
    }
    if (header->size >> 63 != 0) {
      return Break(kWebSocketProtocolError, "a length beyond 63 bits");
    }
  }
  if (!IsControl(header->opcode) &&
      header->size > limits_.max_message_size - message_.size()) {
    return Break(kWebSocketTooLarge,
                 "a message is larger than this side takes "
                 "(max_message_size)");
  }
  if (bytes.size() < header->header_size) return Result::kNeedMore;
  if (masked_) {
    bytes.substr(2 + length_size)
        .copy(reinterpret_cast<char*>(mask_.data()), mask_.size());
  }
  return Result::kMessage;
}

WebSocketDecoder::Result WebSocketDecoder::BeginFrame(const Header& header,
                                                      Buffer& in) {
  if (!in_message_) {
    in_message_ = true;
    is_text_ = header.opcode == WebSocketOpcode::kText;
    deflated_ = header.deflated;
    fragments_ = 0;
    utf8_ = Utf8Checker();
  }
  if (++fragments_ > limits_.max_fragments) {
    return Break(kWebSocketPolicy,
                 "a message has more fragments than this side takes "
                 "(max_fragments)");
  }
  in.Skip(header.header_size);
  in_frame_ = true;
  final_ = header.final;
  left_ = static_cast<std::size_t>(header.size);
  phase_ = 0;
  return Result::kMessage;
}

// --- payloads ----------------------------------------------------------------

WebSocketDecoder::Result WebSocketDecoder::ReadControl(const Header& header,
                                                       Buffer& in) {
  const auto size = static_cast<std::size_t>(header.size);
  if (in.size() < header.header_size + size) return Result::kNeedMore;
  in.Skip(header.header_size);
  control_ = FlattenSlow(in.Cut(size));
  if (masked_) {
    ApplyWebSocketMask(mask_, 0, control_.data(), size, control_.data());
  }
  switch (header.opcode) {
    case WebSocketOpcode::kPing:
      return Result::kPing;
    case WebSocketOpcode::kPong:
      return Result::kPong;
    default:
      return ReadClose();
  }
}

WebSocketDecoder::Result WebSocketDecoder::ReadClose() {
  close_code_ = kWebSocketNoCode;
  if (control_.empty()) return Result::kClose;
  if (control_.size() == 1) {
    return Break(kWebSocketProtocolError, "a close frame of one byte");
  }
  const auto code =
      static_cast<int>(BigEndian(std::string_view(control_).substr(0, 2)));
  if (!MaySendWebSocketCode(code)) {
    return Break(kWebSocketProtocolError,
                 "a close frame with a code that must not be sent");
  }
  if (!IsUtf8(close_reason())) {
    return Break(kWebSocketBadText, "a close frame whose reason isn't UTF-8");
  }
  close_code_ = code;
  return Result::kClose;
}

// kMessage: the frame is complete.
WebSocketDecoder::Result WebSocketDecoder::ReadPayload(Buffer& in) {
  const std::size_t n = std::min(left_, in.size());
  if (n != 0) {
    Buffer piece = in.Cut(n);
    if (masked_) piece = MaskedWebSocketPayload(mask_, phase_, piece);
    left_ -= n;
    phase_ += n;
    if (is_text_ && !deflated_) {
      for (const std::string_view slice : piece) {
        if (!utf8_.Feed(slice)) {
          return Break(kWebSocketBadText, "a text message that isn't UTF-8");
        }
      }
    }
    message_.Append(std::move(piece));
    compaction_.AfterAppend(&message_);
  }
  if (left_ != 0) return Result::kNeedMore;
  in_frame_ = false;
  if (!final_) return Result::kMessage;
  in_message_ = false;
  if (drops_) {
    message_.Clear();
    return Result::kMessage;
  }
  if (deflated_) return Inflate();
  if (is_text_ && !utf8_.complete()) {
    return Break(kWebSocketBadText, "a text message that isn't UTF-8");
  }
  return Result::kMessage;
}

WebSocketDecoder::Result WebSocketDecoder::Inflate() {
  auto inflated = InflateMessage(TakeMessage(), limits_.max_message_size);
  if (!inflated) {
    switch (inflated.error().code()) {
      case EMSGSIZE:
        return Break(kWebSocketTooLarge,
                     "a message is larger, once it is decompressed, than this "
                     "side takes (max_message_size)");
      case ENOMEM:
        return Break(kWebSocketFailed, "no memory to decompress a message");
      default:
        return Break(kWebSocketProtocolError,
                     "a message that can't be decompressed");
    }
  }
  message_ = *std::move(inflated);
  if (is_text_ && !IsUtf8(message_)) {
    return Break(kWebSocketBadText, "a text message that isn't UTF-8");
  }
  return Result::kMessage;
}

WebSocketDecoder::Result WebSocketDecoder::Break(int code,
                                                 std::string_view fault) {
  fault_code_ = code;
  fault_ = fault;
  message_.Clear();
  left_ = 0;
  return Result::kBroken;
}

}  // namespace flare::rpc
