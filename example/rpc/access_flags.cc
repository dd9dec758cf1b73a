#include "example/rpc/access_flags.h"

#include <gflags/gflags.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/read_file.h"
#include "flare/base/string.h"
#include "flare/io/secrets.h"
#include "flare/rpc/rpc_status.h"

DEFINE_string(access_rules, "",
              "A file of rules that say which callers may call which methods "
              "(docs/security.md). It is read again when it changes.");
DEFINE_string(
    access_tokens, "",
    "A file with callers and the tokens that they show, as "
    "\"authorization: Bearer TOKEN\": a line \"NAME TOKEN\" for each. "
    "Calls with other tokens are refused; those without one are "
    "anonymous.");

namespace example {
namespace {

struct KnownCaller {
  std::string name;
  flare::io::SecretDigest token;
};

flare::Expected<std::vector<KnownCaller>, flare::Status> ReadTokens(
    const std::string& file) {
  constexpr std::size_t kMostBytes = 1 << 20;
  const auto text = flare::ReadFile(file, kMostBytes);
  if (!text) return text.error();
  std::vector<KnownCaller> callers;
  int number = 0;
  for (std::string_view line : flare::Split(*text, '\n')) {
    ++number;
    line = flare::Trim(line);
    if (line.empty() || line.front() == '#') continue;
    const std::size_t blank = line.find(' ');
    const std::string_view token =
        blank == line.npos ? "" : flare::Trim(line.substr(blank));
    if (token.empty() || token.find(' ') != token.npos) {
      // The line isn't quoted: it may have a token.
      return flare::Status(EINVAL, file + ':' + std::to_string(number) +
                                       ": a line is \"NAME TOKEN\", or begins "
                                       "with #");
    }
    callers.push_back(
        {std::string(line.substr(0, blank)), flare::io::SecretDigest(token)});
  }
  return callers;
}

flare::Expected<std::string> FindCaller(const std::vector<KnownCaller>& callers,
                                        const flare::CallCredentials& call) {
  const auto token = call.BearerToken();
  if (!token) return std::string();  // Anonymous.
  const flare::io::SecretDigest shown(*token);
  for (const KnownCaller& caller : callers) {
    if (caller.token == shown) return caller.name;
  }
  return flare::Status(flare::rpc::STATUS_UNAUTHENTICATED,
                       "the token is unknown");
}

}  // namespace

flare::Expected<std::shared_ptr<flare::AccessControl>, flare::Status>
AccessFromFlags() {
  if (FLAGS_access_rules.empty() && FLAGS_access_tokens.empty()) {
    return std::shared_ptr<flare::AccessControl>();
  }
  flare::AccessControlOptions options;
  options.rules_file = FLAGS_access_rules;
  if (!FLAGS_access_tokens.empty()) {
    auto callers = ReadTokens(FLAGS_access_tokens);
    if (!callers) {
      return flare::Status(callers.error().code(),
                           "--access_tokens: " + callers.error().message());
    }
    options.authenticate =
        [known = *std::move(callers)](const flare::CallCredentials& call) {
          return FindCaller(known, call);
        };
  }
  auto access = flare::AccessControl::Create(std::move(options));
  if (!access) {
    return flare::Status(access.error().code(),
                         "--access_rules: " + access.error().message());
  }
  return *std::move(access);
}

}  // namespace example
