#include "tools/protoc_plugin/generator.h"

#include <google/protobuf/compiler/parser.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::protoc_plugin {
namespace {

namespace pb = google::protobuf;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;

// Keeps the outputs in memory.
class MemoryContext : public pb::compiler::GeneratorContext {
 public:
  pb::io::ZeroCopyOutputStream* Open(const std::string& name) override {
    return new pb::io::StringOutputStream(&files[name]);
  }

  std::map<std::string, std::string> files;
};

struct Outcome {
  bool ok;
  std::string error;
  std::map<std::string, std::string> files;
};

// Runs the generator over one file, whose imports are not resolved.
Outcome RunGenerator(const std::string& name, const std::string& text,
                     const std::string& parameter = "") {
  pb::io::ArrayInputStream input(text.data(), static_cast<int>(text.size()));
  pb::io::Tokenizer tokenizer(&input, nullptr);
  pb::compiler::Parser parser;
  pb::FileDescriptorProto parsed;
  EXPECT_TRUE(parser.Parse(&tokenizer, &parsed)) << text;
  parsed.set_name(name);
  pb::DescriptorPool pool;
  const pb::FileDescriptor* file = pool.BuildFile(parsed);
  EXPECT_NE(file, nullptr) << text;

  MemoryContext context;
  Outcome outcome;
  outcome.ok = Generator().Generate(file, parameter, &context, &outcome.error);
  outcome.files = std::move(context.files);
  return outcome;
}

std::string ServiceFile(const std::string& methods,
                        const std::string& options = "") {
  return "syntax = \"proto3\";\npackage p.q;\n" + options +
         "message Req {}\nmessage Resp {}\nservice Greeter {\n" + methods +
         "}\n";
}

std::string ReadFile(const std::string& path) {
  std::ifstream stream(path);
  EXPECT_TRUE(stream) << path;
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

TEST(Generator, WritesBothFilesBesideProtocsOwn) {
  auto outcome = RunGenerator("a/b/greeter.proto",
                              ServiceFile("  rpc Hi(Req) returns (Resp);\n"));
  ASSERT_TRUE(outcome.ok) << outcome.error;
  EXPECT_THAT(outcome.files, ElementsAre(Key("a/b/greeter.flare.pb.cc"),
                                         Key("a/b/greeter.flare.pb.h")));
  EXPECT_THAT(outcome.files["a/b/greeter.flare.pb.h"],
              HasSubstr("#include \"a/b/greeter.pb.h\""));
  EXPECT_THAT(outcome.files["a/b/greeter.flare.pb.cc"],
              HasSubstr("#include \"a/b/greeter.flare.pb.h\""));
}

// Shows a reader, and a reviewer of a change, the users' view. When the
// generator is meant to change, copy the new text from this test's failure.
TEST(Generator, HeaderIsTheGoldenOne) {
  auto outcome = RunGenerator("a/greeter.proto",
                              ServiceFile("  rpc Hi(Req) returns (Resp);\n"));
  ASSERT_TRUE(outcome.ok) << outcome.error;
  EXPECT_EQ(outcome.files["a/greeter.flare.pb.h"],
            ReadFile("tools/protoc_plugin/testdata/greeter.flare.pb.h.golden"));
}

TEST(Generator, HeaderOfStreamingMethodsIsTheGoldenOne) {
  auto outcome = RunGenerator(
      "a/streams.proto",
      ServiceFile("  rpc Sum(stream Req) returns (Resp);\n"
                  "  rpc Count(Req) returns (stream Resp);\n"
                  "  rpc Chat(stream Req) returns (stream Resp);\n"));
  ASSERT_TRUE(outcome.ok) << outcome.error;
  EXPECT_EQ(outcome.files["a/streams.flare.pb.h"],
            ReadFile("tools/protoc_plugin/testdata/streams.flare.pb.h.golden"));
}

// Parameters that a method uses have names; others have none, so that compilers
// don't warn.
class StreamingMethod
    : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(StreamingMethod, FailsAsLongAsItIsNotOverridden) {
  const auto [declaration, parameters] = GetParam();
  auto outcome = RunGenerator(
      "x.proto", ServiceFile(std::string("  rpc Flow") + declaration));
  ASSERT_TRUE(outcome.ok) << outcome.error;
  EXPECT_THAT(
      outcome.files["x.flare.pb.cc"],
      AllOf(HasSubstr(std::string("void SyncGreeter::Flow(\n") + parameters),
            HasSubstr("Method p.q.Greeter.Flow is not implemented."),
            HasSubstr("OpenStreamInController(")));
}

INSTANTIATE_TEST_SUITE_P(
    AllKinds, StreamingMethod,
    ::testing::Values(std::pair("(stream Req) returns (Resp);\n",
                                "    ::flare::StreamReader<::p::q::Req>,\n"
                                "    ::p::q::Resp*,\n"),
                      std::pair("(Req) returns (stream Resp);\n",
                                "    const ::p::q::Req&,\n"
                                "    ::flare::StreamWriter<::p::q::Resp>,\n"),
                      std::pair("(stream Req) returns (stream Resp);\n",
                                "    ::flare::StreamReader<::p::q::Req>,\n"
                                "    ::flare::StreamWriter<::p::q::Resp>,\n")));

TEST(Generator, FileWithoutServicesGivesFilesThatOnlyInclude) {
  auto outcome = RunGenerator("x.proto", "syntax = \"proto3\"; message M {}");
  ASSERT_TRUE(outcome.ok) << outcome.error;
  ASSERT_EQ(outcome.files.size(), 2u);
  EXPECT_THAT(outcome.files["x.flare.pb.h"],
              AllOf(HasSubstr("#include \"x.pb.h\""), Not(HasSubstr("class")),
                    Not(HasSubstr("namespace"))));
  EXPECT_THAT(outcome.files["x.flare.pb.cc"], Not(HasSubstr("namespace")));
}

TEST(Generator, LeavesStockClassesToProtocWhenItWritesThem) {
  constexpr auto kMethods = "  rpc Hi(Req) returns (Resp);\n";
  constexpr auto kStub = "class Greeter_Stub :";
  auto own = RunGenerator("x.proto", ServiceFile(kMethods));
  EXPECT_THAT(own.files["x.flare.pb.h"], HasSubstr(kStub));
  auto stock = RunGenerator(
      "x.proto", ServiceFile(kMethods, "option cc_generic_services = true;\n"));
  EXPECT_THAT(stock.files["x.flare.pb.h"],
              AllOf(Not(HasSubstr(kStub)), HasSubstr("class SyncGreeter :"),
                    HasSubstr("class AsyncGreeter :"),
                    HasSubstr("using BasicGreeter = Greeter;"),
                    HasSubstr("class Greeter_SyncStub :"),
                    HasSubstr("class Greeter_AsyncStub :")));
}

TEST(Generator, IncludeGuardHasNoForeignCharacters) {
  auto outcome = RunGenerator("a-b/c.d.proto", "syntax = \"proto3\";");
  EXPECT_THAT(outcome.files["a-b/c.d.flare.pb.h"],
              HasSubstr("#ifndef FLARE_GENERATED_a_2db_2fc_2ed_2eproto_\n"
                        "#define FLARE_GENERATED_a_2db_2fc_2ed_2eproto_\n"));
}

TEST(Generator, IncludeGuardsOfDifferentFilesDiffer) {
  const std::set<std::string> names{
      "order/item_service",   "order_item/service", "order_item_service",
      "order_2fitem_service", "order-item-service", "Order/item_service"};
  std::set<std::string> guards;
  for (const std::string& name : names) {
    auto outcome = RunGenerator(name + ".proto", "syntax = \"proto3\";");
    const std::string& header = outcome.files[name + ".flare.pb.h"];
    const auto begin = header.find("#ifndef ");
    guards.insert(header.substr(begin, header.find('\n', begin) - begin));
  }
  EXPECT_EQ(guards.size(), names.size());
}

TEST(Generator, NamesNestedMessagesAsProtocDoes) {
  auto outcome = RunGenerator("x.proto", R"(syntax = "proto3"; package a.b;
      message M { message Inner {} }
      service S { rpc Do(M.Inner) returns (M); })");
  ASSERT_TRUE(outcome.ok) << outcome.error;
  EXPECT_THAT(outcome.files["x.flare.pb.h"],
              AllOf(HasSubstr("namespace a {\nnamespace b {\n"),
                    HasSubstr("const ::a::b::M_Inner& request"),
                    HasSubstr("::a::b::M* response")));
}

TEST(Generator, FileWithoutPackageStaysInTheGlobalNamespace) {
  auto outcome = RunGenerator("x.proto", R"(syntax = "proto3";
      message M {} service S { rpc Do(M) returns (M); })");
  ASSERT_TRUE(outcome.ok) << outcome.error;
  EXPECT_THAT(
      outcome.files["x.flare.pb.h"],
      AllOf(Not(HasSubstr("namespace")), HasSubstr("const ::M& request")));
  EXPECT_THAT(outcome.files["x.flare.pb.cc"],
              HasSubstr("FindGeneratedService(\"S\")"));
}

TEST(Generator, RefusesServicesWithoutDescriptors) {
  auto outcome = RunGenerator(
      "x.proto", ServiceFile("  rpc Hi(Req) returns (Resp);\n",
                             "option optimize_for = LITE_RUNTIME;\n"));
  EXPECT_FALSE(outcome.ok);
  EXPECT_THAT(outcome.error,
              AllOf(HasSubstr("p.q.Greeter"), HasSubstr("LITE_RUNTIME")));
}

TEST(Generator, AcceptsLiteMessagesWithoutServices) {
  auto outcome =
      RunGenerator("x.proto",
                   "syntax = \"proto3\";"
                   "option optimize_for = LITE_RUNTIME; message M {}");
  EXPECT_TRUE(outcome.ok) << outcome.error;
}

TEST(Generator, RefusesNamesThatAreTaken) {
  const std::string head = "syntax = \"proto3\";\npackage p;\nmessage M {}\n";
  auto of = [&](const std::string& text) {
    return RunGenerator("a.proto", head + text).error;
  };
  EXPECT_EQ(
      of("service Echo {}\nmessage SyncEcho {}\n"),
      "a.proto:4: Class SyncEcho, generated for service p.Echo, would have "
      "the name of p.SyncEcho, which is declared. Rename one of the two.");
  EXPECT_THAT(of("service SyncEcho {}\nservice Echo {}\n"),
              HasSubstr("the name of p.SyncEcho, which is declared"));
  EXPECT_THAT(of("service Echo {}\nenum E { Echo_AsyncStub = 0; }\n"),
              HasSubstr("the name of p.Echo_AsyncStub, which is declared"));
  EXPECT_THAT(of("service Echo {}\nmessage AsyncEcho {}\n"),
              HasSubstr("the name of p.AsyncEcho, which is declared"));
  EXPECT_THAT(of("service Echo {}\nmessage BasicEcho {}\n"),
              HasSubstr("the name of p.BasicEcho, which is declared"));
  EXPECT_THAT(of("service Echo {}\nmessage Echo_BasicStub {}\n"),
              HasSubstr("the name of p.Echo_BasicStub, which is declared"));
  EXPECT_THAT(of("service A_Stub {}\nservice SyncA {}\n"),
              HasSubstr("Class SyncA_Stub, generated for service p.SyncA, "
                        "would have the name of one generated for service "
                        "A_Stub."));
  EXPECT_EQ(of("service Echo {}\nservice Echo2 {}\nmessage Echo_ {}\n"), "");
}

TEST(Generator, RefusesClassesThatKeywordsMakeTheSame) {
  auto of = [](const std::string& text) {
    return RunGenerator("a.proto", "syntax = \"proto3\";\npackage p;\n" + text +
                                       "service register {}\n")
        .error;
  };
  EXPECT_THAT(of("message Syncregister_ {}\n"),
              HasSubstr("the name of p.Syncregister_, which is declared"));
  EXPECT_THAT(of("service register_ {}\n"),
              HasSubstr("the name of p.register_, which is declared"));
  EXPECT_EQ(of("message register_Stub {}\nmessage Syncregister {}\n"), "");
}

TEST(Generator, RefusesMethodsWithOneNameInCpp) {
  auto of = [](const std::string& service, const std::string& one,
               const std::string& other) {
    return RunGenerator("a.proto",
                        "syntax = \"proto3\";\npackage p;\n"
                        "message M {}\nservice " +
                            service + " {\nrpc " + one +
                            "(M) returns (M);\nrpc " + other +
                            "(M) returns (M);\n}\n")
        .error;
  };
  EXPECT_EQ(of("S", "delete", "delete_"),
            "a.proto:6: Method p.S.delete_ would have the name delete_ in C++, "
            "as method delete has. Rename one of the two.");
  EXPECT_THAT(of("Echo", "Echo_", "Echo"),
              HasSubstr("Method p.Echo.Echo would have the name Echo_ in C++"));
  EXPECT_EQ(of("S", "delete", "Delete_"), "");
}

// The suffix of a keyword can make it the name of the class.
TEST(Generator, GivesNoMethodTheNameOfItsClass) {
  auto outcome = RunGenerator("x.proto", R"(syntax = "proto3";
      message M {} service delete_ { rpc delete(M) returns (M); })");
  ASSERT_TRUE(outcome.ok) << outcome.error;
  EXPECT_THAT(outcome.files["x.flare.pb.h"],
              AllOf(HasSubstr("virtual void delete__("),
                    Not(HasSubstr("virtual void delete_("))));
}

TEST(Generator, RefusesParameters) {
  auto outcome = RunGenerator("x.proto", "syntax = \"proto3\";", "fast=true");
  EXPECT_FALSE(outcome.ok);
  EXPECT_THAT(outcome.error, HasSubstr("`fast=true`"));
}

TEST(Generator, AcceptsProto3Optional) {
  EXPECT_TRUE(Generator().GetSupportedFeatures() &
              pb::compiler::CodeGenerator::FEATURE_PROTO3_OPTIONAL);
}

}  // namespace
}  // namespace flare::protoc_plugin
