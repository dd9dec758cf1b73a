#include "flare/rpc/http_client/http_reply_reader.h"

#include <algorithm>

#include "flare/rpc/http/http_recognition.h"
#include "flare/rpc/http_client_options.h"
#include "flare/rpc/protocol.h"

namespace flare::rpc {

flare::Status HttpBodyTooLarge(std::size_t max_body) {
  return flare::Status(ERROR_RESPONSE_TOO_LARGE,
                       "the body of the response exceeds max_body_size, " +
                           std::to_string(max_body) + " bytes");
}

void HttpReplyReader::Start(bool to_head, std::size_t max_body,
                            bool may_switch) {
  to_head_ = to_head;
  may_switch_ = may_switch;
  switched_ = false;
  max_body_ = max_body;
  body_ = Body::kNoHead;
  keeps_alive_ = false;
  scanned_ = 0;
  interim_ = 0;
  failure_ = {};
}

HttpReplyReader::Result HttpReplyReader::Read(Buffer& in,
                                              HttpResponse* response,
                                              Buffer* body) {
  if (!has_head()) {
    if (Result r = ReadHead(in, response); r != Result::kDone) return r;
  }
  return ReadBody(in, body);
}

// --- heads -----------------------------------------------------------------

HttpReplyReader::Result HttpReplyReader::ReadHead(Buffer& in,
                                                  HttpResponse* response) {
  for (;;) {
    std::size_t size = 0;
    if (Result r = FindHead(in, &size); r != Result::kDone) return r;
    std::string scratch;
    HttpHead head;
    if (const HttpFault fault = ParseResponseHead(
            ContiguousPrefix(in, size, &scratch), kMaxFields, &head)) {
      return Malformed(fault.text);
    }
    switched_ = head.status == 101 && may_switch_;
    if (head.status >= 200 || switched_) {
      response->clear();
      response->set_status(static_cast<HttpStatus>(head.status));
      response->set_version(head.minor_version == 0 ? HttpVersion::kHttp10
                                                    : HttpVersion::kHttp11);
      response->headers()->AssignLines(head.fields);
      const Result r = BeginBody(head);
      in.Skip(size);
      return r;
    }
    if (head.status == 101) {
      return Malformed("it switches to a protocol that nobody asked for");
    }
    if (++interim_ > kMaxInterim) {
      return Malformed("interim responses without end");
    }
    in.Skip(size);
    scanned_ = 0;
  }
}

HttpReplyReader::Result HttpReplyReader::FindHead(const Buffer& in,
                                                  std::size_t* size) {
  const HeadEnd end = FindHeadEnd(in, kMaxHead, &scanned_, size);
  if (end != HeadEnd::kFound && !MayBeHttpResponse(in)) {
    return Malformed("it is no HTTP/1.x");
  }
  switch (end) {
    case HeadEnd::kFound:
      return Result::kDone;
    case HeadEnd::kIncomplete:
      return Result::kNeedMore;
    case HeadEnd::kTooLarge:
      return Malformed("its head is larger than 64 KiB");
    case HeadEnd::kBareLf:
      break;
  }
  return Malformed("a line of its head ends without CR");
}

HttpReplyReader::Result HttpReplyReader::BeginBody(const HttpHead& head) {
  keeps_alive_ =
      !switched_ && !head.close && (head.minor_version != 0 || head.keep_alive);
  if (to_head_ || switched_ || head.status == 204 || head.status == 304) {
    body_ = Body::kNone;
  } else if (head.chunked) {
    body_ = Body::kChunks;
    chunks_.Start(max_body_, kMaxHead);
  } else if (head.content_length) {
    body_ = Body::kLength;
    left_ = *head.content_length.value;
    if (left_ > max_body_) return TooLarge();
  } else {
    body_ = Body::kUntilClose;
    keeps_alive_ = false;
    left_ = max_body_;
  }
  return Result::kDone;
}

// --- bodies ----------------------------------------------------------------

HttpReplyReader::Result HttpReplyReader::ReadBody(Buffer& in, Buffer* body) {
  switch (body_) {
    case Body::kNoHead:
    case Body::kNone:
      return Result::kDone;
    case Body::kChunks:
      return ReadChunks(in, body);
    case Body::kLength:
      TakeBytes(
          in,
          static_cast<std::size_t>(std::min<std::uint64_t>(left_, in.size())),
          body);
      return left_ == 0 ? Result::kDone : Result::kNeedMore;
    case Body::kUntilClose:
      break;
  }
  if (in.size() > left_) return TooLarge();
  TakeBytes(in, in.size(), body);
  return Result::kNeedMore;
}

HttpReplyReader::Result HttpReplyReader::ReadChunks(Buffer& in, Buffer* body) {
  switch (chunks_.Feed(in, body)) {
    case ChunkedDecoder::Result::kDone:
      return Result::kDone;
    case ChunkedDecoder::Result::kNeedMore:
      return Result::kNeedMore;
    case ChunkedDecoder::Result::kTooLarge:
      return TooLarge();
    case ChunkedDecoder::Result::kError:
      break;
  }
  return Malformed("its chunks are malformed");
}

void HttpReplyReader::TakeBytes(Buffer& in, std::size_t n, Buffer* body) {
  if (n == 0) return;
  body->Append(in.Cut(n));
  // Each piece that came by itself may be all that is used of a block.
  compaction_.AfterAppend(body);
  left_ -= n;
}

// --- failures --------------------------------------------------------------

HttpReplyReader::Result HttpReplyReader::Malformed(std::string_view why) {
  failure_ = flare::Status(ERROR_PARSE_RESPONSE,
                           "the response can't be read: " + std::string(why));
  return Result::kFailed;
}

HttpReplyReader::Result HttpReplyReader::TooLarge() {
  failure_ = HttpBodyTooLarge(max_body_);
  return Result::kFailed;
}

}  // namespace flare::rpc
