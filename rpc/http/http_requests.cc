#include "flare/rpc/http/http_requests.h"

#include <cstdint>
#include <optional>
#include <string>

#include "flare/rpc/http/http_call.h"
#include "flare/rpc/http/http_own_request.h"
#include "flare/rpc/http/http_replies.h"
#include "flare/rpc/http/http_text.h"

namespace flare::rpc {

namespace {

void FillHandlerRequest(const HttpUses& uses, const HttpHead& head,
                        HttpReplySender* sender, bool preflight,
                        InboundRequest* request) {
  if (head.method == HttpMethod::Unspecified) {
    return RefuseHttpRequest(
        501, "unknown method " + std::string(head.method_name), request);
  }
  const bool http_11 = head.minor_version != 0;
  if (http_11 && !head.has_host) {
    return RefuseHttpRequest(400, "an HTTP/1.1 request needs a Host field",
                             request);
  }
  auto* const own = HttpOwnRequest::New(&uses, sender, preflight);
  request->own.reset(own);
  HttpRequest& http = own->request();
  http.set_method(head.method);
  http.set_version(http_11 ? HttpVersion::kHttp11 : HttpVersion::kHttp10);
  http.set_uri(head.target);
  http.headers()->AssignLines(head.fields);
  // A target that names a host overrides the field (RFC 9112, 3.2.2).
  if (const std::string_view host = HostOfTarget(head.target); !host.empty())
      [[unlikely]] {
    http.headers()->Set("Host", host);
  }
}

}  // namespace

void FillHttpTicket(const HttpUses& uses, const HttpHead& head,
                    HttpTicket* ticket) {
  const bool http_11 = head.minor_version != 0;
  ticket->is_call = IsHttpCall(uses, head);
  ticket->http_10 = !http_11;
  ticket->head_only = head.method == HttpMethod::Head;
  ticket->close = head.close || (!http_11 && !head.keep_alive);
  ticket->keep_alive = !http_11 && !ticket->close;
  std::optional<std::uint64_t> id;
  if (ticket->is_call) id = head.rpc_seq_no.value;
  ticket->has_correlation_id = id.has_value();
  ticket->correlation_id = id.value_or(0);
  ticket->ordered = !id.has_value();
  if (head.origin.data() != nullptr && uses.cors != nullptr) [[unlikely]] {
    if (ticket->is_call) ticket->cors = uses.cors->Find(head.origin);
  }
}

void FillHttpRequest(const HttpUses& uses, const HttpHead& head,
                     HttpReplySender* sender, InboundRequest* request) {
  if (TicketOf(request).is_call) {
    if (const auto refusal = ReadHttpCall(uses, head, request)) {
      RefuseHttpRequest(refusal->status, refusal->text, request);
    }
  } else if (IsHttpPreflight(uses, head)) {
    FillHandlerRequest(uses, head, sender, /*preflight=*/true, request);
  } else if (!uses.plain) {
    RefuseHttpRequest(404, "there is nothing but /rpc/... here", request);
  } else {
    FillHandlerRequest(uses, head, sender, /*preflight=*/false, request);
  }
}

void RefuseHttpRequest(int http_status, std::string_view text,
                       InboundRequest* request) {
  request->own.reset();
  TicketOf(request).http_status = static_cast<std::uint16_t>(http_status);
  request->reject_status = RpcStatusOf(http_status);
  request->reject_reason = text;
}

}  // namespace flare::rpc
