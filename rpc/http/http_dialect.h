// Calls over HTTP in the words of another protocol: other fields, other
// bodies, another form of a failure. They share paths, order of replies and
// limits with the calls of http_call.h. rpc/web/ has those of web pages.
#ifndef FLARE_RPC_HTTP_HTTP_DIALECT_H_
#define FLARE_RPC_HTTP_HTTP_DIALECT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// Why a request isn't served, as an HTTP status and as a text.
struct HttpRefusal {
  int status;
  std::string text;
};

// HttpTicket::type of calls in a dialect is at least this.
inline constexpr std::uint8_t kDialectHttpType = 64;

inline bool IsDialect(const HttpTicket& ticket) {
  return ticket.type >= kDialectHttpType;
}

// Thread-safe; nothing blocks.
class HttpDialect {
 public:
  // Whether a call is in this dialect, by its head; then *ticket gets its
  // format and type. A dialect needs the use of its format. It is
  // asked of all GETs, too: one is a call only if this says so, which it may
  // where HttpCallPaths::MayGet() does.
  virtual bool Recognise(const HttpUses& uses, const HttpHead& head,
                         HttpTicket* ticket) const = 0;

  // Fills in the fields that no other call has. Returns why the call is
  // refused, if it is. Further fields become metadata.
  virtual std::optional<HttpRefusal> ReadFields(
      const HttpHead& head, InboundRequest* request) const = 0;

  // Takes the message out of request->body, or sets request->reject_status.
  virtual void ReadBody(const Limits& limits,
                        InboundRequest* request) const = 0;

  // The whole reply to a call: its message, its failure, or (if the ticket has
  // an HTTP status) its refusal.
  virtual Buffer FormatReply(const HttpTicket& ticket,
                             OutboundResponse&& response) const = 0;

  // For a reply that is a stream: why there can't be one (empty: there can),
  // the head, which says that chunks follow, and the bytes that go into the
  // chunks. No bytes: the message is too large.
  virtual std::string_view WhyNoStream(const HttpTicket& ticket) const = 0;
  // Its bytes are in base64, each message in groups of its own.
  virtual bool IsBase64(const HttpTicket& ticket) const = 0;
  virtual Buffer FormatStreamHead(const HttpTicket& ticket,
                                  const Metadata& metadata) const = 0;
  virtual Buffer FormatStreamMessage(const HttpTicket& ticket,
                                     OutboundBody&& message) const = 0;
  virtual Buffer FormatStreamEnd(const HttpTicket& ticket,
                                 const flare::Status& status,
                                 const Metadata& metadata) const = 0;

 protected:
  ~HttpDialect() = default;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_DIALECT_H_
