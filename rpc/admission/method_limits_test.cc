#include "flare/rpc/admission/method_limits.h"

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(ParseMethodLimits, ReadsAList) {
  EXPECT_TRUE(ParseMethodLimits("")->empty());
  const auto limits = ParseMethodLimits("a.B.C:10,d.E.F:1");
  ASSERT_TRUE(limits);
  EXPECT_EQ(*limits, (MethodLimits{{"a.B.C", 10}, {"d.E.F", 1}}));
  EXPECT_EQ(*ParseMethodLimits(" a.B.C : 10 , "),
            (MethodLimits{{"a.B.C", 10}}));
}

TEST(ParseMethodLimits, RefusesAnythingElse) {
  for (const char* bad :
       {"x", "a.B.C", "a.B.C:", ":5", "a.B.C:0", "a.B.C:-1", "a.B.C:1x",
        "a.B.C:99999999999", "a:1,b", "a:1;b:2"}) {
    const auto limits = ParseMethodLimits(bad);
    ASSERT_FALSE(limits) << bad;
    EXPECT_FALSE(limits.error().message().empty());
  }
}

}  // namespace
}  // namespace flare::rpc
