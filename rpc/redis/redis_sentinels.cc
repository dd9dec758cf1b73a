#include "flare/rpc/redis/redis_sentinels.h"

#include <cstdint>
#include <utility>

#include "flare/base/clock.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/redis/redis_connector.h"
#include "flare/rpc/redis/redis_request.h"
#include "flare/rpc/redis/redis_slot_map.h"

namespace flare::rpc {
namespace {

RedisClientOptions OptionsForSentinels(RedisClientOptions options) {
  options.user = options.sentinel_user;
  options.password = options.sentinel_password;
  options.database = 0;
  options.resp3 = false;
  return options;
}

}  // namespace

RedisSentinels::RedisSentinels(RedisUri uri, RedisClientOptions options)
    : uri_(std::move(uri)), options_(OptionsForSentinels(std::move(options))) {}

RedisSentinels::Address RedisSentinels::FindMaster() {
  // relaxed: any number does.
  const std::size_t first = first_.load(std::memory_order_relaxed);
  const std::size_t count = uri_.addresses.size();
  const std::int64_t end_ns =
      SaturatingAdd(NowNs(), ToNs(options_.connect_timeout));
  bool all_refuse = true;
  std::string failures;
  for (std::size_t i = 0; i != count; ++i) {
    const std::size_t at = (first + i) % count;
    const std::chrono::nanoseconds left(end_ns - NowNs());
    const auto sentinels_left = static_cast<std::int64_t>(count - i);
    Address address = Ask(uri_.addresses[at], left / sentinels_left);
    if (address) {
      // relaxed: any number does.
      first_.store(at, std::memory_order_relaxed);
      return address;
    }
    const int code = address.error().code();
    if (code == REDIS_SHUTDOWN) return address;
    all_refuse &= code == REDIS_REFUSED;
    failures += (i == 0 ? "" : "; ") + address.error().message();
  }
  return flare::Status(all_refuse ? REDIS_REFUSED : REDIS_FAIL_TO_CONNECT,
                       "no sentinel names the master: " + failures);
}

void RedisSentinels::AskAnotherFirst() {
  // relaxed: any number does.
  first_.fetch_add(1, std::memory_order_relaxed);
}

RedisSentinels::Address RedisSentinels::Ask(const std::string& sentinel,
                                            std::chrono::nanoseconds limit) {
  RedisUri uri;
  uri.tls = uri_.tls;
  uri.addresses = {sentinel};
  const auto connector = RedisConnector::Create(uri, options_);
  const RedisCommand question{"SENTINEL", "GET-MASTER-ADDR-BY-NAME",
                              uri_.master};
  const auto exchanged = AskRedis(*connector, question, WaitLimit::In(limit));
  if (!exchanged) return exchanged.error();
  const RedisReply& reply = (*exchanged)->last;
  if (reply.is_error()) {
    return connector->Named(flare::Status(REDIS_REFUSED, reply.text()));
  }
  std::string master;
  if (reply.size() == 2) {
    master = RedisAddressOf(reply[0].text(), reply[1].text(), sentinel);
  }
  if (!master.empty()) return master;
  return connector->Named(flare::Status(
      REDIS_FAIL_TO_CONNECT, "it knows no master '" + uri_.master + "'"));
}

}  // namespace flare::rpc
