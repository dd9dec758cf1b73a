#include "flare/rpc/services/reflection.h"

#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_options.pb.h"
#include "flare/rpc/server.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "gtest/gtest.h"
#include "rpc/services/reflection.flare.pb.h"
#include "rpc/services/reflection_v1alpha.flare.pb.h"
#include "rpc/testing/limited_service.pb.h"

namespace flare {
namespace {

namespace v1 = grpc::reflection::v1;
namespace v1alpha = grpc::reflection::v1alpha;
using Request = v1::ServerReflectionRequest;
using Response = v1::ServerReflectionResponse;

// A service of a file that imports others.
class Limited : public rpc::testing::LimitedService {};

class ReflectionTest : public rpc::testing::RpcTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
    server_.emplace(Server::Options{.service_name = "test"});
    server_->AddProtocols({"flare", "trpc", "grpc"});
    ASSERT_TRUE(AddReflection(&*server_));
    // Behind it: it knows services that are added later, too.
    server_->AddService(std::make_unique<rpc::testing::FlexibleStreamer>());
    server_->AddService(std::make_unique<Limited>());
    server_->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server_->Start());
    ASSERT_NO_FATAL_FAILURE(Open("flare"));
  }
  void TearDown() override {
    rpc::ShutdownClientSide();
    server_.reset();
    RpcTest::TearDown();
  }

  void Open(std::string_view protocol) {
    ASSERT_TRUE(channel_.Open(std::string(protocol) + "://" +
                              server_->endpoint().ToString()));
  }

  // The answers to `requests`, of one call.
  std::vector<Response> Ask(const std::vector<Request>& requests) {
    auto [reader, writer] =
        v1::ServerReflection_SyncStub(&channel_).ServerReflectionInfo();
    std::vector<Response> responses;
    for (const Request& request : requests) {
      EXPECT_TRUE(writer.Write(request));
      auto response = reader.Read();
      if (!response) {
        ADD_FAILURE() << reader.status().ToString();
        return responses;
      }
      EXPECT_EQ(response->original_request().SerializeAsString(),
                request.SerializeAsString());
      responses.push_back(*std::move(response));
    }
    writer.Close();
    EXPECT_EQ(reader.Read().error(), StreamError::EndOfStream);
    return responses;
  }
  Response AskOne(const Request& request) {
    auto responses = Ask({request});
    return responses.empty() ? Response() : responses[0];
  }
  static Request List() {
    Request request;
    request.set_list_services("*");
    return request;
  }
  static Request File(std::string name) {
    Request request;
    request.set_file_by_filename(std::move(name));
    return request;
  }
  static Request Symbol(std::string name) {
    Request request;
    request.set_file_containing_symbol(std::move(name));
    return request;
  }
  static Request Extension(std::string type, int number) {
    Request request;
    auto* const extension = request.mutable_file_containing_extension();
    extension->set_containing_type(std::move(type));
    extension->set_extension_number(number);
    return request;
  }
  static Request Extensions(std::string type) {
    Request request;
    request.set_all_extension_numbers_of_type(std::move(type));
    return request;
  }

  // The names of the files in `response`.
  static std::vector<std::string> Files(const Response& response) {
    std::vector<std::string> names;
    for (const std::string& bytes :
         response.file_descriptor_response().file_descriptor_proto()) {
      google::protobuf::FileDescriptorProto file;
      EXPECT_TRUE(file.ParseFromString(bytes));
      names.push_back(file.name());
    }
    return names;
  }
  static void ExpectError(const Response& response, rpc::GrpcCode code,
                          std::string_view text) {
    EXPECT_EQ(response.error_response().error_code(), static_cast<int>(code));
    EXPECT_EQ(response.error_response().error_message(), text);
  }

  std::optional<Server> server_;
  RpcChannel channel_;
};

class ReflectionOverTest : public ReflectionTest,
                           public ::testing::WithParamInterface<const char*> {};

TEST_P(ReflectionOverTest, ListsServices) {
  ASSERT_NO_FATAL_FAILURE(Open(GetParam()));
  const Response response = AskOne(List());
  std::vector<std::string> names;
  for (const auto& service : response.list_services_response().service()) {
    names.push_back(service.name());
  }
  const std::vector<std::string> expected = {
      "flare.rpc.testing.LimitedService", "flare.rpc.testing.Streamer",
      "grpc.reflection.v1.ServerReflection",
      "grpc.reflection.v1alpha.ServerReflection"};
  EXPECT_EQ(names, expected);
}

INSTANTIATE_TEST_SUITE_P(Streams, ReflectionOverTest,
                         ::testing::Values("flare", "trpc", "grpc"));

TEST_F(ReflectionTest, AnOlderClientIsAnswered) {
  v1alpha::ServerReflectionRequest request;
  request.set_host("me");
  request.set_file_containing_symbol("flare.rpc.testing.Streamer.Count");
  auto [reader, writer] =
      v1alpha::ServerReflection_SyncStub(&channel_).ServerReflectionInfo();
  ASSERT_TRUE(writer.WriteLast(request));
  const auto response = reader.Read();
  ASSERT_TRUE(response);
  EXPECT_EQ(response->valid_host(), "me");
  ASSERT_EQ(response->file_descriptor_response().file_descriptor_proto_size(),
            1);
  google::protobuf::FileDescriptorProto file;
  ASSERT_TRUE(file.ParseFromString(
      response->file_descriptor_response().file_descriptor_proto(0)));
  EXPECT_EQ(file.name(), "rpc/testing/streamer.proto");
  EXPECT_EQ(file.service(0).name(), "Streamer");
}

TEST_F(ReflectionTest, AFileIsFoundByEachKindOfSymbol) {
  const std::vector<std::string> expected = {"rpc/services/reflection.proto"};
  const std::string package = "grpc.reflection.v1.";
  for (const char* const symbol :
       {"ServerReflection", "ServerReflection.ServerReflectionInfo",
        "ServerReflectionRequest", "ServerReflectionRequest.host",
        "ServerReflectionRequest.message_request", "ErrorResponse"}) {
    EXPECT_EQ(Files(AskOne(Symbol(package + symbol))), expected) << symbol;
  }
  EXPECT_EQ(Files(AskOne(File(expected[0]))), expected);
}

TEST_F(ReflectionTest, OneCallAnswersManyRequests) {
  const auto responses = Ask({List(), Symbol("flare.rpc.testing.Number"),
                              Symbol("nothing"), Request(), List()});
  ASSERT_EQ(responses.size(), 5u);
  EXPECT_EQ(Files(responses[1]),
            std::vector<std::string>{"rpc/testing/streamer.proto"});
  ExpectError(responses[2], rpc::GrpcCode::kNotFound,
              "there is no symbol nothing");
  ExpectError(responses[3], rpc::GrpcCode::kInvalidArgument,
              "a reflection request that asks for nothing known");
  EXPECT_EQ(responses[4].list_services_response().service_size(), 4);
}

TEST_F(ReflectionTest, WhatIsUnknownIsAnError) {
  ExpectError(AskOne(File("no/such.proto")), rpc::GrpcCode::kNotFound,
              "there is no file no/such.proto");
  // In the program, but none of the server's business.
  ExpectError(AskOne(Symbol("flare.rpc.testing.StreamService")),
              rpc::GrpcCode::kNotFound,
              "there is no symbol flare.rpc.testing.StreamService");
  ExpectError(AskOne(Extension("flare.rpc.testing.Number", 7)),
              rpc::GrpcCode::kNotFound,
              "there is no extension 7 of flare.rpc.testing.Number");
  ExpectError(AskOne(Extension("no.Type", 7)), rpc::GrpcCode::kNotFound,
              "there is no extension 7 of no.Type");
  ExpectError(AskOne(Extensions("no.Type")), rpc::GrpcCode::kNotFound,
              "there is no message no.Type");
}

TEST_F(ReflectionTest, AFileComesWithItsImports) {
  const std::vector<std::string> expected = {
      "rpc/testing/limited_service.proto", "flare/rpc/rpc_options.proto",
      "google/protobuf/descriptor.proto", "rpc/testing/test_service.proto"};
  EXPECT_EQ(Files(AskOne(Symbol("flare.rpc.testing.LimitedService"))),
            expected);
  EXPECT_EQ(Files(AskOne(Symbol("flare.rpc.testing.TestRequest"))),
            std::vector<std::string>{expected[3]});
}

TEST_F(ReflectionTest, ExtensionsAreFoundByTheirMessage) {
  constexpr char kOptions[] = "google.protobuf.MethodOptions";
  const int number = flare::kMaxOngoingRequestsFieldNumber;
  const Response response = AskOne(Extensions(kOptions));
  const auto& numbers =
      response.all_extension_numbers_response().extension_number();
  EXPECT_EQ(std::count(numbers.begin(), numbers.end(), number), 1);
  EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  const auto files = Files(AskOne(Extension(kOptions, number)));
  ASSERT_FALSE(files.empty());
  EXPECT_EQ(files[0], "flare/rpc/rpc_options.proto");
  ExpectError(AskOne(Extension(kOptions, 1)), rpc::GrpcCode::kNotFound,
              std::string("there is no extension 1 of ") + kOptions);
}

TEST_F(ReflectionTest, AMessageWithoutExtensionsHasNone) {
  const Response response = AskOne(Extensions("flare.rpc.testing.Number"));
  EXPECT_TRUE(response.has_all_extension_numbers_response());
  EXPECT_EQ(response.all_extension_numbers_response().base_type_name(),
            "flare.rpc.testing.Number");
  EXPECT_EQ(response.all_extension_numbers_response().extension_number_size(),
            0);
}

}  // namespace
}  // namespace flare
