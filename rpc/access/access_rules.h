// Rules that say which callers may call which methods, as a file in JSON has
// them (docs/security.md, "Rules").
//
//   {"rules": [
//     {"who": "spiffe://example.org/billing", "method": "shop.Orders.*"},
//     {"who": ["identity:alice", "dns:*.ops.example.org"], "method": "*"},
//     {"who": "*", "method": ["grpc.health.v1.Health.*", "/"]}
//   ]}
//
// The first rule that is for the caller and the method decides. A call for
// which there is none is denied.
#ifndef FLARE_RPC_ACCESS_ACCESS_RULES_H_
#define FLARE_RPC_ACCESS_ACCESS_RULES_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/io/tls_options.h"

namespace flare::rpc {

// The known facts about the caller of one call.
struct AccessCaller {
  // As the authentication says. Empty: nothing.
  std::string_view identity = {};
  // The identity in a verified certificate. Null: there is none.
  const PeerIdentity* certificate = nullptr;

  bool anonymous() const { return identity.empty() && certificate == nullptr; }
};

// Immutable; thread-safe. Nothing blocks.
class AccessRules {
 public:
  // A file may have so many bytes.
  static constexpr std::size_t kMaxBytes = 4 << 20;

  // Fails with a text that begins with the line and the column of the mistake:
  // "3:14: who: ...".
  static Expected<AccessRules> Parse(std::string_view json);

  // `method`: "package.Service.Method", or the path of an HTTP request. Linear
  // in the number of rules.
  bool Allows(const AccessCaller& caller, std::string_view method) const;

  std::size_t size() const { return rules_.size(); }

 private:
  class Parser;

  // A text with at most one '*', which is for any characters.
  struct Pattern {
    std::string begin;
    std::string end;
    bool has_star = false;

    bool Matches(std::string_view text) const;
  };
  enum class Kind {
    kEverybody,
    kAuthenticated,
    kIdentity,
    kSubject,
    kDns,
    kIp,
    kEmail,
    kUri,
  };
  struct Who {
    Kind kind;
    Pattern pattern;

    bool Matches(const AccessCaller& caller) const;
  };
  struct Rule {
    std::vector<Who> who;
    std::vector<Pattern> methods;
    bool allow = true;
  };

  std::vector<Rule> rules_;
  bool has_paths_ = false;  // Some rule is for paths of HTTP.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_ACCESS_ACCESS_RULES_H_
