#include "flare/rpc/memcached_client.h"

#include <optional>
#include <utility>

#include "flare/fiber/async.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/memcached/memcached_servers.h"

namespace flare {
namespace {

Status MemcachedIsNotOpen() {
  return Status(rpc::MEMCACHED_INVALID_COMMAND,
                "the client isn't open (MemcachedClient::Open)");
}

rpc::WaitLimit MemcachedLimitOf(const MemcachedCallOptions& call,
                                const MemcachedClientOptions& client) {
  return rpc::WaitLimit::In(call.timeout.value_or(client.timeout));
}

}  // namespace

Status MemcachedClient::Open(std::string_view servers, const Options& options) {
  auto made = rpc::MemcachedServers::Make(servers, options);
  if (!made) return made.error();
  servers_ = *std::move(made);
  return {};
}

MemcachedClient::Result MemcachedClient::Execute(
    const MemcachedCommand& command, const CallOptions& options) const {
  const auto servers = servers_;  // The client may go meanwhile.
  if (servers == nullptr) return MemcachedIsNotOpen();
  return servers->Execute(command,
                          MemcachedLimitOf(options, servers->options()));
}

MemcachedClient::Results MemcachedClient::ExecuteAll(
    const std::vector<MemcachedCommand>& commands,
    const CallOptions& options) const {
  const auto servers = servers_;
  if (servers == nullptr) {
    return Results(commands.size(), Result(MemcachedIsNotOpen()));
  }
  return servers->ExecuteAll(commands,
                             MemcachedLimitOf(options, servers->options()));
}

Future<MemcachedClient::Result> MemcachedClient::AsyncExecute(
    MemcachedCommand command, const CallOptions& options) const {
  return fiber::Async([client = *this, command = std::move(command), options] {
    return client.Execute(command, options);
  });
}

Future<MemcachedClient::Results> MemcachedClient::AsyncExecuteAll(
    std::vector<MemcachedCommand> commands, const CallOptions& options) const {
  return fiber::Async(
      [client = *this, commands = std::move(commands), options] {
        return client.ExecuteAll(commands, options);
      });
}

// --- by name -----------------------------------------------------------------

MemcachedClient::Result MemcachedClient::Get(std::string_view key,
                                             const CallOptions& options) const {
  return Execute(MemcachedCommand::Get(key), options);
}

MemcachedClient::Result MemcachedClient::GetAndTouch(
    std::string_view key, Seconds ttl, const CallOptions& options) const {
  return Execute(MemcachedCommand::GetAndTouch(key, ttl), options);
}

MemcachedClient::Result MemcachedClient::Touch(
    std::string_view key, Seconds ttl, const CallOptions& options) const {
  return Execute(MemcachedCommand::Touch(key, ttl), options);
}

MemcachedClient::Result MemcachedClient::Set(std::string_view key,
                                             std::string_view value,
                                             const StoreOptions& store,
                                             const CallOptions& options) const {
  return Execute(MemcachedCommand::Set(key, value, store), options);
}

MemcachedClient::Result MemcachedClient::Add(std::string_view key,
                                             std::string_view value,
                                             const StoreOptions& store,
                                             const CallOptions& options) const {
  return Execute(MemcachedCommand::Add(key, value, store), options);
}

MemcachedClient::Result MemcachedClient::Replace(
    std::string_view key, std::string_view value, const StoreOptions& store,
    const CallOptions& options) const {
  return Execute(MemcachedCommand::Replace(key, value, store), options);
}

MemcachedClient::Result MemcachedClient::Append(
    std::string_view key, std::string_view value,
    const CallOptions& options) const {
  return Execute(MemcachedCommand::Append(key, value), options);
}

MemcachedClient::Result MemcachedClient::Prepend(
    std::string_view key, std::string_view value,
    const CallOptions& options) const {
  return Execute(MemcachedCommand::Prepend(key, value), options);
}

MemcachedClient::Result MemcachedClient::Delete(
    std::string_view key, std::optional<std::uint64_t> cas,
    const CallOptions& options) const {
  return Execute(MemcachedCommand::Delete(key, cas), options);
}

MemcachedClient::Result MemcachedClient::Increment(
    std::string_view key, std::uint64_t by, const CountOptions& count,
    const CallOptions& options) const {
  return Execute(MemcachedCommand::Increment(key, by, count), options);
}

MemcachedClient::Result MemcachedClient::Decrement(
    std::string_view key, std::uint64_t by, const CountOptions& count,
    const CallOptions& options) const {
  return Execute(MemcachedCommand::Decrement(key, by, count), options);
}

MemcachedClient::Results MemcachedClient::MultiGet(
    const std::vector<std::string>& keys, const CallOptions& options) const {
  std::vector<MemcachedCommand> commands;
  commands.reserve(keys.size());
  for (const std::string& key : keys) {
    commands.push_back(MemcachedCommand::Get(key));
  }
  return ExecuteAll(commands, options);
}

const char* MemcachedClient::ErrorCodeToString(int code) {
#define FLARE_MEMCACHED_ERROR(name) \
  case name:                        \
    return #name
  switch (code) {
    FLARE_MEMCACHED_ERROR(MEMCACHED_INVALID_SERVERS);
    FLARE_MEMCACHED_ERROR(MEMCACHED_INVALID_COMMAND);
    FLARE_MEMCACHED_ERROR(MEMCACHED_FAIL_TO_CONNECT);
    FLARE_MEMCACHED_ERROR(MEMCACHED_REFUSED);
    FLARE_MEMCACHED_ERROR(MEMCACHED_OVERLOADED);
    FLARE_MEMCACHED_ERROR(MEMCACHED_SHUTDOWN);
    FLARE_MEMCACHED_ERROR(MEMCACHED_TIMEOUT_UNSENT);
    FLARE_MEMCACHED_ERROR(MEMCACHED_CANCELLED_UNSENT);
    FLARE_MEMCACHED_ERROR(MEMCACHED_ERROR_REPLY);
    FLARE_MEMCACHED_ERROR(MEMCACHED_SERVER_ERROR);
    FLARE_MEMCACHED_ERROR(MEMCACHED_TIMEOUT);
    FLARE_MEMCACHED_ERROR(MEMCACHED_CANCELLED);
    FLARE_MEMCACHED_ERROR(MEMCACHED_CONNECTION_LOST);
    FLARE_MEMCACHED_ERROR(MEMCACHED_MALFORMED_REPLY);
  }
#undef FLARE_MEMCACHED_ERROR
  return "MEMCACHED_UNKNOWN";
}

}  // namespace flare
