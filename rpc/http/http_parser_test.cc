#include "flare/rpc/http/http_parser.h"

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;
using testing::SlicedBuffer;

constexpr std::size_t kMaxFields = 100;

HttpFault Parse(std::string_view head, HttpHead* out) {
  return ParseRequestHead(head, kMaxFields, out);
}

int FaultOf(std::string_view head) {
  HttpHead out;
  return Parse(head, &out).status;
}

// A request with these field lines (each with its CRLF).
std::string WithFields(const std::string& fields) {
  return "POST / HTTP/1.1\r\n" + fields + "\r\n";
}

// --- FindHeadEnd -----------------------------------------------------------

HeadEnd Find(const std::string& bytes, std::size_t piece, std::size_t limit,
             std::size_t* size) {
  std::size_t scanned = 0;
  return FindHeadEnd(SlicedBuffer(bytes, piece), limit, &scanned, size);
}

TEST(FindHeadEnd, FindsTheEmptyLineInAnyPieces) {
  std::string head = "GET / HTTP/1.1\r\nA: b\r\n\r\n";
  for (std::size_t piece = 1; piece <= head.size() + 4; ++piece) {
    std::size_t size = 0;
    EXPECT_EQ(Find(head + "body", piece, 8192, &size), HeadEnd::kFound);
    EXPECT_EQ(size, head.size());
  }
}

TEST(FindHeadEnd, IsIncompleteUntilTheLastByte) {
  std::string head = "GET / HTTP/1.1\r\nA: b\r\n\r\n";
  for (std::size_t n = 0; n != head.size(); ++n) {
    std::size_t size = 0;
    EXPECT_EQ(Find(head.substr(0, n), 3, 8192, &size), HeadEnd::kIncomplete);
  }
}

TEST(FindHeadEnd, ResumesWhereItStopped) {
  std::string head = "GET / HTTP/1.1\r\nA: b\r\n\r\n";
  Buffer in;
  std::size_t scanned = 0;
  std::size_t size = 0;
  for (std::size_t i = 0; i != head.size(); ++i) {
    in.Append(std::string_view(head).substr(i, 1));
    HeadEnd end = FindHeadEnd(in, 8192, &scanned, &size);
    ASSERT_EQ(end,
              i + 1 == head.size() ? HeadEnd::kFound : HeadEnd::kIncomplete);
    // The first line isn't looked at again once it is complete.
    if (i >= 16 && end == HeadEnd::kIncomplete) {
      EXPECT_GE(scanned, 16u);
    }
  }
  EXPECT_EQ(size, head.size());
}

TEST(FindHeadEnd, RefusesBareLf) {
  for (std::size_t piece : {1, 2, 3, 100}) {
    std::size_t size = 0;
    EXPECT_EQ(Find("GET / HTTP/1.1\n", piece, 8192, &size), HeadEnd::kBareLf);
    EXPECT_EQ(Find("GET / HTTP/1.1\r\nA: b\n", piece, 8192, &size),
              HeadEnd::kBareLf);
    EXPECT_EQ(Find("GET / HTTP/1.1\r\n\n", piece, 8192, &size),
              HeadEnd::kBareLf);
    EXPECT_EQ(Find("\n", piece, 8192, &size), HeadEnd::kBareLf);
  }
}

TEST(FindHeadEnd, EnforcesTheLimit) {
  std::size_t size = 0;
  std::string head = "GET / HTTP/1.1\r\n\r\n";
  EXPECT_EQ(Find(head, 100, head.size(), &size), HeadEnd::kFound);
  EXPECT_EQ(Find(head, 100, head.size() - 1, &size), HeadEnd::kTooLarge);
  EXPECT_EQ(Find(std::string(101, 'a'), 7, 100, &size), HeadEnd::kTooLarge);
  EXPECT_EQ(Find(std::string(100, 'a'), 7, 100, &size), HeadEnd::kIncomplete);
  EXPECT_EQ(
      Find(std::string(90, 'a') + "\r\n" + std::string(90, 'b'), 7, 100, &size),
      HeadEnd::kTooLarge);
}

TEST(FindHeadEnd, TellsWhichLineIsTooLong) {
  const std::string line = std::string(88, 'a') + "\r\n";
  for (const auto& [bytes, begin] : {std::pair{line + line, 90u},
                                     {line + std::string(11, 'b'), 90u},
                                     {"a" + line + line, 91u},
                                     {std::string(20, 'a') + line, 0u}}) {
    for (std::size_t piece : {1, 7, 1000}) {
      std::size_t scanned = 0, size = 0;
      EXPECT_EQ(FindHeadEnd(SlicedBuffer(bytes, piece), 100, &scanned, &size),
                HeadEnd::kTooLarge);
      EXPECT_EQ(scanned, begin);
    }
  }
}

// --- request heads ---------------------------------------------------------

TEST(RequestHead, ReadsAnOrdinaryOne) {
  HttpHead head;
  ASSERT_FALSE(
      Parse("POST /rpc/a.B.C?x=1 HTTP/1.1\r\n"
            "Host: here:80\r\n"
            "rpc-seqno: 17\r\n"
            "RPC-TIMEOUT:\t 250 \t\r\n"
            "Content-Type: application/x-protobuf\r\n"
            "Content-Length: 12\r\n"
            "Connection: Keep-Alive, Upgrade\r\n"
            "Expect: 100-Continue\r\n"
            "\r\n",
            &head));
  EXPECT_EQ(head.method, HttpMethod::Post);
  EXPECT_EQ(head.method_name, "POST");
  EXPECT_EQ(head.target, "/rpc/a.B.C?x=1");
  EXPECT_EQ(head.minor_version, 1);
  EXPECT_TRUE(head.has_host);
  EXPECT_EQ(head.rpc_seq_no.value, 17u);
  EXPECT_EQ(head.rpc_timeout.text, "250");
  EXPECT_EQ(head.rpc_timeout.value, 250u);
  EXPECT_EQ(head.content_type, "application/x-protobuf");
  EXPECT_TRUE(head.content_length);
  EXPECT_EQ(head.content_length.value, 12u);
  EXPECT_TRUE(head.keep_alive);
  EXPECT_FALSE(head.close);
  EXPECT_TRUE(head.expect_continue);
  EXPECT_FALSE(head.chunked);
}

TEST(RequestHead, AbsentFieldsAreTold) {
  HttpHead head;
  ASSERT_FALSE(Parse("GET / HTTP/1.0\r\n\r\n", &head));
  EXPECT_EQ(head.minor_version, 0);
  EXPECT_FALSE(head.has_host);
  EXPECT_FALSE(head.content_length);
  EXPECT_FALSE(head.rpc_seq_no);
  HttpHead empty;
  ASSERT_FALSE(Parse("GET / HTTP/1.1\r\nRpc-SeqNo:\r\n\r\n", &empty));
  EXPECT_TRUE(empty.rpc_seq_no);
  EXPECT_FALSE(empty.rpc_seq_no.value);
}

TEST(RequestHead, KnowsAllMethods) {
  for (const char* name :
       {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"}) {
    HttpHead head;
    ASSERT_FALSE(Parse(name + " / HTTP/1.1\r\n\r\n"s, &head)) << name;
    EXPECT_EQ(ToStringView(head.method), name);
  }
  HttpHead head;
  ASSERT_FALSE(Parse("BREW / HTTP/1.1\r\n\r\n", &head));
  EXPECT_EQ(head.method, HttpMethod::Unspecified);
  EXPECT_EQ(head.method_name, "BREW");
}

TEST(RequestHead, TargetsHaveTheirForms) {
  const auto fault_of = [](const std::string& line) {
    return FaultOf(line + " HTTP/1.1\r\n\r\n");
  };
  for (const char* good :
       {"GET /", "PUT //a", "GET http://h", "GET https://h/a", "OPTIONS *",
        "OPTIONS http://h", "OPTIONS /", "M-SEARCH *", "BREW pot"}) {
    EXPECT_EQ(fault_of(good), 0) << good;
  }
  for (const char* bad :
       {"GET foo", "GET ../x", "GET ?a", "GET *", "HEAD *", "GET h:80",
        "OPTIONS a", "OPTIONS **", "POST http:///x", "POST https://",
        "GET http://:80/", "GET http://u@h/", "GET ftp://h/", "BREW "}) {
    EXPECT_EQ(fault_of(bad), 400) << bad;
  }
}

TEST(RequestHead, RefusesTunnels) {
  for (const char* target : {"host:443", "/", "*"}) {
    EXPECT_EQ(FaultOf("CONNECT "s + target + " HTTP/1.1\r\n\r\n"), 501);
  }
}

TEST(RequestHead, LooksFieldsUpByNameAndNotBySubstring) {
  // The published implementation takes the first place where a name occurs.
  HttpHead head;
  ASSERT_FALSE(
      Parse("POST /content-type:%20text/plain HTTP/1.1\r\n"
            "X-Content-Type: wrong\r\n"
            "Referer: content-type: wrong\r\n"
            "Content-Type-Options: nosniff\r\n"
            "Content-Type: right\r\n\r\n",
            &head));
  EXPECT_EQ(head.content_type, "right");
}

TEST(RequestHead, RefusesMalformedRequestLines) {
  for (std::string line : {"GET",
                           "GET /",
                           "GET / ",
                           " GET / HTTP/1.1",
                           "GET  / HTTP/1.1",
                           "GET /  HTTP/1.1",
                           "GET / HTTP/1.1 ",
                           "GET /a b HTTP/1.1",
                           "GET /\tb HTTP/1.1",
                           "G\x01T / HTTP/1.1",
                           "G(T / HTTP/1.1",
                           "GET / http/1.1",
                           "GET / HTTP/11",
                           "GET / HTTP/1.x",
                           "GET / HTTP/1.10",
                           "GET / HTTP/ 1.1",
                           "GET /\x7f HTTP/1.1",
                           " / HTTP/1.1",
                           "GET /a\rb HTTP/1.1",
                           "",
                           "GET  HTTP/1.1"}) {
    EXPECT_EQ(FaultOf(line + "\r\n\r\n"), 400) << line;
  }
  EXPECT_EQ(FaultOf("GET /a\0b HTTP/1.1\r\n\r\n"s), 400);
  EXPECT_EQ(FaultOf("GET / HTTP/1.1\n\r\n"), 400);
}

TEST(RequestHead, RefusesOtherVersions) {
  EXPECT_EQ(FaultOf("PRI * HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(FaultOf("GET / HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(FaultOf("GET / HTTP/0.9\r\n\r\n"), 505);
  EXPECT_EQ(FaultOf("GET / HTTP/3.0\r\n\r\n"), 505);
}

TEST(RequestHead, RefusesMalformedFields) {
  for (std::string fields :
       {"Name\r\n"s, ": value\r\n"s, "Na me: v\r\n"s, "Name : v\r\n"s,
        "Name\t: v\r\n"s, " Name: v\r\n"s, "A: b\r\n folded\r\n"s,
        "A: b\r\n\tfolded\r\n"s, "A: b\rc\r\n"s, "A: b\r\r\n"s, "A: b\0c\r\n"s,
        "A: b\x01\r\n"s, "A: b\x7f\r\n"s, "A\x80: b\r\n"s, "A: b\n"s,
        "A: b\nC: d\r\n"s, "\rA: b\r\n"s, "(A): b\r\n"s}) {
    EXPECT_EQ(FaultOf(WithFields(fields)), 400)
        << ::testing::PrintToString(fields);
  }
}

TEST(RequestHead, AllowsBytesAbove127InValues) {
  EXPECT_EQ(FaultOf(WithFields("A: caf\xc3\xa9 \xff\r\n")), 0);
}

TEST(RequestHead, RefusesWhatSmugglesRequests) {
  struct Case {
    const char* fields;
    int status;
  } cases[] = {
      {"Content-Length: 5\r\nContent-Length: 6\r\n", 400},
      {"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400},
      {"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", 400},
      {"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400},
      {"Transfer-Encoding: identity\r\n", 501},
      {"Transfer-Encoding: gzip, chunked\r\n", 501},
      {"Transfer-Encoding: chunked, chunked\r\n", 501},
      {"Transfer-Encoding: xchunked\r\n", 501},
      {"Transfer-Encoding: \"chunked\"\r\n", 501},
      {"Transfer-Encoding:\r\n", 501},
      {"Transfer-Encoding : chunked\r\n", 400},
      {"Content-Length : 5\r\n", 400},
      {"Content-Length: +5\r\n", 400},
      {"Content-Length: -5\r\n", 400},
      {"Content-Length: 0x5\r\n", 400},
      {"Content-Length: 5, 5\r\n", 400},
      {"Content-Length: 5 5\r\n", 400},
      {"Content-Length: 5a\r\n", 400},
      {"Content-Length:\r\n", 400},
      {"Content-Length: 18446744073709551616\r\n", 400},
      {"Host: a\r\nHost: b\r\n", 400},
      {"Rpc-SeqNo: 1\r\nRpc-SeqNo: 2\r\n", 400},
      {"Content-Type: a\r\nContent-Type: b\r\n", 400},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(FaultOf(WithFields(c.fields)), c.status) << c.fields;
  }
  EXPECT_EQ(FaultOf("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            400);
}

TEST(RequestHead, AcceptsHarmlessRepetitions) {
  HttpHead head;
  ASSERT_FALSE(Parse(WithFields("Content-Length: 5\r\nContent-Length: 05\r\n"
                                "Accept: a\r\nAccept: b\r\n"
                                "Connection: foo\r\nConnection: CLOSE\r\n"),
                     &head));
  EXPECT_EQ(head.content_length.value, 5u);
  EXPECT_TRUE(head.close);
}

TEST(RequestHead, ConnectionIsAListOfOptions) {
  HttpHead head;
  ASSERT_FALSE(
      Parse(WithFields("Connection: closed, x-close,close-not\r\n"), &head));
  EXPECT_FALSE(head.close);
  ASSERT_FALSE(Parse(WithFields("Connection: , ,\tclose ,\r\n"), &head));
  EXPECT_TRUE(head.close);
}

TEST(RequestHead, RefusesOtherExpectations) {
  EXPECT_EQ(FaultOf(WithFields("Expect: 200-ok\r\n")), 417);
}

TEST(RequestHead, CountsFields) {
  std::string fields;
  for (int i = 0; i != 100; ++i) fields += "A: b\r\n";
  EXPECT_EQ(FaultOf(WithFields(fields)), 0);
  EXPECT_EQ(FaultOf(WithFields(fields + "A: b\r\n")), 431);
}

TEST(RequestHead, RefusesBytesBehindTheEmptyLine) {
  EXPECT_EQ(FaultOf("GET / HTTP/1.1\r\n\r\nX"), 400);
  EXPECT_EQ(FaultOf("GET / HTTP/1.1\r\n"), 400);
}

TEST(RequestHead, GivesTheLinesOfTheFields) {
  const std::string lines = "A:b\r\nC:  d e \r\nA:\r\nD: \t:f:\r\n";
  const std::string bytes = WithFields(lines);
  HttpHead head;
  ASSERT_FALSE(Parse(bytes, &head));
  EXPECT_EQ(head.fields, lines);
  HttpHeaders headers;
  headers.AssignLines(head.fields);
  const std::vector<HttpHeaders::Field> expected = {
      {"A", "b"}, {"C", "d e"}, {"A", ""}, {"D", ":f:"}};
  EXPECT_EQ(std::vector<HttpHeaders::Field>(headers.begin(), headers.end()),
            expected);
}

// --- PeekRequestHead -------------------------------------------------------

TEST(PeekRequestHead, ReadsWhatIsCompleteAndWell) {
  const std::string head = WithFields("Host: x\r\nContent-Length: 4\r\n");
  const std::string bytes = head + "body\r\n\r\n";
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    // Memory that ends there.
    const std::vector<char> copy(bytes.begin(), bytes.begin() + size);
    HttpHead out;
    const auto found =
        PeekRequestHead({copy.data(), size}, 8192, kMaxFields, &out);
    ASSERT_EQ(found.has_value(), size >= head.size()) << size;
    if (!found) continue;
    EXPECT_EQ(*found, head.size());
    EXPECT_EQ(out.content_length.value, 4u);
    EXPECT_EQ(out.fields, "Host: x\r\nContent-Length: 4\r\n");
  }
}

TEST(PeekRequestHead, LeavesTheRestToOthers) {
  const std::string head = WithFields("Host: x\r\n");
  HttpHead out;
  EXPECT_EQ(PeekRequestHead(head, head.size(), kMaxFields, &out), head.size());
  EXPECT_EQ(PeekRequestHead(head, head.size() - 1, kMaxFields, &out),
            std::nullopt);
  EXPECT_EQ(PeekRequestHead(head, 8192, 0, &out), std::nullopt);
  for (const std::string& bad :
       {"\r\n" + head, "GET /\r\n\r\n"s, "GET / HTTP/1.1\n\n"s,
        WithFields("A : b\r\n"), WithFields("A\r\n")}) {
    HttpHead fresh;
    EXPECT_EQ(PeekRequestHead(bad, 8192, kMaxFields, &fresh), std::nullopt)
        << bad;
  }
}

// --- response heads --------------------------------------------------------

TEST(ResponseHead, ReadsAnOrdinaryOne) {
  HttpHead head;
  ASSERT_FALSE(
      ParseResponseHead("HTTP/1.1 404 Not Found\r\n"
                        "Rpc-SeqNo: 3\r\n"
                        "Rpc-Error-Code: 10\r\n"
                        "Rpc-Error-Reason: no such: method\r\n"
                        "Content-Length: 0\r\n\r\n",
                        kMaxFields, &head));
  EXPECT_EQ(head.status, 404);
  EXPECT_EQ(head.reason, "Not Found");
  EXPECT_EQ(head.rpc_error_code, "10");
  EXPECT_EQ(head.rpc_error_reason, "no such: method");
}

TEST(ResponseHead, TheReasonMayBeMissing) {
  for (std::string line : {"HTTP/1.1 200", "HTTP/1.1 200 "}) {
    line += "\r\n\r\n";
    HttpHead head;
    ASSERT_FALSE(ParseResponseHead(line, kMaxFields, &head));
    EXPECT_EQ(head.status, 200);
    EXPECT_EQ(head.reason, "");
  }
}

// Some servers echo their input.
TEST(ResponseHead, PassesOverFieldsOfRequests) {
  HttpHead head;
  EXPECT_FALSE(
      ParseResponseHead("HTTP/1.1 200 OK\r\nHost: a/b\r\nHost: c\r\n"
                        "Expect: rain\r\nContent-Length: 3\r\n\r\n",
                        kMaxFields, &head));
  EXPECT_EQ(head.content_length.value, 3u);
}

TEST(ResponseHead, RefusesMalformedStatusLines) {
  for (std::string line :
       {"", "HTTP/1.1", "HTTP/1.1 ", "HTTP/1.1 20", "HTTP/1.1 2000",
        "HTTP/1.1  200", "HTTP/1.1 2x0 OK", "HTTP/1.1 099 x", "HTTP/2.0 200 OK",
        "HTTP/1.1 200\tOK", "http/1.1 200 OK", "HTTP/1.1 200 O\x01K"}) {
    HttpHead head;
    EXPECT_EQ(ParseResponseHead(line + "\r\n\r\n", kMaxFields, &head).status,
              502)
        << line;
  }
}

}  // namespace
}  // namespace flare::rpc
