#include "flare/rpc/access/access_rules.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "flare/base/percent.h"
#include "flare/base/string.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/json_scanner.h"

namespace flare::rpc {

namespace {

bool IsMethodChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || c == '_' || c == '.';
}

// The plain form of a path, as handlers may read it: without percent-escapes.
// False: it has a backslash, an escaped slash or zero byte, or a segment that
// is ".", "..", or empty and not the last, which handlers read differently.
bool ToPlainPath(std::string_view path, std::string* plain) {
  for (std::size_t i = 0; i != path.size(); ++i) {
    const auto escaped = PercentEscapeAt(path, i);
    const char c = escaped.value_or(path[i]);
    if (c == '\\' || (escaped && (c == '/' || c == '\0'))) return false;
    plain->push_back(c);
    if (escaped) i += 2;
  }
  // Behind the slash that it begins with.
  for (std::string_view rest = std::string_view(*plain).substr(1);
       !rest.empty();) {
    const std::string_view segment = rest.substr(0, rest.find('/'));
    if (segment.empty() || segment == "." || segment == "..") return false;
    rest.remove_prefix(std::min(rest.size(), segment.size() + 1));
  }
  return true;
}

}  // namespace

// --- matching --------------------------------------------------------------

bool AccessRules::Pattern::Matches(std::string_view text) const {
  if (!has_star) return text == begin;
  return text.size() >= begin.size() + end.size() && text.starts_with(begin) &&
         text.ends_with(end);
}

bool AccessRules::Who::Matches(const AccessCaller& caller) const {
  if (kind == Kind::kEverybody) return true;
  if (kind == Kind::kAuthenticated) return !caller.anonymous();
  if (kind == Kind::kIdentity) {
    return !caller.identity.empty() && pattern.Matches(caller.identity);
  }
  const PeerIdentity* const shown = caller.certificate;
  if (shown == nullptr) return false;
  const auto any_of = [this](const std::vector<std::string>& names) {
    return std::any_of(
        names.begin(), names.end(),
        [this](const std::string& name) { return pattern.Matches(name); });
  };
  switch (kind) {
    case Kind::kSubject:
      return pattern.Matches(shown->subject);
    case Kind::kDns:  // The pattern is in lower case.
      return std::any_of(shown->dns_names.begin(), shown->dns_names.end(),
                         [this](const std::string& name) {
                           return pattern.Matches(ToLower(name));
                         });
    case Kind::kIp:
      return any_of(shown->ip_addresses);
    case Kind::kEmail:
      return any_of(shown->emails);
    case Kind::kUri:
      return any_of(shown->uris);
    default:
      return false;
  }
}

bool AccessRules::Allows(const AccessCaller& caller,
                         std::string_view method) const {
  std::string plain;
  if (method.starts_with('/') && has_paths_) {
    if (!ToPlainPath(method, &plain)) return false;
    method = plain;
  }
  for (const Rule& rule : rules_) {
    const bool is_for_it =
        std::any_of(rule.methods.begin(), rule.methods.end(),
                    [&](const Pattern& p) { return p.Matches(method); }) &&
        std::any_of(rule.who.begin(), rule.who.end(),
                    [&](const Who& who) { return who.Matches(caller); });
    if (is_for_it) return rule.allow;
  }
  return false;
}

// --- the file --------------------------------------------------------------

class AccessRules::Parser {
 public:
  explicit Parser(std::string_view text) : json_(text) {}

  bool Parse(std::vector<Rule>* rules) {
    if (!json_.IsUtf8()) return json_.Fail("the file isn't UTF-8");
    if (!ReadFile(rules)) return false;
    return json_.AtEnd() || json_.Fail("expects the end of the file");
  }
  const std::string& error() const { return json_.error(); }

 private:
  using Kind = JsonScanner::Kind;

  bool ReadFile(std::vector<Rule>* rules) {
    if (!json_.Take('{')) return json_.Fail("expects {\"rules\": [...]}");
    bool found = false;
    while (!json_.Take('}')) {
      const std::size_t at = json_.NextPosition();
      std::string_view key;
      if (!json_.ReadKey(&key)) return false;
      if (key != "rules") return json_.FailAtUnknown(at, key, "rules");
      if (std::exchange(found, true)) return json_.FailAt(at, "rules: twice");
      if (!ReadRules(rules) || !json_.PassComma('}')) return false;
    }
    return found || json_.Fail("there is no \"rules\"");
  }

  bool ReadRules(std::vector<Rule>* rules) {
    if (!json_.Take('[')) return json_.Fail("rules: expects a list");
    while (!json_.Take(']')) {
      Rule rule;
      if (!ReadRule(&rule) || !json_.PassComma(']')) return false;
      rules->push_back(std::move(rule));
    }
    return true;
  }

  bool ReadRule(Rule* rule) {
    const std::size_t begin = json_.NextPosition();
    if (!json_.Take('{')) {
      return json_.Fail("expects a rule: {\"who\": ..., \"method\": ...}");
    }
    bool has_allow = false;
    while (!json_.Take('}')) {
      const std::size_t at = json_.NextPosition();
      std::string_view name;
      if (!json_.ReadKey(&name)) return false;
      const std::string key(name);
      bool read = false;
      if (key == "who") {
        if (!rule->who.empty()) return json_.FailAt(at, "who: twice");
        read = ReadTexts(key, [&](std::string_view text, std::string* why) {
          return AddWho(text, rule, why);
        });
      } else if (key == "method") {
        if (!rule->methods.empty()) return json_.FailAt(at, "method: twice");
        read = ReadTexts(key, [&](std::string_view text, std::string* why) {
          return AddMethod(text, rule, why);
        });
      } else if (key == "allow") {
        if (std::exchange(has_allow, true))
          return json_.FailAt(at, "allow: twice");
        read = ReadAllow(&rule->allow);
      } else {
        return json_.FailAtUnknown(at, key, "who, method, allow");
      }
      if (!read || !json_.PassComma('}')) return false;
    }
    if (rule->who.empty())
      return json_.FailAt(begin, "the rule has no \"who\"");
    if (rule->methods.empty()) {
      return json_.FailAt(begin, "the rule has no \"method\"");
    }
    return true;
  }

  bool ReadAllow(bool* allow) {
    const Kind kind = json_.Peek();
    if (kind != Kind::kTrue && kind != Kind::kFalse) {
      return json_.Fail("allow: expects true or false");
    }
    *allow = kind == Kind::kTrue;
    json_.PassWord(kind);
    return true;
  }

  // A text, or a list of at least one; add(text, &why) takes each.
  template <class Add>
  bool ReadTexts(const std::string& key, const Add& add) {
    if (!json_.Take('[')) return ReadText(key, add);
    const std::size_t begin = json_.NextPosition();
    if (json_.Take(']'))
      return json_.FailAt(begin, key + ": the list is empty");
    do {
      if (!ReadText(key, add) || !json_.PassComma(']')) return false;
    } while (!json_.Take(']'));
    return true;
  }

  template <class Add>
  bool ReadText(const std::string& key, const Add& add) {
    const std::size_t at = json_.NextPosition();
    if (json_.Peek() != Kind::kString) {
      return json_.Fail(key + ": expects a text, or a list of texts");
    }
    std::string_view text;
    if (!json_.ReadString(&text)) return false;
    std::string why;
    const std::string copy(text);
    return add(copy, &why) ||
           json_.FailAt(at, key + ": \"" + copy + "\" " + why);
  }

  static bool AddWho(std::string_view text, Rule* rule, std::string* why) {
    if (text == "*") {
      rule->who.push_back({AccessRules::Kind::kEverybody, {}});
      return true;
    }
    if (text == "authenticated") {
      rule->who.push_back({AccessRules::Kind::kAuthenticated, {}});
      return true;
    }
    struct Prefix {
      std::string_view text;
      AccessRules::Kind kind;
    };
    constexpr std::array<Prefix, 6> kPrefixes{{
        {"identity:", AccessRules::Kind::kIdentity},
        {"subject:", AccessRules::Kind::kSubject},
        {"dns:", AccessRules::Kind::kDns},
        {"ip:", AccessRules::Kind::kIp},
        {"email:", AccessRules::Kind::kEmail},
        {"uri:", AccessRules::Kind::kUri},
    }};
    std::optional<AccessRules::Kind> kind;
    if (text.starts_with("spiffe://")) kind = AccessRules::Kind::kUri;
    for (const Prefix& prefix : kPrefixes) {
      if (kind || !text.starts_with(prefix.text)) continue;
      kind = prefix.kind;
      text.remove_prefix(prefix.text.size());
    }
    if (!kind) {
      *why =
          "is none of *, authenticated, spiffe://..., identity:..., "
          "subject:..., dns:..., ip:..., email:..., uri:...";
      return false;
    }
    std::string lower;
    if (kind == AccessRules::Kind::kDns) text = lower = ToLower(text);
    Pattern pattern;
    if (!ToPattern(text, &pattern, why)) return false;
    rule->who.push_back({*kind, std::move(pattern)});
    return true;
  }

  // A star only behind a whole service, package or folder: "a.B*" would be for
  // a.Bother, too.
  static bool AddMethod(std::string_view text, Rule* rule, std::string* why) {
    Pattern pattern;
    if (!ToPattern(text, &pattern, why)) return false;
    const bool is_path = text.starts_with('/');
    if (pattern.has_star && text != "*" &&
        (!pattern.end.empty() ||
         !pattern.begin.ends_with(is_path ? '/' : '.'))) {
      *why =
          "has its * elsewhere than alone, or at the end behind a dot or (of a "
          "path) a slash";
      return false;
    }
    if (!is_path && text != "*" &&
        (!std::all_of(pattern.begin.begin(), pattern.begin.end(),
                      IsMethodChar) ||
         pattern.begin.find('.') == std::string::npos)) {
      *why =
          "is none of *, package.Service.Method, package.Service.*, /path, "
          "/path/*";
      return false;
    }
    if (is_path && !ToPlain(&pattern, why)) return false;
    rule->methods.push_back(std::move(pattern));
    return true;
  }

  static bool ToPlain(Pattern* path, std::string* why) {
    std::string plain;
    if (!ToPlainPath(path->begin, &plain)) {
      *why =
          "has a backslash, an escaped slash or zero byte, or a segment that "
          "is empty, \".\" or \"..\": such paths are denied to everybody";
      return false;
    }
    path->begin = std::move(plain);
    return true;
  }

  static bool ToPattern(std::string_view text, Pattern* pattern,
                        std::string* why) {
    if (text.empty()) {
      *why = "names nobody and nothing";
      return false;
    }
    const std::size_t star = text.find('*');
    if (star != text.rfind('*')) {
      *why = "has more than one *";
      return false;
    }
    pattern->has_star = star != std::string_view::npos;
    pattern->begin = text.substr(0, star);
    if (pattern->has_star) pattern->end = text.substr(star + 1);
    return true;
  }

  JsonScanner json_;
};

Expected<AccessRules> AccessRules::Parse(std::string_view json) {
  AccessRules rules;
  Parser parser(json);
  if (!parser.Parse(&rules.rules_)) {
    return flare::Status(STATUS_FAILED, parser.error());
  }
  for (const Rule& rule : rules.rules_) {
    for (const Pattern& pattern : rule.methods) {
      rules.has_paths_ |= pattern.begin.starts_with('/');
    }
  }
  return rules;
}

}  // namespace flare::rpc
