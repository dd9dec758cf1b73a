#include "flare/rpc/http_handler.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

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

// The Allow field of the refusal of `method` by a handler of this class, once
// a server was given it.
template <class T>
std::string AllowOf(HttpMethod method = HttpMethod::Trace) {
  const auto handler = HttpHandlerArgument(std::make_unique<T>()).Release();
  const HttpResponse response = Ask(handler.get(), method);
  EXPECT_EQ(response.status(), HttpStatus::MethodNotAllowed);
  const auto allow = response.headers()->TryGet("Allow");
  EXPECT_TRUE(allow);
  return std::string(allow.value_or("none"));
}

#define ANSWERS(On) \
  void On(const HttpRequest&, HttpResponse*, HttpServerContext*) override {}
TEST(HttpHandler, RefusalNamesWhatIsOverridden) {
  class Nothing : public HttpHandler {};
  class Getter : public HttpHandler {
   public:
    ANSWERS(OnGet)
  };
  class Hidden : public HttpHandler {
    ANSWERS(OnPost)
    ANSWERS(OnDelete)
  };
  class Inherits : public Hidden {};
  class Adds : public Getter {
    ANSWERS(OnPatch)
    ANSWERS(OnOptions)
  };
  class HeadOnly : public HttpHandler {
   protected:
    ANSWERS(OnHead)
  };
  class Overloads : public HttpHandler {
   public:
    ANSWERS(OnPut)
    void OnPut() {}
  };
  EXPECT_EQ(AllowOf<Nothing>(), "");
  EXPECT_EQ(AllowOf<HttpHandler>(), "");
  EXPECT_EQ(AllowOf<Getter>(), "GET, HEAD");
  EXPECT_EQ(AllowOf<Hidden>(), "POST, DELETE");
  EXPECT_EQ(AllowOf<Hidden>(HttpMethod::Get), "POST, DELETE");
  EXPECT_EQ(AllowOf<Inherits>(), "POST, DELETE");
  EXPECT_EQ(AllowOf<Adds>(), "GET, HEAD, OPTIONS, PATCH");
  EXPECT_EQ(AllowOf<HeadOnly>(), "HEAD");
  EXPECT_EQ(AllowOf<Overloads>(), "PUT");
  EXPECT_EQ(OverriddenHttpMethods<NamingHandler>().ToString(),
            "GET, HEAD, POST, PUT, DELETE, OPTIONS, TRACE, PATCH");
}
#undef ANSWERS

TEST(HttpHandler, RefusalNamesWhatItWasToldTo) {
  class Told : public HttpHandler {
   public:
    Told() { set_allowed_methods({HttpMethod::Get, HttpMethod::Post}); }
  };
  EXPECT_EQ(AllowOf<Told>(), "GET, POST");
  HttpHandlerArgument nothing = std::unique_ptr<Told>();
  EXPECT_EQ(nothing.Release(), nullptr);
}

TEST(HttpHandler, BorrowedOnesStay) {
  class Counted : public HttpHandler {
   public:
    explicit Counted(int* destroyed) : destroyed_(destroyed) {}
    ~Counted() override { ++*destroyed_; }
    void OnPut(const HttpRequest&, HttpResponse*, HttpServerContext*) override {
    }

   private:
    int* const destroyed_;
  };
  int destroyed = 0;
  {
    Counted lent(&destroyed);
    HttpHandlerArgument(&lent).Release().reset();
    HttpHandlerArgument(&lent).Release().reset();
    EXPECT_EQ(destroyed, 0);
    EXPECT_EQ(Ask(&lent, HttpMethod::Get).headers()->TryGet("Allow"), "PUT");
  }
  EXPECT_EQ(destroyed, 1);
  HttpHandlerArgument(std::make_unique<Counted>(&destroyed)).Release().reset();
  EXPECT_EQ(destroyed, 2);
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

TEST(NewHttpHandler, TakesWhatCanOnlyBeMoved) {
  const auto handler =
      NewHttpGetHandler([text = std::make_unique<std::string>("mine")](
                            auto&&, HttpResponse* response, auto&&) {
        response->set_body(*text);
      });
  EXPECT_EQ(*Ask(handler.get(), HttpMethod::Get).body(), "mine");
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
