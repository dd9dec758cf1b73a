#include "flare/rpc/access/access_rules.h"

#include <string>
#include <string_view>
#include <utility>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

AccessRules Parsed(std::string_view json) {
  auto rules = AccessRules::Parse(json);
  EXPECT_TRUE(rules) << rules.error().ToString();
  return rules ? *std::move(rules) : AccessRules();
}

// Rules that consist of one with these members.
AccessRules Rule(std::string_view members) {
  return Parsed("{\"rules\": [{" + std::string(members) + "}]}");
}

std::string ErrorOf(std::string_view json) {
  const auto rules = AccessRules::Parse(json);
  EXPECT_FALSE(rules) << json;
  return rules ? "" : rules.error().message();
}

PeerIdentity Alice() {
  return {.verified = true,
          .subject = "CN=alice,O=Example",
          .dns_names = {"a.example", "B.Ops.example"},
          .ip_addresses = {"10.0.0.1"},
          .emails = {"alice@example.org"},
          .uris = {"spiffe://example.org/alice", "urn:alice"},
          .spiffe_id = "spiffe://example.org/alice"};
}

TEST(AccessRules, NothingIsAllowedByDefault) {
  const AccessRules none = Parsed(R"({"rules": []})");
  EXPECT_EQ(none.size(), 0u);
  EXPECT_FALSE(none.Allows({.identity = "alice"}, "a.B.C"));
  const AccessRules other = Rule(R"("who": "identity:bob", "method": "*")");
  EXPECT_EQ(other.size(), 1u);
  EXPECT_FALSE(other.Allows({.identity = "alice"}, "a.B.C"));
  EXPECT_FALSE(other.Allows({}, "a.B.C"));
  EXPECT_TRUE(other.Allows({.identity = "bob"}, "a.B.C"));
}

TEST(AccessRules, KnowsCallersByEachOfTheirNames) {
  const PeerIdentity alice = Alice();
  const AccessCaller caller{.certificate = &alice};
  for (const char* who :
       {"*", "authenticated", "subject:CN=alice,O=Example", "subject:CN=alice*",
        "dns:a.example", "dns:*.ops.EXAMPLE", "ip:10.0.0.1", "ip:10.0.*",
        "email:*@example.org", "uri:urn:alice", "spiffe://example.org/alice",
        "spiffe://example.org/*", "uri:spiffe://example.org/alice"}) {
    const std::string rule =
        R"("method": "*", "who": ")" + std::string(who) + '"';
    EXPECT_TRUE(Rule(rule).Allows(caller, "a.B.C")) << who;
    EXPECT_EQ(Rule(rule).Allows({}, "a.B.C"), who == std::string("*")) << who;
  }
  for (const char* who :
       {"identity:alice", "identity:*", "subject:CN=alice", "dns:ops.example",
        "dns:a.example*b", "ip:10.0.0.10", "email:alice", "uri:urn:alic",
        "spiffe://example.org/alice/*", "dns:spiffe://example.org/alice"}) {
    const std::string rule =
        R"("method": "*", "who": ")" + std::string(who) + '"';
    EXPECT_FALSE(Rule(rule).Allows(caller, "a.B.C")) << who;
  }
  const AccessCaller named{.identity = "team/alice"};
  EXPECT_TRUE(Rule(R"("who": "identity:team/*", "method": "*")")
                  .Allows(named, "a.B.C"));
  EXPECT_TRUE(
      Rule(R"("who": "authenticated", "method": "*")").Allows(named, "a.B.C"));
  EXPECT_FALSE(
      Rule(R"("who": "subject:*", "method": "*")").Allows(named, "a.B.C"));
}

TEST(AccessRules, KnowsMethodsAndPaths) {
  const auto allows = [](const char* pattern, std::string_view method) {
    return Rule(R"("who": "*", "method": ")" + std::string(pattern) + '"')
        .Allows({}, method);
  };
  EXPECT_TRUE(allows("*", "a.B.C"));
  EXPECT_TRUE(allows("*", "/any/path"));
  EXPECT_TRUE(allows("a.B.C", "a.B.C"));
  EXPECT_FALSE(allows("a.B.C", "a.B.CC"));
  EXPECT_TRUE(allows("a.B.*", "a.B.C"));
  EXPECT_FALSE(allows("a.B.*", "a.Bother.C"));
  EXPECT_TRUE(allows("a.*", "a.Bother.C"));
  EXPECT_TRUE(allows("/inspect/*", "/inspect/server"));
  EXPECT_FALSE(allows("/inspect/*", "/inspect"));
  EXPECT_TRUE(allows("/inspect", "/inspect"));
  EXPECT_FALSE(allows("a.B.*", "/a.B.C"));
}

// Handlers may decode the paths of requests.
TEST(AccessRules, ComparesPathsWithoutTheirEscapes) {
  const AccessRules rules = Parsed(R"({
    "rules": [
      {"who": "*", "method": "/pages/secret/*", "allow": false},
      {"who": "*", "method": ["/pages/*", "a.B.C"]}
    ]
  })");
  for (const char* path :
       {"/pages/x", "/%70ages/x", "/pages/%7e", "/pages/%20", "/pages/a%2",
        "/pages/100%", "/pages/...", "/pages/%252e%252e", "/pages/x/"}) {
    EXPECT_TRUE(rules.Allows({}, path)) << path;
  }
  for (const char* path :
       {"/pages/secret/x", "/pages/%73ecret/x", "/pages/secret%2Fx",
        "/pages/secret%5cx", "/pages/secret\\x", "/pages/./secret/x",
        "/pages/x/../secret/x", "/pages/%2e%2E/x", "/pages/..", "/pages/a%00",
        "/pages//secret/x", "//pages/x", "/pages/x//", "/pages//", "//"}) {
    EXPECT_FALSE(rules.Allows({}, path)) << path;
  }
  // Without a rule for paths all are the same.
  EXPECT_TRUE(Rule(R"("who": "*", "method": "*")").Allows({}, "/a%2Fb/.."));
}

TEST(AccessRules, TheFirstRuleForACallDecides) {
  const AccessRules rules = Parsed(R"({
    "rules": [
      {"who": ["identity:mallory", "identity:eve"], "method": "*",
       "allow": false},
      {"who": "*", "method": ["a.B.Open", "a.B.Health"]},
      {"who": "authenticated", "method": "a.B.*", "allow": true},
      {"who": "identity:alice", "method": "a.B.Never", "allow": false}
    ]
  })");
  EXPECT_EQ(rules.size(), 4u);
  EXPECT_TRUE(rules.Allows({}, "a.B.Open"));
  EXPECT_TRUE(rules.Allows({}, "a.B.Health"));
  EXPECT_FALSE(rules.Allows({}, "a.B.C"));
  EXPECT_FALSE(rules.Allows({.identity = "eve"}, "a.B.Open"));
  EXPECT_TRUE(rules.Allows({.identity = "alice"}, "a.B.Never"));
  EXPECT_FALSE(rules.Allows({.identity = "alice"}, "c.D.E"));
}

TEST(AccessRules, SaysWhereTheMistakeIs) {
  EXPECT_EQ(ErrorOf(""), "1:1: expects {\"rules\": [...]}");
  EXPECT_EQ(ErrorOf("{}"), "1:3: there is no \"rules\"");
  EXPECT_EQ(ErrorOf("{\"rule\": []}"), "1:2: unknown \"rule\"; known: rules");
  EXPECT_EQ(ErrorOf("{\"rules\": [],\n \"rules\": []}"), "2:2: rules: twice");
  EXPECT_EQ(ErrorOf("{\"rules\": 1}"), "1:11: rules: expects a list");
  EXPECT_EQ(ErrorOf("{\"rules\": [1]}"),
            "1:12: expects a rule: {\"who\": ..., \"method\": ...}");
  EXPECT_EQ(ErrorOf("{\"rules\": [\n  {\"method\": \"*\"}]}"),
            "2:3: the rule has no \"who\"");
  EXPECT_EQ(ErrorOf("{\"rules\": [\n  {\"who\": \"*\"}]}"),
            "2:3: the rule has no \"method\"");
  EXPECT_EQ(ErrorOf("{\"rules\": [{\"who\": \"*\", \"method\": []}]}"),
            "1:36: method: the list is empty");
  EXPECT_EQ(ErrorOf("{\"rules\": [{\"who\": \"*\", \"user\": 1}]}"),
            "1:25: unknown \"user\"; known: who, method, allow");
  EXPECT_EQ(ErrorOf("{\"rules\": [{\"who\": \"*\", \"who\": \"*\"}]}"),
            "1:25: who: twice");
  EXPECT_EQ(ErrorOf("{\"rules\": [{\"allow\": 1}]}"),
            "1:22: allow: expects true or false");
  EXPECT_EQ(ErrorOf("{\"rules\": [{\"allow\": true, \"allow\": true}]}"),
            "1:28: allow: twice");
  EXPECT_EQ(ErrorOf("{\"rules\": [{\"who\": 3}]}"),
            "1:20: who: expects a text, or a list of texts");
  EXPECT_EQ(ErrorOf("{\"rules\": []} x"), "1:15: expects the end of the file");
  EXPECT_EQ(ErrorOf("{\"rules\": [{\"who\": \"*\" \"method\": \"*\"}]}"),
            "1:24: expects a comma or }");
  EXPECT_EQ(ErrorOf("{\"rules\": [{\"who\": \"*\", \"method\": \"*\"}"),
            "1:39: expects a comma or ]");
  EXPECT_EQ(ErrorOf("{\"rules\": [\"\xff\"]}"), "1:1: the file isn't UTF-8");
}

TEST(AccessRules, TakesAllFormsOfACharacterForTheSame) {
  for (const char* rule :
       {"/caf\u00e9/a+b/*", "/caf%c3%a9/a%2bb/*", "/caf%C3%A9/a%2Bb/*"}) {
    SCOPED_TRACE(rule);
    const AccessRules rules = Parsed(
        std::string(R"({"rules": [{"who": "*", "allow": false, "method": ")") +
        rule + R"("}, {"who": "*", "method": "*"}]})");
    for (const char* path : {"/caf%c3%a9/a+b/x", "/caf%C3%A9/a%2bb/x",
                             "/caf%C3%a9/a%2Bb/x", "/caf\xc3\xa9/a+b/x"}) {
      EXPECT_FALSE(rules.Allows({}, path)) << path;
    }
    EXPECT_TRUE(rules.Allows({}, "/caf%c3%a9/a%20b/x"));
  }
}

TEST(AccessRules, RefusesPatternsThatMeanNothing) {
  const auto of_who = [](const std::string& who) {
    return ErrorOf("{\"rules\": [{\"method\": \"*\", \"who\": \"" + who +
                   "\"}]}");
  };
  EXPECT_EQ(of_who("alice"),
            "1:35: who: \"alice\" is none of *, authenticated, spiffe://..., "
            "identity:..., subject:..., dns:..., ip:..., email:..., uri:...");
  EXPECT_EQ(of_who("dns:*.a.*"),
            "1:35: who: \"dns:*.a.*\" has more than one *");
  EXPECT_EQ(of_who("identity:"),
            "1:35: who: \"identity:\" names nobody and nothing");
  const auto of_method = [](const std::string& method) {
    return ErrorOf("{\"rules\": [{\"who\": \"*\", \"method\": \"" + method +
                   "\"}]}");
  };
  for (const char* method : {"a.B*", "a.*.C", "/a*", "*.C", "a/*"}) {
    EXPECT_TRUE(of_method(method).ends_with(
        "has its * elsewhere than alone, or at the end behind a dot or (of a "
        "path) a slash"))
        << method;
  }
  for (const char* method : {"Method", "a.B/C", "a B.C"}) {
    EXPECT_TRUE(of_method(method).ends_with(
        "is none of *, package.Service.Method, package.Service.*, /path, "
        "/path/*"))
        << method;
  }
  EXPECT_TRUE(of_method("").ends_with("names nobody and nothing"));
  for (const char* method : {"/a//b", "//*", "/a/../b", "/a%2fb", "/a/%2e"}) {
    EXPECT_TRUE(of_method(method).ends_with("are denied to everybody"))
        << method;
  }
}

TEST(AccessRules, TextsMayHaveEscapes) {
  EXPECT_TRUE(Rule(R"("who": "identity:\u0061lice", "method": "\u002a")")
                  .Allows({.identity = "alice"}, "a.B.C"));
}

}  // namespace
}  // namespace flare::rpc
