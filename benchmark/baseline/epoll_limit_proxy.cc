// A TCP proxy that does no more than it must: a loop per thread that reads the
// input of one side and sends it to the other. It shows the kernel's limit for
// a proxy. docs/baselines.md
//
//   epoll_limit_proxy --port=5569 --threads=1 --forward_to=127.0.0.1:5567

#include <gflags/gflags.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "benchmark/baseline/event_loop.h"
#include "benchmark/baseline/program.h"
#include "benchmark/baseline/serving.h"
#include "flare/base/endpoint.h"
#include "flare/base/string.h"
#include "flare/io/resolver.h"
#include "flare/io/socket_options.h"
#include "glog/logging.h"

DEFINE_string(forward_to, "127.0.0.1:5567",
              "The servers of connections, in turn: host:port,...");

namespace baseline {
namespace {

// A read takes as much as ours does, by the same rule.
// docs/decisions/0007-copy-and-splice.md
constexpr std::size_t kPieceSize = 32 * 1024;
constexpr std::size_t kLargePieceSize = 128 * 1024;
constexpr int kPiecesAtATime = 8;  // Then it is another connection's turn.

class Upstreams {
 public:
  explicit Upstreams(std::vector<flare::Endpoint> all) : all_(std::move(all)) {}

  // A socket that is connecting to the next one; none if that fails at once.
  flare::io::UniqueFd Connect() {
    // relaxed: only the number matters.
    const std::size_t turn = next_.fetch_add(1, std::memory_order_relaxed);
    const flare::Endpoint& upstream = all_[turn % all_.size()];
    auto fd = flare::io::CreateStreamSocket(upstream.family());
    if (!fd) return {};
    flare::io::SetTcpNoDelay(fd->get());
    sockaddr_storage storage;
    const socklen_t length = upstream.ToSockaddr(&storage);
    if (::connect(fd->get(), reinterpret_cast<const sockaddr*>(&storage),
                  length) != 0 &&
        errno != EINPROGRESS) {
      PLOG_EVERY_N(WARNING, 100) << "can't connect to " << upstream.ToString();
      return {};
    }
    return *std::move(fd);
  }

 private:
  const std::vector<flare::Endpoint> all_;
  std::atomic<std::size_t> next_{0};
};

// One of the two sockets that bytes pass between. Both belong to the same loop,
// and close together, at the first end of either.
class Side final : public Watched {
 public:
  // A client's; makes its other side when it is adopted. `piece`: room for
  // kLargePieceSize bytes, the loop's. All must outlive this.
  Side(flare::io::UniqueFd fd, Upstreams* upstreams, char* piece,
       example::RequestCounter* pieces)
      : Watched(std::move(fd)),
        upstreams_(upstreams),
        piece_(piece),
        pieces_(pieces) {}

 private:
  void OnAdopted() override {
    if (other_ != nullptr) return;  // The upstream's.
    flare::io::UniqueFd fd = upstreams_->Connect();
    if (!fd) return Close();
    auto upstream =
        std::make_unique<Side>(std::move(fd), nullptr, piece_, pieces_);
    upstream->other_ = this;
    other_ = upstream.get();
    loop()->AdoptHere(std::move(upstream));
    if (other_->is_closed()) Close();
  }

  void OnEvents(std::uint32_t events) override {
    if (!rest_.empty()) {
      if (!Send({})) return Close();
      // Nothing has been read for us meanwhile.
      if (rest_.empty()) other_->AskAgain();
    }
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hung_up_ = true;
    if (hung_up_ || (events & EPOLLIN) != 0) PassOn();
  }

  void PassOn() {
    for (int i = 0; other_->rest_.empty(); ++i) {
      if (i == kPiecesAtATime) return AskAgain();
      const std::size_t most = large_pieces_ ? kLargePieceSize : kPieceSize;
      const ssize_t n = ::recv(fd(), piece_, most, 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return;
      if (n <= 0) return Close();
      pieces_->Add();
      const auto size = static_cast<std::size_t>(n);
      if (!other_->Send({piece_, size})) return Close();
      ChoosePieceSize(size, size == most);
      // Emptied, except for the end, which makes no other edge.
      if (size < most && !hung_up_) return;
    }
  }

  void ChoosePieceSize(std::size_t size, bool in_full) {
    in_a_row_ += size;
    if (!other_->rest_.empty() || in_a_row_ >= kLargePieceSize) {
      large_pieces_ = false;
    } else if (!in_full && in_a_row_ > kPieceSize) {
      large_pieces_ = true;
    }
    if (!in_full) in_a_row_ = 0;
  }

  // Sends the rest and then these. False: the connection is broken.
  bool Send(std::string_view bytes) {
    if (!rest_.empty()) {
      rest_ += bytes;
      bytes = rest_;
    }
    std::size_t sent = 0;
    while (sent != bytes.size()) {
      const ssize_t n =
          ::send(fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) break;
      if (n < 0) return false;
      sent += static_cast<std::size_t>(n);
    }
    rest_ = std::string(bytes.substr(sent));  // Mostly nothing.
    return true;
  }

  void Close() {
    for (Side* side : {this, other_}) {
      if (side == nullptr || side->is_closed()) continue;
      side->CloseFd();
      side->Discard();
    }
  }

  Upstreams* const upstreams_;
  char* const piece_;
  example::RequestCounter* const pieces_;
  Side* other_ = nullptr;
  bool hung_up_ = false;
  bool large_pieces_ = false;
  std::size_t in_a_row_ = 0;  // Bytes that came without a short read.
  std::string rest_;          // Bytes that the socket has not taken yet.
};

flare::Expected<std::vector<flare::Endpoint>, flare::Status>
UpstreamsFromFlags() {
  std::vector<flare::Endpoint> upstreams;
  for (const std::string_view name : flare::Split(FLAGS_forward_to, ',')) {
    const auto found = flare::io::Resolve(name);
    if (!found) return found.error();
    upstreams.push_back(found->front());
  }
  if (!upstreams.empty()) return upstreams;
  return flare::Status(EINVAL, "it names nobody");
}

int Main() {
  const auto address = ListenAddressFromFlags();
  if (!address) return RefuseFlags(address.error().message());
  const auto threads = ThreadsFromFlags();
  if (!threads) return RefuseFlags(threads.error().message());
  auto upstreams_or = UpstreamsFromFlags();
  if (!upstreams_or) {
    return RefuseFlags("Bad --forward_to: " + upstreams_or.error().message() +
                       ".");
  }

  BlockQuitSignals();
  Upstreams upstreams(*std::move(upstreams_or));
  std::vector<std::unique_ptr<char[]>> pieces;
  for (std::size_t i = 0; i != *threads; ++i) {
    pieces.push_back(std::make_unique<char[]>(kLargePieceSize));
  }
  example::RequestCounter counter;  // Counts reads.
  LoopServer server("epoll_limit_proxy", *threads);
  return server.Run(
      *address,
      [&](flare::io::UniqueFd fd, std::size_t i) {
        return std::make_unique<Side>(std::move(fd), &upstreams,
                                      pieces[i].get(), &counter);
      },
      counter);
}

}  // namespace
}  // namespace baseline

int main(int argc, char** argv) {
  baseline::BeginProgram(argc, argv,
                         "passes bytes on at the least cost; see "
                         "docs/baselines.md");
  return baseline::Main();
}
