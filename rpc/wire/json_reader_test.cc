#include "flare/rpc/wire/json_reader.h"

#include <google/protobuf/util/field_comparator.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/util/message_differencer.h>

#include <chrono>
#include <cstddef>
#include <string>

#include "flare/rpc/wire/json_writer.h"
#include "flare/rpc/wire/payload_testing.h"
#include "flare/rpc/wire/well_known_types.h"
#include "gtest/gtest.h"
#include "rpc/wire/any_messages.pb.h"
#include "rpc/wire/old_messages.pb.h"

namespace flare::rpc {
namespace {

using testing::AllTypes;
using testing::NestedAny;
using testing::OldTypes;
using testing::OnASmallStack;
using testing::Repeated;

// Why it can't be read; "" if it can.
std::string WhyNotJson(std::string_view json,
                       google::protobuf::Message* message,
                       bool ignore_unknown = false) {
  message->Clear();
  std::string why;
  if (ReadJson(json, ignore_unknown, message, &why)) return "";
  return why.empty() ? "no reason" : why;
}

constexpr std::string_view kAnyOf = "\"@type\":\"type.googleapis.com/";

// Protobuf's own reader says the same of these, be it that they are wrong.
TEST(JsonReader, ReadsAsProtobufDoes) {
  for (std::string_view members : {
           "",
           "'small':5",
           "small:-5,",
           "\"small\":\"5\"",
           "\"small\":5.0",
           "\"small\":5e2",
           "\"small\":5.5",
           "\"small\":2147483647",
           "\"small\":2147483648",
           "\"small\":-2147483648",
           "\"small\":01",
           "\"small\":-",
           "\"small\":\"\"",
           "\"small\":\"x\"",
           "\"small\":true",
           "\"small\":null",
           "\"small\":[1]",
           "\"small\":{}",
           "\"large\":\"-9223372036854775808\"",
           "\"large\":9223372036854775807",
           "\"large\":9223372036854775808",
           "\"largeUnsigned\":18446744073709551615,\"fixedSmall\":7",
           "\"large_unsigned\":1",
           "\"large_unsigned\":-1",
           "\"otherName\":\"r\"",
           "\"renamed\":\"r\"",
           "\"unknown\":1",
           "\"ratio\":1e39",
           "\"ratio\":3.4028235e38",
           "\"ratio\":\"NaN\"",
           "\"preciseRatio\":1e400",
           "\"preciseRatio\":1e-400",
           "\"preciseRatio\":\"-Infinity\"",
           "\"preciseRatio\":\"1.25\"",
           "\"preciseRatio\":\"inf\"",
           "\"preciseRatio\":0.1",
           "\"preciseRatio\":false",
           "\"flag\":true",
           "\"flag\":\"false\"",
           "\"flag\":\"yes\"",
           "\"flag\":1",
           "\"text\":\"\\u00e4\\ud83d\\ude00\\n\\/\\x\"",
           "\"text\":\"\\ud83d\"",
           "\"text\":\"\\ude00\"",
           "\"text\":\"\\u12\"",
           "\"text\":\"a",
           "\"text\":5",
           "\"raw\":\"AP8Q\"",
           "\"raw\":\"-_8\"",
           "\"raw\":\"+/8=\"",
           "\"raw\":\"A\"",
           "\"raw\":\"AB\"",
           "\"raw\":\"?\"",
           "\"kind\":\"OPEN_KIND_SOME\"",
           "\"kind\":1",
           "\"kind\":7",
           "\"kind\":\"1\"",
           "\"kind\":\"7\"",
           "\"kind\":\"NO\"",
           "\"kind\":true",
           "\"numbers\":[1,2,null,\"3\",]",
           "\"numbers\":5",
           "\"numbers\":[1,,2]",
           "\"numbers\":[1],\"numbers\":[2]",
           "\"nested\":{\"small\":1},\"nested\":{\"flag\":true}",
           "\"nested\":[]",
           "\"nested\":5",
           "\"nestedList\":[{},{\"small\":1},null]",
           "\"nestedList\":{\"small\":1}",
           "\"nestedMap\":{\"a\":{\"small\":1},\"b\":null}",
           "\"nestedMap\":{\"a\":{},\"a\":{}}",
           "\"nestedMap\":[]",
           "\"flagMap\":{\"true\":\"x\",\"false\":\"y\"}",
           "\"flagMap\":{\"2\":\"x\"}",
           "\"bytesMap\":{\"-3\":\"YWI=\"}",
           "\"bytesMap\":{\"x\":\"YWI=\"}",
           "\"kindMap\":{\"k\":\"OPEN_KIND_SOME\",\"n\":null}",
           "\"ratioMap\":{\"3\":0.25}",
           "\"valueMap\":{\"1\":null,\"2\":[1],\"3\":{\"a\":1}}",
           "\"struct\":{\"a\":[1,{\"b\":null}],\"c\":\"x\",\"d\":true}",
           "\"struct\":5",
           "\"struct\":null",
           "\"value\":null",
           "\"value\":[[],{}]",
           "\"value\":1e3",
           "\"list\":[1,\"a\",[2]]",
           "\"list\":{}",
           "\"values\":[null,1,[2]]",
           "\"lists\":[[1],[]]",
           "\"null\":null",
           "\"mask\":\"userName,a.bC.d\"",
           "\"mask\":\"a(b,c(d,eF)),g\"",
           "\"mask\":\"a[\\\"Key\\\"].b\"",
           "\"mask\":\"a(b\"",
           "\"mask\":\"a)\"",
           "\"mask\":\"GoogleLAB,gBike\"",
           "\"mask\":5",
           "\"masks\":[\"a\",\"\"]",
           "\"duration\":\"1.5s\"",
           "\"duration\":\"-0.000001s\"",
           "\"duration\":\"315576000001s\"",
           "\"duration\":\"1\"",
           "\"duration\":\"1.0000000001s\"",
           "\"duration\":\"99999999999999999999999999s\"",
           "\"duration\":{\"seconds\":1}",
           "\"timestamp\":\"2023-11-14T22:13:20.12Z\"",
           "\"timestamp\":\"2023-11-14T22:13:20+01:00\"",
           "\"timestamp\":\"2023\"",
           "\"timestamp\":\"99999-01-01T00:00:00Z\"",
           "\"boolWrapper\":false,\"int32Wrapper\":0",
           "\"int64Wrapper\":\"7\",\"uint64Wrapper\":7",
           "\"floatWrapper\":0.5,\"doubleWrapper\":\"NaN\"",
           "\"stringWrapper\":\"\",\"bytesWrapper\":\"YQ==\"",
           "\"int32Wrapper\":null",
           "\"int32Wrapper\":{\"value\":3}",
           "\"int32Wrapper\":\"x\"",
           "\"wrappers\":[1,\"2\"]",
           "\"wrapperMap\":{\"a\":\"b\",\"c\":null}",
           "\"empty\":{}",
           "\"maybe\":0",
           "\"chosenText\":\"a\",\"chosenNumber\":1",
           "\"chosenText\":\"a\",\"chosenNumber\":null",
           "\"chosenNull\":null",
           "\"any\":{}",
           "\"any\":{\"x\":1}",
           "\"any\":{\"@type\":5}",
           "\"any\":{\"@type\":\"type.googleapis.com/no.Such\",\"x\":1}",
           "\"any\":{\"@type\":"
           "\"type.googleapis.com/flare.rpc.testing.AllTypes\","
           "\"small\":5}",
           "\"any\":{\"small\":5,\"nested\":{\"flag\":true},\"@type\":"
           "\"type.googleapis.com/flare.rpc.testing.AllTypes\"}",
           "\"any\":{\"value\":{\"value\":\"1s\",\"@type\":"
           "\"type.googleapis.com/google.protobuf.Duration\"},\"@type\":"
           "\"type.googleapis.com/google.protobuf.Any\"}",
           "\"any\":{\"@type\":\"type.googleapis.com/google.protobuf.Value\","
           "\"value\":[1,{\"a\":null}]}",
           "\"any\":{\"@type\":\"type.googleapis.com/google.protobuf.Struct\","
           "\"value\":{\"a\":1}}",
           "\"any\":{\"@type\":"
           "\"type.googleapis.com/google.protobuf.Duration\",\"v\":\"1s\"}",
           "\"any\":{\"@type\":"
           "\"type.googleapis.com/flare.rpc.testing.NeedsFields\",\"first\":1}",
       }) {
    const std::string json = "{" + std::string(members) + "}";
    for (bool ignore_unknown : {false, true}) {
      AllTypes ours;
      AllTypes theirs;
      google::protobuf::util::JsonParseOptions options;
      options.ignore_unknown_fields = ignore_unknown;
      const bool ok =
          google::protobuf::util::JsonStringToMessage(json, &theirs, options)
              .ok();
      const std::string why = WhyNotJson(json, &ours, ignore_unknown);
      EXPECT_EQ(why.empty(), ok) << json << why;
      if (ok && why.empty()) {
        google::protobuf::util::DefaultFieldComparator comparator;
        comparator.set_treat_nan_as_equal(true);
        google::protobuf::util::MessageDifferencer differencer;
        differencer.set_field_comparator(&comparator);
        EXPECT_TRUE(differencer.Compare(ours, theirs))
            << json << "\n"
            << ours.ShortDebugString() << "\n"
            << theirs.ShortDebugString();
      }
    }
  }
}

TEST(JsonReader, DiffersFromProtobufWhereItIsWrong) {
  AllTypes message;
  EXPECT_EQ(WhyNotJson("{\"numbers\":[[1]]}", &message),
            "1:13: a list in a list");
  // The writer writes these.
  EXPECT_EQ(WhyNotJson("{\"any\":{\"@type\":\"no.Such\"}}", &message), "");
  EXPECT_EQ(message.any().type_url(), "no.Such");
  EXPECT_NE(WhyNotJson("{\"any\":{\"a\":1,\"@type\":\"no.Such\"}}", &message),
            "");
}

TEST(JsonReader, ReadsOnlyOneMessage) {
  AllTypes message;
  EXPECT_EQ(WhyNotJson(" {} \n", &message), "");
  for (std::string_view json :
       {"", " ", "[]", "1", "null", "{", "}", "{}{}", "{},", "{} x",
        "{\"small\"}", "{\"small\":", "{\"small\":1", "{,}", "{null:1}"}) {
    EXPECT_NE(WhyNotJson(json, &message), "") << json;
  }
  EXPECT_EQ(WhyNotJson("{\"text\":\"\xff\"}", &message), "1:1: isn't UTF-8");
}

TEST(JsonReader, SaysWhereAFaultIs) {
  AllTypes message;
  EXPECT_EQ(WhyNotJson("{\n  \"small\": x\n}", &message),
            "2:12: expects a value");
  EXPECT_EQ(WhyNotJson("{\"nested\":{\"no\":1}}", &message),
            "1:17: a flare.rpc.testing.AllTypes has no field 'no'");
}

TEST(JsonReader, WhatIsReadCanBeWritten) {
  OnASmallStack([] {
    const auto agree = [](std::string_view opening, std::string_view content,
                          std::string_view closing, int depth) {
      const std::string json = Repeated(opening, depth) + std::string(content) +
                               Repeated(closing, depth);
      AllTypes message;
      const std::string why = WhyNotJson("{" + json + "}", &message);
      Buffer written;
      std::string why_not;
      EXPECT_EQ(WriteJson(JsonStyle::kProto3, message, &written, &why_not),
                why.empty())
          << depth << opening << why << why_not;
      return why.empty();
    };
    for (int depth = 1; depth != 110; ++depth) {
      EXPECT_EQ(agree("\"nested\":{", "", "}", depth),
                depth <= kMaxJsonNesting);
      EXPECT_EQ(agree("\"nestedMap\":{\"x\":{", "", "}}", depth),
                depth <= kMaxJsonNesting / 2);
    }
    AllTypes message;
    for (int depth : {32, 33, 34, 1000, 100000}) {
      for (auto [open, close] : {std::pair("{\"x\":", "}"), {"[", "]"}}) {
        const std::string json = "{\"value\":" + Repeated(open, depth) + "1" +
                                 Repeated(close, depth) + "}";
        const bool ok = WhyNotJson(json, &message).empty();
        EXPECT_EQ(ok, depth <= (*open == '{' ? 33 : 49)) << depth << open;
        std::string why;
        Buffer written;
        if (ok) {
          EXPECT_TRUE(WriteJson(JsonStyle::kProto3, message, &written, &why));
        }
      }
      EXPECT_NE(
          WhyNotJson("{\"later\":" + Repeated("[", depth), &message, true), "");
    }
  });
}

TEST(JsonReader, AnyInAnyIsReadAsItIsWritten) {
  OnASmallStack([] {
    for (int depth = 1; depth != 105; ++depth) {
      AllTypes message;
      message.mutable_any()->ParseFromString(
          NestedAny(depth, "flare.rpc.testing.AllTypes", "\x88\x02\x05"));
      Buffer written;
      std::string why;
      const bool ok = WriteJson(JsonStyle::kProto3, message, &written, &why);
      EXPECT_EQ(ok, depth <= 99);
      AllTypes read;
      if (ok) {
        EXPECT_EQ(WhyNotJson(FlattenSlow(written), &read), "");
        EXPECT_EQ(read.SerializeAsString(), message.SerializeAsString());
      } else {
        const std::string json =
            "{\"any\":" +
            Repeated(
                "{" + std::string(kAnyOf) + "google.protobuf.Any\",\"value\":",
                depth) +
            "{}" + Repeated("}", depth) + "}";
        EXPECT_NE(WhyNotJson(json, &message), "");
      }
    }
  });
}

// Each took time or memory to the square of its size, or thousands of times as
// much as it has.
TEST(JsonReader, TakesTimeInProportion) {
  const auto start = std::chrono::steady_clock::now();
  AllTypes message;
  EXPECT_NE(
      WhyNotJson("{\"mask\":\"" + Repeated("a(", 100'000) +
                     Repeated("b,", 100'000) + Repeated(")", 100'000) + "\"}",
                 &message),
      "");
  // "@type" last, at each of 40 levels.
  const auto late = [&](int levels, int numbers) {
    std::string json = "{\"numbers\":[" + Repeated("1,", numbers) + "]," +
                       std::string(kAnyOf) + "flare.rpc.testing.AllTypes\"}";
    for (int i = 0; i != levels; ++i) {
      json = "{\"value\":" + json + "," + std::string(kAnyOf) +
             "google.protobuf.Any\"}";
    }
    return WhyNotJson("{\"any\":" + json + "}", &message);
  };
  EXPECT_EQ(late(8, 100'000), "");
  EXPECT_NE(late(40, 100'000), "");
  EXPECT_EQ(late(40, 10), "");
  // A fault in each element, far down in a map whose key is long.
  EXPECT_NE(
      WhyNotJson("{\"nestedMap\":{\"" + std::string(1'000'000, 'k') +
                     "\":{\"numbers\":[" + Repeated("x,", 500'000) + "]}}}",
                 &message),
      "");
  std::string keys;
  for (int i = 0; i != 50'000; ++i) {
    keys += "\"" + std::to_string(i) + "\":0,";
  }
  EXPECT_EQ(WhyNotJson("{\"kindMap\":{" + keys + "}}", &message), "");
  EXPECT_EQ(message.kind_map_size(), 50'000);
  EXPECT_EQ(
      WhyNotJson("{\"numbers\":[" + Repeated("1e99,", 200'000) + "]}", &message)
          .substr(0, 2),
      "1:");
  // It takes a second or two under sanitizers; it took minutes, or more memory
  // than there is.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::minutes(1));
}

TEST(JsonReader, ClosedEnumsKeepWhatTheyDoNotKnow) {
  OldTypes message;
  EXPECT_EQ(WhyNotJson("{\"kind\":7,\"kinds\":[1,7]}", &message), "");
  EXPECT_FALSE(message.has_kind());
  EXPECT_EQ(message.kinds_size(), 1);
  EXPECT_EQ(WhyNotJson("{\"group\":{\"number\":1},\"groups\":[{}]}", &message),
            "");
  EXPECT_EQ(message.group().number(), 1);
  EXPECT_EQ(message.groups_size(), 1);
}

}  // namespace
}  // namespace flare::rpc
