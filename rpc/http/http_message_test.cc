#include "flare/rpc/http_message.h"

#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

TEST(HttpMethodTest, NamesAreReadAndWritten) {
  for (int i = 1; i <= static_cast<int>(HttpMethod::Patch); ++i) {
    auto method = static_cast<HttpMethod>(i);
    EXPECT_EQ(HttpMethodFromString(ToStringView(method)), method);
  }
  EXPECT_EQ(ToStringView(HttpMethod::Get), "GET");
  EXPECT_EQ(ToStringView(HttpMethod::Options), "OPTIONS");
  EXPECT_EQ(ToStringView(static_cast<HttpMethod>(99)), "UNSPECIFIED");
  EXPECT_EQ(HttpMethodFromString("get"), HttpMethod::Unspecified);
  EXPECT_EQ(HttpMethodFromString(""), HttpMethod::Unspecified);
  EXPECT_EQ(HttpMethodFromString("UNSPECIFIED"), HttpMethod::Unspecified);
}

TEST(HttpMethodSetTest, KnowsItsMembersByName) {
  HttpMethodSet set;
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(set.ToString(), "");
  EXPECT_FALSE(set.contains(HttpMethod::Unspecified));
  set.Add(HttpMethod::Patch);
  set.Add(HttpMethod::Get);
  set.Add(HttpMethod::Get);
  EXPECT_FALSE(set.empty());
  EXPECT_TRUE(set.contains(HttpMethod::Get));
  EXPECT_FALSE(set.contains(HttpMethod::Put));
  EXPECT_EQ(set.ToString(), "GET, PATCH");
  EXPECT_EQ(HttpMethodSet({HttpMethod::Put}).ToString(), "PUT");
  EXPECT_EQ(HttpMethodSet::All().ToString(),
            "GET, HEAD, POST, PUT, DELETE, OPTIONS, TRACE, PATCH");
}

TEST(HttpStatusTest, ReasonPhrases) {
  EXPECT_EQ(HttpReasonPhrase(200), "OK");
  EXPECT_EQ(HttpReasonPhrase(404), "Not Found");
  EXPECT_EQ(HttpReasonPhrase(505), "HTTP Version Not Supported");
  EXPECT_EQ(HttpReasonPhrase(205), "Reset Content");
  EXPECT_EQ(HttpReasonPhrase(451), "Unavailable For Legal Reasons");
  for (int unknown : {0, 99, 299, 306, 418, 509, 600, -1}) {
    EXPECT_EQ(HttpReasonPhrase(unknown), "Unknown") << unknown;
  }
  // As many as IANA has registered for good.
  int known = 0;
  for (int i = 0; i != 1000; ++i) known += HttpReasonPhrase(i) != "Unknown";
  EXPECT_EQ(known, 61);
}

TEST(HttpHeadersTest, KeepsOrderAndRepetitions) {
  HttpHeaders headers;
  EXPECT_TRUE(headers.empty());
  EXPECT_TRUE(headers.Append("B", "1"));
  EXPECT_TRUE(headers.Append("a", "2"));
  EXPECT_TRUE(headers.Append("b", "3"));
  EXPECT_EQ(headers.size(), 3u);
  EXPECT_EQ(headers[0],
            (std::pair<std::string_view, std::string_view>{"B", "1"}));
  EXPECT_EQ(headers[2].first, "b");
  EXPECT_EQ(headers.TryGet("b"), "1");
  EXPECT_EQ(headers.TryGetMultiple("B"),
            (std::vector<std::string_view>{"1", "3"}));
  EXPECT_FALSE(headers.TryGet("c").has_value());
  EXPECT_TRUE(headers.contains("A"));
}

TEST(HttpHeadersTest, SeveralAtOnceAndNumbers) {
  HttpHeaders headers;
  EXPECT_TRUE(headers.Append({{"A", "1"}, {"B", "x"}}));
  EXPECT_FALSE(headers.Append({{"not a name", "2"}, {"C", "3"}}));
  EXPECT_EQ(headers.ToString(), "A: 1\r\nB: x\r\nC: 3\r\n");
  EXPECT_EQ(headers.TryGet<int>("a"), 1);
  EXPECT_EQ(headers.TryGet<bool>("A"), true);
  EXPECT_EQ(headers.TryGet<int>("B"), std::nullopt);
  EXPECT_EQ(headers.TryGet<int>("D"), std::nullopt);
}

TEST(HttpHeadersTest, SetReplacesAll) {
  HttpHeaders headers;
  headers.Append("X", "1");
  headers.Append("Y", "2");
  headers.Append("x", "3");
  EXPECT_TRUE(headers.Set("X", "4"));
  EXPECT_EQ(headers.size(), 2u);
  EXPECT_EQ(headers.TryGet("x"), "4");
  EXPECT_EQ(headers.TryGet("y"), "2");
}

TEST(HttpHeadersTest, RemoveTellsWhetherThereWas) {
  HttpHeaders headers;
  headers.Append("X", "1");
  headers.Append("x", "2");
  headers.Append("Y", "3");
  EXPECT_TRUE(headers.Remove("X"));
  EXPECT_FALSE(headers.Remove("X"));
  EXPECT_EQ(headers.size(), 1u);
  EXPECT_EQ(headers.TryGet("Y"), "3");
}

TEST(HttpHeadersTest, NoTextForgesAField) {
  HttpHeaders headers;
  EXPECT_TRUE(headers.Append("X", std::string_view("a\r\nY: b\0c", 9)));
  EXPECT_EQ(headers.TryGet("X"), "a  Y: b c");
  for (int c = 0; c != 256; ++c) {
    const std::string value = {'a', static_cast<char>(c), 'b'};
    const bool control = (c < 0x20 && c != '\t') || c == 0x7f;
    EXPECT_TRUE(headers.Set("X", value));
    EXPECT_EQ(headers.TryGet("X"), control ? "a b" : value) << c;
  }
  for (std::string_view name : {"", "a b", "a:", "a\r\nb", "a\x80", "(a)"}) {
    EXPECT_FALSE(headers.Append(name, "v")) << name;
    EXPECT_FALSE(headers.Set(name, "v")) << name;
  }
  EXPECT_EQ(headers.size(), 1u);
}

TEST(HttpHeadersTest, AreLinesOfAMessage) {
  HttpHeaders headers;
  headers.AssignLines("Host:x\r\nA: \t b: c \r\nEmpty:\r\n");
  EXPECT_EQ(headers.size(), 3u);
  EXPECT_EQ(headers.TryGet("host"), "x");
  EXPECT_EQ(headers.TryGet("a"), "b: c");
  EXPECT_EQ(headers.TryGet("Empty"), "");
  EXPECT_TRUE(headers.Remove("A"));
  EXPECT_TRUE(headers.Append("B", " 1 "));
  EXPECT_EQ(headers.lines(), "Host: x\r\nEmpty: \r\nB:  1 \r\n");
  EXPECT_EQ(headers.TryGet("B"), "1");
  headers.AssignLines("");
  EXPECT_TRUE(headers.empty());
  EXPECT_EQ(headers.begin(), headers.end());
}

TEST(HttpHeadersTest, BehavesLikeAModel) {
  std::mt19937 rng(9);
  for (int round = 0; round != 200; ++round) {
    HttpHeaders headers;
    std::vector<std::pair<std::string, std::string>> model;
    auto erase = [&](const std::string& name) {
      return std::erase_if(model, [&](auto& f) { return f.first == name; });
    };
    for (int i = 0; i != 50; ++i) {
      std::string name(1, 'a' + rng() % 5);
      std::string value = std::to_string(rng() % 1000);
      switch (rng() % 4) {
        case 0:
        case 1:
          headers.Append(name, value);
          model.emplace_back(name, value);
          break;
        case 2:
          headers.Set(name, value);
          erase(name);
          model.emplace_back(name, value);
          break;
        default:
          EXPECT_EQ(headers.Remove(name), erase(name) != 0);
      }
      ASSERT_EQ(headers.size(), model.size());
      for (std::size_t k = 0; k != model.size(); ++k) {
        ASSERT_EQ(headers[k].first, model[k].first);
        ASSERT_EQ(headers[k].second, model[k].second);
      }
    }
    headers.clear();
    EXPECT_TRUE(headers.empty());
    EXPECT_FALSE(headers.TryGet("a").has_value());
  }
}

TEST(HttpMessageTest, Bodies) {
  HttpResponse response;
  EXPECT_EQ(*response.body(), "");
  response.set_body("literal");
  EXPECT_EQ(*response.body(), "literal");
  response.set_body(std::string(5000, 's'));
  EXPECT_EQ(response.body_size(), 5000u);
  EXPECT_EQ(*response.body(), std::string(5000, 's'));
  response.set_body(std::string_view("view"));
  EXPECT_EQ(*response.body(), "view");
  response.set_body(CreateBufferSlow("buffer"));
  EXPECT_EQ(FlattenSlow(*response.noncontiguous_body()), "buffer");
  EXPECT_EQ(*response.body(), "buffer");
  HttpRequest request;
  request.set_body(*response.body());
  EXPECT_EQ(*request.body(), "buffer");
}

TEST(HttpMessageTest, BodyCanBeChangedAsText) {
  HttpResponse response;
  response.body()->append("one");
  EXPECT_EQ(response.body_size(), 3u);
  response.body()->append(" two");
  EXPECT_EQ(FlattenSlow(*response.noncontiguous_body()), "one two");
  const HttpResponse& seen = response;
  EXPECT_EQ(*seen.body(), "one two");
  response.body()->erase(0, 4);
  EXPECT_EQ(seen.body_size(), 3u);
  EXPECT_EQ(FlattenSlow(*seen.noncontiguous_body()), "two");
  EXPECT_EQ(*seen.body(), "two");
  response.set_body(CreateBufferSlow("chain"));
  response.body()->clear();
  EXPECT_EQ(response.body_size(), 0u);
  EXPECT_TRUE(seen.noncontiguous_body()->empty());
  // The blocks that were asked for last are present.
  response.set_body("one");
  response.body()->append(" two");
  Buffer* const blocks = response.noncontiguous_body();
  EXPECT_EQ(*seen.body(), "one two");
  response.noncontiguous_body()->Append(CreateBufferSlow(" three"));
  EXPECT_EQ(*seen.body(), "one two three");
  EXPECT_EQ(blocks, response.noncontiguous_body());
  response.noncontiguous_body()->Clear();
  EXPECT_EQ(response.body_size(), 0u);
  EXPECT_EQ(*seen.body(), "");
  response.body()->append("again");
  response.clear();
  EXPECT_EQ(*seen.body(), "");
}

TEST(HttpMessageTest, ClearMakesItNew) {
  HttpRequest request;
  request.set_method(HttpMethod::Put);
  request.set_uri("/x");
  request.set_version(HttpVersion::kHttp10);
  request.headers()->Set("A", "b");
  request.set_body("body");
  EXPECT_EQ(*request.body(), "body");
  request.clear();
  EXPECT_EQ(request.method(), HttpMethod::Unspecified);
  EXPECT_EQ(request.uri(), "");
  EXPECT_EQ(request.version(), HttpVersion::kUnspecified);
  EXPECT_TRUE(request.headers()->empty());
  EXPECT_EQ(*request.body(), "");

  HttpResponse response;
  response.set_status(HttpStatus::NotFound);
  response.clear();
  EXPECT_EQ(response.status(), HttpStatus::OK);
}

TEST(HttpRequestTest, PathAndQuery) {
  struct Case {
    const char* uri;
    const char* path;
    const char* query;
  } cases[] = {
      {"/a/b", "/a/b", ""},
      {"/a?x=1&y", "/a", "x=1&y"},
      {"/a#f?x", "/a", ""},
      {"/a?x#f", "/a", "x"},
      {"http://host:1/a?x", "/a", "x"},
      {"http://host", "/", ""},
      {"*", "*", ""},
      {"", "", ""},
  };
  for (const Case& c : cases) {
    HttpRequest request;
    request.set_uri(c.uri);
    EXPECT_EQ(request.path(), c.path) << c.uri;
    EXPECT_EQ(request.query(), c.query) << c.uri;
  }
}

TEST(HttpRequestTest, OptionsOfNoPathMeansTheServer) {
  HttpRequest request;
  request.set_method(HttpMethod::Options);
  for (const auto& [uri, path] : {std::pair{"http://host", "*"},
                                  {"http://host/", "/"},
                                  {"http://host?a", "/"},
                                  {"/", "/"},
                                  {"*", "*"}}) {
    request.set_uri(uri);
    EXPECT_EQ(request.path(), path) << uri;
  }
  request.set_uri("http://host");
  request.set_method(HttpMethod::Get);
  EXPECT_EQ(request.path(), "/");
}

TEST(FillHttpErrorTest, SaysWhatAndWhy) {
  HttpResponse response;
  response.headers()->Set("X", "y");
  FillHttpError(HttpStatus::NotFound, "no such page", &response);
  EXPECT_EQ(response.status(), HttpStatus::NotFound);
  EXPECT_EQ(*response.body(), "404 Not Found: no such page\n");
  EXPECT_EQ(response.headers()->TryGet("Content-Type"), "text/plain");
  EXPECT_FALSE(response.headers()->contains("X"));
  FillHttpError(HttpStatus::InternalServerError, "", &response);
  EXPECT_EQ(*response.body(), "500 Internal Server Error\n");
}

}  // namespace
}  // namespace flare
