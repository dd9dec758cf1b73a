// Requests and replies of plain HTTP over HTTP/2 in the text of HTTP/1.1, by
// which one parser, one set of handlers and one form of replies serve both.
//
//   Http1RequestText text;
//   text.Add(":method", "GET"); ...    // As the fields of the head come.
//   ParseRequestHead(text.Take(), ...);
//
//   Http2Reply reply(FormatHandlerReply(...));
//   session.SendHeaders(stream, reply.fields(), reply.body.empty());
//
// Clients send theirs as an Http2Request.
//
// Not thread-safe; nothing blocks.
#ifndef FLARE_RPC_HTTP2_HTTP1_TEXT_H_
#define FLARE_RPC_HTTP2_HTTP1_TEXT_H_

#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/http2/http2_session.h"

namespace flare::rpc {

// The head of one request. Pseudo header fields come first, as HTTP/2 has it.
class Http1RequestText {
 public:
  // Forgets all fields.
  void Clear();
  // Passes over "te" and "expect", which are the connection's affair, and over
  // "host" behind ":authority". Fields "cookie" become one.
  void Add(std::string_view name, std::string_view value);
  // The head with its last line, after which this is as new. The parser checks
  // it: a path that HTTP/2 lets pass may still be no target.
  std::string Take();

 private:
  void AddLine(std::string_view name, std::string_view value);

  std::string method_;
  std::string target_;
  std::string authority_;
  std::string cookie_;
  std::string lines_;
};

// Fields of HTTP/1, each a line with its CRLF. Those that concern a connection
// are left out, and names are in lower case.
class Http2Fields {
 public:
  Http2Fields() = default;
  // Without `with_host` Host is left out, too.
  explicit Http2Fields(std::string_view lines, bool with_host = true);

  // Valid as long as this lives.
  void AppendTo(std::vector<Http2Field>* fields) const;
  std::vector<Http2Field> fields() const;

 private:
  std::string lines_;
};

// A request, or its head alone. It has a field Host.
class Http2Request {
 public:
  Http2Request(Buffer&& http1, std::string_view scheme);

  // Valid as long as this lives.
  std::vector<Http2Field> fields() const;
  // The bytes behind the head.
  Buffer body;

 private:
  std::string method_;
  const std::string scheme_;
  std::string target_;
  std::string authority_;
  Http2Fields fields_;
};

// A reply, or its head alone.
class Http2Reply {
 public:
  explicit Http2Reply(Buffer&& http1);

  // Valid as long as this lives.
  std::vector<Http2Field> fields() const;
  // The bytes behind the head.
  Buffer body;

 private:
  std::string status_;
  Http2Fields fields_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP1_TEXT_H_
