// Shared by the tests of HTTP's server side: a server's end of a connection,
// and the bytes of requests and replies.
#ifndef FLARE_RPC_HTTP_HTTP_TESTING_H_
#define FLARE_RPC_HTTP_HTTP_TESTING_H_

#include <cstddef>
#include <string>

#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

inline constexpr HttpUses kAllUses{
    .pb = true, .text = true, .json = true, .plain = true};

class HttpServer : public ServerDriver {
 public:
  explicit HttpServer(const HttpUses& uses = kAllUses,
                      const Limits& limits = Limits())
      : ServerDriver([&](auto* sink) {
          return NewHttpServerProtocol(uses, limits, sink);
        }) {}
};

inline Limits SmallLimits() {
  Limits limits;
  limits.max_packet_size = 1000;
  limits.max_head_size = 500;
  limits.max_pipeline = 3;
  return limits;
}

// A call as the published client writes it.
inline std::string Call(int seq, const std::string& body,
                        const std::string& type = "application/x-protobuf") {
  return "POST /rpc/example.protobuf_echo.EchoService.Echo HTTP/1.1\r\n"
         "Rpc-SeqNo: " +
         std::to_string(seq) +
         "\r\nRpc-Timeout: 2000\r\nContent-Type: " + type +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

inline std::string CallWithoutSeqNo(const std::string& body) {
  return "POST /rpc/m HTTP/1.1\r\nContent-Type: application/x-protobuf\r\n"
         "Content-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline std::string SuccessReply(
    int seq, const std::string& body,
    const std::string& type = "application/x-protobuf") {
  return "HTTP/1.1 200 OK\r\nContent-Type: " + type +
         "\r\nRpc-SeqNo: " + std::to_string(seq) +
         "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
         body;
}

// A handler's reply as bytes (ServerDriver sets the date).
inline std::string HandlerReply(const std::string& body,
                                const std::string& connection = "") {
  return "HTTP/1.1 200 OK\r\nDate: today\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n" + connection + "\r\n" + body;
}

// The reply, as the last one on a connection whose input has ended.
inline std::string LastReply(std::string reply) {
  return reply.insert(reply.find("\r\n") + 2, "Connection: close\r\n");
}

inline std::string ReplyTo(const std::string& request,
                           const HttpUses& uses = kAllUses,
                           const Limits& limits = Limits()) {
  HttpServer server(uses, limits);
  server.Feed(request);
  EXPECT_EQ(server.count(), 1u);
  server.AnswerAll("body");
  return server.sink().Take();
}

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_HTTP_HTTP_TESTING_H_
