// Frames: takes them off the input, and writes them. For protocols whose frames
// begin with a header that says how long all is: [header][head][rest]. The
// sender is found by the head, so it is read even of frames that are too large,
// whose rest is skipped as it comes, or ends the connection.
//
// A Frame describes one format:
//   static constexpr std::string_view kName;
//   static constexpr std::size_t kHeaderSize;  // at most, in bytes
//   // From the first bytes of the input, kHeaderSize of them if there are.
//   // kMessage: the members say what the header does. As ServerProtocol::Cut
//   // otherwise.
//   CutResult Read(std::string_view bytes, std::size_t* need,
//                  std::string* error);
//   std::size_t kept_size() const;  // header and head
//   std::size_t total() const;      // all of it; at least kept_size()
#ifndef FLARE_RPC_WIRE_FRAMING_H_
#define FLARE_RPC_WIRE_FRAMING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/status.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/protocol.h"

namespace flare::rpc {

// The limit of error texts that we send: more would not fit into a meta.
inline constexpr std::size_t kMaxErrorText = 32 << 10;

// One per connection and direction. Used by one task at a time; doesn't block.
template <class Frame>
class FrameCutter {
 public:
  explicit FrameCutter(const Limits& limits)
      : max_packet_size_(limits.max_packet_size),
        max_skipped_(limits.max_skipped),
        max_kept_size_(Frame::kHeaderSize + limits.max_meta_size) {}

  // As ServerProtocol::Cut. On kMessage: *wire has header and head and, unless
  // the frame is oversized, all of it; the rest of an oversized one is skipped
  // by this and later calls (kHandled), or an error of the next one.
  CutResult Cut(Buffer& in, Frame* frame, Buffer* wire, std::size_t* need,
                std::string* error) {
    *need = 0;
    if (skip_ != 0) [[unlikely]] {
      if (skip_ > max_skipped_) return RefuseRest(error);
      return SkipRest(in) ? CutResult::kHandled : CutResult::kNeedMore;
    }
    char scratch[Frame::kHeaderSize];
    const CutResult result = frame->Read(
        in.Peek(std::min(in.size(), Frame::kHeaderSize), scratch), need, error);
    if (result == CutResult::kError) {
      error->insert(0, std::string(Frame::kName) + ": ");
    }
    if (result != CutResult::kMessage) return result;
    if (frame->kept_size() > max_kept_size_) return RefuseMeta(*frame, error);
    const std::size_t wanted =
        Oversized(*frame) ? frame->kept_size() : frame->total();
    if (in.size() < wanted) {
      *need = wanted;
      return CutResult::kNeedMore;
    }
    *wire = in.Cut(wanted);
    skip_ = frame->total() - wanted;
    if (skip_ != 0 && skip_ <= max_skipped_) [[unlikely]]
      SkipRest(in);
    return CutResult::kMessage;
  }

  // For the reading side of a client, which speaks with one kind of peer.
  CutResult CutResponse(Buffer& in, Frame* frame, Buffer* wire,
                        std::size_t* need, std::string* error) {
    const CutResult result = Cut(in, frame, wire, need, error);
    if (result == CutResult::kUnsure) return CutResult::kNeedMore;
    if (result != CutResult::kNotMine) return result;
    error->assign(Frame::kName).append(": the peer's bytes are no ");
    error->append(Frame::kName).append(" response");
    return CutResult::kError;
  }

  // The rest of an oversized frame is to come.
  bool skipping() const { return skip_ != 0; }

  bool Oversized(const Frame& frame) const {
    return frame.total() > max_packet_size_;
  }
  // `limit` names the setting, for readers who want to send more.
  std::string OversizedText(std::size_t size, std::string_view limit) const {
    return SizeLimitText("message", size, max_packet_size_, limit);
  }

 private:
  [[gnu::cold]] CutResult RefuseMeta(const Frame& frame,
                                     std::string* error) const {
    error->assign(Frame::kName).append(": a meta of ");
    error->append(std::to_string(frame.kept_size() - Frame::kHeaderSize));
    error->append(" bytes exceeds the limit of ");
    error->append(std::to_string(max_kept_size_ - Frame::kHeaderSize));
    return CutResult::kError;
  }

  [[gnu::cold]] CutResult RefuseRest(std::string* error) const {
    error->assign(Frame::kName).append(": the last message exceeds the limit");
    error->append(" of ").append(std::to_string(max_packet_size_));
    error->append(" bytes by too much to skip the rest, ");
    error->append(std::to_string(skip_)).append(" bytes");
    return CutResult::kError;
  }

  // False if all of the input belonged to an oversized frame and more will.
  bool SkipRest(Buffer& in) {
    const std::size_t n = std::min(skip_, in.size());
    if (n != 0) in.Skip(n);
    skip_ -= n;
    return skip_ == 0;
  }

  const std::size_t max_packet_size_;
  const std::size_t max_skipped_;
  const std::size_t max_kept_size_;
  std::size_t skip_ = 0;  // bytes still to come of an oversized frame
};

// For Frame::Read where `magic` tells whose the bytes are: kMessage if there
// are `header_size` of them.
inline CutResult MatchHeader(std::string_view bytes, std::string_view magic,
                             std::size_t header_size, std::size_t* need) {
  if (bytes.size() >= header_size) [[likely]] {
    // In place of starts_with(), which doesn't know the size.
    return std::memcmp(bytes.data(), magic.data(), magic.size()) == 0
               ? CutResult::kMessage
               : CutResult::kNotMine;
  }
  const std::size_t known = std::min(bytes.size(), magic.size());
  if (bytes.substr(0, known) != magic.substr(0, known)) {
    return CutResult::kNotMine;
  }
  if (known < magic.size()) return CutResult::kUnsure;
  *need = header_size;
  return CutResult::kNeedMore;
}

// Header and head of a frame to be sent: `put` writes at most `bound` bytes to
// where it is told, and returns their end.
template <class Put>
void AppendHead(std::size_t bound, Put&& put, BufferBuilder* out) {
  if (bound <= BufferBuilder::kMaxReserve) [[likely]] {
    char* const at = out->DataWithRoom(bound);
    out->MarkWritten(static_cast<std::size_t>(put(at) - at));
    return;
  }
  std::string head(bound, '\0');
  head.resize(static_cast<std::size_t>(put(head.data()) - head.data()));
  out->Append(head);
}

// All of a frame.
template <class Put>
void AppendFrame(std::size_t head_bound, Put&& put, OutboundBody&& body,
                 Buffer&& attachment, BufferBuilder* out) {
  AppendHead(head_bound, put, out);
  std::move(body).AppendTo(out);
  if (!attachment.empty()) out->Append(std::move(attachment));
}

// Where one number of 32 bits has the size of all, with room for the head,
// whatever peers take such numbers for.
inline bool TooLargeForFrame(const OutboundBody& body,
                             const Buffer& attachment) {
  return body.size() + attachment.size() > std::size_t{2'000'000'000};
}

// --- numbers, most significant byte first; Put functions return the end ---

inline std::uint16_t ReadBigEndian16(const char* at) {
  return static_cast<std::uint16_t>(static_cast<std::uint8_t>(at[0]) << 8 |
                                    static_cast<std::uint8_t>(at[1]));
}

inline std::uint32_t ReadBigEndian32(const char* at) {
  return std::uint32_t{ReadBigEndian16(at)} << 16 | ReadBigEndian16(at + 2);
}

inline char* PutBigEndian16(std::size_t value, char* out) {
  *out++ = static_cast<char>(value >> 8);
  *out++ = static_cast<char>(value);
  return out;
}

inline char* PutBigEndian32(std::size_t value, char* out) {
  return PutBigEndian16(value, PutBigEndian16(value >> 16, out));
}

// --- names of methods ---

// "package.Service.Method" in two; both empty if it has no such parts.
struct MethodName {
  explicit MethodName(std::string_view full) {
    const std::size_t dot = full.rfind('.');
    if (dot == std::string_view::npos) return;
    service = full.substr(0, dot);
    method = full.substr(dot + 1);
  }
  bool ok() const { return !service.empty() && !method.empty(); }

  std::string_view service;
  std::string_view method;
};

inline flare::Status BadMethodName(std::string_view name) {
  return flare::Status(
      STATUS_INVALID_METHOD_NAME,
      "\"" + std::string(name) + "\" isn't package.Service.Method");
}

// Into *scratch, as "service.method". The parts may lie in *scratch, which must
// have room for the name.
inline std::string_view JoinMethodName(std::string_view service,
                                       std::string_view method,
                                       std::string* scratch) {
  const std::size_t at = scratch->size();
  scratch->append(service).append(1, '.').append(method);
  return std::string_view(*scratch).substr(at);
}

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_FRAMING_H_
