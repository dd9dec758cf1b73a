// Code as users of the published framework write it: it must compile, and
// behave as it did there. The differences: docs/migration.md.

#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/function.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/base/string.h"
#include "gtest/gtest.h"

namespace {

TEST(PublishedCode, Endpoints) {
  auto v4 = flare::EndpointFromIpv4("192.0.2.1", 5567);
  EXPECT_EQ(flare::EndpointGetIp(v4), "192.0.2.1");
  EXPECT_EQ(flare::EndpointGetPort(v4), 5567);
  auto v6 = flare::EndpointFromIpv6("2001:db8::1", 80);
  EXPECT_EQ(flare::EndpointGetIp(v6), "2001:db8::1");
  EXPECT_EQ(flare::EndpointGetPort(v6), 80);
  EXPECT_EQ(v4.ToString(), "192.0.2.1:5567");
}

TEST(PublishedCode, Buffers) {
  flare::NoncontiguousBufferBuilder builder;
  std::string key = "key";
  std::string_view value = "value";
  builder.Append(key, ": ", value, "\r\n");
  builder.Append(key.data(), key.size());
  builder.Append('\n');
  flare::NoncontiguousBuffer buffer = builder.DestructiveGet();
  EXPECT_EQ(flare::FlattenSlow(buffer), "key: value\r\nkey\n");
  buffer.Append(flare::CreateBufferSlow("more", 3));
  buffer.Skip(12);
  EXPECT_EQ(flare::FlattenSlow(buffer.Cut(3)), "key");
  EXPECT_EQ(buffer.FirstContiguous().front(), '\n');
  EXPECT_EQ(flare::FlattenSlow(buffer, 4), "\nmor");
}

TEST(PublishedCode, ReferenceCounting) {
  struct Counted : flare::RefCounted<Counted> {};
  flare::RefPtr<Counted> first(flare::adopt_ptr, new Counted);
  flare::RefPtr second(flare::ref_ptr, first.Get());
  EXPECT_EQ(first->UnsafeRefCount(), 2u);
  second.Reset(flare::adopt_ptr, new Counted);
  EXPECT_EQ(first->UnsafeRefCount(), 1u);
  second.Reset(flare::ref_ptr, first.Get());
  EXPECT_EQ(first->UnsafeRefCount(), 2u);
  second.Reset(flare::ref_ptr, first.Get());
  EXPECT_EQ(first->UnsafeRefCount(), 2u);
}

TEST(PublishedCode, Strings) {
  auto columns = flare::Split("a,,c", ',', true);
  ASSERT_EQ(columns.size(), 3u);
  EXPECT_EQ(columns[2], "c");
  EXPECT_EQ(flare::Join(flare::Split("a,,c", ","), ";"), "a;c");
  EXPECT_EQ(flare::Join({"a", "b"}, ", "), "a, b");
  EXPECT_EQ(flare::TryParse<bool>("y"), true);
  EXPECT_EQ(flare::TryParse<int>("7f", 16), 127);
}

TEST(PublishedCodeDeathTest, ExpectedWithoutValue) {
  flare::Expected<std::string, flare::Status> expected = "body";
  EXPECT_EQ(expected->size(), 4u);
  expected = flare::Status(110, "timed out");
  EXPECT_FALSE(expected);
  EXPECT_DEATH(static_cast<void>(expected->size()), "timed out");
}

TEST(PublishedCode, FunctionsInLambdas) {
  int calls = 0;
  flare::Function<void(int)> callback = [&](int n) { calls += n; };
  auto twice = [callback = std::move(callback)] {
    callback(1);
    callback(2);
  };
  twice();
  EXPECT_EQ(calls, 3);
}

}  // namespace
