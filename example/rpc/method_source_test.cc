#include "example/rpc/method_source.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/text_format.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace example {
namespace {

using google::protobuf::FileDescriptorSet;

FileDescriptorSet ParseSet(const std::string& text) {
  FileDescriptorSet set;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &set));
  return set;
}

constexpr char kTwoServices[] = R"pb(
  file {
    name: "a.proto"
    package: "x"
    dependency: "google/protobuf/any.proto"
    message_type {
      name: "M"
      field {
        name: "any"
        number: 1
        label: LABEL_OPTIONAL
        type: TYPE_MESSAGE
        type_name: ".google.protobuf.Any"
      }
    }
    enum_type {
      name: "E"
      value { name: "ZERO" number: 0 }
    }
    service {
      name: "Second"
      method { name: "Do" input_type: ".x.M" output_type: ".x.M" }
      method { name: "Undo" input_type: ".x.M" output_type: ".x.M" }
    }
    service { name: "First" }
    syntax: "proto3"
  })pb";

class MethodSourceTest : public ::testing::Test {
 protected:
  // Writes a file into the test's folder.
  static std::string Write(const std::string& name, const std::string& text) {
    const std::string path = ::testing::TempDir() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  static std::unique_ptr<MethodSource> TwoServices() {
    auto source =
        MethodSource::FromDescriptions(ParseSet(kTwoServices), "the test");
    EXPECT_TRUE(source) << source.error();
    return *std::move(source);
  }

  template <class T>
  static std::string ErrorOf(const T& result) {
    return result ? "none" : result.error().message();
  }
};

TEST_F(MethodSourceTest, FindsMethods) {
  const auto source = TwoServices();
  EXPECT_EQ(source->Services(),
            (std::vector<std::string>{"x.First", "x.Second"}));
  for (const char* name : {"x.Second.Do", "x.Second/Do", "/x.Second/Do"}) {
    const auto method = source->FindMethod(name);
    ASSERT_TRUE(method) << method.error();
    EXPECT_EQ((*method)->full_name(), "x.Second.Do");
    EXPECT_EQ(source->NewMessage((*method)->input_type())->GetTypeName(),
              "x.M");
  }
}

TEST_F(MethodSourceTest, SaysWhichMethodsThereAre) {
  const auto source = TwoServices();
  EXPECT_EQ(ErrorOf(source->FindMethod("x.Second.Redo")),
            "x.Second has no method Redo; it has: Do, Undo");
  EXPECT_EQ(ErrorOf(source->FindMethod("x.First.Do")),
            "x.First has no method Do; it has: none");
  EXPECT_EQ(ErrorOf(source->FindMethod("x.Third.Do")),
            "there is no service x.Third; known are: x.First, x.Second");
  for (const char* name : {"", "Do", "/Do"}) {
    EXPECT_EQ(ErrorOf(source->FindMethod(name)),
              "'" + std::string(name) +
                  "' is no method; write package.Service.Method");
  }
}

TEST_F(MethodSourceTest, DescribesWhatHasAName) {
  const auto source = TwoServices();
  for (const auto& [name, begin] :
       {std::pair("x.Second", "service Second {\n  rpc Do("),
        std::pair("x.Second.Do", "rpc Do(.x.M) returns (.x.M);\n\nmessage M"),
        std::pair("x.Second/Do", "rpc Do("), std::pair("x.M", "message M {"),
        std::pair("x.E", "enum E {")}) {
    const auto text = source->Describe(name);
    ASSERT_TRUE(text) << text.error();
    EXPECT_TRUE(text->starts_with(begin)) << *text;
  }
  EXPECT_EQ(ErrorOf(source->Describe("x.F")),
            "there is nothing called x.F; known services are: x.First, "
            "x.Second");
}

// Programs have services of their own, which are no answer.
TEST_F(MethodSourceTest, HidesFilesOfTheProgram) {
  const auto source = TwoServices();
  EXPECT_FALSE(source->Describe("google.protobuf.FileDescriptorSet"));
  EXPECT_TRUE(source->Describe("google.protobuf.Any"));
}

TEST_F(MethodSourceTest, RefusesDescriptionsThatDontFit) {
  auto set = ParseSet(kTwoServices);
  set.mutable_file(0)->add_dependency("gone.proto");
  const auto lacking = MethodSource::FromDescriptions(set, "set.bin");
  EXPECT_NE(ErrorOf(lacking).find("can't use set.bin: a.proto: gone.proto: "),
            std::string::npos)
      << ErrorOf(lacking);
  set = ParseSet(kTwoServices);
  *set.add_file() = set.file(0);
  EXPECT_NE(
      ErrorOf(MethodSource::FromDescriptions(set, "set.bin")).find("twice"),
      std::string::npos);
}

TEST_F(MethodSourceTest, ReadsDescriptorSets) {
  const std::string path =
      Write("set.bin", ParseSet(kTwoServices).SerializeAsString());
  const auto source = MethodSource::FromDescriptorSet(path);
  ASSERT_TRUE(source) << source.error();
  EXPECT_TRUE((*source)->FindMethod("x.Second.Undo"));

  for (const char* bad : {"", "no set"}) {
    EXPECT_NE(ErrorOf(MethodSource::FromDescriptorSet(Write("bad.bin", bad)))
                  .find("is no descriptor set"),
              std::string::npos);
  }
  EXPECT_EQ(ErrorOf(MethodSource::FromDescriptorSet("/no/file")),
            "can't read '/no/file': No such file or directory");
}

TEST_F(MethodSourceTest, ReadsProtoFilesOfAnyFolder) {
  const std::string path = Write("only.proto", R"(syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "flare/rpc/rpc_options.proto";
message M { google.protobuf.Timestamp time = 1; }
service S {
  rpc Do(stream M) returns (stream M) {
    option (flare.max_ongoing_requests) = 1;
  }
}
)");
  const auto source = MethodSource::FromProtoFiles({path}, {});
  ASSERT_TRUE(source) << source.error();
  const auto method = (*source)->FindMethod("S.Do");
  ASSERT_TRUE(method) << method.error();
  EXPECT_TRUE((*method)->client_streaming() && (*method)->server_streaming());
}

TEST_F(MethodSourceTest, SaysWhereAProtoFileIsWrong) {
  for (const auto& [text, error] :
       {std::pair("syntax = \"proto3\";\nmessag M {}\n", "wrong.proto:2:1: "),
        std::pair("import \"gone.proto\";\n", "gone.proto: File not found"),
        std::pair("message M { optional N n = 1; }\n", "\"N\" is not defined"),
        std::pair("service S { rpc A(B) returns (B); }\n",
                  "\"B\" is not defined")}) {
    const std::string path = Write("wrong.proto", text);
    const auto source = MethodSource::FromProtoFiles({path}, {});
    EXPECT_TRUE(ErrorOf(source).starts_with("can't use " + path + ": "))
        << ErrorOf(source);
    EXPECT_NE(ErrorOf(source).find(error), std::string::npos)
        << ErrorOf(source);
  }
}

}  // namespace
}  // namespace example
