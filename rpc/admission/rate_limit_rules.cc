#include "flare/rpc/admission/rate_limit_rules.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <system_error>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/json_scanner.h"

namespace flare::rpc {
namespace {

constexpr std::string_view kMetadataPrefix = "metadata:";
constexpr unsigned kMostCallers = 1'000'000;
constexpr unsigned kIpv4Bits = 32;
constexpr unsigned kIpv6Bits = 128;

bool IsOwnPage(std::string_view path) {
  return path == "/inspect" || path.starts_with("/inspect/") ||
         path == "/metrics";
}

bool IsPatternOfMethods(std::string_view text) {
  if (text == "*") return true;
  if (text.ends_with('*')) {
    text.remove_suffix(1);
    if (!text.ends_with(text.starts_with('/') ? '/' : '.')) return false;
  }
  return text.find('*') == std::string_view::npos &&
         (text.starts_with('/') || text.find('.') != std::string_view::npos);
}

class RateLimitParser {
 public:
  explicit RateLimitParser(std::string_view text) : json_(text) {}

  bool Parse(std::vector<RateLimit>* limits) {
    if (!json_.IsUtf8()) return json_.Fail("the file isn't UTF-8");
    if (!json_.Take('{')) return json_.Fail("expects {\"limits\": [...]}");
    bool found = false;
    while (!json_.Take('}')) {
      const std::size_t at = json_.NextPosition();
      std::string_view key;
      if (!json_.ReadKey(&key)) return false;
      if (key != "limits") return json_.FailAtUnknown(at, key, "limits");
      if (std::exchange(found, true)) return json_.FailAt(at, "limits: twice");
      if (!ReadLimits(limits) || !json_.PassComma('}')) return false;
    }
    if (!found) return json_.Fail("there is no \"limits\"");
    return json_.AtEnd() || json_.Fail("expects the end of the file");
  }
  const std::string& error() const { return json_.error(); }

 private:
  using Kind = JsonScanner::Kind;

  bool ReadLimits(std::vector<RateLimit>* limits) {
    if (!json_.Take('[')) return json_.Fail("limits: expects a list");
    while (!json_.Take(']')) {
      const std::size_t begin = json_.NextPosition();
      RateLimit limit;
      if (!ReadLimit(&limit)) return false;
      if (std::string mistake = MistakeOf(limit); !mistake.empty()) {
        return json_.FailAt(begin, mistake);
      }
      limits->push_back(std::move(limit));
      if (!json_.PassComma(']')) return false;
    }
    return true;
  }

  bool ReadLimit(RateLimit* limit) {
    if (!json_.Take('{')) {
      return json_.Fail("expects a limit: {\"name\": ..., \"rate\": ...}");
    }
    std::set<std::string> seen;
    while (!json_.Take('}')) {
      const std::size_t at = json_.NextPosition();
      std::string_view name;
      if (!json_.ReadKey(&name)) return false;
      const std::string key(name);
      if (!seen.insert(key).second) return json_.FailAt(at, key + ": twice");
      if (!ReadValue(key, at, limit) || !json_.PassComma('}')) return false;
    }
    return true;
  }

  bool ReadValue(const std::string& key, std::size_t at, RateLimit* limit) {
    if (key == "name") return ReadText(key, &limit->name);
    if (key == "method") return ReadMethods(&limit->methods);
    if (key == "per") return ReadPer(limit);
    if (key == "rate") return ReadNumber(key, &limit->rate);
    if (key == "burst") return ReadNumber(key, &limit->burst);
    if (key == "only_count") return ReadBool(key, &limit->only_count);
    if (key == "max_callers") {
      return ReadCount(key, 1, kMostCallers, &limit->max_callers);
    }
    if (key == "ipv4_prefix") {
      return ReadCount(key, 0, kIpv4Bits, &limit->ipv4_prefix);
    }
    if (key == "ipv6_prefix") {
      return ReadCount(key, 0, kIpv6Bits, &limit->ipv6_prefix);
    }
    return json_.FailAtUnknown(at, key,
                               "name, method, per, rate, burst, only_count, "
                               "ipv4_prefix, ipv6_prefix, max_callers");
  }

  // A whole number in these bounds.
  template <class T>
  bool ReadCount(const std::string& key, unsigned least, unsigned most,
                 T* count) {
    const std::size_t at = json_.NextPosition();
    double number = 0;
    if (!ReadNumber(key, &number)) return false;
    if (number != std::floor(number) || number < least || number > most) {
      return json_.FailAt(at, key + ": expects " + std::to_string(least) +
                                  " to " + std::to_string(most));
    }
    *count = static_cast<T>(number);
    return true;
  }

  bool ReadText(const std::string& key, std::string* text) {
    if (json_.Peek() != Kind::kString) {
      return json_.Fail(key + ": expects a text");
    }
    std::string_view value;
    if (!json_.ReadString(&value)) return false;
    *text = value;
    return true;
  }

  bool ReadMethods(std::vector<std::string>* methods) {
    methods->clear();
    if (!json_.Take('[')) return ReadText("method", &methods->emplace_back());
    while (!json_.Take(']')) {
      if (!ReadText("method", &methods->emplace_back()) ||
          !json_.PassComma(']')) {
        return false;
      }
    }
    return true;
  }

  bool ReadPer(RateLimit* limit) {
    const std::size_t at = json_.NextPosition();
    std::string text;
    if (!ReadText("per", &text)) return false;
    const std::pair<std::string_view, RateLimit::Per> known[] = {
        {"server", RateLimit::Per::kServer},
        {"method", RateLimit::Per::kMethod},
        {"caller", RateLimit::Per::kCaller},
        {"address", RateLimit::Per::kAddress}};
    for (const auto& [name, per] : known) {
      if (text != name) continue;
      limit->per = per;
      return true;
    }
    if (!text.starts_with(kMetadataPrefix)) {
      return json_.FailAt(at,
                          "per: \"" + text +
                              "\" is none of server, method, caller, address, "
                              "metadata:NAME");
    }
    limit->per = RateLimit::Per::kMetadata;
    limit->metadata = text.substr(kMetadataPrefix.size());
    return true;
  }

  bool ReadNumber(const std::string& key, double* number) {
    const std::size_t at = json_.NextPosition();
    std::string_view text;
    if (json_.Peek() != Kind::kNumber) {
      return json_.Fail(key + ": expects a number");
    }
    if (!json_.ReadNumber(&text)) return false;
    const auto result =
        std::from_chars(text.data(), text.data() + text.size(), *number);
    if (result.ec != std::errc() || result.ptr != text.data() + text.size()) {
      return json_.FailAt(at,
                          key + ": " + std::string(text) + " isn't a number");
    }
    return true;
  }

  bool ReadBool(const std::string& key, bool* value) {
    const Kind kind = json_.Peek();
    if (kind != Kind::kTrue && kind != Kind::kFalse) {
      return json_.Fail(key + ": expects true or false");
    }
    *value = kind == Kind::kTrue;
    json_.PassWord(kind);
    return true;
  }

  JsonScanner json_;
};

}  // namespace

Expected<std::vector<RateLimit>> ParseRateLimits(std::string_view json) {
  std::vector<RateLimit> limits;
  RateLimitParser parser(json);
  if (!parser.Parse(&limits)) {
    return flare::Status(STATUS_FAILED, parser.error());
  }
  return limits;
}

std::string MistakeOf(const RateLimit& limit) {
  if (limit.name.empty()) return "name: the limit has none";
  if (!(limit.rate >= 0.001 && limit.rate <= 1e6)) {
    return "rate: expects calls in a second, 0.001 to 1000000";
  }
  if (limit.burst != 0 &&
      !(limit.burst >= 1 && limit.burst <= limit.rate * 86'400)) {
    return "burst: expects at least 1, and at most the calls of a day";
  }
  if (limit.max_callers < 1 || limit.max_callers > kMostCallers) {
    return "max_callers: expects 1 to " + std::to_string(kMostCallers);
  }
  if (limit.ipv4_prefix > kIpv4Bits) return "ipv4_prefix: expects 0 to 32";
  if (limit.ipv6_prefix > kIpv6Bits) return "ipv6_prefix: expects 0 to 128";
  if (limit.methods.empty()) return "method: the list is empty";
  for (const std::string& pattern : limit.methods) {
    if (!IsPatternOfMethods(pattern)) {
      return "method: \"" + pattern +
             "\" is none of *, package.Service.Method, package.Service.*, "
             "/path, /path/*";
    }
  }
  const bool by_metadata = limit.per == RateLimit::Per::kMetadata;
  if (by_metadata && limit.metadata.empty()) {
    return "per: metadata: expects the name of an entry behind it";
  }
  if (by_metadata && limit.metadata != ToLower(limit.metadata)) {
    return "per: metadata: names of entries are in lower case, \"" +
           limit.metadata + "\" isn't";
  }
  if (!by_metadata && !limit.metadata.empty()) {
    return "metadata: the limit isn't by metadata";
  }
  return "";
}

bool IsLimitFor(const std::vector<std::string>& patterns,
                std::string_view method) {
  return std::any_of(
      patterns.begin(), patterns.end(), [&](std::string_view pattern) {
        if (pattern == "*") return !IsOwnPage(method);
        if (!pattern.ends_with('*')) return pattern == method;
        return method.starts_with(pattern.substr(0, pattern.size() - 1));
      });
}

}  // namespace flare::rpc
