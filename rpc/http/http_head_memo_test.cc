#include "flare/rpc/http/http_head_memo.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "flare/base/testing/rounds.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kSizeLimit = 8192;
constexpr std::size_t kFieldLimit = 10;

using Peeker = decltype(&PeekRequestHead);

// A view's text, and whether there is one.
std::string TextOf(std::string_view view) {
  return view.data() == nullptr ? "-" : "<" + std::string(view) + ">";
}
std::string TextOf(const HttpNumber& number) {
  return TextOf(number.text) +
         (number.value ? std::to_string(*number.value) : " no number");
}

// All that a head says.
std::string DescribeHead(const HttpHead& head) {
  std::string all = std::to_string(static_cast<int>(head.method));
  for (const auto& view :
       {head.method_name, head.target, head.path, head.reason,
        head.content_type, head.origin, head.rpc_error_code,
        head.rpc_error_reason, head.fields}) {
    all += " " + TextOf(view);
  }
  for (const auto& number :
       {head.content_length, head.rpc_seq_no, head.rpc_timeout}) {
    all += " " + TextOf(number);
  }
  for (int number :
       {head.status, head.minor_version, int{head.chunked}, int{head.close},
        int{head.keep_alive}, int{head.expect_continue}, int{head.has_host},
        int{head.repeats_length}, int{head.encoded},
        static_cast<int>(head.encoding), int{head.accept_encoding.usable()}}) {
    all += " " + std::to_string(number);
  }
  return all;
}

std::string ParsedText(Peeker parse, std::string_view bytes) {
  HttpHead head;
  const auto size = parse(bytes, kSizeLimit, kFieldLimit, &head);
  return size ? std::to_string(*size) + ": " + DescribeHead(head) : "none";
}

std::string ReadBy(HttpHeadMemo* memo, std::string_view bytes) {
  std::optional<HttpHead> parsed;
  const auto found = memo->Peek(bytes, kSizeLimit, kFieldLimit, &parsed);
  return found ? std::to_string(found.size) + ": " + DescribeHead(*found.head)
               : "none";
}

// Reads a head twice, after which it is remembered if it is the first one.
void Learn(HttpHeadMemo* memo, std::string_view bytes) {
  std::optional<HttpHead> parsed;
  for (int i = 0; i != 2; ++i) {
    EXPECT_TRUE(memo->Peek(bytes, kSizeLimit, kFieldLimit, &parsed));
  }
}

// Whether the memo compared `bytes` instead of parsing them.
bool IsCompared(HttpHeadMemo* memo, std::string_view bytes) {
  std::optional<HttpHead> parsed;
  const auto found = memo->Peek(bytes, kSizeLimit, kFieldLimit, &parsed);
  return found && !parsed;
}

std::string CallHead(const std::string& id, const std::string& timeout,
                     const std::string& length) {
  return "POST /rpc/a.B.C HTTP/1.1\r\nHost: here:80\r\nRpc-SeqNo: " + id +
         "\r\nRpc-Timeout:\t" + timeout +
         " \r\nContent-Type: application/x-protobuf\r\nContent-Length: " +
         length + "\r\n\r\n";
}

TEST(HttpHeadMemo, ComparesHeadsThatDifferInTheirNumbers) {
  HttpHeadMemo memo(PeekRequestHead);
  Learn(&memo, CallHead("1", "1000", "12") + "body");
  for (const auto& head :
       {CallHead("1", "1000", "12"), CallHead("2", "1000", "12"),
        CallHead("1234567890123456789", "1", "0"),
        CallHead("0", "007", "9999999")}) {
    EXPECT_TRUE(IsCompared(&memo, head + "body")) << head;
    EXPECT_EQ(ReadBy(&memo, head + "body"), ParsedText(PeekRequestHead, head));
  }
}

TEST(HttpHeadMemo, ParsesHeadsThatDifferOtherwise) {
  for (const auto& other :
       {CallHead("1x", "2", "3"), CallHead("", "2", "3"),
        CallHead("-1", "2", "3"), CallHead("12345678901234567890", "2", "3"),
        CallHead("1", "2 3", "3"), CallHead("1", "2", "3\r\nContent-Length: 3"),
        CallHead("1", "2", "3\r\nContent-Length: 4"),
        CallHead("1", "2", "3\r\nTransfer-Encoding: chunked"),
        CallHead("1", "2", "3\r\nConnection: close"),
        CallHead("1", "2\r\n", "3"), "GET" + CallHead("1", "2", "3").substr(4),
        CallHead("1", "2", "3").substr(0, 60)}) {
    HttpHeadMemo memo(PeekRequestHead);
    Learn(&memo, CallHead("1", "2", "3"));
    EXPECT_FALSE(IsCompared(&memo, other)) << other;
    EXPECT_EQ(ReadBy(&memo, other), ParsedText(PeekRequestHead, other));
    // A refused head isn't remembered, and doesn't replace a remembered one.
    EXPECT_EQ(ReadBy(&memo, other), ParsedText(PeekRequestHead, other));
    EXPECT_EQ(ReadBy(&memo, CallHead("1", "2", "3")),
              ParsedText(PeekRequestHead, CallHead("1", "2", "3")));
  }
}

TEST(HttpHeadMemo, LengthsThatAreRepeatedAreNumbersOnlyTogether) {
  HttpHeadMemo memo(PeekRequestHead);
  const auto twice = [](const std::string& a, const std::string& b) {
    return CallHead("1", "2", a + "\r\nContent-Length: " + b);
  };
  Learn(&memo, twice("3", "3"));
  EXPECT_TRUE(IsCompared(&memo, twice("3", "3")));
  EXPECT_EQ(ReadBy(&memo, twice("3", "4")), "none");
  EXPECT_EQ(ReadBy(&memo, twice("4", "3")), "none");
  EXPECT_EQ(ReadBy(&memo, twice("4", "4")),
            ParsedText(PeekRequestHead, twice("4", "4")));
}

TEST(HttpHeadMemo, HeedsTheLimit) {
  HttpHeadMemo memo(PeekRequestHead);
  const std::string shorter = CallHead("1", "2", "3");
  const std::string longer = CallHead("11", "2", "3");
  const auto peek = [&memo, limit = shorter.size()](std::string_view bytes) {
    std::optional<HttpHead> parsed;
    return memo.Peek(bytes, limit, kFieldLimit, &parsed).size;
  };
  for (int i = 0; i != 3; ++i) {
    EXPECT_EQ(peek(shorter), shorter.size());
    EXPECT_EQ(peek(longer), 0);
  }
}

TEST(HttpHeadMemo, DoesNotKeepLongHeads) {
  HttpHeadMemo memo(PeekRequestHead);
  const auto with_cookie = [](std::size_t size) {
    return "GET / HTTP/1.1\r\nHost: h\r\nCookie: " + std::string(size, 'c') +
           "\r\n\r\n";
  };
  const std::size_t others = with_cookie(0).size();
  const std::string longest = with_cookie(HttpHeadMemo::kMaxSize - others);
  const std::string longer = with_cookie(HttpHeadMemo::kMaxSize - others + 1);
  Learn(&memo, longest);
  EXPECT_TRUE(IsCompared(&memo, longest));
  for (int i = 0; i != 3; ++i) EXPECT_FALSE(IsCompared(&memo, longer));
  EXPECT_EQ(ReadBy(&memo, longer), ParsedText(PeekRequestHead, longer));
  EXPECT_TRUE(IsCompared(&memo, longest));
}

TEST(HttpHeadMemo, TheSecondHeadIsRemembered) {
  HttpHeadMemo memo(PeekRequestHead);
  EXPECT_FALSE(IsCompared(&memo, CallHead("1", "2", "3")));
  EXPECT_FALSE(IsCompared(&memo, CallHead("2", "2", "3")));
  EXPECT_TRUE(IsCompared(&memo, CallHead("3", "2", "3")));
}

TEST(HttpHeadMemo, RemembersFewWhereHeadsVary) {
  HttpHeadMemo memo(PeekRequestHead);
  const auto get = [](int i) {
    return "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\n\r\n";
  };
  int kept = 0;
  for (int i = 0; i != 8; ++i) kept += IsCompared(&memo, get(i));
  EXPECT_EQ(kept, 0);
  // A client that settles on one head is soon served by comparing, and from
  // then on.
  int parsed = 0;
  while (!IsCompared(&memo, get(9))) ++parsed;
  EXPECT_LE(parsed, HttpHeadMemo::kMaxMisses + 1);
  EXPECT_TRUE(IsCompared(&memo, get(9)));
  EXPECT_FALSE(IsCompared(&memo, get(10)));
  EXPECT_TRUE(IsCompared(&memo, get(10)));
}

// `text` with up to two changes, of which many keep it well.
std::string Mutated(std::string text, std::mt19937* random) {
  const auto below = [random](std::size_t n) { return (*random)() % n; };
  // Bytes with a meaning here are the likely ones.
  static const std::string bytes =
      "0123456789012345678901234567890123456789\r\n\r\n\t :,-xX/?" +
      std::string(1, '\0') + "\x7f\xff";
  for (std::size_t changes = below(3); changes != 0; --changes) {
    const std::size_t at = below(text.size());
    // Numbers are more likely than others, too.
    const std::size_t digit = text.find_first_of("0123456789", at);
    const std::size_t where =
        digit != std::string::npos && below(2) == 0 ? digit : at;
    const char byte = bytes[below(bytes.size())];
    switch (below(4)) {
      case 0:
        text.insert(where, 1 + below(20), byte);
        break;
      case 1:
        text.erase(where, 1);
        break;
      default:
        text[where] = byte;
    }
  }
  return text;
}

// [HM1] to [HM3]: whatever was read before, what a memo says is what parsing
// says.
void ReadMutations(Peeker parse, const std::vector<std::string>& heads) {
  std::mt19937 random(1);
  int accepted = 0;
  constexpr int kTurns = flare::testing::Rounds(15'000);
  for (int i = 0; i != kTurns; ++i) {
    HttpHeadMemo memo(parse);
    const std::string first =
        Mutated(heads[random() % heads.size()], &random) + "body";
    for (int j = 0; j != 2; ++j) {
      ASSERT_EQ(ReadBy(&memo, first), ParsedText(parse, first)) << first;
    }
    for (int j = 0; j != 3; ++j) {
      const std::string next = Mutated(first, &random);
      const std::string expected = ParsedText(parse, next);
      ASSERT_EQ(ReadBy(&memo, next), expected) << first << next;
      accepted += expected != "none";
    }
  }
  EXPECT_GT(accepted, kTurns);
}

TEST(HttpHeadMemo, SaysOfRequestsWhatParsingSays) {
  ReadMutations(
      PeekRequestHead,
      {CallHead("17", "1000", "12"),
       "POST /rpc/a.B.C HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n"
       "Content-Length: 5\r\n\r\n",
       "GET /1?2=3 HTTP/1.1\r\nHost: 127.0.0.1:80\r\nRpc-SeqNo: x\r\n\r\n",
       "PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"});
}

TEST(HttpHeadMemo, SaysOfResponsesWhatParsingSays) {
  ReadMutations(
      PeekResponseHead,
      {"HTTP/1.1 200 OK\r\nRpc-SeqNo: 17\r\nContent-Length: 12\r\n\r\n",
       "HTTP/1.1 200\r\nContent-Length: 3\r\nRpc-SeqNo: 99\r\n\r\n",
       "HTTP/1.0 500 Bad Luck\r\nContent-Length: 3\r\nRpc-SeqNo: 5\r\n"
       "Rpc-Error-Code: 12\r\nRpc-Error-Reason: 13 tries\r\n\r\n"});
}

}  // namespace
}  // namespace flare::rpc
