#include "flare/rpc/memcached/ketama_ring.h"

#include <algorithm>
#include <array>

#include "flare/io/secrets.h"

namespace flare::rpc {
namespace {

// How often the name of a server is digested. A digest has four points. They
// are 40; 39 for 25 servers and some other numbers, as libmemcached calculates
// with these floats.
int DigestsOfServer(std::size_t servers) {
  const auto all = static_cast<float>(servers);
  const float digests = 1.0F / all * 160.0F / 4.0F * all;
  return static_cast<int>(static_cast<float>(digests + 0.0000000001));
}

using Md5Digest = std::array<unsigned char, 16>;

std::uint32_t PointOf(const Md5Digest& digest, std::size_t number) {
  std::uint32_t point = 0;
  for (std::size_t i = 4; i-- != 0;) {
    point = point << 8 | digest[4 * number + i];
  }
  return point;
}

}  // namespace

KetamaRing::KetamaRing(const std::vector<std::string>& servers) {
  if (servers.size() == 1) return;
  const int digests = DigestsOfServer(servers.size());
  for (std::uint32_t server = 0; server != servers.size(); ++server) {
    std::string_view name = servers[server];
    constexpr std::string_view kUsualPort = ":11211";
    if (name.ends_with(kUsualPort)) name.remove_suffix(kUsualPort.size());
    for (int i = 0; i != digests; ++i) {
      const Md5Digest digest =
          io::Md5Of(std::string(name) + '-' + std::to_string(i));
      for (std::size_t number = 0; number != 4; ++number) {
        points_.push_back({PointOf(digest, number), server});
      }
    }
  }
  std::sort(points_.begin(), points_.end(),
            [](const Point& a, const Point& b) { return a.hash < b.hash; });
}

std::size_t KetamaRing::Find(std::string_view key) const {
  if (points_.empty()) return 0;
  const std::uint32_t hash = PointOf(io::Md5Of(key), 0);
  auto next = std::lower_bound(
      points_.begin(), points_.end(), hash,
      [](const Point& point, std::uint32_t of) { return point.hash < of; });
  if (next == points_.end()) next = points_.begin();
  return next->server;
}

}  // namespace flare::rpc
