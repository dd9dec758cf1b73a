// One connection of a MemcachedClient to a server, and the commands that go
// through it together: pipeline_connection.h has the rules.
#ifndef FLARE_RPC_MEMCACHED_MEMCACHED_CONNECTION_H_
#define FLARE_RPC_MEMCACHED_MEMCACHED_CONNECTION_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/io/transport.h"
#include "flare/rpc/memcached/memcached_reader.h"
#include "flare/rpc/memcached_client_options.h"
#include "flare/rpc/memcached_command.h"
#include "flare/rpc/pipeline/pipeline_connection.h"
#include "flare/rpc/pipeline/pipeline_exchange.h"

namespace flare::rpc {

struct MemcachedExchange final : PipelineExchange {
  // The kinds of the commands that `bytes` are. None at all: the bytes are a
  // question of the greeting, with one answer, which has no value.
  MemcachedExchange(Buffer bytes, std::vector<MemcachedCommand::Kind> of)
      : PipelineExchange(std::move(bytes), of.empty() ? 1 : of.size()),
        kinds(std::move(of)) {
    answers.reserve(expected);
  }

  // The next answer may be this.
  bool Expects(MemcachedAnswer::Code code) const;

  const std::vector<MemcachedCommand::Kind> kinds;
  std::vector<MemcachedAnswer> answers;
};

class MemcachedConnection final : public PipelineConnection {
 public:
  // Null `transport`: without TLS. To be started or closed.
  static RefPtr<MemcachedConnection> Make(
      const Endpoint& peer, std::unique_ptr<io::Transport> transport,
      const MemcachedClientOptions& options, std::weak_ptr<Owner> owner);
  // Only RefPtr's.
  ~MemcachedConnection() override = default;

 private:
  MemcachedConnection(const Endpoint& peer,
                      std::unique_ptr<io::Transport> transport,
                      const MemcachedClientOptions& options,
                      std::weak_ptr<Owner> owner);

  // io::StreamHandler.
  bool OnData(Buffer& in, std::size_t* need, std::string* error) override;

  // False: it answers no command.
  [[nodiscard]] bool TakeAnswer(MemcachedAnswer answer, std::string* error);

  MemcachedReader reader_;  // The callbacks'.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_MEMCACHED_MEMCACHED_CONNECTION_H_
