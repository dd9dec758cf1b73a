// The servers of a MemcachedClient, each of which has a part of the keys.
#ifndef FLARE_RPC_MEMCACHED_MEMCACHED_SERVERS_H_
#define FLARE_RPC_MEMCACHED_MEMCACHED_SERVERS_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/memcached/ketama_ring.h"
#include "flare/rpc/memcached/memcached_connector.h"
#include "flare/rpc/memcached_client_options.h"
#include "flare/rpc/memcached_command.h"

namespace flare::rpc {

// Thread-safe.
class MemcachedServers {
 public:
  using Result = MemcachedConnector::Result;

  // See MemcachedClient::Open().
  static Expected<std::shared_ptr<MemcachedServers>, flare::Status> Make(
      std::string_view list, const MemcachedClientOptions& options);

  const MemcachedClientOptions& options() const { return options_; }

  // These block.
  Result Execute(const MemcachedCommand& command, const WaitLimit& limit) const;
  std::vector<Result> ExecuteAll(const std::vector<MemcachedCommand>& commands,
                                 const WaitLimit& limit) const;

 private:
  // Commands for one server.
  struct Part {
    MemcachedConnector::Commands commands;
    std::vector<std::size_t> places;  // Among all.
  };

  MemcachedServers(const std::vector<std::string>& addresses,
                   const MemcachedClientOptions& options);

  flare::Status Check(const MemcachedCommand& command) const;
  void ExecutePart(std::size_t server, const Part& part, const WaitLimit& limit,
                   std::vector<Result>* results) const;

  const MemcachedClientOptions options_;
  const KetamaRing ring_;
  std::vector<std::shared_ptr<MemcachedConnector>> connectors_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_MEMCACHED_MEMCACHED_SERVERS_H_
