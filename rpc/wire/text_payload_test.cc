#include "flare/rpc/wire/text_payload.h"

#include <google/protobuf/descriptor.pb.h>

#include <cstddef>
#include <string>

#include "flare/rpc/wire/payload_bounds.h"
#include "flare/rpc/wire/payload_testing.h"
#include "flare/rpc/wire/protocol_testing.h"
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
using testing::SlicedBuffer;

// Why it can't be read; "" if it can.
std::string WhyNotText(std::string_view text,
                       google::protobuf::Message* message) {
  std::string why;
  if (ReadText(SlicedBuffer(text, 999), message, &why)) return "";
  return why.empty() ? "no reason" : why;
}

std::string TextOf(const google::protobuf::Message& message) {
  Buffer text;
  std::string why;
  if (!WriteText(message, &text, &why)) return "can't: " + why;
  return FlattenSlow(text);
}

// `depth` pairs of braces, the last one around `content`.
std::string Braces(std::string_view opening, int depth,
                   std::string_view content = "") {
  return Repeated(opening, depth) + std::string(content) + Repeated("}", depth);
}

constexpr char kLongAny[] = "[type.googleapis.com/google.protobuf.Any] {";

// Each used to escape the parser's limit, or may.
TEST(TextPayload, NestsToItsLimitInAnyForm) {
  OnASmallStack([] {
    for (int depth : {1, 31, 32, 33, 34, 40, 200, 100000}) {
      const bool fits = depth <= kMaxTextNesting;
      AllTypes all;
      OldTypes old;
      const std::string long_any = "any {" + Braces(kLongAny, depth - 1) + "}";
      const std::string mixed =
          "any {" +
          Braces("[type.googleapis.com/flare.rpc.testing.AllTypes] { any {",
                 (depth - 1) / 2, "") +
          Repeated("}", (depth - 1) / 2) + "}";
      EXPECT_EQ(WhyNotText(long_any, &all).empty(), fits) << depth;
      EXPECT_EQ(WhyNotText(Braces("nested {", depth), &all).empty(), fits);
      EXPECT_EQ(WhyNotText(Braces("nested: {", depth), &all).empty(), fits);
      EXPECT_EQ(
          WhyNotText(Repeated("nested <", depth) + Repeated(">", depth), &all)
              .empty(),
          fits);
      EXPECT_EQ(
          WhyNotText(Repeated("nested_list: [{", depth) + Repeated("}]", depth),
                     &all)
              .empty(),
          fits);
      EXPECT_EQ(
          WhyNotText(Braces("[flare.rpc.testing.extension_message] {", depth),
                     &old)
              .empty(),
          fits);
      EXPECT_EQ(
          WhyNotText("gone {" + Braces("x {", depth - 1) + "}", &old).empty(),
          fits);
      if (depth % 2 == 1) {
        EXPECT_EQ(WhyNotText(mixed, &all).empty(), fits);
      }
      if (!fits) {
        EXPECT_NE(WhyNotText(long_any, &all).find("deeper than 32 levels"),
                  std::string::npos);
      }
    }
    // Lists within lists take no braces.
    OldTypes old;
    EXPECT_NE(WhyNotText("gone: " + Repeated("[", 100000), &old), "");
  });
}

TEST(TextPayload, BracesInStringsAndCommentsAreNone) {
  AllTypes message;
  const std::string braces = Repeated("{<[", 99);
  EXPECT_EQ(WhyNotText("# " + braces + "\ntext: '" + braces + "'", &message),
            "");
  EXPECT_EQ(message.text(), braces);
  // The parser and the count agree on the end of a string.
  const std::string deep = Braces("nested{", 40);
  for (std::string before :
       {std::string("text: 'x\n"), std::string("text: 'x\\\n"),
        std::string("text: 'x\0", 9), std::string("text: 'x\\'' ")}) {
    EXPECT_NE(WhyNotText(before + deep, &message), "") << before;
  }
}

TEST(TextPayload, WhatIsReadCanBeWrittenAndConversely) {
  OnASmallStack([] {
    for (int depth = 25; depth != 40; ++depth) {
      const bool fits = depth <= kMaxTextNesting;
      for (std::string opening : {"nested {", "nested_map { value {"}) {
        AllTypes message;
        AllTypes* last = &message;
        const bool map = opening.starts_with("nested_map");
        if (map && depth % 2 == 1) continue;
        for (int i = 0; i != (map ? depth / 2 : depth); ++i) {
          last =
              map ? &(*last->mutable_nested_map())[""] : last->mutable_nested();
        }
        const std::string text = TextOf(message);
        EXPECT_EQ(text.starts_with("can't: nested deeper than 32 levels"),
                  !fits)
            << depth << opening << text;
        AllTypes read;
        if (fits) {
          EXPECT_EQ(WhyNotText(text, &read), "");
          EXPECT_EQ(read.SerializeAsString(), message.SerializeAsString());
        }
      }
    }
  });
}

TEST(TextPayload, AnAnyIsWrittenInItsShortForm) {
  AllTypes message;
  message.mutable_any()->ParseFromString(
      NestedAny(100, "flare.rpc.testing.AllTypes", "\x88\x02\x05"));
  AllTypes read;
  EXPECT_EQ(WhyNotText(TextOf(message), &read), "");
  EXPECT_EQ(read.SerializeAsString(), message.SerializeAsString());
}

TEST(TextPayload, UnknownFieldsAndEnumsAreLeftOut) {
  OldTypes message;
  // Field 90, kind 7, kinds 1 and 7, and a group of the number 91.
  ASSERT_TRUE(message.ParseFromString(
      "\xd0\x05\x4d\x08\x07\x10\x01\x10\x07\xdb\x05\x08\x01\xdc\x05"));
  EXPECT_EQ(TextOf(message), "kinds: CLOSED_KIND_SOME");
  AllTypes open;
  open.set_kind(static_cast<testing::OpenKind>(7));
  EXPECT_EQ(TextOf(open), "kind: 7");
  AllTypes read;
  EXPECT_EQ(WhyNotText("kind: 7", &read), "");
  EXPECT_EQ(read.kind(), 7);
  EXPECT_EQ(TextOf(OldTypes()), "");
}

TEST(TextPayload, BytesThatAreNoUtf8AreEscapedInProto2) {
  OldTypes message;
  message.set_text("a\xff\xfe");
  message.add_texts("\x80");
  const std::string text = TextOf(message);
  EXPECT_EQ(text, "text: \"a\\377\\376\" texts: \"\\200\"");
  OldTypes read;
  EXPECT_EQ(WhyNotText(text, &read), "");
  EXPECT_EQ(read.text(), "a\xff\xfe");
}

TEST(TextPayload, StringsOfProto3MustBeUtf8) {
  AllTypes message;
  EXPECT_EQ(WhyNotText("text: '\\303\\244' raw: '\\377'", &message), "");
  EXPECT_EQ(WhyNotText("nested { texts: ['a', '\\377'] }", &message),
            "flare.rpc.testing.AllTypes.texts isn't UTF-8");
  EXPECT_NE(WhyNotText("flag_map { key: true value: '\xff' }", &message), "");
}

// Each of them makes protobuf build all types that its value reaches.
TEST(TextPayload, ManyAnyValuesInTheLongFormAreRefused) {
  google::protobuf::FileDescriptorSet linked;  // The type is known.
  AllTypes message;
  const std::string costly =
      "any_list { [type.googleapis.com/google.protobuf.FileDescriptorSet] {} }";
  const std::string simple =
      "any_list { [type.googleapis.com/google.protobuf.Int32Value] {} }";
  EXPECT_EQ(WhyNotText(Repeated(costly, 50), &message), "");
  EXPECT_EQ(message.any_list_size(), 50);
  EXPECT_EQ(WhyNotText(Repeated(simple, 1000), &message), "");
  for (const std::string& each : {costly, simple}) {
    EXPECT_NE(WhyNotText(Repeated(each, 10000), &message).find("too many Any"),
              std::string::npos);
  }
  EXPECT_NE(WhyNotText("any { [type.googleapis.com/no.Such] {} }", &message)
                .find("Could not find type"),
            std::string::npos);
}

TEST(TextPayload, SizeIsInProportion) {
  OldTypes message;
  // Two bytes each, and "needs { } " as text.
  for (int i = 0; i != 100000; ++i) message.add_needs();
  EXPECT_EQ(TextOf(message).size(), 100000 * 10 - 1);
  EXPECT_EQ(MaxConvertedSize(10), 16 << 20);
  EXPECT_EQ(MaxConvertedSize(10 << 20), 320 << 20);
}

}  // namespace
}  // namespace flare::rpc
