#include "flare/rpc/http_client/http_request_writer.h"

#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/version.h"
#include "flare/rpc/http_client_options.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

HttpUrl Url(std::string_view text) { return ParseHttpUrl(text).value(); }

HttpRequest RequestOf(HttpMethod method) {
  HttpRequest request;
  request.set_method(method);
  return request;
}

std::string Written(const HttpRequest& request,
                    std::string_view url = "http://a/b?c") {
  auto bytes = WriteHttpRequest(request, Url(url));
  if (!bytes) return bytes.error().ToString();
  return FlattenSlow(*bytes);
}

std::string OwnFields() {
  return std::string("User-Agent: flare/") + kVersion + "\r\nAccept: */*\r\n";
}

TEST(HttpRequestWriter, WritesWhatEachRequestHas) {
  EXPECT_EQ(Written(RequestOf(HttpMethod::Get)),
            "GET /b?c HTTP/1.1\r\nHost: a\r\n" + OwnFields() + "\r\n");
  EXPECT_EQ(Written(RequestOf(HttpMethod::Post), "http://a:81"),
            "POST / HTTP/1.1\r\nHost: a:81\r\n" + OwnFields() +
                "Content-Length: 0\r\n\r\n");
}

TEST(HttpRequestWriter, WritesFieldsAndBody) {
  HttpRequest request = RequestOf(HttpMethod::Patch);
  for (std::string_view line :
       {"Host: other:82", "user-agent: mine", "Accept:text/plain",
        "X:", "Authorization:  Basic abc \t"}) {
    ASSERT_TRUE(AddHttpField(line, request.headers()).ok()) << line;
  }
  request.set_body("hello");
  EXPECT_EQ(Written(request),
            "PATCH /b?c HTTP/1.1\r\nHost: other:82\r\nuser-agent: mine\r\n"
            "Accept: text/plain\r\nX: \r\nAuthorization: Basic abc\r\n"
            "Content-Length: 5\r\n\r\nhello");
}

TEST(HttpRequestWriter, RefusesFieldsThatForgeOthers) {
  using std::string_literals::operator""s;
  for (const std::string& line :
       {"X: a\r\nEvil: b"s, "X: a\nEvil: b"s, "X: a\rb"s, "X: a\0b"s,
        "X\r\nEvil: b"s, "X Y: z"s, ": z"s, "X"s, ""s, " X: y"s, "X : y"s,
        "X\t: y"s}) {
    HttpHeaders headers;
    EXPECT_EQ(AddHttpField(line, &headers).code(), ERROR_INVALID_REQUEST)
        << line;
    EXPECT_TRUE(headers.empty());
  }
}

TEST(HttpRequestWriter, FaultsOfFieldsShowNoValues) {
  for (std::string_view line :
       {"Authorization Bearer secret", "Authorization Bearer secret: x",
        "Authorization: secret\r\n", "Host: secret host", "TE: secret"}) {
    HttpHeaders headers;
    const flare::Status fault = AddHttpField(line, &headers);
    EXPECT_EQ(fault.message().find("secret"), std::string::npos)
        << fault.message();
  }
}

TEST(HttpRequestWriter, RefusesFieldsOfItsOwn) {
  for (std::string_view line :
       {"Content-Length: 5", "transfer-encoding: chunked",
        "Connection: upgrade", "Upgrade: h2c", "Expect: 100-continue",
        "TE: trailers", "Trailer: x", "Keep-Alive: x", "Proxy-Connection: x",
        "Host: a b"}) {
    HttpHeaders headers;
    EXPECT_EQ(AddHttpField(line, &headers).code(), ERROR_INVALID_REQUEST)
        << line;
    // Nor in a request that was filled in otherwise.
    HttpRequest request = RequestOf(HttpMethod::Get);
    request.headers()->AssignLines(std::string(line) + "\r\n");
    EXPECT_FALSE(WriteHttpRequest(request, Url("http://a"))) << line;
  }
  HttpRequest twice = RequestOf(HttpMethod::Get);
  twice.headers()->Append("Host", "a");
  twice.headers()->Append("Host", "b");
  EXPECT_FALSE(WriteHttpRequest(twice, Url("http://a")));
}

TEST(HttpRequestWriter, RefusesMethods) {
  EXPECT_FALSE(WriteHttpRequest(HttpRequest(), Url("http://a")));
  EXPECT_FALSE(
      WriteHttpRequest(RequestOf(HttpMethod::Connect), Url("http://a")));
}

HttpRequest Redirected(HttpMethod method, HttpStatus status,
                       std::string_view to) {
  HttpRequest request = RequestOf(method);
  request.set_body("body");
  for (std::string_view name :
       {"Authorization", "Cookie", "Host", "Content-Type", "X"}) {
    request.headers()->Append(name, "v");
  }
  RedirectHttpRequest(status, Url("http://a/"), Url(to), &request);
  return request;
}

TEST(HttpRequestWriter, RedirectionsChangeTheMethod) {
  struct Case {
    HttpMethod before;
    HttpStatus status;
    HttpMethod after;
  };
  for (const Case& c : {
           Case{HttpMethod::Post, HttpStatus::MovedPermanently,
                HttpMethod::Get},
           Case{HttpMethod::Post, HttpStatus::Found, HttpMethod::Get},
           Case{HttpMethod::Put, HttpStatus::Found, HttpMethod::Put},
           Case{HttpMethod::Put, HttpStatus::SeeOther, HttpMethod::Get},
           Case{HttpMethod::Head, HttpStatus::SeeOther, HttpMethod::Head},
           Case{HttpMethod::Post, HttpStatus::TemporaryRedirect,
                HttpMethod::Post},
           Case{HttpMethod::Post, HttpStatus::PermanentRedirect,
                HttpMethod::Post},
       }) {
    const HttpRequest request = Redirected(c.before, c.status, "http://a/x");
    EXPECT_EQ(request.method(), c.after);
    const bool keeps_body = c.before == c.after;
    EXPECT_EQ(request.body_size(), keeps_body ? 4u : 0u);
    EXPECT_EQ(request.headers()->contains("Content-Type"), keeps_body);
    EXPECT_TRUE(request.headers()->contains("Authorization"));
  }
}

TEST(HttpRequestWriter, RedirectionsElsewhereLoseCredentials) {
  for (std::string_view to : {"http://b/", "http://a:81/", "https://a/"}) {
    const HttpRequest request =
        Redirected(HttpMethod::Get, HttpStatus::Found, to);
    EXPECT_FALSE(request.headers()->contains("Authorization")) << to;
    EXPECT_FALSE(request.headers()->contains("Cookie"));
    EXPECT_FALSE(request.headers()->contains("Host"));
    EXPECT_TRUE(request.headers()->contains("X"));
  }
}

}  // namespace
}  // namespace flare::rpc
