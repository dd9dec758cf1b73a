#include "flare/rpc/http/http_routes.h"

#include <map>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

std::unique_ptr<HttpHandler> NewHandler() {
  return NewHttpGetHandler([](auto&&...) {});
}

TEST(HttpRoutes, EmptyFindsNothing) {
  HttpRoutes routes;
  EXPECT_EQ(routes.Find("/"), nullptr);
  EXPECT_EQ(routes.Find(""), nullptr);
}

TEST(HttpRoutes, AnyHandlerMakesItNotEmpty) {
  HttpRoutes none, path, prefix, rest;
  EXPECT_TRUE(none.empty());
  ASSERT_TRUE(path.AddPath("/", NewHandler()).ok());
  EXPECT_FALSE(path.empty());
  ASSERT_TRUE(prefix.AddPrefix("/", NewHandler()).ok());
  EXPECT_FALSE(prefix.empty());
  rest.SetDefault(NewHandler());
  EXPECT_FALSE(rest.empty());
}

// The handler that answers 404 through interceptors takes no path from calls.
TEST(HttpRoutes, WrappingAddsNoPaths) {
  HttpRoutes routes;
  ASSERT_TRUE(routes.AddPath("/a", NewHandler()).ok());
  HttpHandler* const unwrapped = routes.Find("/a");
  EXPECT_EQ(routes.nothing(), nullptr);
  HttpHandler* wrapped = nullptr;
  routes.Wrap([&](HttpHandlerPtr handler) -> HttpHandlerPtr {
    if (handler.get() != unwrapped) return handler;
    std::unique_ptr<HttpHandler> another = NewHandler();
    wrapped = another.get();
    return another;
  });
  EXPECT_EQ(routes.Find("/a"), wrapped);
  EXPECT_EQ(routes.Find("/b"), nullptr);
  HttpRequest request;
  request.set_uri("/b");
  HttpResponse response;
  routes.nothing()->HandleRequest(request, &response, nullptr);
  EXPECT_EQ(response.status(), HttpStatus::NotFound);
}

TEST(HttpRoutes, ExactBeforePrefixBeforeDefault) {
  HttpRoutes routes;
  ASSERT_TRUE(routes.AddPath("/a/b", NewHandler()).ok());
  ASSERT_TRUE(routes.AddPrefix("/a/", NewHandler()).ok());
  routes.SetDefault(NewHandler());
  HttpHandler* const exact = routes.Find("/a/b");
  HttpHandler* const prefix = routes.Find("/a/c");
  HttpHandler* const rest = routes.Find("/");
  EXPECT_NE(exact, prefix);
  EXPECT_NE(prefix, rest);
  EXPECT_NE(exact, rest);
  EXPECT_EQ(routes.Find("/a/b/"), prefix);
  EXPECT_EQ(routes.Find("/a/"), prefix);
  EXPECT_EQ(routes.Find("/a"), rest);
}

TEST(HttpRoutes, TheServerItselfTellsItsMethods) {
  HttpRoutes routes;
  ASSERT_TRUE(routes.AddPrefix("/", NewHandler()).ok());
  HttpHandler* const itself = routes.Find("*");
  ASSERT_NE(itself, nullptr);
  EXPECT_NE(itself, routes.Find("/"));
  EXPECT_NE(itself, routes.Find("x"));
  EXPECT_NE(itself, routes.Find("**"));

  HttpRequest request;
  request.set_uri("*");
  request.set_method(HttpMethod::Options);
  HttpResponse response;
  itself->HandleRequest(request, &response, nullptr);
  EXPECT_EQ(response.status(), HttpStatus::OK);
  EXPECT_EQ(response.headers()->TryGet("Allow"),
            "GET, HEAD, POST, PUT, DELETE, OPTIONS, TRACE, PATCH");
  EXPECT_EQ(response.body_size(), 0u);

  // There is nothing to get of it.
  request.set_method(HttpMethod::Get);
  itself->HandleRequest(request, &response, nullptr);
  EXPECT_EQ(response.status(), HttpStatus::MethodNotAllowed);
  EXPECT_EQ(response.headers()->TryGet("Allow"), "OPTIONS");

  // The default handler takes this, too.
  routes.SetDefault(NewHandler());
  EXPECT_NE(routes.Find("*"), itself);
  EXPECT_EQ(routes.Find("*"), routes.Find("x"));
}

TEST(HttpRoutes, PathsAreTakenOnceAndBeginWithASlash) {
  HttpRoutes routes;
  EXPECT_TRUE(routes.AddPath("/x", NewHandler()).ok());
  EXPECT_TRUE(routes.AddPrefix("/x", NewHandler()).ok());
  EXPECT_FALSE(routes.AddPath("/x", NewHandler()).ok());
  EXPECT_FALSE(routes.AddPrefix("/x", NewHandler()).ok());
  EXPECT_FALSE(routes.AddPath("", NewHandler()).ok());
  EXPECT_FALSE(routes.AddPath("x", NewHandler()).ok());
  EXPECT_FALSE(routes.AddPrefix("x/", NewHandler()).ok());
}

// No request has such a path.
TEST(HttpRoutes, PathsHaveNeitherQueryNorFragmentNorBlanks) {
  HttpRoutes routes;
  EXPECT_FALSE(routes.AddPath("/a?b", NewHandler()).ok());
  EXPECT_FALSE(routes.AddPath("/a#b", NewHandler()).ok());
  EXPECT_FALSE(routes.AddPrefix("/?", NewHandler()).ok());
  EXPECT_FALSE(routes.AddPath("/a\x7f", NewHandler()).ok());
  EXPECT_FALSE(routes.AddPrefix("/a\n", NewHandler()).ok());
  EXPECT_NE(routes.AddPath("/my file", NewHandler())
                .message()
                .find("write %20 for a blank"),
            std::string::npos);
  const flare::Status status = routes.AddPrefix("/a#", NewHandler());
  EXPECT_NE(status.message().find("\"/a#\" has a '?' or a '#'"),
            std::string::npos)
      << status.message();
  EXPECT_TRUE(routes.empty());
  EXPECT_TRUE(routes.AddPath("/a\x80", NewHandler()).ok());
}

// The longest of all prefixes, the plain way.
HttpHandler* Longest(const std::map<std::string, HttpHandler*>& prefixes,
                     const std::string& path) {
  HttpHandler* best = nullptr;
  std::size_t length = 0;
  for (const auto& [prefix, handler] : prefixes) {
    if (path.starts_with(prefix) && prefix.size() >= length) {
      best = handler;
      length = prefix.size();
    }
  }
  return best;
}

TEST(HttpRoutes, LongestPrefixWinsWhateverElseThereIs) {
  std::mt19937 random(7);
  for (int round = 0; round != 200; ++round) {
    HttpRoutes routes;
    std::map<std::string, HttpHandler*> reference;
    const auto random_path = [&] {
      std::string path = "/";
      const std::size_t length = random() % 7;
      while (path.size() < 1 + length) path += "ab/"[random() % 3];
      return path;
    };
    for (int i = 0; i != 12; ++i) {
      const std::string prefix = random_path();
      auto handler = NewHandler();
      HttpHandler* const raw = handler.get();
      const bool added = routes.AddPrefix(prefix, std::move(handler)).ok();
      EXPECT_EQ(added, reference.emplace(prefix, raw).second);
    }
    for (int i = 0; i != 100; ++i) {
      const std::string path = random_path();
      EXPECT_EQ(routes.Find(path), Longest(reference, path)) << path;
    }
  }
}

}  // namespace
}  // namespace flare::rpc
