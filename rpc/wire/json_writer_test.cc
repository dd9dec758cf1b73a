#include "flare/rpc/wire/json_writer.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "flare/rpc/wire/payload_bounds.h"
#include "flare/rpc/wire/payload_testing.h"
#include "flare/rpc/wire/well_known_types.h"
#include "gtest/gtest.h"
#include "rpc/wire/any_messages.pb.h"
#include "rpc/wire/old_messages.pb.h"

namespace flare::rpc {
namespace {

using testing::AllTypes;
using testing::AnyBytes;
using testing::BytesField;
using testing::NestedAny;
using testing::OldTypes;
using testing::OnASmallStack;

std::string JsonOf(const google::protobuf::Message& message,
                   JsonStyle style = JsonStyle::kProto3) {
  Buffer json;
  std::string why;
  if (!WriteJson(style, message, &json, &why)) return "can't: " + why;
  return FlattenSlow(json);
}

std::string ProtobufsJsonOf(const google::protobuf::Message& message) {
  std::string json;
  const auto status =
      google::protobuf::util::MessageToJsonString(message, &json);
  return status.ok() ? json : "can't: " + status.ToString();
}

AllTypes WithEverything() {
  AllTypes message;
  message.mutable_any()->ParseFromString(
      NestedAny(3, "flare.rpc.testing.AllTypes", BytesField(40, "in an Any")));
  message.add_any_list()->PackFrom(google::protobuf::Duration());
  message.mutable_any_list(0)->set_value("\x08\x05");
  message.add_any_list();
  message.add_any_list()->set_type_url("type.googleapis.com/no.Such");
  (*message.mutable_any_map())["key"];
  (*(*message.mutable_struct_()->mutable_fields())["list"]
        .mutable_list_value()
        ->add_values()
        ->mutable_struct_value()
        ->mutable_fields())["x"]
      .set_number_value(1.5);
  message.mutable_value()->set_bool_value(true);
  message.mutable_list()->add_values()->set_string_value("s");
  message.add_values()->set_null_value(google::protobuf::NULL_VALUE);
  message.add_lists()->add_values()->set_number_value(-3);
  message.add_lists();
  (*message.mutable_value_map())[-7].mutable_list_value();
  message.mutable_mask()->add_paths("user_name");
  message.mutable_mask()->add_paths("a.b_c.d");
  message.add_masks();
  message.mutable_duration()->set_seconds(-1);
  message.mutable_duration()->set_nanos(-500000000);
  message.add_durations()->set_nanos(1);
  message.add_durations()->set_nanos(-1000);
  message.add_durations()->set_seconds(315576000000);
  message.add_durations();
  message.mutable_timestamp()->set_seconds(1700000000);
  message.mutable_timestamp()->set_nanos(120000000);
  message.add_timestamps()->set_seconds(-62135596800);
  message.mutable_bool_wrapper();
  message.mutable_int32_wrapper()->set_value(-5);
  message.mutable_int64_wrapper()->set_value(-5);
  message.mutable_uint32_wrapper()->set_value(5);
  message.mutable_uint64_wrapper()->set_value(5);
  message.mutable_float_wrapper()->set_value(0.1f);
  message.mutable_double_wrapper()->set_value(0.1);
  message.mutable_string_wrapper()->set_value("w");
  message.mutable_bytes_wrapper()->set_value("w\xff");
  message.add_wrappers()->set_value(9);
  (*message.mutable_wrapper_map())["w"].set_value("x");
  message.mutable_empty();
  message.mutable_nested()->set_flag(true);
  message.add_nested_list();
  message.add_nested_list()->set_small(std::numeric_limits<int>::min());
  (*message.mutable_nested_map())["\"\n"].set_large(1ll << 60);
  message.set_fixed_small(4'000'000'000);
  message.set_large_unsigned(~0ull);
  message.set_fixed_large(-1);
  message.set_ratio(3.4e38f);
  message.set_precise_ratio(1e-300);
  message.set_text("\"\\\b\f\n\r\t\x01\x7f<>&/ \u00e4\u2028\u2029\U0001f600");
  message.set_raw(std::string("\0\xff\x10", 3));
  message.set_kind(testing::OPEN_KIND_SOME);
  message.add_kinds(testing::OPEN_KIND_NONE);
  message.add_kinds(static_cast<testing::OpenKind>(9));
  for (int i = -2; i != 3; ++i) message.add_numbers(i);
  for (double ratio : {0.0, 1e15, 1e21, 123456789012345678.0,
                       std::numeric_limits<double>::quiet_NaN(),
                       std::numeric_limits<double>::infinity(),
                       -std::numeric_limits<double>::infinity(),
                       std::numeric_limits<double>::max(), 1 / 3.0}) {
    message.add_ratios(ratio);
  }
  message.add_texts("");
  (*message.mutable_flag_map())[true] = "t";
  (*message.mutable_bytes_map())[-3] = "b";
  (*message.mutable_kind_map())["k"] = testing::OPEN_KIND_SOME;
  (*message.mutable_ratio_map())[3] = 0.25;
  message.set_maybe(0);
  message.set_chosen_number(0);
  message.set_renamed("r");
  return message;
}

TEST(JsonWriter, WritesAsProtobufDoes) {
  const AllTypes message = WithEverything();
  EXPECT_EQ(JsonOf(message), ProtobufsJsonOf(message));
  AllTypes other;
  for (std::size_t size = 0; size != 5; ++size) {
    other.set_raw(std::string(size, '\xa7'));
    EXPECT_EQ(JsonOf(other), ProtobufsJsonOf(other));
  }
  other.set_raw(std::string(5000, '\xa7'));
  EXPECT_EQ(JsonOf(other), ProtobufsJsonOf(other));
  other.set_chosen_null(google::protobuf::NULL_VALUE);
  EXPECT_EQ(JsonOf(other), ProtobufsJsonOf(other));
}

void AddFile(const google::protobuf::FileDescriptor* file,
             google::protobuf::DescriptorPool* pool) {
  if (pool->FindFileByName(file->name()) != nullptr) return;
  for (int i = 0; i != file->dependency_count(); ++i) {
    AddFile(file->dependency(i), pool);
  }
  google::protobuf::FileDescriptorProto proto;
  file->CopyTo(&proto);
  ASSERT_NE(pool->BuildFile(proto), nullptr);
}

// Messages of types that aren't compiled in, as those of rpc_proxy.
TEST(JsonWriter, WritesDynamicMessages) {
  google::protobuf::DescriptorPool pool;
  AddFile(AllTypes::descriptor()->file(), &pool);
  google::protobuf::DynamicMessageFactory factory;
  std::unique_ptr<google::protobuf::Message> dynamic(
      factory
          .GetPrototype(
              pool.FindMessageTypeByName(AllTypes::descriptor()->full_name()))
          ->New());
  AllTypes message = WithEverything();
  ASSERT_TRUE(dynamic->ParseFromString(message.SerializeAsString()));
  EXPECT_EQ(JsonOf(*dynamic), JsonOf(message));
}

TEST(JsonWriter, LeavesOutWhatTheTypeDoesNotHave) {
  OldTypes message;
  // Field 90, kind 7, kinds 1 and 7, a group of the number 91.
  ASSERT_TRUE(message.ParseFromString(
      "\xd0\x05\x4d\x08\x07\x10\x01\x10\x07\xdb\x05\x08\x01\xdc\x05"));
  message.SetExtension(testing::extension_number, 5);
  message.mutable_set()->MutableExtension(testing::OldSetItem::item);
  EXPECT_EQ(JsonOf(message), "{\"kinds\":[\"CLOSED_KIND_SOME\"],\"set\":{}}");
}

TEST(JsonWriter, OfEachKeyOfAMapTheLastEntryHolds) {
  AllTypes message;
  const auto* const reflection = message.GetReflection();
  const auto* const field =
      AllTypes::descriptor()->FindFieldByName("ratio_map");
  for (double ratio : {1, 2, 3}) {
    auto* const entry = reflection->AddMessage(&message, field);
    entry->GetReflection()->SetUInt32(entry, field->message_type()->map_key(),
                                      ratio == 2 ? 8 : 7);
    entry->GetReflection()->SetDouble(entry, field->message_type()->map_value(),
                                      ratio);
  }
  EXPECT_EQ(JsonOf(message), "{\"ratioMap\":{\"8\":2,\"7\":3}}");
}

TEST(JsonWriter, WritesGroups) {
  OldTypes message;
  message.mutable_group()->set_number(1);
  message.add_groups()->set_number(2);
  EXPECT_EQ(JsonOf(message),
            "{\"group\":{\"number\":1},\"groups\":[{\"number\":2}]}");
}

TEST(JsonWriter, TrpcHasDefaults) {
  OldTypes message;
  message.mutable_any()->PackFrom(OldTypes());
  message.mutable_any()->set_value("\xd0\x05\x4d");
  const std::string fields =
      "\"kind\":1,\"kinds\":[],\"text\":\"some\",\"texts\":[],\"kind_map\":{},"
      "\"groups\":[],";
  const std::string rest =
      "\"needs\":[],\"raw\":\"AP8=\",\"ratio\":\"Infinity\"}";
  EXPECT_EQ(JsonOf(message, JsonStyle::kTrpc),
            "{" + fields +
                "\"any\":{\"@type\":\"type.googleapis.com/"
                "flare.rpc.testing.OldTypes\"," +
                fields + rest + "," + rest);
}

// They were dropped.
TEST(JsonWriter, StringsThatAreNoUtf8Fail) {
  OldTypes message;
  message.set_text("a\xff");
  EXPECT_EQ(JsonOf(message),
            "can't: flare.rpc.testing.OldTypes.text isn't UTF-8");
  message.set_text("ok");
  (*message.mutable_kind_map())["\xed\xa0\x80"];
  EXPECT_EQ(JsonOf(message),
            "can't: flare.rpc.testing.OldTypes.KindMapEntry.key isn't UTF-8");
  OldTypes nested;
  nested.mutable_nested()->add_texts("\xc3");
  EXPECT_NE(JsonOf(nested).find("isn't UTF-8"), std::string::npos);
}

TEST(JsonWriter, WhatJsonCannotSayFails) {
  const auto fails = [](auto&& fill) {
    AllTypes message;
    fill(message);
    return JsonOf(message).starts_with("can't: ");
  };
  EXPECT_TRUE(fails([](auto& m) { m.mutable_value()->set_number_value(NAN); }));
  EXPECT_TRUE(fails([](auto& m) { m.mutable_duration()->set_nanos(1 << 30); }));
  EXPECT_TRUE(
      fails([](auto& m) { m.mutable_duration()->set_seconds(1ll << 62); }));
  EXPECT_TRUE(fails([](auto& m) {
    m.mutable_duration()->set_seconds(1);
    m.mutable_duration()->set_nanos(-1);
  }));
  EXPECT_TRUE(
      fails([](auto& m) { m.mutable_timestamp()->set_seconds(1ll << 62); }));
  EXPECT_TRUE(fails([](auto& m) { m.mutable_timestamp()->set_nanos(-1); }));
  EXPECT_TRUE(fails([](auto& m) { m.mutable_any()->set_value("x"); }));
  EXPECT_TRUE(fails([](auto& m) {
    m.mutable_any()->ParseFromString(AnyBytes("no.Such", "x"));
  }));
  // Protobuf's writer would go on without end here: a varint of 11 bytes in a
  // packed field.
  EXPECT_TRUE(fails([](auto& m) {
    m.mutable_any()->ParseFromString(AnyBytes(
        "flare.rpc.testing.AllTypes", BytesField(44, std::string(20, '\xff'))));
  }));
  EXPECT_FALSE(fails([](auto& m) { m.mutable_value(); }));
}

TEST(JsonWriter, AnyInAnyNestsToTheLimit) {
  OnASmallStack([] {
    for (int depth : {1, 40, 49, 50, 51, 140, 170, 1000, 3000}) {
      AllTypes message;
      ASSERT_TRUE(message.mutable_any()->ParseFromString(
          NestedAny(depth, "flare.rpc.testing.AllTypes", "\x88\x02\x05")));
      // Each takes two levels: the Any and its value.
      for (JsonStyle style : {JsonStyle::kProto3, JsonStyle::kTrpc}) {
        EXPECT_EQ(JsonOf(message, style).starts_with("{"), depth <= 99)
            << depth << JsonOf(message);
      }
    }
  });
}

TEST(JsonWriter, MessagesNestToTheLimit) {
  OnASmallStack([] {
    for (int depth : {32, 63, 64, 99, 100, 101, 150}) {
      AllTypes message;
      AllTypes* last = &message;
      for (int i = 0; i != depth; ++i) last = last->mutable_nested();
      EXPECT_EQ(JsonOf(message).starts_with("{"), depth <= kMaxJsonNesting);
    }
    for (int depth : {32, 40, 41, 50}) {
      AllTypes with_struct;
      google::protobuf::Value* value = with_struct.mutable_value();
      for (int i = 1; i < depth; ++i) {
        value = i % 2 == 0
                    ? value->mutable_list_value()->add_values()
                    : &(*value->mutable_struct_value()->mutable_fields())["x"];
      }
      // A list takes two levels, an object three.
      EXPECT_EQ(JsonOf(with_struct).starts_with("{"), depth <= 40) << depth;
    }
  });
}

// An Any's content is in memory once or twice, however deeply it lies.
TEST(JsonWriter, SizeIsInProportion) {
  AllTypes message;
  ASSERT_TRUE(message.mutable_any()->ParseFromString(
      NestedAny(40, "flare.rpc.testing.AllTypes",
                BytesField(41, std::string(1 << 20, 'x')))));
  EXPECT_LT(JsonOf(message).size(), 3u << 19);
  // Two bytes each, and 300 as tRPC's JSON.
  OldTypes old;
  std::string bytes;
  for (int i = 0; i != 400'000; ++i) bytes += BytesField(11, "");
  ASSERT_TRUE(old.ParsePartialFromString(bytes));
  EXPECT_EQ(JsonOf(old).size(), 400'000 * 3 + 11);
  AllTypes wide;
  for (int i = 0; i != 100'000; ++i) wide.add_nested_list();
  EXPECT_EQ(JsonOf(wide, JsonStyle::kTrpc),
            "can't: its JSON exceeds " +
                std::to_string(MaxConvertedSize(wide.ByteSizeLong())) +
                " bytes");
}

}  // namespace
}  // namespace flare::rpc
