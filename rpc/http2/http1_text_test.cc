#include "flare/rpc/http2/http1_text.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(Http1RequestText, IsAHead) {
  Http1RequestText text;
  text.Add(":method", "GET");
  text.Add(":scheme", "https");
  text.Add(":authority", "example.com:80");
  text.Add(":path", "/a?b=c");
  text.Add("host", "other");
  text.Add("te", "trailers");
  text.Add("expect", "100-continue");
  text.Add("accept", "*/*");
  text.Add("cookie", "a=1");
  text.Add("cookie", "b=2");
  EXPECT_EQ(text.Take(),
            "GET /a?b=c HTTP/1.1\r\nhost: example.com:80\r\naccept: */*\r\n"
            "cookie: a=1; b=2\r\n\r\n");
  text.Add(":method", "OPTIONS");
  text.Add(":path", "*");
  text.Add("host", "h");
  EXPECT_EQ(text.Take(), "OPTIONS * HTTP/1.1\r\nhost: h\r\n\r\n");
  text.Add(":method", "CONNECT");
  text.Add(":authority", "example.com:80");
  EXPECT_EQ(text.Take(),
            "CONNECT example.com:80 HTTP/1.1\r\nhost: example.com:80\r\n\r\n");
}

std::string ToText(const std::vector<Http2Field>& fields) {
  std::string text;
  for (const Http2Field& field : fields) {
    text.append(field.name).append("=").append(field.value).append(";");
  }
  return text;
}

std::string ToText(const Http2Reply& reply) {
  return ToText(reply.fields()) + FlattenSlow(reply.body);
}

TEST(Http2Reply, HasTheFieldsThatHttp2Has) {
  EXPECT_EQ(ToText(Http2Reply(CreateBufferSlow(
                "HTTP/1.1 426 Upgrade Required\r\nContent-Type: text/plain\r\n"
                "Connection: close\r\nUpgrade: TLS/1.0\r\nX-A: 1\r\nx-a: \r\n"
                "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n"
                "hello"))),
            ":status=426;content-type=text/plain;x-a=1;x-a=;content-length=5;"
            "hello");
  EXPECT_EQ(
      ToText(Http2Reply(CreateBufferSlow("HTTP/1.1 204 No Content\r\n\r\n"))),
      ":status=204;");
}

TEST(Http2Request, HasTheFieldsThatHttp2Has) {
  const Http2Request request(
      CreateBufferSlow("POST /a?b HTTP/1.1\r\nHost: example.com:80\r\n"
                       "X-A: 1\r\nCookie: a=b\r\n"
                       "Transfer-Encoding: chunked\r\n\r\nhello"),
      "https");
  const std::vector<Http2Field> fields = request.fields();
  EXPECT_EQ(ToText(fields) + FlattenSlow(request.body),
            ":method=POST;:scheme=https;:authority=example.com:80;:path=/a?b;"
            "x-a=1;cookie=a=b;hello");
  EXPECT_EQ(fields.back().indexing, HpackIndexing::kNever);
}

TEST(Http2Reply, HasSecretsThatNoTableIsToHave) {
  const Http2Reply reply(
      CreateBufferSlow("HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nX-A: 1\r\n\r\n"));
  const std::vector<Http2Field> fields = reply.fields();
  ASSERT_EQ(fields.size(), 3u);
  EXPECT_EQ(fields[1].indexing, HpackIndexing::kNever);
  EXPECT_EQ(fields[2].indexing, HpackIndexing::kAdd);
}

}  // namespace
}  // namespace flare::rpc
