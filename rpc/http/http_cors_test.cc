#include "flare/rpc/http/http_cors.h"

#include <string>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

HttpRequest Preflight(const std::string& origin) {
  HttpRequest request;
  request.set_method(HttpMethod::Options);
  request.set_uri("/rpc/a.B.C");
  request.headers()->Set("Access-Control-Request-Method", "POST");
  request.headers()->Set("Access-Control-Request-Headers",
                         "content-type,rpc-timeout");
  if (!origin.empty()) request.headers()->Set("Origin", origin);
  return request;
}

TEST(HttpCors, ReadsOrigins) {
  const auto cors =
      HttpCors::FromText(" https://example.com ,,http://[::1]:80,app://x");
  ASSERT_TRUE(cors);
  EXPECT_TRUE(cors->enabled());
  EXPECT_EQ(cors->Find("https://example.com"), 1);
  EXPECT_EQ(cors->Find("http://[::1]:80"), 2);
  EXPECT_EQ(cors->Find("app://x"), 3);
  for (const char* other :
       {"", "null", "https://example.com:443", "http://example.com",
        "https://example.co", "https://example.com.evil"}) {
    EXPECT_EQ(cors->Find(other), 0) << other;
  }
}

TEST(HttpCors, RefusesWhatIsNoOrigin) {
  for (const char* text :
       {"example.com", "https://", "https://a/", "https://a b", "://a",
        "https://a\r\nX: y", "https://:80", "https://a:b", "* *"}) {
    EXPECT_FALSE(HttpCors::FromText(text)) << text;
  }
  std::string many = "http://h";
  for (std::size_t i = 1; i != HttpCors::kMaxOrigins; ++i) {
    many += ",http://h" + std::to_string(i);
  }
  EXPECT_TRUE(HttpCors::FromText(many));
  EXPECT_FALSE(HttpCors::FromText(many + ",http://x"));
}

TEST(HttpCors, IsOffWithoutOrigins) {
  for (const char* text : {"", " , "}) {
    const auto cors = HttpCors::FromText(text);
    ASSERT_TRUE(cors);
    EXPECT_FALSE(cors->enabled());
    EXPECT_EQ(cors->Find("http://a"), 0);
  }
}

TEST(HttpCors, AllOriginsNeedNoList) {
  const auto cors = HttpCors::FromText("http://a,*");
  ASSERT_TRUE(cors);
  EXPECT_EQ(cors->Find("http://whoever"), 1);
  EXPECT_EQ(cors->FieldsFor(1),
            "Access-Control-Allow-Origin: *\r\n"
            "Access-Control-Expose-Headers: Rpc-SeqNo, Rpc-Error-Code, "
            "Rpc-Error-Reason, Grpc-Status, Grpc-Message, "
            "Grpc-Status-Details-Bin, Content-Encoding, "
            "Connect-Content-Encoding, *\r\n");
}

TEST(HttpCors, AnswersPreflights) {
  const HttpCors cors = *HttpCors::FromText("http://a");
  HttpResponse response;
  cors.AnswerPreflight(Preflight("http://a"), &response);
  EXPECT_EQ(response.status(), HttpStatus::NoContent);
  EXPECT_EQ(response.headers()->lines(),
            "Allow: GET, OPTIONS, POST\r\n"
            "Access-Control-Allow-Origin: http://a\r\n"
            "Access-Control-Allow-Methods: GET, POST\r\n"
            "Access-Control-Allow-Headers: content-type,rpc-timeout\r\n"
            "Access-Control-Max-Age: 600\r\n"
            "Vary: Origin, Access-Control-Request-Headers\r\n");
}

TEST(HttpCors, RefusesPagesOfOthers) {
  const HttpCors cors = *HttpCors::FromText("http://a");
  HttpResponse response;
  cors.AnswerPreflight(Preflight("http://b"), &response);
  EXPECT_EQ(response.status(), HttpStatus::Forbidden);
  EXPECT_FALSE(response.headers()->contains("Access-Control-Allow-Origin"));
}

TEST(HttpCors, TellsTheMethodsToAnybody) {
  const HttpCors cors = *HttpCors::FromText("http://a");
  HttpResponse response;
  cors.AnswerPreflight(Preflight(""), &response);
  EXPECT_EQ(response.status(), HttpStatus::NoContent);
  EXPECT_EQ(response.headers()->lines(), "Allow: GET, OPTIONS, POST\r\n");
}

}  // namespace
}  // namespace flare::rpc
