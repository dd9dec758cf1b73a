#include "flare/rpc/memcached/memcached_servers.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "flare/base/string.h"
#include "flare/fiber/task_group.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/pipeline/server_address.h"

namespace flare::rpc {
namespace {

constexpr std::uint16_t kMemcachedPort = 11211;

flare::Status BadMemcachedServers(std::string_view server,
                                  std::string_view why) {
  return flare::Status(
      MEMCACHED_INVALID_SERVERS,
      "servers of memcached, at \"" + OneLine(server) +
          "\": " + std::string(why) +
          "; they are like 10.0.0.1,cache.example.com:11211,unix:/path");
}

// Returns the fault.
std::string_view ReadMemcachedAddress(std::string_view text,
                                      std::string* address) {
  if (!text.starts_with("unix:")) {
    return ReadServerAddress(text, kMemcachedPort, address);
  }
  *address = text;
  return text == "unix:" ? "there is no path" : "";
}

// Other bytes would end the line in which they are sent.
bool IsMemcachedCredential(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != '\x7f';
  });
}

}  // namespace

Expected<std::shared_ptr<MemcachedServers>, flare::Status>
MemcachedServers::Make(std::string_view list,
                       const MemcachedClientOptions& options) {
  std::vector<std::string> addresses;
  for (std::string_view text : Split(list, ',', /*keep_empty=*/true)) {
    std::string address;
    if (auto why = ReadMemcachedAddress(text, &address); !why.empty()) {
      return BadMemcachedServers(text, why);
    }
    if (std::find(addresses.begin(), addresses.end(), address) !=
        addresses.end()) {
      return BadMemcachedServers(text, "it is there twice");
    }
    addresses.push_back(std::move(address));
  }
  if (!IsMemcachedCredential(options.username) ||
      !IsMemcachedCredential(options.password) ||
      options.username.empty() != options.password.empty()) {
    return flare::Status(
        MEMCACHED_INVALID_SERVERS,
        "the username or the password for memcached is missing, or has a space "
        "or a control character");
  }
  OpenClientSide();
  return std::shared_ptr<MemcachedServers>(
      new MemcachedServers(addresses, options));
}

MemcachedServers::MemcachedServers(const std::vector<std::string>& addresses,
                                   const MemcachedClientOptions& options)
    : options_(options), ring_(addresses) {
  for (const std::string& address : addresses) {
    connectors_.push_back(MemcachedConnector::Create(address, options));
  }
}

flare::Status MemcachedServers::Check(const MemcachedCommand& command) const {
  if (*command.fault() != '\0') {
    return flare::Status(MEMCACHED_INVALID_COMMAND, command.fault());
  }
  if (command.value_size() <= options_.max_value_size) return {};
  return flare::Status(MEMCACHED_INVALID_COMMAND,
                       "the value is larger than max_value_size");
}

MemcachedServers::Result MemcachedServers::Execute(
    const MemcachedCommand& command, const WaitLimit& limit) const {
  if (auto status = Check(command); !status.ok()) return status;
  MemcachedConnector& server = *connectors_[ring_.Find(command.key())];
  return std::move(server.Execute({&command}, limit).front());
}

std::vector<MemcachedServers::Result> MemcachedServers::ExecuteAll(
    const std::vector<MemcachedCommand>& commands,
    const WaitLimit& limit) const {
  std::vector<Result> results(commands.size());
  std::vector<Part> parts(connectors_.size());
  for (std::size_t i = 0; i != commands.size(); ++i) {
    if (auto status = Check(commands[i]); !status.ok()) {
      results[i] = std::move(status);
      continue;
    }
    Part& part = parts[ring_.Find(commands[i].key())];
    part.commands.push_back(&commands[i]);
    part.places.push_back(i);
  }
  std::vector<std::size_t> asked;
  for (std::size_t server = 0; server != parts.size(); ++server) {
    if (!parts[server].commands.empty()) asked.push_back(server);
  }
  if (asked.empty()) return results;
  fiber::TaskGroup others;
  for (std::size_t i = 1; i != asked.size(); ++i) {
    others.Spawn([&, server = asked[i]] {
      ExecutePart(server, parts[server], limit, &results);
    });
  }
  ExecutePart(asked[0], parts[asked[0]], limit, &results);
  static_cast<void>(others.Wait());  // Or throws.
  return results;
}

void MemcachedServers::ExecutePart(std::size_t server, const Part& part,
                                   const WaitLimit& limit,
                                   std::vector<Result>* results) const {
  auto own = connectors_[server]->Execute(part.commands, limit);
  for (std::size_t i = 0; i != own.size(); ++i) {
    (*results)[part.places[i]] = std::move(own[i]);
  }
}

}  // namespace flare::rpc
