// Code as users of the published framework write it: it must compile, and do
// what it did there. What differs: docs/migration.md.

#include <cstdint>
#include <string>

#include "flare/base/endpoint.h"
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

}  // namespace
