#include "flare/rpc/fan_out/partition_channel.h"

#include <google/protobuf/descriptor.pb.h>

#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "flare/rpc/testing/servers_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

using google::protobuf::FileDescriptorProto;
using google::protobuf::Message;
using Parts = std::vector<std::unique_ptr<Message>>;

class PartitionChannelTest : public ServersTest {
 protected:
  std::unique_ptr<PartitionChannel> Open(std::size_t partitions,
                                         Partitioner partitioner) {
    std::vector<std::shared_ptr<google::protobuf::RpcChannel>> channels;
    for (std::size_t i = 0; i != partitions; ++i) {
      channels.push_back(std::make_shared<RpcChannel>(uri(i)));
      service(i).on_call = [i](TestCall call) {
        call.response->set_number(static_cast<int>(i));
        call.Reply(call.request->body());
      };
    }
    return std::make_unique<PartitionChannel>(std::move(channels),
                                              std::move(partitioner));
  }
};

TEST(PartitionOfTest, IsTheSameEverywhere) {
  EXPECT_EQ(PartitionOf("apple", 1), 0);
  EXPECT_EQ(PartitionOf("apple", 1000), 691);
  EXPECT_EQ(PartitionOf("", 1000), 8);
}

TEST(PartitionOfTest, SpreadsKeysEvenly) {
  int counts[8] = {};
  for (int i = 0; i != 80'000; ++i) ++counts[PartitionOf(std::to_string(i), 8)];
  // Six standard deviations.
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 560);
}

TEST(PartitionByFieldTest, DividesTheElementsOfARepeatedField) {
  FileDescriptorProto request;
  request.set_name("for all");
  for (int i = 0; i != 100; ++i) request.add_dependency(std::to_string(i));
  Parts parts(4);
  ASSERT_TRUE(PartitionByField("dependency")(request, &parts).ok());
  std::multiset<std::string> all;
  for (std::size_t i = 0; i != parts.size(); ++i) {
    ASSERT_NE(parts[i], nullptr);
    const auto& part = static_cast<const FileDescriptorProto&>(*parts[i]);
    EXPECT_EQ(part.name(), "for all");
    for (const std::string& key : part.dependency()) {
      EXPECT_EQ(PartitionOf(key, 4), i);
      all.insert(key);
    }
  }
  EXPECT_EQ(all, std::multiset<std::string>(request.dependency().begin(),
                                            request.dependency().end()));
}

TEST(PartitionByFieldTest, TakesNumbers) {
  FileDescriptorProto request;
  request.add_public_dependency(17);
  Parts parts(16);
  ASSERT_TRUE(PartitionByField("public_dependency")(request, &parts).ok());
  for (std::size_t i = 0; i != parts.size(); ++i) {
    EXPECT_EQ(parts[i] != nullptr, i == PartitionOf("17", 16)) << i;
  }
}

TEST(PartitionByFieldTest, SaysWhatItCanNotDivideBy) {
  const FileDescriptorProto request;
  Parts parts(2);
  EXPECT_EQ(PartitionByField("colour")(request, &parts).message(),
            "can't divide a google.protobuf.FileDescriptorProto by its field "
            "\"colour\": it has none");
  const flare::Status status = PartitionByField("options")(request, &parts);
  EXPECT_EQ(status.code(), STATUS_NOT_SUPPORTED);
  EXPECT_EQ(status.message(),
            "can't divide a google.protobuf.FileDescriptorProto by its field "
            "\"options\": it is no string, bytes, integer, enum or bool");
}

TEST_F(PartitionChannelTest, AKeyLeadsToItsPartition) {
  StartServers(3);
  const auto by_field = Open(3, PartitionByField("body"));
  const auto by_key =
      Open(3, PartitionByKey([](const Message& request) {
             return static_cast<const TestRequest&>(request).body();
           }));
  std::set<int> seen;
  for (int i = 0; i != 20; ++i) {
    for (PartitionChannel* const channel : {by_field.get(), by_key.get()}) {
      AnyChannelCall call;
      call.request.set_body(std::to_string(i));
      EXPECT_EQ(call.StartOn(channel)->Await(), STATUS_SUCCESS);
      EXPECT_EQ(call.response.number(), PartitionOf(std::to_string(i), 3));
      seen.insert(call.response.number());
    }
  }
  EXPECT_EQ(seen.size(), 3);
}

// The others aren't called.
TEST_F(PartitionChannelTest, EachPartitionGetsItsPart) {
  StartServers(3);
  const auto channel = Open(3, [](const Message&, Parts* parts) {
    (*parts)[0] = std::make_unique<TestRequest>(MakeRequest("zero"));
    (*parts)[2] = std::make_unique<TestRequest>(MakeRequest("two"));
    return flare::Status();
  });
  service(0).on_call = [](TestCall call) {
    EXPECT_EQ(call.request->body(), "zero");
    call.response->set_number(10);
    call.Reply();
  };
  service(1).on_call = FailsWith(1234);
  service(2).on_call = Says("two");
  AnyChannelCall call;
  EXPECT_EQ(call.StartOn(channel.get())->Await(), STATUS_SUCCESS)
      << call.controller.ErrorText();
  EXPECT_EQ(call.response.number(), 10);
  EXPECT_EQ(call.response.body(), "two");
}

TEST_F(PartitionChannelTest, PartitionersMayFail) {
  StartServers(1);
  AnyChannelCall refused;
  EXPECT_EQ(
      refused
          .StartOn(Open(1, [](const Message&,
                              Parts*) { return flare::Status(1300, "no key"); })
                       .get())
          ->Await(),
      1300);
  AnyChannelCall thrown;
  EXPECT_EQ(thrown
                .StartOn(Open(1,
                              [](const Message&, Parts*) -> flare::Status {
                                throw std::runtime_error("oops");
                              })
                             .get())
                ->Await(),
            STATUS_FAILED);
  EXPECT_EQ(thrown.controller.ErrorText(),
            "an exception left the code that divides a request: "
            "std::runtime_error: oops");
  AnyChannelCall nobody;
  EXPECT_EQ(nobody
                .StartOn(Open(1, [](const Message&,
                                    Parts*) { return flare::Status(); })
                             .get())
                ->Await(),
            STATUS_NO_PEER);
  EXPECT_EQ(nobody.controller.ErrorText(),
            "the request is for none of the channels");
}

}  // namespace
}  // namespace flare::rpc::testing
