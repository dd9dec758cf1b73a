#include "flare/rpc/wire/bolt_frame.h"

#include <limits>
#include <optional>
#include <set>
#include <string>

#include "flare/rpc/wire/bolt_testing.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::BigEndian;
using testing::BoltHeaders;
using testing::BoltPairs;
using testing::BoltRequestParts;
using testing::BoltResponseParts;
using testing::FromHex;
using testing::SlicedBuffer;

using BoltCutter = FrameCutter<BoltFrame>;

// The result of one Cut.
struct Outcome {
  CutResult result;
  BoltFrame frame;
  std::string wire;
  std::size_t need = 99;
  std::string error;
  std::string rest;
};

Outcome CutOnce(std::string_view bytes, BoltCutter* cutter) {
  Outcome outcome;
  Buffer in = SlicedBuffer(bytes, 3);
  Buffer wire;
  outcome.result =
      cutter->Cut(in, &outcome.frame, &wire, &outcome.need, &outcome.error);
  outcome.wire = FlattenSlow(wire);
  outcome.rest = FlattenSlow(in);
  return outcome;
}

Outcome CutOnce(std::string_view bytes, std::size_t max_packet_size = 1000) {
  BoltCutter cutter(Limits{.max_packet_size = max_packet_size});
  return CutOnce(bytes, &cutter);
}

TEST(BoltFrames, TheDocumentedRequest) {
  ASSERT_EQ(testing::kBoltRequestVector.size(), 109u);
  const Outcome cut = CutOnce(testing::kBoltRequestVector + "x");
  ASSERT_EQ(cut.result, CutResult::kMessage);
  EXPECT_EQ(cut.frame.type, kBoltTypeRequest);
  EXPECT_EQ(cut.frame.command, kBoltRpcRequest);
  EXPECT_EQ(cut.frame.id, 1u);
  EXPECT_EQ(cut.frame.codec, 1);
  EXPECT_EQ(cut.frame.timeout_ms, 3000);
  EXPECT_EQ(cut.frame.class_size, 44);
  EXPECT_EQ(cut.frame.headers_size, 38);
  EXPECT_EQ(cut.frame.content_size, 5u);
  EXPECT_EQ(cut.frame.head_size(), 104u);
  EXPECT_EQ(cut.frame.total(), 109u);
  EXPECT_EQ(cut.wire, testing::kBoltRequestVector);
  EXPECT_EQ(cut.rest, "x");
  EXPECT_EQ(cut.wire.substr(22, 44), testing::kSofaRequest);

  BoltHeaderReader reader(std::string_view(cut.wire).substr(66, 38));
  ASSERT_TRUE(reader.Next());
  EXPECT_EQ(reader.key(), "service");
  EXPECT_EQ(reader.value(), "test.Echo:1.0");
  ASSERT_TRUE(reader.Next());
  EXPECT_EQ(reader.key(), "k");
  EXPECT_EQ(reader.value(), "v");
  EXPECT_FALSE(reader.Next());
  EXPECT_FALSE(reader.malformed());
}

TEST(BoltFrames, TheDocumentedResponse) {
  ASSERT_EQ(testing::kBoltResponseVector.size(), 25u);
  const Outcome cut = CutOnce(testing::kBoltResponseVector);
  ASSERT_EQ(cut.result, CutResult::kMessage);
  EXPECT_EQ(cut.frame.type, kBoltTypeResponse);
  EXPECT_EQ(cut.frame.command, kBoltRpcResponse);
  EXPECT_EQ(cut.frame.id, 1u);
  EXPECT_EQ(cut.frame.codec, 1);
  EXPECT_EQ(cut.frame.status, 0);
  EXPECT_EQ(cut.frame.head_size(), 20u);
  EXPECT_EQ(cut.frame.content_size, 5u);
  EXPECT_EQ(cut.rest, "");
}

TEST(BoltFrames, TheDocumentedHeartbeat) {
  ASSERT_EQ(testing::kBoltHeartbeatVector.size(), 22u);
  const Outcome cut = CutOnce(testing::kBoltHeartbeatVector);
  ASSERT_EQ(cut.result, CutResult::kMessage);
  EXPECT_EQ(cut.frame.type, kBoltTypeRequest);
  EXPECT_EQ(cut.frame.command, kBoltHeartbeat);
  EXPECT_EQ(cut.frame.id, 7u);
  EXPECT_EQ(cut.frame.timeout_ms, -1);
  EXPECT_EQ(cut.frame.total(), 22u);
}

// So that the other tests can trust the bytes they make.
TEST(BoltFrames, TestsMakeTheDocumentedBytes) {
  BoltRequestParts request;
  request.id = 1;
  request.codec = 1;
  request.headers = BoltHeaders({{"service", "test.Echo:1.0"}, {"k", "v"}});
  request.content = "hello";
  EXPECT_EQ(request.Bytes(), testing::kBoltRequestVector);
  BoltResponseParts response;
  response.id = 1;
  response.codec = 1;
  response.class_name = "";
  response.content = "hello";
  EXPECT_EQ(response.Bytes(), testing::kBoltResponseVector);
}

TEST(BoltFrames, TheLargestNumbers) {
  const std::string bytes =
      "\x01\x02\xff\xfe\x09\xff\xff\xff\xfd\xfc\x80\0\0\0\xff\xff\xff\xfe"
      "\xff\xff\xff\xff"s;
  const BoltFrame frame = DecodeBoltFrame(CreateBufferSlow(bytes));
  EXPECT_EQ(frame.type, kBoltTypeOneWay);
  EXPECT_EQ(frame.command, 0xfffe);
  EXPECT_EQ(frame.id, 0xfffffffdu);
  EXPECT_EQ(frame.codec, 0xfc);
  EXPECT_EQ(frame.timeout_ms, std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(frame.total(), std::size_t{22} + 0xffff + 0xfffe + 0xffffffff);
}

TEST(BoltFrames, EveryPrefixTellsWhatIsMissing) {
  for (const std::string& whole :
       {testing::kBoltRequestVector, testing::kBoltResponseVector}) {
    const std::size_t fixed = whole == testing::kBoltResponseVector ? 20 : 22;
    for (std::size_t size = 0; size != whole.size(); ++size) {
      const Outcome cut = CutOnce(whole.substr(0, size));
      EXPECT_EQ(cut.result,
                size == 0 ? CutResult::kUnsure : CutResult::kNeedMore);
      EXPECT_EQ(cut.rest.size(), size);
      if (size == 1) {
        EXPECT_EQ(cut.need, 20u);
      } else if (size > 1) {
        EXPECT_EQ(cut.need, size < fixed ? fixed : whole.size()) << size;
      }
    }
  }
}

TEST(BoltFrames, TheFirstByteDecides) {
  for (int first = 0; first != 256; ++first) {
    if (first == 1 || first == 2) continue;
    const std::string bytes = BigEndian(first, 1) + "\x01\0\0"s;
    const Outcome cut = CutOnce(bytes);
    EXPECT_EQ(cut.result, CutResult::kNotMine) << first;
    EXPECT_EQ(cut.rest, bytes);
  }
}

TEST(BoltFrames, ReadsTheFixedPartOfVersion2) {
  EXPECT_EQ(CutOnce("\x02").result, CutResult::kUnsure);
  EXPECT_EQ(CutOnce("\x02\x03").result, CutResult::kNotMine);
  EXPECT_EQ(CutOnce("\x02\x01\x03").error, "bolt: unknown type 3");
  struct Case {
    std::string bytes;
    bool has_crc;
  } cases[] = {
      {FromHex("02 01 01 0001 01 00000007 0b 01 00000bb8 0001 0002 00000003") +
           "chhabc",
       false},
      {FromHex("02 02 02 0001 01 00000007 0b 00 00000bb8 0001 0002 00000003") +
           "chhabc",
       false},
      {FromHex("02 02 01 0001 01 00000007 0b 01 00000bb8 0001 0002 00000003") +
           "chhabc1234",
       true},
      {FromHex("02 02 00 0002 01 00000007 0b 01 0009 0001 0002 00000003") +
           "chhabc1234",
       true},
  };
  for (const Case& c : cases) {
    for (std::size_t size = 1; size < c.bytes.size(); ++size) {
      EXPECT_NE(CutOnce(c.bytes.substr(0, size)).result, CutResult::kMessage);
      EXPECT_NE(CutOnce(c.bytes.substr(0, size)).result, CutResult::kError);
    }
    const Outcome cut = CutOnce(c.bytes + "next");
    ASSERT_EQ(cut.result, CutResult::kMessage);
    EXPECT_EQ(cut.rest, "next");
    EXPECT_EQ(cut.frame.protocol_version, c.bytes[1]);
    EXPECT_EQ(cut.frame.type, c.bytes[2]);
    EXPECT_EQ(cut.frame.id, 7u);
    EXPECT_EQ(cut.frame.codec, 11);
    EXPECT_EQ(cut.frame.class_size, 1u);
    EXPECT_EQ(cut.frame.headers_size, 2u);
    EXPECT_EQ(cut.frame.content_size, 3u);
    EXPECT_EQ(cut.frame.has_crc, c.has_crc);
    EXPECT_EQ(cut.frame.total(), c.bytes.size());
  }
}

TEST(BoltFrames, UnknownTypesAreErrorsAtOnce) {
  for (int type = 3; type != 256; ++type) {
    const Outcome cut = CutOnce("\x01" + BigEndian(type, 1));
    EXPECT_EQ(cut.result, CutResult::kError);
    EXPECT_EQ(cut.error, "bolt: unknown type " + std::to_string(type));
  }
}

TEST(BoltFrames, OversizedOnesAreSkippedAsTheyCome) {
  BoltRequestParts parts;
  parts.content = std::string(1000, 'c');
  const std::string bytes = parts.Bytes();
  BoltCutter cutter(Limits{.max_packet_size = 999});
  Outcome cut = CutOnce(bytes.substr(0, 22), &cutter);
  ASSERT_EQ(cut.result, CutResult::kMessage);
  EXPECT_TRUE(cutter.Oversized(cut.frame));
  EXPECT_EQ(cut.wire, bytes.substr(0, 22));
  EXPECT_EQ(cutter.OversizedText(cut.frame.total(), "flag"),
            "a message of " + std::to_string(bytes.size()) +
                " bytes exceeds the limit of 999 (flag)");
  cut = CutOnce(bytes.substr(22, 500), &cutter);
  EXPECT_EQ(cut.result, CutResult::kNeedMore);
  EXPECT_EQ(cut.rest, "");
  // The bytes behind it may be another protocol's.
  cut = CutOnce(bytes.substr(522) + testing::kBoltHeartbeatVector, &cutter);
  EXPECT_EQ(cut.result, CutResult::kHandled);
  EXPECT_EQ(cut.rest, testing::kBoltHeartbeatVector);
  cut = CutOnce(cut.rest, &cutter);
  ASSERT_EQ(cut.result, CutResult::kMessage);
  EXPECT_EQ(cut.frame.command, kBoltHeartbeat);
  EXPECT_FALSE(cutter.Oversized(cut.frame));
}

TEST(BoltFrames, TheLimitItselfIsNotExceeded) {
  const std::size_t size = testing::kBoltRequestVector.size();
  EXPECT_EQ(CutOnce(testing::kBoltRequestVector, size).wire.size(), size);
  EXPECT_EQ(CutOnce(testing::kBoltRequestVector, size - 1).wire.size(), 22u);
}

// --------------------------------------------------------------------------

// The pairs; nullopt if malformed.
std::optional<BoltPairs> ReadHeaders(std::string_view bytes) {
  BoltPairs pairs;
  BoltHeaderReader reader(bytes);
  while (reader.Next()) pairs.emplace_back(reader.key(), reader.value());
  EXPECT_FALSE(reader.malformed() && reader.Next());
  if (reader.malformed()) return std::nullopt;
  return pairs;
}

TEST(BoltHeaderMaps, AreReadInOrder) {
  EXPECT_EQ(ReadHeaders(""), BoltPairs());
  const BoltPairs pairs = {{"a", "1"}, {"b", ""}, {"", "c"}, {"a", "2"}};
  EXPECT_EQ(ReadHeaders(BoltHeaders(pairs)), pairs);
  const BoltPairs odd = {{std::string("\0\xff", 2), std::string(60000, 'v')}};
  EXPECT_EQ(ReadHeaders(BoltHeaders(odd)), odd);
}

TEST(BoltHeaderMaps, NullsDropWhatTheyBelongTo) {
  const std::string null = "\xff\xff\xff\xff";
  const std::string a = BoltHeaders({{"a", "1"}});
  EXPECT_EQ(ReadHeaders(null), BoltPairs());
  EXPECT_EQ(ReadHeaders(null + a), (BoltPairs{{"a", "1"}}));
  EXPECT_EQ(ReadHeaders(BigEndian(1, 4) + "k" + null + a),
            (BoltPairs{{"a", "1"}}));
  EXPECT_EQ(ReadHeaders(a + null + null), (BoltPairs{{"a", "1"}}));
}

TEST(BoltHeaderMaps, AreMalformedIfCutShort) {
  const std::string whole = BoltHeaders({{"key", "value"}});
  for (std::size_t size = 1; size != whole.size(); ++size) {
    EXPECT_EQ(ReadHeaders(whole.substr(0, size)), std::nullopt) << size;
  }
  EXPECT_EQ(ReadHeaders(whole + "x"), std::nullopt);
  EXPECT_EQ(ReadHeaders("\xff\xff\xff\xfe" + std::string(100, 'k')),
            std::nullopt);
  EXPECT_EQ(ReadHeaders("\x80\0\0\0"s), std::nullopt);
}

TEST(BoltHeaderMaps, AreWrittenAsTheyAreRead) {
  std::string bytes(BoltHeaderSize(3, 5), '\0');
  char* end = PutBoltHeader("key", "value", bytes.data());
  EXPECT_EQ(end, bytes.data() + bytes.size());
  EXPECT_EQ(bytes, BoltHeaders({{"key", "value"}}));
  end = PutBoltHeader("key", "va", bytes.data(), 3);
  EXPECT_EQ(end, bytes.data() + bytes.size() - 3);
  EXPECT_EQ(bytes, BoltHeaders({{"key", "value"}}));
}

// --------------------------------------------------------------------------

TEST(BoltStatuses, AreTheClosestOfTheProtocol) {
  EXPECT_EQ(BoltStatusFor(STATUS_SUCCESS), 0);
  EXPECT_EQ(BoltStatusFor(STATUS_OVERLOADED), 4);
  EXPECT_EQ(BoltStatusFor(STATUS_METHOD_NOT_FOUND), 6);
  EXPECT_EQ(BoltStatusFor(STATUS_SERVICE_NOT_FOUND), 6);
  EXPECT_EQ(BoltStatusFor(STATUS_TIMEOUT), 7);
  EXPECT_EQ(BoltStatusFor(STATUS_NOT_SUPPORTED), 9);
  EXPECT_EQ(BoltStatusFor(STATUS_MALFORMED_DATA), 18);
  EXPECT_EQ(BoltStatusFor(STATUS_FAILED), 2);
  EXPECT_EQ(BoltStatusFor(4711), 2);
  EXPECT_EQ(BoltStatusFor(-1), 2);
}

TEST(BoltStatuses, OnlySuccessIsSuccess) {
  for (int status = -10; status != 2000; ++status) {
    const std::uint16_t bolt_status = BoltStatusFor(status);
    EXPECT_EQ(bolt_status == 0, status == STATUS_SUCCESS) << status;
    EXPECT_NE(BoltStatusText(bolt_status), "unknown") << status;
    EXPECT_EQ(BoltStatusFor(StatusFromBolt(bolt_status)), bolt_status);
  }
  for (int bolt_status = 1; bolt_status != 65536; ++bolt_status) {
    EXPECT_NE(StatusFromBolt(static_cast<std::uint16_t>(bolt_status)), 0);
  }
}

TEST(BoltStatuses, HaveNames) {
  std::set<std::string_view> names;
  for (std::uint16_t status : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 18}) {
    names.insert(BoltStatusText(status));
  }
  EXPECT_EQ(names.size(), 13u);
  EXPECT_EQ(BoltStatusText(3), "unknown");
  EXPECT_EQ(BoltStatusText(10), "unknown");
}

}  // namespace
}  // namespace flare::rpc
