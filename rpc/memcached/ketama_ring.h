// Says which of several servers has a key: by consistent hashing, so that few
// keys move when a server is added or taken out. The ring is that of
// libmemcached with MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED and MD5, which clients
// of other languages use, too: they find the same servers.
//
//   const KetamaRing ring({"10.0.0.1:11211", "10.0.0.2:11211"});
//   Ask(servers[ring.Find(key)]);
//
// Immutable. Nothing blocks.
#ifndef FLARE_RPC_MEMCACHED_KETAMA_RING_H_
#define FLARE_RPC_MEMCACHED_KETAMA_RING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flare::rpc {

class KetamaRing {
 public:
  // `servers`: at least one; with their ports.
  explicit KetamaRing(const std::vector<std::string>& servers);

  // Returns the index of the server.
  std::size_t Find(std::string_view key) const;

 private:
  struct Point {
    std::uint32_t hash;
    std::uint32_t server;
  };

  std::vector<Point> points_;  // By their hashes. Empty: one server.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_MEMCACHED_KETAMA_RING_H_
