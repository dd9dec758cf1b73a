// How an HTTP server reads the head of a request: the form of the answer, and
// the call, or the request for a handler.
//
// Thread-safe; nothing blocks; in steady state nothing calls the general
// allocator.
#ifndef FLARE_RPC_HTTP_HTTP_REQUESTS_H_
#define FLARE_RPC_HTTP_HTTP_REQUESTS_H_

#include <string_view>

#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

class HttpReplySender;

// Fills in the form of the answer to a request with that head.
void FillHttpTicket(const HttpUses& uses, const HttpHead& head,
                    HttpTicket* ticket);

// Fills in all but the body of a request that has its ticket, or refuses it.
// Nothing in *request refers to the bytes of the head afterwards. `uses` and
// `sender` must outlive it.
void FillHttpRequest(const HttpUses& uses, const HttpHead& head,
                     HttpReplySender* sender, InboundRequest* request);

// Sees to it that the request is answered with that status and text.
void RefuseHttpRequest(int http_status, std::string_view text,
                       InboundRequest* request);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_REQUESTS_H_
