#include "flare/rpc/server/message_growth.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/unknown_field_set.h>

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "rpc/testing/test_service.pb.h"

namespace flare::rpc::testing {
namespace {

namespace pb = google::protobuf;

std::string Field(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  std::size_t size = bytes.size();
  for (; size > 127; size >>= 7) out += static_cast<char>(size | 128);
  return out + static_cast<char>(size) + bytes;
}

std::string Repeat(const std::string& bytes, int times) {
  std::string out;
  for (int i = 0; i != times; ++i) out += bytes;
  return out;
}

// Parses one after the other into the same message; returns its growth for each
// byte.
double GainOf(const pb::Message& prototype,
              const std::vector<std::string>& requests) {
  const std::unique_ptr<pb::Message> message(prototype.New());
  const std::size_t before = message->SpaceUsedLong();
  std::size_t bytes = 0;
  for (const std::string& request : requests) {
    EXPECT_TRUE(message->ParseFromString(request));
    bytes += request.size();
  }
  return static_cast<double>(message->SpaceUsedLong() - before) /
         static_cast<double>(bytes);
}

TEST(MessageGrowthTest, TypesWithoutListsGrowByTheirTextOnly) {
  EXPECT_LE(MemoryPerByte(TestRequest::descriptor()), 4u);
  std::vector<std::string> requests;
  for (int size = 1; size < 4000; size = size * 3 / 2 + 1) {
    requests.push_back(Field(1, std::string(size, 'x')));
  }
  EXPECT_LE(GainOf(TestRequest::default_instance(), requests),
            MemoryPerByte(TestRequest::descriptor()));
}

TEST(MessageGrowthTest, ListsOfMessagesGrowByTheirSize) {
  const auto& table = pb::DescriptorProto::default_instance();
  const std::string nested = Field(3, "");
  const std::vector<std::vector<std::string>> attacks = {
      {Repeat(Field(2, ""), 2000)},
      {Repeat(nested, 2000)},
      {Repeat(nested, 50) + Field(3, Repeat(nested, 2000)),
       Repeat(nested, 51) + Field(3, Repeat(nested, 2000))},
      {Repeat(Field(10, ""), 2000)},  // Strings.
  };
  for (const auto& attack : attacks) {
    const double gain = GainOf(table, attack);
    EXPECT_GT(gain, 10);
    EXPECT_LE(gain, MemoryPerByte(table.GetDescriptor()));
  }
}

TEST(MessageGrowthTest, MapsAndRecursionEnd) {
  pb::Struct all;
  for (int i = 0; i != 500; ++i) {
    auto* const list =
        (*all.mutable_fields())[std::to_string(i)].mutable_list_value();
    for (int j = 0; j != 5; ++j) list->add_values()->set_bool_value(true);
  }
  EXPECT_LE(GainOf(pb::Struct::default_instance(), {all.SerializeAsString()}),
            MemoryPerByte(pb::Struct::descriptor()));
  EXPECT_LT(MemoryPerByte(pb::Struct::descriptor()), 200u);
}

TEST(MessageGrowthTest, SomeTypesTellWhatTheyKeep) {
  EXPECT_TRUE(IsMeasurable(TestRequest::descriptor()));
  EXPECT_TRUE(IsMeasurable(pb::SourceCodeInfo::Location::descriptor()));
  EXPECT_FALSE(IsMeasurable(pb::SourceCodeInfo::descriptor()));
  EXPECT_FALSE(IsMeasurable(pb::Struct::descriptor()));          // A map.
  EXPECT_FALSE(IsMeasurable(pb::MessageOptions::descriptor()));  // Extensions.

  pb::SourceCodeInfo::Location location;
  const std::size_t empty = MeasureCleared(&location);
  EXPECT_EQ(empty, location.SpaceUsedLong());
  location.set_leading_comments(std::string(1000, 'x'));
  for (int i = 0; i != 100; ++i) {
    location.add_path(i);
    location.add_leading_detached_comments(std::string(20, 'x'));
  }
  const std::size_t kept = MeasureCleared(&location);
  EXPECT_EQ(location.ByteSizeLong(), 0u);
  EXPECT_GE(kept, empty + 1000 + 100 * (sizeof(int) + sizeof(std::string)));
}

TEST(MessageGrowthTest, MeasuringFreesTheListOfUnknownFields) {
  TestRequest request;
  for (int i = 0; i != 100; ++i) {
    pb::UnknownFieldSet* const unknown =
        request.GetReflection()->MutableUnknownFields(&request);
    unknown->AddVarint(1000 + i, 1);
  }
  MeasureCleared(&request);
  EXPECT_EQ(request.GetReflection()->GetUnknownFields(request).field_count(),
            0);
}

TEST(MessageGrowthTest, UnknownFieldsOfOneRequest) {
  for (const std::string& unknown : {Field(15, ""), std::string("\x7b\x7c")}) {
    const double gain =
        GainOf(TestRequest::default_instance(), {Repeat(unknown, 2000)});
    EXPECT_GT(gain, MemoryPerByte(TestRequest::descriptor()));
    EXPECT_LE(gain, MemoryPerParsedByte(TestRequest::descriptor()));
  }
  EXPECT_GE(MemoryPerParsedByte(pb::Struct::descriptor()),
            MemoryPerByte(pb::Struct::descriptor()));
}

TEST(MessageGrowthTest, NumbersInLists) {
  pb::SourceCodeInfo info;
  auto* const location = info.add_location();
  for (int i = 0; i != 1025; ++i) location->add_path(1);
  EXPECT_LE(GainOf(pb::SourceCodeInfo::default_instance(),
                   {info.SerializeAsString()}),
            MemoryPerByte(pb::SourceCodeInfo::descriptor()));
}

}  // namespace
}  // namespace flare::rpc::testing
