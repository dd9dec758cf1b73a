#include "flare/rpc/http/http_method_paths.h"

#include <memory>
#include <string>

#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"
#include "rpc/testing/test_service.pb.h"

namespace flare::rpc {
namespace {

class HttpMethodPathsTest : public ::testing::Test {
 protected:
  HttpMethodPathsTest() {
    const auto* const service = testing::TestService::descriptor();
    for (int i = 0; i != service->method_count(); ++i) {
      methods_.push_back(service->method(i));
    }
  }

  void AddHandler(std::string path) {
    ASSERT_TRUE(routes_.AddPath(std::move(path), Handler()).ok());
  }
  static std::unique_ptr<HttpHandler> Handler() {
    return NewHttpPostHandler([](auto&&...) {});
  }

  // The method at `path`; "none" if it is no call.
  std::string At(std::string_view path) {
    HttpMethodPaths paths;
    paths.SetUp(methods_, routes_);
    std::string method = "none";
    EXPECT_EQ(paths.Read(path, nullptr), paths.Read(path, &method));
    return method;
  }

  HttpMethodPaths::Methods methods_;
  HttpRoutes routes_;
};

TEST_F(HttpMethodPathsTest, FindsMethodsByBothNamesOfTheirService) {
  EXPECT_EQ(At("/flare.rpc.testing.TestService/Call"), testing::kCall);
  EXPECT_EQ(At("/TestService/Call"), testing::kCall);
  EXPECT_EQ(At("/flare.rpc.testing.TestService/Other"), testing::kOther);
}

TEST_F(HttpMethodPathsTest, OtherPathsAreNoCalls) {
  for (const char* path :
       {"", "/", "//", "/TestService", "/TestService/", "/testservice/Call",
        "TestService/Call", "/testing.TestService/Call", "/x/TestService/Call",
        "/TestService/Call/", "/flare.rpc.testing/TestService/Call"}) {
    EXPECT_EQ(At(path), "none") << path;
  }
}

TEST_F(HttpMethodPathsTest, MissingMethodsOfAServiceAreCalls) {
  EXPECT_EQ(At("/TestService/Nothing"),
            "flare.rpc.testing.TestService.Nothing");
  EXPECT_EQ(At("/OtherService/Call"), "none");
}

TEST_F(HttpMethodPathsTest, HandlersGoFirst) {
  AddHandler("/TestService/Call");
  AddHandler("/TestService/Nothing");
  EXPECT_EQ(At("/TestService/Call"), "none");
  EXPECT_EQ(At("/TestService/Nothing"), "none");
  EXPECT_EQ(At("/TestService/Other"), testing::kOther);
  EXPECT_EQ(At("/flare.rpc.testing.TestService/Call"), testing::kCall);
  ASSERT_TRUE(routes_.AddPrefix("/flare.", Handler()).ok());
  EXPECT_EQ(At("/flare.rpc.testing.TestService/Call"), "none");
  routes_.SetDefault(Handler());
  EXPECT_EQ(At("/TestService/Other"), "none");
}

}  // namespace
}  // namespace flare::rpc
