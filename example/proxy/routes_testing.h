// For tests of routing by name: routes to the methods of TestService.
#ifndef EXAMPLE_PROXY_ROUTES_TESTING_H_
#define EXAMPLE_PROXY_ROUTES_TESTING_H_

#include <google/protobuf/descriptor.pb.h>

#include <string>
#include <utility>

#include "example/proxy/rpc_routes.h"
#include "gtest/gtest.h"
#include "rpc/testing/test_service.pb.h"

namespace example::proxy {

inline constexpr char kService[] = "flare.rpc.testing.TestService";

inline RpcRoutes Routes(const std::string& text) {
  auto routes = ParseRpcRoutes(text);
  EXPECT_TRUE(routes) << text;
  return routes ? *std::move(routes) : RpcRoutes();
}

inline google::protobuf::FileDescriptorSet TestDescriptors() {
  google::protobuf::FileDescriptorSet set;
  flare::rpc::testing::TestService::descriptor()->file()->CopyTo(
      set.add_file());
  return set;
}

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_ROUTES_TESTING_H_
