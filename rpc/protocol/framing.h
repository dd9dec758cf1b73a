// Frames: takes them off the input, and writes their heads. For protocols whose
// frames begin with a fixed header that says how long the parts are:
// [header][head][rest]. The head is what the sender can be told from, so it is
// read even of frames that are too large, whose rest is skipped as it comes.
//
// A Frame describes one format:
//   static constexpr std::string_view kName, kMagic;   // the first bytes
//   static constexpr std::size_t kHeaderSize;
//   void Read(const char* header);     // kHeaderSize bytes
//   std::string Check() const;         // why it can't be a frame; or empty
//   std::size_t head_size() const;     // header and head
//   std::size_t total() const;         // all of it; at least head_size()
#ifndef FLARE_RPC_PROTOCOL_FRAMING_H_
#define FLARE_RPC_PROTOCOL_FRAMING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "flare/rpc/protocol.h"

namespace flare::rpc {

// Of the protobuf message that describes a call. Larger ones close the
// connection, before they are gathered.
inline constexpr std::size_t kMaxMetaSize = 64 << 10;

inline std::string OversizedMetaText(std::size_t size) {
  return "a meta of " + std::to_string(size) + " bytes exceeds the limit of " +
         std::to_string(kMaxMetaSize);
}

// One per connection and direction. Used by one task at a time; doesn't block.
template <class Frame>
class FrameCutter {
 public:
  explicit FrameCutter(std::size_t max_packet_size)
      : max_packet_size_(max_packet_size) {}

  // As ServerProtocol::Cut. On kMessage: *wire has header and head and, unless
  // *oversized, all of the frame; the rest of an oversized one is skipped by
  // this and later calls.
  CutResult Cut(Buffer& in, Frame* frame, Buffer* wire, bool* oversized,
                std::size_t* need, std::string* error) {
    *need = 0;
    if (!SkipRest(in)) return CutResult::kNeedMore;
    CutResult result = ReadHeader(in, frame, need);
    if (result != CutResult::kMessage) return result;
    if (std::string why = frame->Check(); !why.empty()) {
      error->assign(Frame::kName).append(": ").append(why);
      return CutResult::kError;
    }
    *oversized = frame->total() > max_packet_size_;
    std::size_t wanted = *oversized ? frame->head_size() : frame->total();
    if (in.size() < wanted) {
      *need = wanted;
      return CutResult::kNeedMore;
    }
    *wire = in.Cut(wanted);
    skip_ = frame->total() - wanted;
    SkipRest(in);
    return CutResult::kMessage;
  }

  // For the reading side of a client, which speaks with one kind of peer.
  CutResult CutResponse(Buffer& in, Frame* frame, Buffer* wire, bool* oversized,
                        std::size_t* need, std::string* error) {
    CutResult result = Cut(in, frame, wire, oversized, need, error);
    if (result == CutResult::kUnsure) return CutResult::kNeedMore;
    if (result != CutResult::kNotMine) return result;
    error->assign(Frame::kName).append(": the peer's bytes are no ");
    error->append(Frame::kName).append(" response");
    return CutResult::kError;
  }

  std::string OversizedText(std::size_t size) const {
    return "a message of " + std::to_string(size) +
           " bytes exceeds the limit of " + std::to_string(max_packet_size_);
  }

 private:
  // False if all of the input belonged to an oversized frame and more will.
  bool SkipRest(Buffer& in) {
    std::size_t n = std::min(skip_, in.size());
    if (n != 0) in.Skip(n);
    skip_ -= n;
    return skip_ == 0;
  }

  static CutResult ReadHeader(const Buffer& in, Frame* frame,
                              std::size_t* need) {
    char scratch[Frame::kHeaderSize];
    std::string_view bytes =
        in.Peek(std::min(in.size(), Frame::kHeaderSize), scratch);
    std::size_t known = std::min(bytes.size(), Frame::kMagic.size());
    if (bytes.substr(0, known) != Frame::kMagic.substr(0, known)) {
      return CutResult::kNotMine;
    }
    if (known < Frame::kMagic.size()) return CutResult::kUnsure;
    if (bytes.size() < Frame::kHeaderSize) {
      *need = Frame::kHeaderSize;
      return CutResult::kNeedMore;
    }
    frame->Read(bytes.data());
    return CutResult::kMessage;
  }

  const std::size_t max_packet_size_;
  std::size_t skip_ = 0;  // bytes still to come of an oversized frame
};

// Header and head of a frame to be sent: `put` writes `size` bytes to where it
// is told.
template <class Put>
void AppendHead(std::size_t size, Put&& put, BufferBuilder* out) {
  if (size <= BufferBuilder::kMaxReserve) {
    put(out->Reserve(size));
    return;
  }
  std::string head(size, '\0');
  put(head.data());
  out->Append(head);
}

inline std::uint32_t ReadBigEndian32(const char* at) {
  std::uint32_t value = 0;
  for (int i = 0; i != 4; ++i) {
    value = value << 8 | static_cast<std::uint8_t>(at[i]);
  }
  return value;
}

// Returns the end.
inline char* PutBigEndian32(std::size_t value, char* out) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    *out++ = static_cast<char>(value >> shift);
  }
  return out;
}

// Into *scratch, as "service.method". The parts may lie in *scratch, which must
// have room for the name.
inline std::string_view JoinMethodName(std::string_view service,
                                       std::string_view method,
                                       std::string* scratch) {
  std::size_t at = scratch->size();
  scratch->append(service).append(1, '.').append(method);
  return std::string_view(*scratch).substr(at);
}

// The head of a frame cut off before (message->meta_size bytes behind the
// header), in one piece; maybe in message->scratch.
template <class Message>
std::string_view HeadOf(std::size_t header_size, Message* message) {
  return ContiguousPrefix(message->wire, header_size + message->meta_size,
                          &message->scratch)
      .substr(header_size);
}

// Takes the frame apart, by message->body_size; its head stays in `wire`, for
// the views into it.
template <class Message>
void SplitFrame(std::size_t header_size, Message* message) {
  Buffer head = message->wire.Cut(header_size + message->meta_size);
  message->body = message->wire.Cut(message->body_size);
  message->attachment = std::move(message->wire);
  message->wire = std::move(head);
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_PROTOCOL_FRAMING_H_
