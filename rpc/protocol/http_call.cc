#include "flare/rpc/protocol/http_call.h"

#include <algorithm>
#include <limits>

#include "flare/base/string.h"
#include "flare/rpc/http_text.h"

namespace flare::rpc {

namespace {

constexpr std::string_view kPrefix = "/rpc/";

std::optional<PayloadFormat> FormatOf(const HttpUses& uses,
                                      std::string_view content_type) {
  // As a rule it is just that.
  if (uses.pb && content_type == ContentTypeOf(PayloadFormat::kProtobuf)) {
    return PayloadFormat::kProtobuf;
  }
  const std::string_view type =
      Trim(content_type.substr(0, content_type.find(';')));
  const auto is = [type](PayloadFormat format) {
    return IEquals(type, ContentTypeOf(format));
  };
  if (uses.pb && is(PayloadFormat::kProtobuf)) return PayloadFormat::kProtobuf;
  if (uses.text && is(PayloadFormat::kProtobufText)) {
    return PayloadFormat::kProtobufText;
  }
  if (uses.json && is(PayloadFormat::kProto3Json)) {
    return PayloadFormat::kProto3Json;
  }
  return std::nullopt;
}

HttpRefusal RefuseFormat(const HttpUses& uses, std::string_view content_type) {
  std::string text = "the Content-Type must be";
  std::string_view separator = " ";
  for (auto known : {PayloadFormat::kProtobuf, PayloadFormat::kProtobufText,
                     PayloadFormat::kProto3Json}) {
    if (!FormatOf(uses, ContentTypeOf(known))) continue;
    text.append(separator).append(ContentTypeOf(known));
    separator = " or ";
  }
  constexpr std::size_t kShown = 100;
  if (!content_type.empty()) {
    text.append(", not ").append(content_type.substr(0, kShown));
  }
  return {415, text};
}

}  // namespace

bool IsHttpCall(const HttpUses& uses, std::string_view target) {
  if (!uses.pb && !uses.text && !uses.json) return false;
  // Other forms than that of a path are rare.
  return target.starts_with(kPrefix) ||
         (!target.starts_with('/') &&
          PathOfTarget(target).starts_with(kPrefix));
}

std::optional<HttpRefusal> ReadHttpCall(const HttpUses& uses,
                                        const HttpHead& head,
                                        InboundRequest* request) {
  const std::optional<PayloadFormat> format = FormatOf(uses, head.content_type);
  request->ticket.format = format.value_or(PayloadFormat::kProtobuf);
  if (head.method != HttpMethod::Post) {
    return HttpRefusal{
        405, "calls are made by POST, not by " + std::string(head.method_name)};
  }
  if (!request->ticket.has_correlation_id && head.rpc_seq_no) {
    return HttpRefusal{400, "Rpc-SeqNo is no number"};
  }
  if (!head.rpc_timeout.value && head.rpc_timeout) {
    return HttpRefusal{400, "Rpc-Timeout is no number"};
  }
  if (head.encoded) {
    return HttpRefusal{415, "calls have no Content-Encoding but identity"};
  }
  const std::uint64_t timeout =
      std::min<std::uint64_t>(head.rpc_timeout.value.value_or(0),
                              std::numeric_limits<std::uint32_t>::max());
  if (!format) return RefuseFormat(uses, head.content_type);
  request->scratch.assign(PathOfTarget(head.target).substr(kPrefix.size()));
  request->head.method = request->scratch;
  request->head.timeout_ms = static_cast<std::uint32_t>(timeout);
  return std::nullopt;
}

}  // namespace flare::rpc
