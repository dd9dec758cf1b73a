#include "flare/rpc/admission/rate_limit_rules.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RateLimitRules, ReadsAllThatALimitHas) {
  const auto limits = ParseRateLimits(R"({"limits": [
    {"name": "all", "rate": 10000, "burst": 500},
    {"name": "search", "method": ["shop.Catalog.*", "/search"],
     "per": "caller", "rate": 0.5, "only_count": true, "max_callers": 100,
     "ipv4_prefix": 24, "ipv6_prefix": 48},
    {"name": "tenant", "method": "*", "per": "metadata:x-tenant", "rate": 1e2}
  ]})");
  ASSERT_TRUE(limits) << limits.error().ToString();
  ASSERT_EQ(limits->size(), 3u);
  const RateLimit& all = (*limits)[0];
  EXPECT_EQ(all.name, "all");
  EXPECT_THAT(all.methods, ElementsAre("*"));
  EXPECT_EQ(all.per, RateLimit::Per::kServer);
  EXPECT_EQ(all.rate, 10'000);
  EXPECT_EQ(all.burst, 500);
  EXPECT_FALSE(all.only_count);
  EXPECT_EQ(all.ipv4_prefix, 32u);
  EXPECT_EQ(all.ipv6_prefix, 64u);
  const RateLimit& search = (*limits)[1];
  EXPECT_THAT(search.methods, ElementsAre("shop.Catalog.*", "/search"));
  EXPECT_EQ(search.per, RateLimit::Per::kCaller);
  EXPECT_EQ(search.rate, 0.5);
  EXPECT_EQ(search.burst, 0);
  EXPECT_TRUE(search.only_count);
  EXPECT_EQ(search.max_callers, 100u);
  EXPECT_EQ(search.ipv4_prefix, 24u);
  EXPECT_EQ(search.ipv6_prefix, 48u);
  const RateLimit& tenant = (*limits)[2];
  EXPECT_EQ(tenant.per, RateLimit::Per::kMetadata);
  EXPECT_EQ(tenant.metadata, "x-tenant");
  EXPECT_EQ(tenant.rate, 100);
}

TEST(RateLimitRules, SaysWhereAMistakeIs) {
  struct Case {
    std::string limit;
    std::string error;
  } cases[] = {
      {R"({"rate": 1})", "1:13: name: the limit has none"},
      {R"({"name": "a"})", "rate: expects calls in a second"},
      {R"({"name": "a", "rate": 0})", "rate: expects calls in a second"},
      {R"({"name": "a", "rate": -3})", "rate: expects calls in a second"},
      {R"({"name": "a", "rate": "3"})", "rate: expects a number"},
      {R"({"name": "a", "rate": 1, "burst": 0.5})", "burst: expects at least"},
      {R"({"name": "a", "rate": 1, "burst": 1e9})", "burst: expects at least"},
      {R"({"name": "a", "rate": 1, "per": "user"})",
       "per: \"user\" is none of server, method"},
      {R"({"name": "a", "rate": 1, "per": "metadata:"})",
       "expects the name of an entry"},
      {R"({"name": "a", "rate": 1, "per": "metadata:X-Tenant"})",
       "are in lower case"},
      {R"({"name": "a", "rate": 1, "method": []})", "the list is empty"},
      {R"({"name": "a", "rate": 1, "method": "Search"})",
       "method: \"Search\" is none of *"},
      {R"({"name": "a", "rate": 1, "method": "shop.Cat*"})",
       "method: \"shop.Cat*\" is none of *"},
      {R"({"name": "a", "rate": 1, "only_count": 1})",
       "only_count: expects true or false"},
      {R"({"name": "a", "rate": 1, "max_callers": 0})",
       "max_callers: expects 1 to 1000000"},
      {R"({"name": "a", "rate": 1, "max_callers": 1.5})",
       "max_callers: expects 1 to 1000000"},
      {R"({"name": "a", "rate": 1, "ipv4_prefix": 33})",
       "1:53: ipv4_prefix: expects 0 to 32"},
      {R"({"name": "a", "rate": 1, "ipv6_prefix": -1})",
       "ipv6_prefix: expects 0 to 128"},
      {R"({"name": "a", "rate": 1, "ipv6_prefix": "/64"})",
       "ipv6_prefix: expects a number"},
      {R"({"name": "a", "rate": 1, "rate": 2})", "rate: twice"},
      {R"({"name": "a", "speed": 1})", "unknown \"speed\"; known: name"},
  };
  for (const Case& c : cases) {
    const auto limits = ParseRateLimits("{\"limits\": [" + c.limit + "]}");
    ASSERT_FALSE(limits) << c.limit;
    EXPECT_THAT(limits.error().message(), HasSubstr(c.error)) << c.limit;
  }
  EXPECT_THAT(ParseRateLimits("{}").error().message(),
              HasSubstr("there is no \"limits\""));
  EXPECT_THAT(ParseRateLimits("[]").error().message(), HasSubstr("1:1: "));
  EXPECT_THAT(ParseRateLimits("{\"limits\": []} 1").error().message(),
              HasSubstr("expects the end of the file"));
}

TEST(RateLimitRules, PatternsAreForMethodsAndPaths) {
  const std::vector<std::string> all = {"*"};
  EXPECT_TRUE(IsLimitFor(all, "shop.Catalog.Search"));
  EXPECT_TRUE(IsLimitFor(all, "/search"));
  EXPECT_TRUE(IsLimitFor(all, "/inspector"));
  for (const char* page : {"/inspect", "/inspect/server", "/metrics"}) {
    EXPECT_FALSE(IsLimitFor(all, page)) << page;
    EXPECT_TRUE(IsLimitFor({page}, page)) << page;
  }
  const std::vector<std::string> some = {"shop.Catalog.*", "/a/*",
                                         "shop.O.Get"};
  EXPECT_TRUE(IsLimitFor(some, "shop.Catalog.Search"));
  EXPECT_TRUE(IsLimitFor(some, "/a/b"));
  EXPECT_TRUE(IsLimitFor(some, "shop.O.Get"));
  EXPECT_FALSE(IsLimitFor(some, "shop.O.GetAll"));
  EXPECT_FALSE(IsLimitFor(some, "shop.CatalogOfAll.Search"));
  EXPECT_FALSE(IsLimitFor(some, "/ab"));
}

}  // namespace
}  // namespace flare::rpc
