// Takes the frames of WebSocket (RFC 6455, 5) off the input of a connection, as
// it comes, and makes messages of them. Strict: each violation of the protocol
// is found at the first byte that shows it.
//
//   WebSocketDecoder decoder(/*masked=*/true, limits);
//   for (;;) switch (decoder.Next(in)) {
//     case WebSocketDecoder::Result::kMessage: Use(decoder.TakeMessage()); ...
//
// Used by one task at a time; nothing blocks.
#ifndef FLARE_RPC_WEBSOCKET_WEBSOCKET_DECODER_H_
#define FLARE_RPC_WEBSOCKET_WEBSOCKET_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/rpc/websocket/utf8_checker.h"
#include "flare/rpc/websocket/websocket_frame.h"

namespace flare::rpc {

class WebSocketDecoder {
 public:
  struct Limits {
    std::size_t max_message_size = std::size_t{1} << 20;
    std::size_t max_fragments = 1024;  // Frames of one message.
    bool inflates = false;             // permessage-deflate was agreed on.
  };

  enum class Result {
    kNeedMore,  // All that has come of the next frame's payload was taken.
    kMessage,   // is_text() and TakeMessage().
    kPing,      // control()
    kPong,      // control()
    kClose,     // close_code() and close_reason(). Nothing may follow.
    kBroken,    // fault_code() and fault(). Nothing more can be read.
  };

  // `masked`: the peer is a client, whose frames must be.
  WebSocketDecoder(bool masked, const Limits& limits)
      : masked_(masked), limits_(limits) {}

  Result Next(Buffer& in);
  // From here on messages are empty: nobody reads them.
  void DropMessages() { drops_ = true; }

  bool is_text() const { return is_text_; }
  Buffer TakeMessage() { return std::exchange(message_, Buffer()); }

  // The payload of the last control frame; valid until Next().
  const std::string& control() const { return control_; }
  int close_code() const { return close_code_; }  // kWebSocketNoCode: none
  std::string_view close_reason() const {
    return std::string_view(control_).substr(control_.empty() ? 0 : 2);
  }

  // For the close frame that answers it.
  int fault_code() const { return fault_code_; }
  std::string_view fault() const { return fault_; }

  // Bytes of the current frame that are to come; a hint.
  std::size_t need() const { return left_; }
  // A part of a frame was taken off the input, but not all of it.
  bool within_frame() const { return left_ != 0; }
  // Bytes of the message that isn't complete.
  std::size_t kept() const { return message_.size(); }

 private:
  struct Header {
    WebSocketOpcode opcode;
    bool final;
    bool deflated;
    std::uint64_t size;
    std::size_t header_size;
  };

  // kMessage: *header was read.
  Result ReadHeader(const Buffer& in, Header* header);
  Result CheckHeader(unsigned char first, unsigned char second);
  Result ReadLength(std::string_view bytes, Header* header);
  Result BeginFrame(const Header& header, Buffer& in);
  Result ReadControl(const Header& header, Buffer& in);
  Result ReadClose();
  Result ReadPayload(Buffer& in);
  Result Inflate();
  Result Break(int code, std::string_view fault);

  const bool masked_;
  const Limits limits_;
  bool drops_ = false;  // Messages are empty.

  // The current data frame.
  std::size_t left_ = 0;   // Bytes of its payload that are to come.
  std::size_t phase_ = 0;  // Bytes of it that came.
  WebSocketMask mask_{};
  bool in_frame_ = false;  // Its header has been read.
  bool final_ = false;     // It ends its message.

  // The current message.
  bool in_message_ = false;
  bool is_text_ = false;
  bool deflated_ = false;
  std::size_t fragments_ = 0;
  Utf8Checker utf8_;
  Buffer message_;
  PacedCompaction compaction_;

  std::string control_;
  int close_code_ = kWebSocketNoCode;
  int fault_code_ = 0;
  std::string_view fault_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WEBSOCKET_WEBSOCKET_DECODER_H_
