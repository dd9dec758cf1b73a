// Requests of an HttpClient, checked and as bytes. Pure functions; nothing
// blocks.
#ifndef FLARE_RPC_HTTP_CLIENT_HTTP_REQUEST_WRITER_H_
#define FLARE_RPC_HTTP_CLIENT_HTTP_REQUEST_WRITER_H_

#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/http_client/http_url.h"
#include "flare/rpc/http_client_options.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

// Adds "Name: value". Fails with ERROR_INVALID_REQUEST if it isn't one field,
// and no more: line feeds and other control bytes are refused.
flare::Status AddHttpField(std::string_view line, HttpHeaders* headers);

struct HttpRequestParts {
  // Fields that only the client itself may write, each with its CRLF.
  std::string_view lines = {};
  // The request is for a proxy, which learns the host by the target.
  bool to_proxy = false;
  // The body follows from there; null: it is the request's.
  const HttpBodySource* source = nullptr;
};

// The bytes of a request to `url`: the method, the fields and the body of
// `request`, with the fields that each request has. Fails with
// ERROR_INVALID_REQUEST if the method is none or CONNECT, if a field is
// malformed or one that the client itself is to write, or if there are two
// bodies.
Expected<Buffer, flare::Status> WriteHttpRequest(
    const HttpRequest& request, const HttpUrl& url,
    const HttpRequestParts& parts = {});

// Whether a request that follows a redirection has no body any more: a POST,
// say, becomes a GET.
bool DropsBody(HttpStatus status, HttpMethod method);

// Makes *request the one that follows a redirection with `status` from one URL
// to another, see DropsBody(); without credentials if the other URL
// is another server's.
void RedirectHttpRequest(HttpStatus status, const HttpUrl& from,
                         const HttpUrl& to, HttpRequest* request);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_HTTP_REQUEST_WRITER_H_
