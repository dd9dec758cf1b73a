#include "flare/rpc/http_client/http_url.h"

#include <string>
#include <string_view>

#include "flare/rpc/http_client_options.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(HttpUrl, IsTakenApart) {
  const auto url = ParseHttpUrl("HTTPS://Example.COM:8443/a/B?c=D#e");
  ASSERT_TRUE(url) << url.error().ToString();
  EXPECT_TRUE(url->tls);
  EXPECT_EQ(url->host, "example.com:8443");
  EXPECT_EQ(url->address, "example.com:8443");
  EXPECT_EQ(url->target, "/a/B?c=D");
  EXPECT_EQ(url->ToString(), "https://example.com:8443/a/B?c=D");
}

TEST(HttpUrl, KnowsTheUsualPorts) {
  struct Case {
    std::string_view text, host, address, target;
  };
  for (const Case& c : {
           Case{"http://a", "a", "a:80", "/"},
           Case{"http://a:80/", "a", "a:80", "/"},
           Case{"http://a:443", "a:443", "a:443", "/"},
           Case{"https://a:443?q", "a", "a:443", "/?q"},
           Case{"https://a:80", "a:80", "a:80", "/"},
           Case{"http://a:#f", "a", "a:80", "/"},
           Case{"http://[::1]:8080/x", "[::1]:8080", "[::1]:8080", "/x"},
           Case{"https://[::1]", "[::1]", "[::1]:443", "/"},
       }) {
    const auto url = ParseHttpUrl(c.text);
    ASSERT_TRUE(url) << url.error().ToString();
    EXPECT_EQ(url->host, c.host);
    EXPECT_EQ(url->address, c.address);
    EXPECT_EQ(url->target, c.target);
  }
}

TEST(HttpUrl, RefusesOthers) {
  using std::string_literals::operator""s;
  for (const std::string& text :
       {"host/path"s, ""s, "http:/a"s, "http://"s, "http:///path"s,
        "http://:80/"s, "http://a:0/"s, "http://a:65536/"s, "http://a:8o/"s,
        "http://user:secret@a/"s, "http://a b/"s, "http://a/b c"s,
        "http://a/\r\nX: y"s, "http://a\r\n/"s, "http://a/\xc3\xa9"s,
        "http://a/\0"s, "http://[::1/"s, "http://a\\b/"s}) {
    const auto url = ParseHttpUrl(text);
    ASSERT_FALSE(url) << text;
    EXPECT_EQ(url.error().code(), ERROR_INVALID_URI_ADDRESS) << text;
    // It can't forge a line of a log.
    EXPECT_EQ(url.error().message().find('\n'), std::string::npos);
  }
  EXPECT_TRUE(ParseHttpUrl("http://" + std::string(255, 'a') + ":8080"));
  EXPECT_FALSE(ParseHttpUrl("http://" + std::string(256, 'a')));
  EXPECT_EQ(ParseHttpUrl("ftp://a/").error().code(),
            ERROR_PROTOCOL_NOT_SUPPORTED);
}

TEST(HttpUrl, FaultsShowNoSecrets) {
  for (std::string_view text :
       {"http://secret:secret@a/", "http://a b/secret", "http://a b?secret",
        "http://a b#secret", "secret@a/secret", "ftp://secret@a/secret",
        "http:/a?secret", "http://user:secret/secret@a/",
        "http://[user:secret/x@a/", "http://[::1/?secret"}) {
    const auto url = ParseHttpUrl(text);
    ASSERT_FALSE(url) << text;
    EXPECT_EQ(url.error().message().find("secret"), std::string::npos)
        << url.error().message();
  }
  EXPECT_EQ(
      ParseHttpUrl("http://user:secret@Example.com:81/x").error().message(),
      "a URL of \"http://Example.com\": a name and a password belong to "
      "the field Authorization");
}

TEST(HttpUrl, ResolvesReferences) {
  const auto base = ParseHttpUrl("http://a:81/b/c/d?q#f");
  ASSERT_TRUE(base);
  struct Case {
    std::string_view reference, url;
  };
  // Most are of RFC 3986, 5.4.
  for (const Case& c : {
           Case{"https://x/y", "https://x/y"},
           Case{"//g/h", "http://g/h"},
           Case{"/g", "http://a:81/g"},
           Case{"g", "http://a:81/b/c/g"},
           Case{"./g", "http://a:81/b/c/g"},
           Case{"g/", "http://a:81/b/c/g/"},
           Case{"?y", "http://a:81/b/c/d?y"},
           Case{"g?y#s", "http://a:81/b/c/g?y"},
           Case{"#s", "http://a:81/b/c/d?q"},
           Case{"", "http://a:81/b/c/d?q"},
           Case{".", "http://a:81/b/c/"},
           Case{"..", "http://a:81/b/"},
           Case{"../g", "http://a:81/b/g"},
           Case{"../../g", "http://a:81/g"},
           Case{"../../../g", "http://a:81/g"},
           Case{"/../g", "http://a:81/g"},
           Case{"g/./h", "http://a:81/b/c/g/h"},
           Case{"g/../h", "http://a:81/b/c/h"},
           Case{"g..", "http://a:81/b/c/g.."},
           Case{"g?y/../x", "http://a:81/b/c/g?y/../x"},
       }) {
    const auto url = ResolveHttpUrl(*base, c.reference);
    ASSERT_TRUE(url) << c.reference << ": " << url.error().ToString();
    EXPECT_EQ(url->ToString(), c.url) << c.reference;
  }
  for (std::string_view reference :
       {"mailto:a@b", "http:g", "file:///etc/passwd", "//u@h/", "/a b", "//"}) {
    EXPECT_FALSE(ResolveHttpUrl(*base, reference)) << reference;
  }
}

}  // namespace
}  // namespace flare::rpc
