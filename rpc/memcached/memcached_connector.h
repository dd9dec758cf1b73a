// The connection of a MemcachedClient to one server, which all commands share.
//
//   connector->Run({&command}, limit, results);
#ifndef FLARE_RPC_MEMCACHED_MEMCACHED_CONNECTOR_H_
#define FLARE_RPC_MEMCACHED_MEMCACHED_CONNECTOR_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/transport.h"
#include "flare/rpc/call_cells.h"
#include "flare/rpc/client/wait_limit.h"
#include "flare/rpc/memcached/memcached_reader.h"
#include "flare/rpc/memcached_client_options.h"
#include "flare/rpc/memcached_command.h"
#include "flare/rpc/memcached_reply.h"
#include "flare/rpc/pipeline/pipeline_connector.h"

namespace flare::rpc {

// All functions are thread-safe.
class MemcachedConnector final : public PipelineConnector {
 public:
  using Result = Expected<MemcachedReply, flare::Status>;
  using Commands = std::vector<const MemcachedCommand*>;

  // `address`: host and port, or "unix:" and a path.
  static std::shared_ptr<MemcachedConnector> Create(
      const std::string& address, const MemcachedClientOptions& options);

  // Sends commands without faults, of which there is one at least, and waits
  // for the replies. Blocks. Errors name the server.
  std::vector<Result> Execute(const Commands& commands, const WaitLimit& limit);

  // The requests of all clients of the process, by server.
  static std::map<std::string, CallCells::Values> ReadCounters();

 private:
  MemcachedConnector(const std::string& address,
                     const MemcachedClientOptions& options);

  // PipelineConnector.
  Connection MakeConnection(const Endpoint& peer,
                            std::unique_ptr<io::Transport> transport,
                            Role role) override;
  flare::Status ShakeHands(const Connection& connection,
                           const WaitLimit& limit) override;

  flare::Status Authenticate(const Connection& connection,
                             const WaitLimit& limit);
  // The answer to a question of the greeting, which has one line.
  Expected<MemcachedAnswer, flare::Status> Ask(const std::string& question,
                                               const Connection& connection,
                                               const WaitLimit& limit);

  const MemcachedClientOptions options_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_MEMCACHED_MEMCACHED_CONNECTOR_H_
