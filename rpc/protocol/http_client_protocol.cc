#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/http_text.h"
#include "flare/rpc/protocol/chunked_decoder.h"
#include "flare/rpc/protocol/http_parser.h"
#include "flare/rpc/protocol/http_protocol.h"
#include "flare/rpc/protocol/http_writer.h"

namespace flare::rpc {

namespace {

// A method is part of a request line: what would end it or begin a query isn't
// sent.
bool IsSendable(std::string_view method) {
  return !method.empty() && method.size() <= 4096 &&
         std::all_of(method.begin(), method.end(), [](char c) {
           return c > ' ' && c <= '~' && c != '?' && c != '#';
         });
}

// The published servers write the reason of a failure as it is, line feeds and
// all. So what FindHeadEnd refuses behind the first line isn't the end of a
// response: an empty line is. Nor does this begin a long line anew each time
// that more of it has come. `scanned` as there; it must be the start of a line
// that isn't empty.
HeadEnd FindEmptyLine(const Buffer& in, std::size_t limit, std::size_t* scanned,
                      std::size_t* size) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  std::size_t matched = 0;
  std::size_t at = 0;
  for (std::string_view slice : in) {
    const std::size_t slice_end = at + slice.size();
    if (slice_end > *scanned) {
      slice.remove_prefix(*scanned > at ? *scanned - at : 0);
      at = slice_end - slice.size();
      for (const char c : slice) {
        ++at;
        matched = c == kEnd[matched] ? matched + 1 : (c == '\r' ? 1 : 0);
        if (matched < kEnd.size()) continue;
        *size = at;
        return at > limit ? HeadEnd::kTooLarge : HeadEnd::kFound;
      }
    }
    at = slice_end;
  }
  *scanned = at - std::min(at, kEnd.size() - 1);
  return at > limit ? HeadEnd::kTooLarge : HeadEnd::kIncomplete;
}

// As ParseResponseHead, but for control bytes within fields: they are taken for
// blanks. *out may point into *scratch.
HttpFault ReadResponseHead(std::string_view head, std::size_t max_fields,
                           std::string* scratch, HttpHead* out) {
  if (!ParseResponseHead(head, max_fields, out)) [[likely]]
    return {};
  if (head.data() != scratch->data()) scratch->assign(head);
  std::string& bytes = *scratch;
  for (std::size_t i = bytes.find('\n') + 1; i < bytes.size(); ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    if (byte >= ' ' && byte != 0x7f) continue;
    if (bytes.compare(i, 2, "\r\n") == 0) {
      ++i;
    } else {
      bytes[i] = ' ';
    }
  }
  *out = HttpHead();
  return ParseResponseHead(bytes, max_fields, out);
}

// Whether a response may begin so. What can't is told by its first bytes, not
// by the end of a head that never comes: an SSH server, say, greets and waits.
bool MayBeResponse(const Buffer& in) {
  constexpr std::string_view kStart = "HTTP/1.";
  char scratch[kStart.size()];
  return kStart.starts_with(
      in.Peek(std::min(in.size(), kStart.size()), scratch));
}

// A stream of messages, in the way of the published servers: they say in a
// field behind it how it ended.
bool IsStream(const HttpHead& head) {
  if (!head.chunked) return false;
  HttpHeaders fields;
  fields.AssignLines(head.fields);
  const auto trailer = fields.TryGet("Trailer");
  return trailer && IEquals(TrimBlanks(*trailer), "Rpc-Error-Code");
}

class HttpClientProtocol : public ClientProtocol {
 public:
  HttpClientProtocol(PayloadFormat format, const Limits& limits,
                     std::string_view host)
      : format_(format), limits_(limits) {
    after_method_.append(" HTTP/1.1\r\n");
    if (!host.empty()) {
      after_method_.append("Host: ").append(host).append("\r\n");
    }
    after_method_.append("Rpc-SeqNo: ");
    before_length_.append("\r\nContent-Type: ")
        .append(ContentTypeOf(format))
        .append("\r\nContent-Length: ");
  }

  std::string_view name() const override { return HttpProtocolNameOf(format_); }
  ProtocolTraits traits() const override { return {}; }
  PayloadFormat format() const override { return format_; }

  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override;
  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override;
  ParseResult Parse(InboundResponse* response) const override;

 private:
  HeadEnd FindHead(const Buffer& in);
  CutResult CutChunked(Buffer& in, InboundResponse* response,
                       std::string* error);
  CutResult CutOversized(Buffer& in, std::uint64_t body_size,
                         InboundResponse* response, std::string* error);
  std::string TooLarge(std::uint64_t size) const;
  bool SkipRest(Buffer& in);
  CutResult Finish(InboundResponse* response);
  static CutResult Fail(std::string_view text, std::string* error) {
    error->assign("http: ").append(text);
    return CutResult::kError;
  }
  static ParseResult Outcome(const HttpHead& head, InboundResponse* response);

  const PayloadFormat format_;
  const Limits limits_;
  // The constant parts of a request.
  std::string after_method_;
  std::string before_length_;

  // What follows belongs to the reader.
  std::size_t scanned_ = 0;
  std::size_t head_size_ = 0;   // of the message at hand; 0: not known yet
  std::size_t total_size_ = 0;  // ... with its body, if not chunked
  bool by_empty_line_ = false;  // How the end of its head is looked for.
  std::uint64_t skip_ = 0;      // still to come of a body that is too large
  bool in_chunks_ = false;
  Buffer chunked_head_;
  Buffer chunked_body_;
  ChunkedDecoder chunks_;
};

flare::Status HttpClientProtocol::Write(OutboundRequest&& request,
                                        BufferBuilder* out) const {
  if (!IsSendable(request.method)) {
    return flare::Status(STATUS_INVALID_METHOD_NAME,
                         "a method name that can't stand in a URL");
  }
  if (!request.attachment.empty()) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         std::string(name()) + " carries no attachments");
  }
  if (request.compression != CompressionAlgorithm::kNone &&
      request.compression != CompressionAlgorithm::kUnknown) {
    return flare::Status(
        STATUS_NOT_SUPPORTED,
        std::string(name()) + " carries no compressed messages");
  }
  out->Append("POST /rpc/");
  out->Append(request.method);
  out->Append(after_method_);
  AppendDecimal(request.correlation_id, out);
  if (request.timeout_ms != 0) {
    out->Append("\r\nRpc-Timeout: ");
    AppendDecimal(std::uint64_t{request.timeout_ms}, out);
  }
  out->Append(before_length_);
  AppendDecimal(std::uint64_t{request.body.size()}, out);
  out->Append("\r\n\r\n");
  std::move(request.body).AppendTo(out);
  return flare::Status();
}

HeadEnd HttpClientProtocol::FindHead(const Buffer& in) {
  constexpr std::size_t kLongLine = 4096;
  if (!by_empty_line_) [[likely]] {
    const HeadEnd end =
        FindHeadEnd(in, limits_.max_http_header, &scanned_, &head_size_);
    // Who ends even the first line without CR doesn't end the last one so.
    by_empty_line_ =
        (end == HeadEnd::kBareLf && scanned_ != 0) ||
        (end == HeadEnd::kIncomplete && in.size() > scanned_ + kLongLine);
    if (!by_empty_line_) return end;
  }
  return FindEmptyLine(in, limits_.max_http_header, &scanned_, &head_size_);
}

CutResult HttpClientProtocol::Cut(Buffer& in, InboundResponse* response,
                                  std::size_t* need, std::string* error) {
  *need = 0;
  if (in_chunks_) return CutChunked(in, response, error);
  if (!SkipRest(in)) return CutResult::kNeedMore;
  HttpHead head;
  while (true) {
    if (head_size_ == 0) {
      const HeadEnd end = FindHead(in);
      if (end != HeadEnd::kFound && !MayBeResponse(in)) {
        return Fail("the peer's bytes are no HTTP/1.x response", error);
      }
      switch (end) {
        case HeadEnd::kFound:
          break;
        case HeadEnd::kIncomplete:
          return CutResult::kNeedMore;
        case HeadEnd::kTooLarge:
          return Fail("the head of a response is too large", error);
        case HeadEnd::kBareLf:
          return Fail("the first line of a response ends without CR", error);
      }
    } else if (in.size() < total_size_) {
      *need = total_size_;
      return CutResult::kNeedMore;
    }
    head = HttpHead();
    if (HttpFault fault = ReadResponseHead(
            ContiguousPrefix(in, head_size_, &response->scratch),
            limits_.max_http_header_fields, &response->scratch, &head)) {
      return Fail(fault.text, error);
    }
    if (head.status >= 200) break;
    // An interim response announces the one that follows.
    in.Skip(head_size_);
    scanned_ = head_size_ = 0;
    by_empty_line_ = false;
  }
  if (head_size_ > limits_.max_packet_size) {
    return Fail("a response with a head of " + std::to_string(head_size_) +
                    " bytes exceeds the limit of " +
                    std::to_string(limits_.max_packet_size),
                error);
  }
  if (head.chunked) {
    chunked_head_ = in.Cut(head_size_);
    chunks_.Start(limits_.max_packet_size - head_size_,
                  limits_.max_http_header);
    in_chunks_ = true;
    return CutChunked(in, response, error);
  }
  bool bodiless = head.status == 204 || head.status == 304;
  if (!bodiless && !head.has_content_length) {
    return Fail("a response without Content-Length", error);
  }
  std::uint64_t body_size = bodiless ? 0 : head.content_length;
  if (body_size > limits_.max_packet_size - head_size_) {
    return CutOversized(in, body_size, response, error);
  }
  total_size_ = head_size_ + static_cast<std::size_t>(body_size);
  if (in.size() < total_size_) {
    *need = total_size_;
    return CutResult::kNeedMore;
  }
  response->wire = in.Cut(head_size_);
  response->body = in.Cut(static_cast<std::size_t>(body_size));
  return Finish(response);
}

CutResult HttpClientProtocol::CutChunked(Buffer& in, InboundResponse* response,
                                         std::string* error) {
  switch (chunks_.Feed(in, &chunked_body_)) {
    case ChunkedDecoder::Result::kNeedMore:
      return CutResult::kNeedMore;
    case ChunkedDecoder::Result::kError:
      return Fail("a malformed chunked response", error);
    case ChunkedDecoder::Result::kTooLarge:
      return Fail("a chunked response exceeds the limit of " +
                      std::to_string(limits_.max_packet_size) + " bytes",
                  error);
    case ChunkedDecoder::Result::kDone:
      break;
  }
  response->wire = std::move(chunked_head_);
  response->body = std::move(chunked_body_);
  return Finish(response);
}

// Its head tells whose it is, and its body isn't waited for: that call alone
// fails. Unless the others would wait behind the body for long, or for ever.
CutResult HttpClientProtocol::CutOversized(Buffer& in, std::uint64_t body_size,
                                           InboundResponse* response,
                                           std::string* error) {
  // What other protocols can announce at all.
  constexpr std::uint64_t kMaxSkipped = 0xffff'ffff;
  if (body_size > kMaxSkipped) return Fail(TooLarge(body_size), error);
  response->wire = in.Cut(head_size_);
  response->status = STATUS_MALFORMED_DATA;  // Parse says why.
  const CutResult result = Finish(response);
  response->wire_size += static_cast<std::size_t>(body_size);
  skip_ = body_size;
  SkipRest(in);
  return result;
}

std::string HttpClientProtocol::TooLarge(std::uint64_t size) const {
  return "a response of " + std::to_string(size) +
         " bytes exceeds the limit of " +
         std::to_string(limits_.max_packet_size);
}

// False if all of the input belonged to an oversized response and more will.
bool HttpClientProtocol::SkipRest(Buffer& in) {
  if (skip_ == 0) [[likely]]
    return true;
  const std::uint64_t n = std::min<std::uint64_t>(skip_, in.size());
  in.Skip(static_cast<std::size_t>(n));
  skip_ -= n;
  return skip_ == 0;
}

CutResult HttpClientProtocol::Finish(InboundResponse* response) {
  response->meta_size = static_cast<std::uint32_t>(head_size_);
  response->wire_size = head_size_ + response->body.size();
  scanned_ = head_size_ = total_size_ = 0;
  in_chunks_ = by_empty_line_ = false;
  return CutResult::kMessage;
}

ParseResult HttpClientProtocol::Parse(InboundResponse* response) const {
  HttpHead head;
  // Cut has accepted it.
  static_cast<void>(ReadResponseHead(
      ContiguousPrefix(response->wire, response->meta_size, &response->scratch),
      limits_.max_http_header_fields, &response->scratch, &head));
  response->last_on_connection =
      head.close || (head.minor_version == 0 && !head.keep_alive);
  auto id = TryParse<std::uint64_t>(head.rpc_seq_no);
  if (!id) {
    // From a proxy or a server that doesn't know calls. `reason` is what the
    // peer wrote; it goes through a copy because it may lie in scratch.
    std::string text = "http: status " + std::to_string(head.status) + " (" +
                       std::string(head.reason) + ") without Rpc-SeqNo";
    response->status = STATUS_MALFORMED_DATA;
    response->scratch = std::move(text);
    response->description = response->scratch;
    return ParseResult::kClose;
  }
  response->correlation_id = *id;
  if (response->status != STATUS_SUCCESS) {  // Cut has found it too large.
    response->scratch = TooLarge(response->wire_size);
    response->description = response->scratch;
    return ParseResult::kReject;
  }
  return Outcome(head, response);
}

ParseResult HttpClientProtocol::Outcome(const HttpHead& head,
                                        InboundResponse* response) {
  if (head.rpc_error_code.data() == nullptr) {
    if (head.status == 200) {
      if (!IsStream(head)) [[likely]]
        return ParseResult::kOk;
      response->status = STATUS_MALFORMED_DATA;
      response->description = "a stream in response to a single call";
      return ParseResult::kReject;
    }
    std::string text = "HTTP status " + std::to_string(head.status) + " (" +
                       std::string(head.reason) + ") without Rpc-Error-Code";
    response->status = STATUS_MALFORMED_DATA;
    response->scratch = std::move(text);
    response->description = response->scratch;
    return ParseResult::kReject;
  }
  auto code = TryParse<int>(head.rpc_error_code);
  if (!code || (*code == STATUS_SUCCESS && head.status != 200)) {
    response->status = STATUS_MALFORMED_DATA;
    response->description = "a failure whose Rpc-Error-Code isn't one";
    return ParseResult::kReject;
  }
  response->status = *code;
  if (head.rpc_error_reason.data() != nullptr) {
    response->description = head.rpc_error_reason;
  }
  // What a failure has for a body isn't a message.
  if (*code != STATUS_SUCCESS) response->body.Clear();
  return ParseResult::kOk;
}

}  // namespace

std::unique_ptr<ClientProtocol> NewHttpClientProtocol(PayloadFormat format,
                                                      const Limits& limits,
                                                      std::string_view host) {
  return std::make_unique<HttpClientProtocol>(format, limits, host);
}

}  // namespace flare::rpc
