#include "flare/rpc/protocol_registry.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::RecordingSink;
using testing::SlicedBuffer;

std::vector<std::string> NamesOf(const ServerProtocolSet& set) {
  RecordingSink sink;
  std::vector<std::string> names;
  for (std::size_t i = 0; i != set.size(); ++i) {
    names.emplace_back(set.New(i, &sink)->name());
  }
  return names;
}

TEST(ServerProtocolSetTest, KeepsTheOrderAndMergesHttp) {
  using Names = std::vector<std::string>;
  auto names = [](const Names& wanted) {
    return NamesOf(ServerProtocolSet::FromNames(wanted).value());
  };
  EXPECT_EQ(names({"flare"}), Names{"flare"});
  EXPECT_EQ(names({"flare", "http+pb", "http+proto3-json", "http"}),
            (Names{"flare", "http"}));
  EXPECT_EQ(names({"http+pb", "flare", "http"}), (Names{"http", "flare"}));
  EXPECT_EQ(names({"flare", "flare"}), Names{"flare"});
  EXPECT_EQ(names({}), Names{});
}

TEST(ServerProtocolSetTest, NamesWhatItKnowsIfAskedForMore) {
  auto set = ServerProtocolSet::FromNames({"flare", "qzone"});
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code(), STATUS_NOT_SUPPORTED);
  EXPECT_EQ(
      set.error().message().find(
          "unknown protocol \"qzone\"; known are baidu-std bolt flare grpc "
          "http"),
      0u)
      << set.error();
}

TEST(ServerProtocolSetTest, PutsGrpcBeforeHttp) {
  const auto set =
      ServerProtocolSet::FromNames({"http", "flare", "grpc", "http+pb"});
  ASSERT_TRUE(set);
  EXPECT_EQ(NamesOf(*set), (std::vector<std::string>{"grpc", "http", "flare"}));
}

TEST(ServerProtocolSetTest, PassesLimitsOn) {
  Limits limits;
  limits.max_packet_size = 30;
  auto set = ServerProtocolSet::FromNames({"flare"}, limits);
  ASSERT_TRUE(set);
  EXPECT_EQ(set->limits().max_packet_size, 30u);
  RecordingSink sink;
  auto protocol = set->New(0, &sink);
  InboundRequest request;
  std::size_t need;
  std::string error;
  Buffer in = CreateBufferSlow("CPRF\x04\0\0\0\x40\0\0\0\0\0\0\0"s +
                               "\x08\x01\x38\x01");
  ASSERT_EQ(protocol->Cut(in, &request, &need, &error), CutResult::kMessage);
  EXPECT_EQ(protocol->Parse(&request), ParseResult::kReject);
}

class LineProtocol : public ServerProtocol {
 public:
  LineProtocol(const Limits&, ReplySink* sink) : ServerProtocol(sink) {}
  std::string_view name() const override { return "line"; }
  ProtocolTraits traits() const override { return {}; }
  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t*,
                std::string*) override {
    if (in.FirstContiguous().starts_with('!')) return CutResult::kNotMine;
    request->body = std::move(in);
    return CutResult::kMessage;
  }
  ParseResult Parse(InboundRequest*) const override { return ParseResult::kOk; }
  void Write(const ReplyTicket&, OutboundResponse&&) override {}
};

TEST(ServerProtocolSetTest, OthersCanBeAdded) {
  auto make = [](const Limits& limits, ReplySink* sink) {
    return std::make_unique<LineProtocol>(limits, sink);
  };
  EXPECT_TRUE(RegisterServerProtocol("line", make));
  EXPECT_FALSE(RegisterServerProtocol("line", make));
  EXPECT_FALSE(RegisterServerProtocol("flare", make));
  auto set = ServerProtocolSet::FromNames({"line", "flare"});
  ASSERT_TRUE(set);
  EXPECT_EQ(NamesOf(*set), (std::vector<std::string>{"line", "flare"}));
}

// As a server connection does it: the first answer that isn't "not mine" or
// "unsure" decides.
TEST(ServerProtocolSetTest, ManyProtocolsShareAPort) {
  auto set = ServerProtocolSet::FromNames(
      {"http+pb", "http", "flare", "baidu-std", "bolt", "trpc"});
  ASSERT_TRUE(set);
  struct Case {
    std::string bytes;
    std::string speaker;  // "" for nobody, "?" for undecided
  } cases[] = {
      {"GET / HTTP/1.1\r\n\r\n", "http"},
      {"POST /rpc/m HTTP/1.1\r\n", "http"},
      {"CPRF\x33\0\0\0\x04\0\0\0\0\0\0\0"s, "flare"},
      // A meta of 32 bytes looks like a method followed by a blank.
      {"CPRF\x20\0\0\0\x04\0\0\0\0\0\0\0"s, "flare"},
      {"C", "?"},
      {"CPR", "?"},
      {"CPRF", "flare"},
      {"PRP", "?"},
      {"PRPC", "baidu-std"},
      {"PRPC\0\0\0\x33\0\0\0\x2f"s, "baidu-std"},
      {"GE", "?"},
      {"\x01", "bolt"},
      {"\x01\x01\0\x01"s, "bolt"},
      // A request id that looks like the magic of another.
      {"\x01\x01\0\x01\x01"
       "CPRF",
       "bolt"},
      {"\x02", "?"},
      {"\x02\x07", ""},
      {"\x16\x03\x01\x02", ""},
      {"\x09", "?"},
      {"\x09\x30", "trpc"},
      {"\x09\x31", ""},
      {"garbage", ""},
  };
  for (const Case& c : cases) {
    RecordingSink sink;
    std::string speaker;
    for (std::size_t i = 0; i != set->size(); ++i) {
      auto protocol = set->New(i, &sink);
      Buffer in = SlicedBuffer(c.bytes, 3);
      InboundRequest request;
      std::size_t need = 0;
      std::string error;
      CutResult result = protocol->Cut(in, &request, &need, &error);
      if (result == CutResult::kUnsure) speaker = "?";
      if (result != CutResult::kUnsure && result != CutResult::kNotMine) {
        speaker = protocol->name();
        break;
      }
    }
    EXPECT_EQ(speaker, c.speaker) << ::testing::PrintToString(c.bytes);
  }
}

TEST(ClientProtocols, AreMadeByScheme) {
  struct Case {
    const char* scheme;
    const char* name;
  } cases[] = {{"flare", "flare"},
               {"baidu-std", "baidu-std"},
               {"bolt", "bolt"},
               {"http", "http+pb"},
               {"http+pb", "http+pb"},
               {"http+pb-text", "http+pb-text"},
               {"http+proto3-json", "http+proto3-json"},
               {"trpc", "trpc"}};
  for (const Case& c : cases) {
    EXPECT_TRUE(IsClientProtocol(c.scheme));
    auto protocol = NewClientProtocol(c.scheme, Limits(), "host:1");
    ASSERT_TRUE(protocol);
    EXPECT_EQ((*protocol)->name(), c.name);
  }
}

TEST(ClientProtocols, UnknownSchemesAreAnError) {
  EXPECT_FALSE(IsClientProtocol("qzone"));
  auto protocol = NewClientProtocol("qzone", Limits(), "");
  ASSERT_FALSE(protocol);
  EXPECT_EQ(protocol.error().code(), STATUS_NOT_SUPPORTED);
  EXPECT_EQ(protocol.error().message().find("unknown scheme \"qzone\""), 0u);
}

TEST(ClientProtocols, OthersCanBeAdded) {
  auto make = [](const Limits& limits, std::string_view host) {
    return std::move(NewClientProtocol("flare", limits, host)).value();
  };
  EXPECT_TRUE(RegisterClientProtocol("mine", make));
  EXPECT_FALSE(RegisterClientProtocol("mine", make));
  EXPECT_FALSE(RegisterClientProtocol("flare", make));
  EXPECT_TRUE(NewClientProtocol("mine", Limits(), ""));
}

}  // namespace
}  // namespace flare::rpc
