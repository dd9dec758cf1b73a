#include "flare/rpc/redis_service.h"

#include <cerrno>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/own_request.h"
#include "flare/rpc/redis_server/redis_command_counters.h"

namespace flare {

const Endpoint& RedisPeer::endpoint() const {
  static const Endpoint none;
  return host_ == nullptr ? none : host_->peer();
}

const PeerIdentity* RedisPeer::identity() const {
  return host_ == nullptr ? nullptr : host_->peer_identity();
}

void RedisService::Fail(std::string what) {
  if (error_.ok()) error_ = Status(EINVAL, std::move(what));
}

RedisService& RedisService::Handle(std::string_view name, int arity,
                                   Handler handler) {
  std::string capitals(name);
  bool legal = !name.empty() && name.size() <= kMaxName;
  for (char& c : capitals) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
    legal = legal && c > ' ' && c < 0x7f;
  }
  const std::string why = WhyNot(capitals, legal, handler);
  if (!why.empty()) {
    Fail("the Redis command \"" + OneLine(name) + "\" " + why);
    return *this;
  }
  rpc::CallCells* const counters = rpc::RedisCommandCounters::Of(capitals);
  commands_.emplace(std::move(capitals),
                    Command{arity, std::move(handler), counters});
  return *this;
}

// Why a command can't have that handler; empty: it can.
std::string RedisService::WhyNot(const std::string& capitals, bool legal,
                                 const Handler& handler) const {
  if (!legal) {
    return "needs a name of 1 to " + std::to_string(kMaxName) +
           " visible characters of ASCII";
  }
  if (!handler) return "has an empty handler";
  if (IsFixed(capitals)) return "is answered by the library itself";
  return commands_.contains(capitals) ? "has a handler already" : "";
}

bool RedisService::IsFixed(std::string_view name) {
  for (const std::string_view fixed :
       {"AUTH", "DISCARD", "EXEC", "HELLO", "MULTI", "QUIT", "RESET"}) {
    if (name == fixed) return true;
  }
  return false;
}

RedisService& RedisService::HandleOthers(Handler handler) {
  if (!handler) Fail("HandleOthers() with an empty function");
  others_ = {.arity = 0,
             .handler = std::move(handler),
             .counters = rpc::RedisCommandCounters::Of("(other)")};
  return *this;
}

RedisService& RedisService::RequireAuth(Authenticator authenticator) {
  if (!authenticator) Fail("RequireAuth() with an empty function");
  authenticator_ = std::move(authenticator);
  return *this;
}

RedisService& RedisService::SetDatabases(int databases) {
  if (databases < 1) Fail("a Redis service has at least one database");
  databases_ = databases;
  return *this;
}

RedisService& RedisService::AllowTransactions(TransactionGuard guard) {
  if (!guard) Fail("AllowTransactions() with an empty function");
  guard_ = std::move(guard);
  return *this;
}

}  // namespace flare
