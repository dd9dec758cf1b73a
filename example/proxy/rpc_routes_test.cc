#include "example/proxy/rpc_routes.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/empty.pb.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "example/proxy/routes_testing.h"
#include "flare/rpc/rpc_options.pb.h"
#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"
#include "rpc/testing/limited_service.pb.h"

namespace example::proxy {
namespace {

using flare::rpc::testing::kCall;
using flare::rpc::testing::kCallStrict;
using flare::rpc::testing::kOther;
using flare::rpc::testing::LimitedService;
using google::protobuf::FileDescriptorSet;

constexpr char kStreaming[] = "flare.rpc.testing.TestService.CallStreaming";

// Full names of methods, and where they go; or why there are none.
using Targets = std::map<std::string, std::string>;
Targets TargetsOf(const FileDescriptorSet& set, const std::string& routes) {
  const auto routed = RoutedMethods::Build(set, Routes(routes));
  if (!routed) return {{"error", routed.error().message()}};
  Targets targets;
  for (const auto& [service, methods] : routed->services()) {
    for (const auto& [method, uri] : methods)
      targets[method->full_name()] = uri;
  }
  return targets;
}

std::string BuildError(const FileDescriptorSet& set,
                       const std::string& routes) {
  const auto routed = RoutedMethods::Build(set, Routes(routes));
  return routed ? "" : routed.error().message();
}

TEST(RpcRoutes, KeepsTheOrderAndIgnoresSpace) {
  EXPECT_EQ(Routes(" a.B.C = flare://x:1 ;; *=trpc://y:2,z:3;"),
            (RpcRoutes{{"a.B.C", "flare://x:1"}, {"*", "trpc://y:2,z:3"}}));
  EXPECT_EQ(Routes("S=unknown://a=b"), (RpcRoutes{{"S", "unknown://a=b"}}));
}

TEST(RpcRoutes, NamesWhatCantBeRead) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no routes; write pattern=protocol://address"},
      {" ; ;", "no routes; write pattern=protocol://address"},
      {"a.B", "route 'a.B': write pattern=protocol://address"},
      {"a.B.C=flare://x:1;nonsense",
       "route 'nonsense': write pattern=protocol://address"},
      {"a.B=x:1", "route 'a.B=x:1': 'x:1' is no protocol://address"},
      {"a.B=", "route 'a.B=': '' is no protocol://address"},
      {"a.B=flare://x:1;a.B=trpc://y:2",
       "route 'a.B=trpc://y:2': there is another one for a.B"},
      {"*=flare://x:1;*=flare://x:1",
       "route '*=flare://x:1': there is another one for *"},
  };
  for (const auto& [text, why] : cases) {
    const auto routes = ParseRpcRoutes(text);
    ASSERT_FALSE(routes) << text;
    EXPECT_EQ(routes.error().message(), why);
  }
}

TEST(RpcRoutes, RefusesPatternsThatAreNoNames) {
  for (const std::string pattern :
       {"", ".", "a..B", ".a", "a.", "a.*", "**", "a/B", "a-b.C", "1a.B",
        "a.B C", "\xc3\xa4.B"}) {
    const auto routes = ParseRpcRoutes(pattern + "=flare://x:1");
    ASSERT_FALSE(routes) << pattern;
    EXPECT_EQ(routes.error().message(),
              "route '" + pattern + "=flare://x:1': '" + pattern +
                  "' is neither package.Service.Method, nor package.Service, "
                  "nor *");
  }
}

TEST(RpcRoutes, TheMorePrecisePatternWins) {
  const FileDescriptorSet set = TestDescriptors();
  const std::string method = std::string(kOther) + "=flare://method:1;";
  const std::string service = std::string(kService) + "=flare://service:1;";
  const std::string all = "*=flare://all:1;";
  // Whatever the order.
  for (const std::string& routes :
       {method + service + all, all + service + method}) {
    const Targets targets = TargetsOf(set, routes);
    EXPECT_EQ(targets.at(kOther), "flare://method:1");
    EXPECT_EQ(targets.at(kCall), "flare://service:1");
    EXPECT_EQ(targets.at(kCallStrict), "flare://service:1");
    EXPECT_EQ(targets.at("flare.rpc.testing.OtherService.Call"),
              "flare://all:1");
  }
  // Only services with a route are there, and methods without one go nowhere.
  EXPECT_EQ(TargetsOf(set, method), (Targets{{kCall, ""},
                                             {kOther, "flare://method:1"},
                                             {kCallStrict, ""},
                                             {kStreaming, ""}}));
}

TEST(RpcRoutes, StreamingMethodsAreRoutedLikeOthers) {
  const FileDescriptorSet set = TestDescriptors();
  EXPECT_EQ(TargetsOf(set, "*=flare://x:1").at(kStreaming), "flare://x:1");
  EXPECT_EQ(TargetsOf(set, std::string(kStreaming) + "=flare://x:1"),
            (Targets{{kCall, ""},
                     {kOther, ""},
                     {kCallStrict, ""},
                     {kStreaming, "flare://x:1"}}));
}

TEST(RpcRoutes, PatternsMustNameSomething) {
  const FileDescriptorSet set = TestDescriptors();
  for (const std::string pattern :
       {"TestService", "flare.rpc.testing", "flare.rpc.testing.TestRequest",
        "flare.rpc.testing.TestService.call", "no.such.Service"}) {
    EXPECT_EQ(BuildError(set, "*=flare://y:1;" + pattern + "=flare://x:1"),
              "route '" + pattern +
                  "=flare://x:1': the descriptors have no such service or "
                  "method");
  }
  FileDescriptorSet without_services;
  google::protobuf::Empty::descriptor()->file()->CopyTo(
      without_services.add_file());
  EXPECT_EQ(BuildError(without_services, "*=flare://x:1"),
            "the descriptors have no method that can be routed");
}

TEST(RpcRoutes, LimitsInProtoFilesAreTheServersOwn) {
  const auto* const file = LimitedService::descriptor()->file();
  FileDescriptorSet set = TestDescriptors();
  google::protobuf::FileDescriptorProto::descriptor()->file()->CopyTo(
      set.add_file());
  file->dependency(0)->CopyTo(set.add_file());
  file->CopyTo(set.add_file());
  ASSERT_EQ(set.file(2).name(), "flare/rpc/rpc_options.proto");
  ASSERT_TRUE(file->service(0)->method(0)->options().HasExtension(
      flare::max_ongoing_requests));

  const auto routed = RoutedMethods::Build(set, Routes("*=flare://x:1"));
  ASSERT_TRUE(routed) << routed.error().message();
  const auto* const method = routed->pool()->FindMethodByName(
      "flare.rpc.testing.LimitedService.OneAtATime");
  ASSERT_NE(method, nullptr);
  EXPECT_EQ(method->options().ByteSizeLong(), 0u);
}

TEST(RpcRoutes, DescriptorsNeedTheirImports) {
  const auto opaque = DeclareOpaqueMethods(Routes("a.B.C=flare://x:1"));
  ASSERT_TRUE(opaque);
  ASSERT_EQ(opaque->file_size(), 2);  // The second one imports the first one.
  EXPECT_EQ(BuildError(*opaque, "*=flare://x:1"), "");

  FileDescriptorSet lacking = *opaque;
  lacking.mutable_file()->DeleteSubrange(0, 1);
  FileDescriptorSet reversed = *opaque;
  reversed.mutable_file()->SwapElements(0, 1);
  for (const auto& set : {lacking, reversed}) {
    EXPECT_EQ(BuildError(set, "*=flare://x:1"),
              "the descriptors are inconsistent: a.B.opaque imports "
              "google/protobuf/empty.proto, which isn't there before it; "
              "protoc needs --include_imports");
  }
  FileDescriptorSet broken = TestDescriptors();
  broken.mutable_file(0)->mutable_service(0)->mutable_method(0)->set_input_type(
      ".no.such.Message");
  EXPECT_NE(BuildError(broken, "*=flare://x:1").find("no.such.Message"),
            std::string::npos);
}

TEST(RpcRoutes, WithoutDescriptorsEachRouteNamesAMethod) {
  for (const std::string pattern : {"*", "Service"}) {
    const auto set = DeclareOpaqueMethods(Routes(pattern + "=flare://x:1"));
    ASSERT_FALSE(set);
    EXPECT_EQ(set.error().message(),
              "route '" + pattern +
                  "=flare://x:1': without descriptors each route must name a "
                  "method, as package.Service.Method");
  }
  const std::string routes =
      "a.b.S.One=flare://x:1;a.b.S.Two=flare://y:1;a.b.T.One=flare://z:1;"
      "NoPackage.Method=flare://w:1";
  const auto set = DeclareOpaqueMethods(Routes(routes));
  ASSERT_TRUE(set);
  EXPECT_EQ(TargetsOf(*set, routes),
            (Targets{{"a.b.S.One", "flare://x:1"},
                     {"a.b.S.Two", "flare://y:1"},
                     {"a.b.T.One", "flare://z:1"},
                     {"NoPackage.Method", "flare://w:1"}}));
  // a.B can't be a service and a package.
  const std::string both = "a.B.C=flare://x:1;a.B.D.E=flare://x:1";
  EXPECT_NE(BuildError(*DeclareOpaqueMethods(Routes(both)), both).find("a.B"),
            std::string::npos);
}

TEST(RpcRoutes, ReadsDescriptorFiles) {
  const std::string path =
      ::testing::TempDir() + "rpc_proxy_test." + std::to_string(getpid());
  const auto read = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    auto set = ReadDescriptorSet(path);
    unlink(path.c_str());
    return set;
  };
  const auto set = read(TestDescriptors().SerializeAsString());
  ASSERT_TRUE(set);
  EXPECT_EQ(set->SerializeAsString(), TestDescriptors().SerializeAsString());

  FileDescriptorSet lacking;  // A required field.
  lacking.add_file()->mutable_options()->add_uninterpreted_option()->add_name();
  for (const std::string& content :
       {std::string(), std::string("syntax = \"proto3\";"),
        TestDescriptors().SerializeAsString().substr(0, 100),
        lacking.SerializePartialAsString()}) {
    const auto bad = read(content);
    ASSERT_FALSE(bad);
    EXPECT_EQ(bad.error().message(),
              path +
                  " is no descriptor set; make one with protoc "
                  "--include_imports --descriptor_set_out=" +
                  path + " your.proto");
  }
  const auto absent = ReadDescriptorSet(path);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().message(),
            "can't read " + path + ": No such file or directory");
  EXPECT_FALSE(ReadDescriptorSet(::testing::TempDir()));
}

}  // namespace
}  // namespace example::proxy
