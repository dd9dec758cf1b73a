#include "flare/rpc/protocol.h"

#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

TEST(ContiguousPrefixTest, PointsIntoOneSliceAndCopiesFromSeveral) {
  std::string first(300, 'a');
  std::string second(300, 'b');
  Buffer buffer = MakeReferencingBuffer(first.data(), first.size());
  buffer.Append(MakeReferencingBuffer(second.data(), second.size()));
  ASSERT_EQ(buffer.SliceCount(), 2u);
  std::string scratch;
  std::string_view prefix = ContiguousPrefix(buffer, 300, &scratch);
  EXPECT_EQ(prefix.data(), first.data());
  EXPECT_TRUE(scratch.empty());
  prefix = ContiguousPrefix(buffer, 301, &scratch);
  EXPECT_EQ(prefix.data(), scratch.data());
  EXPECT_EQ(prefix, first + "b");
  EXPECT_EQ(ContiguousPrefix(buffer, 600, &scratch), first + second);
  EXPECT_EQ(ContiguousPrefix(Buffer(), 0, &scratch), "");
}

}  // namespace
}  // namespace flare::rpc
