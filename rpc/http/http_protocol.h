// HTTP/1.x in its two uses: calls ("http+pb", "http+pb-text",
// "http+proto3-json": POST /rpc/<method>, told apart by Content-Type) and
// requests for handlers ("http"). On the server side one object per connection
// serves whichever of them are enabled.
//
// Calls of other frameworks are accepted, too: POST /package.Service/Method
// where no handler has that path, and their names of the formats
// (http_call.cc). The reply has the Content-Type of the request. Bodies may be
// compressed with gzip or deflate; a reply is if Accept-Encoding allows that
// and the server wants it. The body of a call that failed is empty or, where
// the request was JSON, {"code":12,"message":"text"}.
//
// Order of replies: a call with an Rpc-SeqNo is answered as soon as it is done,
// so that many share a connection as in the binary protocol. All else (curl,
// browsers) is answered in the order of the requests. Once the input has ended
// the last reply says "Connection: close".
//
// The server's answers to requests that it can't serve; with a * the connection
// is closed behind the reply.
//
//   404  a path that isn't of an enabled use
//   405  anything but POST on /rpc/...
//   415  a Content-Type of calls of no enabled use, or a Content-Encoding
//        other than gzip and deflate
//   400  an Rpc-SeqNo or Rpc-Timeout that isn't a number; HTTP/1.1 without Host
//        (calls excepted: the published clients send none)
//   501  a method that isn't known. It isn't taken for HTTP, so that the
//   connection
//        is closed: what doesn't begin with a capital; more than 24 letters; a
//        line without " HTTP/x.y" and CRLF, or with control bytes; as the first
//        message of a connection one of more than 2 KiB, or with bytes above
//        127
//   400* malformed (Host and target, too), or ambiguous in length (see
//        http_parser.h); a trailer, too; more than 1,024 bytes of empty lines
//        between two requests
//   413  more bytes than Limits::max_packet_size; * with a body in chunks, or
//        of more than Limits::max_skipped, or where 100 Continue was expected
//   414* a request line of more bytes than Limits::max_head_size
//   417* an Expect other than 100-continue
//   431* a head larger, or with more fields, than Limits says
//   501* CONNECT, as there are no tunnels; a transfer coding other than chunked
//   503* more than Limits::max_pipeline requests unanswered
//   505* not HTTP/1.x; clients of HTTP/2 are told by frames, SETTINGS and
//        GOAWAY (HTTP_1_1_REQUIRED)
//
// Each has a body that names the fault; for calls, unless it is the head that
// is refused, that is also in Rpc-Error-Code and Rpc-Error-Reason, and for
// those in JSON the body is JSON. Empty lines between requests are passed over,
// and two in front of the first.
#ifndef FLARE_RPC_HTTP_HTTP_PROTOCOL_H_
#define FLARE_RPC_HTTP_HTTP_PROTOCOL_H_

#include <memory>
#include <string>
#include <string_view>

#include "flare/rpc/client_protocol.h"
#include "flare/rpc/http/http_cors.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

class HttpDialect;
class HttpRoutes;

// Paths that are calls beside /rpc/<method>. Thread-safe; nothing blocks.
class HttpCallPaths {
 public:
  // Whether a POST to `path` is a call. If so *method, unless it is null,
  // becomes the method's full name, which the server may not have.
  virtual bool Read(std::string_view path, std::string* method) const = 0;
  // Whether it is one whose method has no side effects, so that dialects may
  // call it by GET.
  virtual bool MayGet(std::string_view /*path*/) const { return false; }

 protected:
  ~HttpCallPaths() = default;
};

// The uses of a server's HTTP connections.
struct HttpUses {
  bool pb = false;     // http+pb
  bool text = false;   // http+pb-text
  bool json = false;   // http+proto3-json
  bool plain = false;  // http

  bool streams = false;  // Some method of the server streams.

  // HttpServerContext::compress_from of handlers.
  std::size_t compress_from = 0;

  // All must outlive the connections. Null: there are none.
  const HttpCallPaths* paths = nullptr;
  const HttpCors* cors = nullptr;
  const HttpRoutes* routes = nullptr;
  const HttpDialect* dialect = nullptr;

  bool calls() const { return pb || text || json; }
};

std::unique_ptr<ServerProtocol> NewHttpServerProtocol(const HttpUses& uses,
                                                      const Limits& limits,
                                                      ReplySink* sink);

// Calls in `format`. HttpHostOf(host) goes into the Host field. A response that
// is too large fails its call; one in chunks ends the connection, as its size
// isn't known before, and so do one of more than Limits::max_skipped and bytes
// that can't begin a response.
std::unique_ptr<ClientProtocol> NewHttpClientProtocol(PayloadFormat format,
                                                      const Limits& limits,
                                                      std::string_view host);

// "application/x-protobuf" for kProtobuf.
std::string_view ContentTypeOf(PayloadFormat format);
// Whether it is one of JSON.
bool IsJson(PayloadFormat format);
// "http+pb" for kProtobuf.
std::string_view HttpProtocolNameOf(PayloadFormat format);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_PROTOCOL_H_
