#include "flare/rpc/http/http_text.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "flare/base/testing/rounds.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using std::string_literals::operator""s;

TEST(HttpText, Tokens) {
  for (const char* good : {"a", "Content-Type", "x!#$%&'*+-.^_`|~9"}) {
    EXPECT_TRUE(IsHttpToken(good)) << good;
  }
  for (const auto& bad : {""s, "a b"s, "a:"s, "a\tb"s, "a\0"s, "\x80"s, "(x)"s,
                          "a\x7f"s, "x/y"s, "\""s, "a,b"s}) {
    EXPECT_FALSE(IsHttpToken(bad)) << bad;
  }
  int count = 0;
  for (int c = 0; c != 256; ++c) count += IsHttpTokenChar(static_cast<char>(c));
  EXPECT_EQ(count, 26 * 2 + 10 + 15);
}

TEST(HttpText, Hosts) {
  for (const char* good : {"", "h", "127.0.0.1:5567", "[::1]:80", "a-b_c.d:",
                           "[fe80::1%25eth0]", "x%C3%A4.example", ":80", ":",
                           "h.:80", "[::1]", "[::1]:", "[v1.a:b]:1"}) {
    EXPECT_TRUE(MayBeHttpHost(good)) << good;
  }
  for (const auto& bad :
       {"a b"s,    "h/"s,      "user@h"s,   "h?"s,          "h#"s,
        "\"h\""s,  "<h>"s,     "\xc3\xa4"s, "h\\"s,         "h\0"s,
        "a\tb"s,   " h"s,      "{h}"s,      "h^"s,          "h|"s,
        "`h`"s,    "a:b:c"s,   "h:8x"s,     "h:80:"s,       "h:-1"s,
        "::1"s,    "["s,       "]"s,        "[]"s,          "[]:80"s,
        "[::1"s,   "::1]"s,    "h]"s,       "h[1]"s,        "[[::1]"s,
        "[::1]]"s, "[::1]80"s, "[::1]:8x"s, "[::1]:80:90"s, "[::1][::1]"s,
        "[::1 ]"s}) {
    EXPECT_FALSE(MayBeHttpHost(bad)) << bad;
  }
  int count = 0;
  for (int c = 0; c != 256; ++c) {
    count += MayBeHttpHost(std::string(1, static_cast<char>(c)));
  }
  EXPECT_EQ(count, 26 * 2 + 10 + 17);
}

TEST(HttpText, TextOfPaths) {
  const auto is_good = [](int c) {
    return c > ' ' && c < 0x7f && c != '?' && c != '#';
  };
  EXPECT_FALSE(IsHttpPathText(""));
  for (std::size_t size = 1; size != 70; ++size) {
    EXPECT_TRUE(IsHttpPathText(std::string(size, 'x'))) << size;
    // The characters around it don't count.
    const std::string inner = " " + std::string(size, '/') + "?";
    EXPECT_TRUE(IsHttpPathText(std::string_view(inner).substr(1, size)));
    for (std::size_t at = 0; at != size; ++at) {
      for (int c = 0; c != 256; ++c) {
        std::string text(size, '.');
        text[at] = static_cast<char>(c);
        ASSERT_EQ(IsHttpPathText(text), is_good(c))
            << c << " at " << at << " of " << size;
      }
    }
  }
}

TEST(HttpText, ValuesHaveNoControlBytesButTabs) {
  for (int c = 0; c != 256; ++c) {
    EXPECT_EQ(IsHttpValueChar(static_cast<char>(c)),
              c == '\t' || (c >= ' ' && c != 0x7f))
        << c;
  }
}

std::vector<std::size_t> MarksOf(const char* begin, std::size_t size) {
  std::vector<std::size_t> found;
  HttpScanner scanner(begin, begin + size);
  for (const char* at; (at = scanner.Next()) != begin + size;) {
    found.push_back(static_cast<std::size_t>(at - begin));
  }
  return found;
}

// Each byte at each place of texts of each length, in memory that ends there;
// in slow builds each fifth byte.
TEST(HttpScanner, FindsEachByteInEachPlace) {
  constexpr int kStep = 256 / flare::testing::Rounds(256);
  for (std::size_t size = 0; size != 150; ++size) {
    const auto text = std::make_unique<char[]>(size);
    std::fill_n(text.get(), size, ' ');
    EXPECT_TRUE(MarksOf(text.get(), size).empty());
    for (std::size_t at = 0; at != size; ++at) {
      for (int c = static_cast<int>(at % kStep); c < 256; c += kStep) {
        text[at] = static_cast<char>(c);
        const bool is_mark = c < 0x20 || c == 0x7f || c == ':';
        EXPECT_EQ(MarksOf(text.get(), size),
                  std::vector<std::size_t>(is_mark ? 1 : 0, at))
            << c;
      }
      text[at] = ' ';
    }
  }
}

TEST(HttpScanner, AgreesWithASimpleSearch) {
  std::mt19937 random(7);
  for (int i = 0; i != 3000; ++i) {
    std::string text(random() % 300, ' ');
    const unsigned rarity = 1 + random() % 30;
    std::vector<std::size_t> expected;
    for (std::size_t at = 0; at != text.size(); ++at) {
      if (random() % rarity != 0) continue;
      text[at] = "\r\n:\t\0\x7f"[random() % 6];
      expected.push_back(at);
    }
    EXPECT_EQ(MarksOf(text.data(), text.size()), expected);
  }
}

TEST(HttpText, BlanksAreTrimmed) {
  EXPECT_EQ(TrimBlanks(" a"), "a");
  EXPECT_EQ(TrimBlanks("a"), "a");
  EXPECT_EQ(TrimBlanks(" a b\t"), "a b");
  EXPECT_EQ(TrimBlanks(" \ta"), "a");
  EXPECT_EQ(TrimBlanks("\t \xe4 "), "\xe4");
  EXPECT_EQ(TrimBlanks(" \xe4\xff"), "\xe4\xff");
  EXPECT_EQ(TrimBlanks(" "), "");
  EXPECT_EQ(TrimBlanks(" \t "), "");
  EXPECT_EQ(TrimBlanks(""), "");
}

TEST(HttpText, MembersOfLists) {
  using Members = std::vector<std::string>;
  const auto members_of = [](std::string_view list) {
    Members members;
    ForEachListMember(list, [&](auto member) { members.emplace_back(member); });
    return members;
  };
  EXPECT_EQ(members_of("a"), Members({"a"}));
  EXPECT_EQ(members_of(" a ,b c,\td "), Members({"a", "b c", "d"}));
  EXPECT_EQ(members_of(", ,a,"), Members({"", "", "a", ""}));
  EXPECT_EQ(members_of(""), Members({""}));
}

TEST(HttpTargets, PathsOfAllForms) {
  EXPECT_EQ(PathOfTarget("/a/b"), "/a/b");
  EXPECT_EQ(PathOfTarget("/a?b/c"), "/a");
  EXPECT_EQ(PathOfTarget("/a#b?c"), "/a");
  EXPECT_EQ(PathOfTarget("/a?b#c"), "/a");
  EXPECT_EQ(PathOfTarget("http://host/a?b"), "/a");
  EXPECT_EQ(PathOfTarget("HTTP://host:80/a"), "/a");
  EXPECT_EQ(PathOfTarget("https://host/a?b"), "/a");
  EXPECT_EQ(PathOfTarget("HTTPS://host"), "/");
  EXPECT_EQ(PathOfTarget("http://host"), "/");
  EXPECT_EQ(PathOfTarget("http://host?a/b"), "/");
  EXPECT_EQ(PathOfTarget("http://host", "*"), "*");
  EXPECT_EQ(PathOfTarget("http://host/", "*"), "/");
  EXPECT_EQ(PathOfTarget("http://host?a/b", "*"), "/");
  EXPECT_EQ(PathOfTarget("*"), "*");
  EXPECT_EQ(PathOfTarget("?"), "");
  EXPECT_EQ(PathOfTarget(""), "");
}

TEST(HttpTargets, TheAbsoluteFormNamesAHost) {
  for (const char* good :
       {"http://h", "https://h/a?b#c", "HTTP://h:80?a", "http://[::1]:80/",
        "http://a_b.c#d", "https://h/a@b"}) {
    EXPECT_TRUE(IsAbsoluteTarget(good)) << good;
  }
  for (const char* bad :
       {"", "h", "*", "/http://h", "http:/h", "http:h", "ftp://h/", "http://",
        "http:///a", "https://?a", "http://:80/", "http://u@h/", "http://h^"}) {
    EXPECT_FALSE(IsAbsoluteTarget(bad)) << bad;
  }
}

TEST(HttpTargets, Queries) {
  EXPECT_EQ(QueryOfTarget("/a?b=c"), "b=c");
  EXPECT_EQ(QueryOfTarget("/a?b?c#d"), "b?c");
  EXPECT_EQ(QueryOfTarget("/a#b?c"), "");
  EXPECT_EQ(QueryOfTarget("http://host?a/b"), "a/b");
  EXPECT_EQ(QueryOfTarget("/a"), "");
  EXPECT_EQ(QueryOfTarget(""), "");
}

}  // namespace
}  // namespace flare::rpc
