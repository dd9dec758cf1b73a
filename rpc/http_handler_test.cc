#include "flare/rpc/http_handler.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace flare {
namespace {

constexpr HttpMethod kMethods[] = {
    HttpMethod::Get,     HttpMethod::Head,   HttpMethod::Post,
    HttpMethod::Put,     HttpMethod::Delete, HttpMethod::Connect,
    HttpMethod::Options, HttpMethod::Trace,  HttpMethod::Patch};

HttpResponse Ask(HttpHandler* handler, HttpMethod method) {
  HttpRequest request;
  request.set_method(method);
  request.set_uri("/some/path?query");
  HttpResponse response;
  HttpServerContext context;
  handler->HandleRequest(request, &response, &context);
  return response;
}

// Answers with the name of the function that was called.
class NamingHandler : public HttpHandler {
 public:
#define NAMES_ITSELF(On)                                                  \
  void On(const HttpRequest&, HttpResponse* response, HttpServerContext*) \
      override {                                                          \
    response->set_body(#On);                                              \
  }
  NAMES_ITSELF(OnGet)
  NAMES_ITSELF(OnHead)
  NAMES_ITSELF(OnPost)
  NAMES_ITSELF(OnPut)
  NAMES_ITSELF(OnDelete)
  NAMES_ITSELF(OnConnect)
  NAMES_ITSELF(OnOptions)
  NAMES_ITSELF(OnTrace)
  NAMES_ITSELF(OnPatch)
#undef NAMES_ITSELF
};

TEST(HttpHandler, CallsTheFunctionOfTheMethod) {
  NamingHandler handler;
  const char* const names[] = {"OnGet",     "OnHead",   "OnPost",
                               "OnPut",     "OnDelete", "OnConnect",
                               "OnOptions", "OnTrace",  "OnPatch"};
  for (std::size_t i = 0; i != std::size(kMethods); ++i) {
    const HttpResponse response = Ask(&handler, kMethods[i]);
    EXPECT_EQ(response.status(), HttpStatus::OK);
    EXPECT_EQ(*response.body(), names[i]);
  }
  EXPECT_EQ(Ask(&handler, HttpMethod::Unspecified).status(),
            HttpStatus::MethodNotAllowed);
}

TEST(HttpHandler, RefusesByDefault) {
  HttpHandler handler;
  for (HttpMethod method : kMethods) {
    const HttpResponse response = Ask(&handler, method);
    EXPECT_EQ(response.status(), HttpStatus::MethodNotAllowed);
    EXPECT_NE(response.body()->find("/some/path"), std::string::npos);
    EXPECT_EQ(response.body()->find("query"), std::string::npos);
  }
}

TEST(HttpHandler, HeadIsGetUnlessOverridden) {
  class GetHandler : public HttpHandler {
    void OnGet(const HttpRequest&, HttpResponse* response,
               HttpServerContext*) override {
      response->set_status(HttpStatus::Created);
    }
  };
  GetHandler handler;
  EXPECT_EQ(Ask(&handler, HttpMethod::Head).status(), HttpStatus::Created);
}

TEST(NewHttpHandler, TakesTheseMethodsOnly) {
  int calls = 0;
  const auto handler =
      NewHttpHandler({HttpMethod::Put, HttpMethod::Patch, HttpMethod::Put},
                     [&](auto&&...) { ++calls; });
  for (HttpMethod method : kMethods) {
    const bool taken = method == HttpMethod::Put || method == HttpMethod::Patch;
    const HttpResponse response = Ask(handler.get(), method);
    EXPECT_EQ(response.status(),
              taken ? HttpStatus::OK : HttpStatus::MethodNotAllowed);
    if (taken) continue;
    EXPECT_EQ(response.headers()->TryGet("Allow"), "PUT, PATCH");
  }
  EXPECT_EQ(calls, 2);
}

TEST(NewHttpHandler, OnePerMethod) {
  using New = std::unique_ptr<HttpHandler> (*)(HttpHandlerFunction);
  const std::vector<std::pair<HttpMethod, New>> makers = {
      {HttpMethod::Get, NewHttpGetHandler},
      {HttpMethod::Head, NewHttpHeadHandler},
      {HttpMethod::Post, NewHttpPostHandler},
      {HttpMethod::Put, NewHttpPutHandler},
      {HttpMethod::Delete, NewHttpDeleteHandler},
      {HttpMethod::Connect, NewHttpConnectHandler},
      {HttpMethod::Options, NewHttpOptionsHandler},
      {HttpMethod::Trace, NewHttpTraceHandler},
      {HttpMethod::Patch, NewHttpPatchHandler}};
  for (const auto& [method, make] : makers) {
    const auto handler = make([](auto&&...) {});
    for (HttpMethod asked : kMethods) {
      const bool taken = asked == method || (asked == HttpMethod::Head &&
                                             method == HttpMethod::Get);
      EXPECT_EQ(Ask(handler.get(), asked).status(),
                taken ? HttpStatus::OK : HttpStatus::MethodNotAllowed)
          << ToStringView(method) << " " << ToStringView(asked);
    }
  }
}

}  // namespace
}  // namespace flare
