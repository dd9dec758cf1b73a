#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/compression.h"
#include "flare/base/string.h"
#include "flare/rpc/http/http_metadata.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_response_reader.h"
#include "flare/rpc/http/http_streams.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http/http_writer.h"

namespace flare::rpc {

namespace {

// Coded bytes may be read as a message: an empty one with unknown fields, say.
constexpr std::string_view kEncoded =
    "a response with a Content-Encoding, which calls don't ask for";

// A stream of messages, in the way of the published servers: they say in a
// field behind it how it ended.
bool IsStream(const HttpHead& head) {
  if (!head.chunked) return false;
  HttpHeaders fields;
  fields.AssignLines(head.fields);
  bool announced = false;
  for (std::string_view trailer : fields.TryGetMultiple("Trailer")) {
    ForEachListMember(trailer, [&announced](std::string_view field) {
      if (IEquals(field, "Rpc-Error-Code")) announced = true;
    });
  }
  return announced;
}

// `why` may lie in response->scratch, as the head may.
void FailCall(int status, std::string_view why, InboundResponse* response) {
  response->status = status;
  response->scratch.assign(why);
  response->description = response->scratch;
}

// The reply can't be read.
void RefuseReply(std::string_view why, InboundResponse* response) {
  FailCall(STATUS_MALFORMED_DATA, why, response);
  response->unreadable = true;
}

class HttpClientProtocol : public ClientProtocol {
 public:
  HttpClientProtocol(PayloadFormat format, const Limits& limits,
                     std::string_view host)
      : format_(format),
        metadata_limits_(limits.metadata),
        reader_(limits),
        streams_(limits) {
    after_method_.append(" HTTP/1.1\r\n");
    if (!host.empty()) {
      after_method_.append("Host: ").append(HttpHostOf(host)).append("\r\n");
    }
    after_method_.append("Rpc-SeqNo: ");
    before_length_.append("\r\nContent-Type: ")
        .append(ContentTypeOf(format))
        .append("\r\nContent-Length: ");
  }

  std::string_view name() const override { return HttpProtocolNameOf(format_); }
  ProtocolTraits traits() const override { return {.metadata = true}; }
  PayloadFormat format() const override { return format_; }

  flare::Status Write(OutboundRequest&& request,
                      BufferBuilder* out) const override;
  CutResult Cut(Buffer& in, InboundResponse* response, std::size_t* need,
                std::string* error) override;
  bool WithinMessage() const override {
    return reader_.within_body() || streams_.WithinMessage();
  }
  // Cut has done it all.
  ParseResult Parse(InboundResponse* response) const override {
    return response->unreadable ? ParseResult::kReject : ParseResult::kOk;
  }

  bool has_streams() const override { return true; }
  std::unique_ptr<StreamWire> OpenStream(const ClientStreamOpening& opening,
                                         StreamOutput* output) override {
    if (opening.client_streams) return nullptr;
    return streams_.Open(opening, this, output);
  }
  void OnClosed(const flare::Status& why) override { streams_.Close(why); }

 private:
  // Takes the call's facts from the head. Copies them, as the bytes may go.
  // False: the call is unknown.
  bool FillResponse(const HttpHead& head, InboundResponse* response,
                    std::string* error) const;
  static void FillOutcome(const HttpHead& head, InboundResponse* response);

  const PayloadFormat format_;
  const MetadataLimits metadata_limits_;
  // The constant parts of a request.
  std::string after_method_;
  std::string before_length_;
  HttpResponseReader reader_;
  HttpClientStreams streams_;
};

flare::Status HttpClientProtocol::Write(OutboundRequest&& request,
                                        BufferBuilder* out) const {
  constexpr std::size_t kMaxMethod = 4096;
  // Characters that would end the path aren't sent.
  if (!IsHttpPathText(request.method) || request.method.size() > kMaxMethod) {
    return flare::Status(STATUS_INVALID_METHOD_NAME,
                         "a method name that can't be part of a URL");
  }
  if (!request.attachment.empty()) {
    return flare::Status(STATUS_NOT_SUPPORTED,
                         std::string(name()) + " carries no attachments");
  }
  if (IsCompressed(request.compression)) {
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
  if (request.metadata != nullptr) [[unlikely]]
    AppendMetadata(*request.metadata, out);
  out->Append(before_length_);
  AppendDecimal(std::uint64_t{request.body.size()}, out);
  out->Append("\r\n\r\n");
  std::move(request.body).AppendTo(out);
  return flare::Status();
}

CutResult HttpClientProtocol::Cut(Buffer& in, InboundResponse* response,
                                  std::size_t* need, std::string* error) {
  if (streams_.opened()) [[unlikely]]
    return streams_.Take(in, need, error);
  HttpHead head;
  if (CutResult result =
          reader_.Read(in, &response->scratch, &head, need, error);
      result != CutResult::kMessage) {
    return result;
  }
  if (!FillResponse(head, response, error)) return CutResult::kError;
  if (reader_.too_large()) {
    RefuseReply(reader_.TooLarge(), response);
    response->oversized = true;
    response->last_on_connection |= reader_.is_last();
  }
  if (!reader_.is_last()) {
    response->wire_size = static_cast<std::size_t>(reader_.size());
  }
  reader_.Take(in, &response->body);
  // The body of a failure isn't a message.
  if (response->status != STATUS_SUCCESS) response->body.Clear();
  return CutResult::kMessage;
}

bool HttpClientProtocol::FillResponse(const HttpHead& head,
                                      InboundResponse* response,
                                      std::string* error) const {
  response->last_on_connection =
      head.close || (head.minor_version == 0 && !head.keep_alive);
  if (!head.rpc_seq_no.value) {
    // From a proxy or a server that doesn't know calls.
    *error = "http: status " + std::to_string(head.status) + " (" +
             std::string(head.reason) + ") without Rpc-SeqNo";
    return false;
  }
  response->correlation_id = *head.rpc_seq_no.value;
  if (head.has_others) [[unlikely]] {
    const std::string why =
        ReadMetadata(head.fields, metadata_limits_, &response->metadata);
    if (!why.empty()) {
      RefuseReply(why, response);
      return true;
    }
  }
  if (head.status != 200 || head.rpc_error_code.data() != nullptr ||
      head.encoded || IsStream(head)) [[unlikely]] {
    FillOutcome(head, response);
  }
  return true;
}

void HttpClientProtocol::FillOutcome(const HttpHead& head,
                                     InboundResponse* response) {
  if (head.rpc_error_code.data() == nullptr) {
    if (head.status == 200) {
      return RefuseReply(
          head.encoded ? kEncoded : "a stream in response to a single call",
          response);
    }
    return RefuseReply("HTTP status " + std::to_string(head.status) + " (" +
                           std::string(head.reason) +
                           ") without Rpc-Error-Code",
                       response);
  }
  const auto code = TryParse<int>(head.rpc_error_code);
  if (!code || (*code == STATUS_SUCCESS && head.status != 200)) {
    return RefuseReply("a failure whose Rpc-Error-Code isn't one", response);
  }
  if (*code != STATUS_SUCCESS) {
    FailCall(*code, head.rpc_error_reason, response);
  } else if (head.encoded) {
    RefuseReply(kEncoded, response);
  }
}

}  // namespace

std::unique_ptr<ClientProtocol> NewHttpClientProtocol(PayloadFormat format,
                                                      const Limits& limits,
                                                      std::string_view host) {
  return std::make_unique<HttpClientProtocol>(format, limits, host);
}

}  // namespace flare::rpc
