// The examples of RFC 7541, appendix C, both ways; broken blocks; and requests
// of a connection's ends about each other's tables.
#include "flare/rpc/http2/hpack.h"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// The bytes of hexadecimal digits; blanks are passed over.
std::string Bytes(std::string_view hex) {
  std::string digits;
  for (const char c : hex) {
    if (c != ' ') digits.push_back(c);
  }
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(
        static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Decodes the blocks of one connection.
class Receiver {
 public:
  explicit Receiver(const HpackDecoder::Options& options = {})
      : decoder_(options) {}

  Fields Decode(std::string_view block) {
    Fields fields;
    last_ = decoder_.Decode(block, [&](const HpackField& field) {
      fields.emplace_back(field.name, field.value);
      valid_.push_back(field.valid);
      never_index_ = field.never_index;
    });
    return fields;
  }
  std::string DecodeBroken(std::string_view block) {
    Decode(block);
    return std::string(last_.error);
  }

  HpackResult last_;
  std::vector<bool> valid_;  // For all fields.
  bool never_index_ = false;

 private:
  HpackDecoder decoder_;
};

std::string Encode(const Fields& fields, HpackEncoder* encoder,
                   HpackIndexing indexing = HpackIndexing::kAdd) {
  std::string block;
  for (const auto& [name, value] : fields) {
    encoder->Encode(name, value, indexing, &block);
  }
  return block;
}

const Fields kFirstRequest = {{":method", "GET"},
                              {":scheme", "http"},
                              {":path", "/"},
                              {":authority", "www.example.com"}};
const Fields kSecondRequest = {{":method", "GET"},
                               {":scheme", "http"},
                               {":path", "/"},
                               {":authority", "www.example.com"},
                               {"cache-control", "no-cache"}};
const Fields kThirdRequest = {{":method", "GET"},
                              {":scheme", "https"},
                              {":path", "/index.html"},
                              {":authority", "www.example.com"},
                              {"custom-key", "custom-value"}};

const Fields kFirstResponse = {{":status", "302"},
                               {"cache-control", "private"},
                               {"date", "Mon, 21 Oct 2013 20:13:21 GMT"},
                               {"location", "https://www.example.com"}};
const Fields kSecondResponse = {{":status", "307"},
                                {"cache-control", "private"},
                                {"date", "Mon, 21 Oct 2013 20:13:21 GMT"},
                                {"location", "https://www.example.com"}};
const Fields kThirdResponse = {
    {":status", "200"},
    {"cache-control", "private"},
    {"date", "Mon, 21 Oct 2013 20:13:22 GMT"},
    {"location", "https://www.example.com"},
    {"content-encoding", "gzip"},
    {"set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"}};

// C.4 and C.6, with the code of Huffman.
constexpr std::string_view kCodedRequests[] = {
    "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
    "8286 84be 5886 a8eb 1064 9cbf",
    "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf"};
constexpr std::string_view kCodedResponses[] = {
    "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81"
    "66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
    "4883 640e ffc1 c0bf",
    "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a"
    "839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36"
    "72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07"};

TEST(HpackDecoder, DecodesEachForm) {  // C.2
  Receiver receiver;
  EXPECT_THAT(receiver.Decode(Bytes("400a 6375 7374 6f6d 2d6b 6579 0d63 7573"
                                    "746f 6d2d 6865 6164 6572")),
              ElementsAre(Pair("custom-key", "custom-header")));
  EXPECT_THAT(receiver.Decode(Bytes("be")),
              ElementsAre(Pair("custom-key", "custom-header")));
  EXPECT_THAT(receiver.Decode(Bytes("040c 2f73 616d 706c 652f 7061 7468")),
              ElementsAre(Pair(":path", "/sample/path")));
  EXPECT_FALSE(receiver.never_index_);
  EXPECT_THAT(
      receiver.Decode(Bytes("1008 7061 7373 776f 7264 0673 6563 7265 74")),
      ElementsAre(Pair("password", "secret")));
  EXPECT_TRUE(receiver.never_index_);
  EXPECT_THAT(receiver.Decode(Bytes("82")),
              ElementsAre(Pair(":method", "GET")));
  // Neither of both was added.
  EXPECT_THAT(receiver.DecodeBroken(Bytes("bf")), HasSubstr("number"));
}

TEST(HpackDecoder, DecodesPlainRequests) {  // C.3
  Receiver receiver;
  EXPECT_EQ(receiver.Decode(
                Bytes("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d")),
            kFirstRequest);
  EXPECT_EQ(receiver.Decode(Bytes("8286 84be 5808 6e6f 2d63 6163 6865")),
            kSecondRequest);
  EXPECT_EQ(receiver.Decode(Bytes("8287 85bf 400a 6375 7374 6f6d 2d6b 6579"
                                  "0c63 7573 746f 6d2d 7661 6c75 65")),
            kThirdRequest);
}

TEST(HpackDecoder, DecodesCodedRequests) {  // C.4
  Receiver receiver;
  EXPECT_EQ(receiver.Decode(Bytes(kCodedRequests[0])), kFirstRequest);
  EXPECT_EQ(receiver.Decode(Bytes(kCodedRequests[1])), kSecondRequest);
  EXPECT_EQ(receiver.Decode(Bytes(kCodedRequests[2])), kThirdRequest);
}

TEST(HpackDecoder, DecodesPlainResponsesDroppingFields) {  // C.5
  Receiver receiver({.max_table_size = 256});
  EXPECT_EQ(
      receiver.Decode(Bytes(
          "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63"
          "7420 3230 3133 2032 303a 3133 3a32 3120 474d 546e 1768 7474 7073"
          "3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d")),
      kFirstResponse);
  EXPECT_EQ(receiver.Decode(Bytes("4803 3330 37c1 c0bf")), kSecondResponse);
  EXPECT_EQ(
      receiver.Decode(Bytes(
          "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133"
          "3a32 3220 474d 54c0 5a04 677a 6970 7738 666f 6f3d 4153 444a 4b48"
          "514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178"
          "2d61 6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31")),
      kThirdResponse);
}

TEST(HpackDecoder, DecodesCodedResponsesDroppingFields) {  // C.6
  Receiver receiver({.max_table_size = 256});
  EXPECT_EQ(receiver.Decode(Bytes(kCodedResponses[0])), kFirstResponse);
  EXPECT_EQ(receiver.Decode(Bytes(kCodedResponses[1])), kSecondResponse);
  EXPECT_EQ(receiver.Decode(Bytes(kCodedResponses[2])), kThirdResponse);
}

TEST(HpackEncoder, EncodesRequestsAsTheExamples) {
  HpackEncoder encoder;
  EXPECT_EQ(Encode(kFirstRequest, &encoder), Bytes(kCodedRequests[0]));
  EXPECT_EQ(Encode(kSecondRequest, &encoder), Bytes(kCodedRequests[1]));
  EXPECT_EQ(Encode(kThirdRequest, &encoder), Bytes(kCodedRequests[2]));
}

TEST(HpackEncoder, EncodesResponsesAsTheExamples) {
  HpackEncoder encoder;
  encoder.SetMaxTableSize(256);
  EXPECT_EQ(Encode(kFirstResponse, &encoder),
            Bytes("3fe101") + Bytes(kCodedResponses[0]));
  // The example codes "307", too, which saves nothing.
  EXPECT_EQ(Encode(kSecondResponse, &encoder), Bytes("4803 333037 c1c0bf"));
  EXPECT_EQ(Encode(kThirdResponse, &encoder), Bytes(kCodedResponses[2]));
}

TEST(HpackEncoder, SendsWhatATableHasAsANumber) {
  HpackEncoder encoder;
  const Fields reply = {{":status", "200"},
                        {"content-type", "application/grpc"},
                        {"grpc-status", "0"}};
  EXPECT_GT(Encode(reply, &encoder).size(), 20U);
  EXPECT_EQ(Encode(reply, &encoder), Bytes("88 bf be"));
  // Though it isn't to be added now.
  EXPECT_EQ(Encode(reply, &encoder, HpackIndexing::kOmit), Bytes("88 bf be"));
}

TEST(HpackEncoder, LeavesTheTableAloneUnlessToldToAdd) {
  HpackEncoder encoder;
  Receiver receiver;
  const Fields fields = {{"grpc-message", "no"}, {"authorization", "abc"}};
  const std::string omitted = Encode(fields, &encoder, HpackIndexing::kOmit);
  EXPECT_EQ(receiver.Decode(omitted), fields);
  EXPECT_FALSE(receiver.never_index_);
  EXPECT_EQ(Encode(fields, &encoder, HpackIndexing::kOmit), omitted);
  EXPECT_EQ(omitted, Bytes("000c") + "grpc-message" + Bytes("02") + "no" +
                         Bytes("0f08 03") + "abc");
}

TEST(HpackEncoder, NeverSendsASecretAsANumber) {
  HpackEncoder encoder;
  Receiver receiver;
  const Fields fields = {{"authorization", "abc"}};
  EXPECT_EQ(receiver.Decode(Encode(fields, &encoder)), fields);
  const std::string block = Encode(fields, &encoder, HpackIndexing::kNever);
  EXPECT_EQ(block, Bytes("1f08 03") + "abc");
  EXPECT_EQ(receiver.Decode(block), fields);
  EXPECT_TRUE(receiver.never_index_);
  // A field of the static table isn't a secret, but may be called one.
  EXPECT_EQ(receiver.Decode(
                Encode({{":method", "GET"}}, &encoder, HpackIndexing::kNever)),
            (Fields{{":method", "GET"}}));
  EXPECT_TRUE(receiver.never_index_);
}

TEST(HpackEncoder, CodesLongTextsThatItSaves) {
  HpackEncoder encoder;
  Receiver receiver;
  const Fields fields = {{"grpc-message", std::string(100, 'e')}};
  const std::string block = Encode(fields, &encoder, HpackIndexing::kOmit);
  EXPECT_LT(block.size(), 90U);
  EXPECT_EQ(receiver.Decode(block), fields);
  // Codes of control characters are longer than those.
  const Fields others = {{"x", std::string(100, '\x01')}};
  const std::string plain = Encode(others, &encoder, HpackIndexing::kOmit);
  EXPECT_EQ(plain.size(), 1 + 2 + 1 + 100U);
  EXPECT_EQ(receiver.Decode(plain), others);
}

TEST(HpackEncoder, TellsOfTheLeastTableAndOfTheLast) {
  HpackEncoder encoder;
  Receiver receiver;
  const Fields fields = {{"a", "b"}};
  receiver.Decode(Encode(fields, &encoder));
  encoder.SetMaxTableSize(0);
  encoder.SetMaxTableSize(100);
  const std::string block = Encode(fields, &encoder);
  EXPECT_THAT(block, ::testing::StartsWith(Bytes("20 3f45")));
  EXPECT_EQ(receiver.Decode(block), fields);
  EXPECT_EQ(Encode(fields, &encoder), Bytes("be"));
  EXPECT_EQ(receiver.Decode(Bytes("be")), fields);
}

TEST(HpackEncoder, DoesWithoutATable) {
  HpackEncoder encoder;
  Receiver receiver;
  encoder.SetMaxTableSize(0);
  const Fields fields = {{":status", "200"}, {"a", "b"}, {"a", "b"}};
  EXPECT_EQ(receiver.Decode(Encode(fields, &encoder)), fields);
  EXPECT_EQ(receiver.Decode(Encode(fields, &encoder)), fields);
  EXPECT_THAT(receiver.DecodeBroken(Bytes("be")), HasSubstr("number"));
}

TEST(HpackEncoder, UsesNoLargerTableThanItHas) {
  HpackEncoder encoder;
  encoder.SetMaxTableSize(1 << 20);
  EXPECT_EQ(Encode({{":status", "200"}}, &encoder), Bytes("88"));
}

TEST(HpackEncoder, DoesntEmptyTheTableForAFieldThatCannotStay) {
  HpackEncoder encoder;
  Receiver receiver;
  const Fields fields = {{"a", "b"}, {"c", std::string(5000, 'c')}};
  EXPECT_EQ(receiver.Decode(Encode(fields, &encoder)), fields);
  EXPECT_EQ(Encode({{"a", "b"}}, &encoder), Bytes("be"));
}

TEST(HpackDecoder, EmptiesTheTableForAFieldThatCannotStay) {
  Receiver receiver({.max_table_size = 64});
  receiver.Decode(Bytes("4001 61 01 62"));
  EXPECT_THAT(receiver.Decode(Bytes("be")), ElementsAre(Pair("a", "b")));
  const std::string value(100, 'c');
  EXPECT_THAT(receiver.Decode(Bytes("4001 61 64") + value),
              ElementsAre(Pair("a", value)));
  EXPECT_THAT(receiver.DecodeBroken(Bytes("be")), HasSubstr("number"));
}

TEST(HpackDecoder, NamesAFieldByOneThatItDrops) {  // RFC 7541, 4.4
  Receiver receiver({.max_table_size = 80});
  const std::string name(30, 'n');
  receiver.Decode(Bytes("40 1e") + name + Bytes("01 61"));
  EXPECT_THAT(receiver.Decode(Bytes("7e 01 62")), ElementsAre(Pair(name, "b")));
  EXPECT_THAT(receiver.Decode(Bytes("be")), ElementsAre(Pair(name, "b")));
}

TEST(HpackDecoder, KeepsWithAFieldWhetherItIsValid) {
  Receiver receiver;
  // A capital letter in the name; a line feed, a blank at the end of values.
  receiver.Decode(Bytes("4001 41 01 62"));
  receiver.Decode(Bytes("4001 61 01 0a"));
  receiver.Decode(Bytes("4001 61 02 62 20"));
  receiver.Decode(Bytes("4001 61 03 62 20 62"));
  receiver.Decode(Bytes("4002 3a61 00"));
  receiver.Decode(Bytes("4000 01 61"));
  EXPECT_THAT(receiver.valid_,
              ElementsAre(false, false, false, true, true, false));
  receiver.valid_.clear();
  receiver.Decode(Bytes("c3 c2 c1 c0 bf be 82"));
  EXPECT_THAT(receiver.valid_,
              ElementsAre(false, false, false, true, true, false, true));
}

TEST(HpackDecoder, KeepsWithAFieldWhetherItsNameIsValid) {
  Receiver receiver;
  // A good name with a bad value; a bad name; an empty one.
  receiver.Decode(Bytes("4001 61 01 0a  4001 41 01 62  4000 01 61"));
  receiver.valid_.clear();
  // Each with another value, by each form, and with that of the next.
  receiver.Decode(Bytes("0f31 01 63  0f30 01 63  0f2f 01 63"));
  receiver.Decode(Bytes("1f31 01 0a  7f01 01 63  7f01 01 63  be bf"));
  EXPECT_THAT(receiver.valid_,
              ElementsAre(true, false, false, false, true, false, false, true));
  // Those of the static table are good.
  receiver.valid_.clear();
  receiver.Decode(Bytes("41 01 78  41 01 0a  be"));
  EXPECT_THAT(receiver.valid_, ElementsAre(true, false, false));
}

TEST(HpackDecoder, DeliversNoMoreThanTheLimitButKeepsTheTable) {
  Receiver receiver({.max_header_list = 2 * (32 + 2)});
  const Fields fields =
      receiver.Decode(Bytes("4001 61 01 62 4001 63 01 64 4001 65 01 66"));
  EXPECT_THAT(fields, ElementsAre(Pair("a", "b"), Pair("c", "d")));
  EXPECT_TRUE(receiver.last_.too_long);
  EXPECT_THAT(receiver.last_.error, IsEmpty());
  EXPECT_THAT(receiver.Decode(Bytes("be")), ElementsAre(Pair("e", "f")));
  EXPECT_FALSE(receiver.last_.too_long);
  // A short field behind a long one isn't delivered, either.
  EXPECT_THAT(
      receiver.Decode(Bytes("0001 61 28") + std::string(40, 'x') + Bytes("be")),
      IsEmpty());
  EXPECT_TRUE(receiver.last_.too_long);
}

TEST(HpackDecoder, RefusesBrokenBlocks) {
  const struct {
    std::string_view block;
    std::string_view why;
  } kCases[] = {
      {"80", "number of a field"},              // The number 0.
      {"be", "number of a field"},              // Behind the static table.
      {"ff", "number of a field"},              // Cut off.
      {"ffffffffff7f", "number of a field"},    // Too large.
      {"ff808080808000", "number of a field"},  // ... of too many zeros.
      {"7f00", "number of a name"},
      {"0fff", "cut off"},
      {"40", "string"},              // No name,
      {"4001", "string"},            // no bytes of it,
      {"400161", "string"},          // no value,
      {"4001610261", "string"},      // too few bytes of it.
      {"41ffffffff7f61", "string"},  // Much too long.
      {"418184", "Huffman"},         // Padding of zeros.
      {"4182ffff", "Huffman"},       // Padding of a byte and more.
      {"4184ffffffff", "Huffman"},   // The end of the text.
      {"4182 1f ff", "Huffman"},     // A letter and 11 ones.
      {"3fe21f", "larger table"},    // 4097 bytes.
      {"3f", "table size that"},     // Cut off.
      {"8220", "behind a field"},
  };
  for (const auto& [block, why] : kCases) {
    SCOPED_TRACE(block);
    Receiver receiver;
    EXPECT_THAT(receiver.DecodeBroken(Bytes(block)), HasSubstr(why));
    // The table isn't known any more.
    EXPECT_THAT(receiver.DecodeBroken(Bytes("82")), HasSubstr(why));
  }
}

// Two bytes each that evict and insert 4 KiB.
TEST(HpackDecoder, GivesUpAListWithoutEnd) {
  constexpr std::size_t kLimit = 8192;
  const std::string name(4060, 'a');
  const auto decode = [&](std::size_t count, Receiver* receiver) {
    std::string block = Bytes("40 7f dd1e") + name + Bytes("00");
    for (std::size_t i = 1; i != count; ++i) block += Bytes("7e 00");
    receiver->Decode(block);
    return receiver->last_;
  };
  constexpr std::size_t kMost =
      HpackDecoder::kEndlessList * kLimit / (4060 + 32);
  Receiver receiver({.max_header_list = kLimit});
  EXPECT_THAT(decode(kMost, &receiver).error, IsEmpty());
  EXPECT_TRUE(receiver.last_.too_long);
  EXPECT_THAT(receiver.Decode(Bytes("be")), ElementsAre(Pair(name, "")));
  EXPECT_THAT(decode(kMost + 1, &receiver).error, HasSubstr("without end"));
  EXPECT_EQ(receiver.valid_.size(), 2 + 1 + 2U);
}

TEST(HpackDecoder, TakesTheLargestNumbersThatCanBeMeant) {
  Receiver receiver;
  EXPECT_THAT(receiver.Decode(Bytes("3fe11f 20 3fe11f 82")),
              ElementsAre(Pair(":method", "GET")));
  // 61 in two bytes more than it needs.
  EXPECT_THAT(receiver.Decode(Bytes("0f ae8000 00")),
              ElementsAre(Pair("www-authenticate", "")));
}

TEST(HpackDecoder, TakesEmptyBlocksAndTexts) {
  Receiver receiver;
  EXPECT_THAT(receiver.Decode(""), IsEmpty());
  EXPECT_THAT(receiver.last_.error, IsEmpty());
  EXPECT_THAT(receiver.Decode(Bytes("4001 61 80 be")),
              ElementsAre(Pair("a", ""), Pair("a", "")));
}

}  // namespace
}  // namespace flare::rpc
