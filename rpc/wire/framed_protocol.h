// The common part of protocols whose frames are a protobuf message that
// describes the call (its meta), body and attachment: cutting, the order of the
// checks, and the handling of messages that are too large or malformed.
//
//   class XServerProtocol final
//       : public FramedServerProtocol<XServerProtocol, XFrame, XMeta> { ... };
//
// `Self` adds Write(), traits(), kJoinsMethodName (true) for a server whose
// Accept calls JoinMethodName(), and these static functions, where Message is
// an InboundRequest or an InboundResponse:
//   // Takes the facts of `frame` into the message, beside the sizes. A
//   client's
//   // returns an empty text, or why the connection must end. It may be a
//   member
//   // that isn't static, and may be left out.
//   void Describe(const Frame& frame, InboundRequest* request);
//   std::string_view Describe(const Frame& frame, InboundResponse* response);
//   // *meta is fresh. Returns an empty text or the fault of `bytes`.
//   std::string_view Decode(std::string_view bytes, Meta* meta);
//   // Whose the message is: into request->ticket, response->correlation_id.
//   // False: nobody's, so that the connection is closed.
//   bool Identify(const Meta& meta, bool malformed, Message* message);
//   // Refuses (see Reject) or takes its parts; sets message->body_size if
//   // Describe hasn't.
//   ParseResult Accept(const Meta& meta, InboundRequest* request);
//   // Returns why the response can't be read, or an empty text.
//   std::string_view Accept(const Meta& meta, InboundResponse* response);
// The frame has a member `meta_size`, the meta one that is `metadata`.
#ifndef FLARE_RPC_WIRE_FRAMED_PROTOCOL_H_
#define FLARE_RPC_WIRE_FRAMED_PROTOCOL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/wire/framing.h"
#include "flare/rpc/wire/metadata_fields.h"

namespace flare::rpc {

// The meta of a frame cut off before, in one piece; maybe in message->scratch.
template <class Frame, class Message>
std::string_view MetaOf(Message* message) {
  return ContiguousPrefix(message->wire,
                          Frame::kHeaderSize + message->meta_size,
                          &message->scratch)
      .substr(Frame::kHeaderSize);
}

// Sets message->body_size, where the meta says how much of the rest is
// attachment; false if there isn't as much.
template <class Frame, class Message>
bool FindBody(std::size_t attachment_size, Message* message) {
  const std::size_t rest =
      message->wire_size - Frame::kHeaderSize - message->meta_size;
  if (attachment_size > rest) return false;
  message->body_size = static_cast<std::uint32_t>(rest - attachment_size);
  return true;
}

// Takes the frame apart, by message->body_size. With `head_is_kept`, `wire`
// keeps header and meta until the message is cleared, for views into them.
// Without, a frame without attachment that lies in one block becomes `body`
// alone, which saves counting a reference: views into the meta are then valid
// as long as the body.
template <class Frame, class Message>
void SplitFrame(bool head_is_kept, Message* message) {
  Buffer& wire = message->wire;
  const std::size_t head_size = Frame::kHeaderSize + message->meta_size;
  if (wire.size() == head_size) return;
  const bool has_attachment = wire.size() != head_size + message->body_size;
  const bool in_one_block = wire.FirstContiguous().size() == wire.size();
  if (!head_is_kept && !has_attachment && in_one_block) {
    wire.Skip(head_size);
    message->body = std::move(wire);
    return;
  }
  Buffer head = wire.Cut(head_size);
  message->body = wire.Cut(message->body_size);
  message->attachment = std::move(wire);
  wire = std::move(head);
}

// Refuses a request, with the text `what` and `detail`.
inline ParseResult Reject(std::string_view what, std::string_view detail,
                          InboundRequest* request,
                          int status = STATUS_MALFORMED_DATA) {
  request->reject_status = status;
  request->reject_reason.assign(what).append(detail);
  return ParseResult::kReject;
}

template <class Self, class Frame, class Meta>
class FramedServerProtocol : public ServerProtocol {
 public:
  std::string_view name() const override { return Frame::kName; }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override {
    Frame frame;
    const CutResult result =
        cutter_.Cut(in, &frame, &request->wire, need, error);
    if (result != CutResult::kMessage) return result;
    request->wire_size = frame.total();
    request->meta_size = frame.meta_size;
    static_cast<Self*>(this)->Describe(frame, request);
    if (cutter_.Oversized(frame) && request->reject_status == STATUS_SUCCESS) {
      Reject(cutter_.OversizedText(frame.total(), kServerSizeLimit), "",
             request);
    }
    return CutResult::kMessage;
  }

  bool WithinMessage() const override { return cutter_.skipping(); }

  ParseResult Parse(InboundRequest* request) const override {
    if constexpr (Self::kJoinsMethodName) {
      // For a head in pieces, and for the name, which is shorter than the meta.
      request->scratch.reserve(Frame::kHeaderSize +
                               2 * std::size_t{request->meta_size});
    }
    Meta meta;
    const std::string_view error = Self::Decode(MetaOf<Frame>(request), &meta);
    if (!Self::Identify(meta, !error.empty(), request)) {
      Reject(Frame::kName, ": a request without a correlation id", request);
      if (!error.empty()) request->reject_reason.append(": ").append(error);
      return ParseResult::kClose;
    }
    if (request->reject_status != STATUS_SUCCESS) return ParseResult::kReject;
    if (!error.empty()) return Reject("malformed meta: ", error, request);
    const ParseResult result = Self::Accept(meta, request);
    if (result == ParseResult::kOk) {
      if (meta.metadata.count.entries != 0) [[unlikely]] {
        const std::string why =
            TakeMetadata(meta.metadata, metadata_limits_, &request->metadata);
        if (!why.empty()) return Reject(why, "", request);
      }
      SplitFrame<Frame>(request->head.reply_needs_request, request);
    }
    return result;
  }

 protected:
  // Whether Accept calls JoinMethodName for request->scratch.
  static constexpr bool kJoinsMethodName = false;

  FramedServerProtocol(const Limits& limits, ReplySink* sink)
      : ServerProtocol(sink),
        cutter_(limits),
        metadata_limits_(limits.metadata) {}

  static void Describe(const Frame&, InboundRequest*) {}

 private:
  FrameCutter<Frame> cutter_;
  const MetadataLimits metadata_limits_;
};

template <class Self, class Frame, class Meta>
class FramedClientProtocol : public ClientProtocol {
 public:
  std::string_view name() const override { return Frame::kName; }
  PayloadFormat format() const override { return PayloadFormat::kProtobuf; }

  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override {
    Frame frame;
    const CutResult result =
        cutter_.CutResponse(in, &frame, &response->wire, need, error);
    if (result != CutResult::kMessage) return result;
    response->wire_size = frame.total();
    response->meta_size = frame.meta_size;
    if (std::string_view why =
            static_cast<Self*>(this)->Describe(frame, response);
        !why.empty()) {
      error->assign(Frame::kName).append(": ").append(why);
      return CutResult::kError;
    }
    // Parse turns this into the error it is.
    if (cutter_.Oversized(frame)) response->status = STATUS_MALFORMED_DATA;
    return CutResult::kMessage;
  }

  bool WithinMessage() const override { return cutter_.skipping(); }

  ParseResult Parse(InboundResponse* response) const override {
    const bool oversized = response->status != STATUS_SUCCESS;
    Meta meta;
    std::string_view error = Self::Decode(MetaOf<Frame>(response), &meta);
    if (!Self::Identify(meta, !error.empty(), response)) {
      return Fail(ParseResult::kClose,
                  std::string(Frame::kName) +
                      ": a response without a "
                      "correlation id",
                  response);
    }
    if (oversized) {
      response->oversized = true;
      return Fail(ParseResult::kReject,
                  cutter_.OversizedText(response->wire_size, kClientSizeLimit),
                  response);
    }
    if (!error.empty()) {
      return Fail(ParseResult::kReject,
                  "a response with a malformed meta: " + std::string(error),
                  response);
    }
    error = Self::Accept(meta, response);
    if (!error.empty()) {
      return Fail(ParseResult::kReject, std::string(error), response);
    }
    if (meta.metadata.count.entries != 0) [[unlikely]] {
      std::string why =
          TakeMetadata(meta.metadata, metadata_limits_, &response->metadata);
      if (!why.empty()) {
        return Fail(ParseResult::kReject, std::move(why), response);
      }
    }
    SplitFrame<Frame>(!response->description.empty(), response);
    return ParseResult::kOk;
  }

 protected:
  explicit FramedClientProtocol(const Limits& limits)
      : cutter_(limits), metadata_limits_(limits.metadata) {}

  static std::string_view Describe(const Frame&, InboundResponse*) {
    return {};
  }

 private:
  static ParseResult Fail(ParseResult result, std::string&& why,
                          InboundResponse* response) {
    response->status = STATUS_MALFORMED_DATA;
    // The meta isn't needed any more.
    response->scratch = std::move(why);
    response->description = response->scratch;
    return result;
  }

  FrameCutter<Frame> cutter_;
  const MetadataLimits metadata_limits_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_FRAMED_PROTOCOL_H_
