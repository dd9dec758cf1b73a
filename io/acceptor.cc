#include "flare/io/acceptor.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/runtime.h"
#include "flare/io/listener.h"
#include "flare/io/socket_options.h"

namespace flare::io {
namespace {

int CallWithAddress(int (*call)(int, const sockaddr*, socklen_t), int fd,
                    const Endpoint& address) {
  sockaddr_storage storage;
  const socklen_t length = address.ToSockaddr(&storage);
  return call(fd, reinterpret_cast<const sockaddr*>(&storage), length);
}

// For how long somebody else may have the folder. Servers have it for less than
// a millisecond; other programs that lock folders aren't waited for.
constexpr std::int64_t kMaxLockWaitNs = 200 * kNsPerMs;

// Until the returned descriptor is closed, other servers leave the socket files
// in the folder of `path` alone. Otherwise each of several at once could take
// the file of another for one left over, which it looks like between bind and
// listen. A lock of the folder needs no file, and a process that dies leaves
// none behind. Without one if there can't be any.
UniqueFd LockFolderOf(const std::string& path) {
  if (path.empty()) return UniqueFd();
  const std::filesystem::path folder =
      std::filesystem::path(path).parent_path();
  UniqueFd fd(::open(folder.empty() ? "." : folder.c_str(),
                     O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return fd;
  const std::int64_t deadline_ns = NowNs() + kMaxLockWaitNs;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
         NowNs() < deadline_ns) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return fd;
}

// Removes the socket file `path` if no process listens on it any more.
bool RemoveStaleFile(const std::string& path, const Endpoint& address) {
  struct stat file;
  if (::lstat(path.c_str(), &file) != 0 || !S_ISSOCK(file.st_mode)) {
    return false;
  }
  auto probe = CreateStreamSocket(AF_UNIX);
  if (!probe) return false;
  // A live listener answers, or has its backlog full (EAGAIN).
  if (CallWithAddress(::connect, probe->get(), address) == 0 ||
      errno != ECONNREFUSED) {
    return false;
  }
  return ::unlink(path.c_str()) == 0;
}

int Bind(int fd, const Endpoint& address) {
  if (CallWithAddress(::bind, fd, address) == 0) return 0;
  const int error = errno;
  const std::string path = SocketFilePath(address);
  if (error == EADDRINUSE && !path.empty() && RemoveStaleFile(path, address)) {
    return CallWithAddress(::bind, fd, address) == 0 ? 0 : errno;
  }
  return error;
}

// With IPv6 alone, mapped IPv4 addresses couldn't be bound.
bool IsIpv6Wildcard(const Endpoint& address) {
  return address.family() == AF_INET6 && address.host() == "::";
}

Expected<UniqueFd, Status> OpenBound(const Endpoint& address,
                                     const Acceptor::Options& options,
                                     bool share_port) {
  auto fd = CreateStreamSocket(address.family());
  if (!fd) return fd;
  SetReuseAddress(fd->get());
  if (share_port) SetReusePort(fd->get());
  if (options.ipv6_only && IsIpv6Wildcard(address)) SetIpv6Only(fd->get());
  if (const int error = Bind(fd->get(), address); error != 0) {
    return StatusFromErrno(error, "bind");
  }
  return fd;
}

// Accepted sockets inherit these from one that listens, at no cost.
void SetInherited(int fd, std::chrono::seconds keep_alive) {
  SetTcpNoDelay(fd);
  SetUrgentInline(fd);
  if (keep_alive > std::chrono::seconds(0)) {
    SetKeepAlive(fd, keep_alive,
                 std::max(keep_alive / 6, std::chrono::seconds(1)));
  }
}

Expected<UniqueFd, Status> OpenListening(const Endpoint& address,
                                         const Acceptor::Options& options,
                                         bool share_port) {
  auto fd = OpenBound(address, options, share_port);
  if (!fd) return fd;
  SetInherited(fd->get(), options.keep_alive);
  if (::listen(fd->get(), options.backlog) != 0) {
    return StatusFromErrno(errno, "listen");
  }
  return fd;
}

// One socket, or one per group that share the port.
Expected<std::vector<UniqueFd>, Status> OpenAll(
    const Endpoint& address, const Acceptor::Options& options,
    std::size_t groups) {
  const bool share = address.family() != AF_UNIX && groups > 1;
  if (share && address.port() != 0) {
    // With SO_REUSEPORT the kernel would let us join another server of the same
    // user in silence. Without it, a port in use is an error.
    if (auto probe = OpenBound(address, options, false); !probe) {
      return probe.error();
    }
  }
  const UniqueFd lock = LockFolderOf(SocketFilePath(address));
  std::vector<UniqueFd> sockets;
  Endpoint same = address;
  const std::size_t count = share ? groups : 1;
  for (std::size_t i = 0; i < count; ++i) {
    auto socket = OpenListening(same, options, share);
    if (!socket) return socket.error();
    if (i == 0) same = GetLocalEndpoint(socket->get());  // Port 0 is resolved.
    sockets.push_back(std::move(*socket));
  }
  return sockets;
}

// Gives a socket that listens already the options that OpenListening() gives to
// a new one.
Status PrepareAdopted(int fd, const Acceptor::Options& options) {
  const std::string name =
      "descriptor " + std::to_string(fd) + ", which was given to listen on";
  int type = 0;
  int listens = 0;
  socklen_t size = sizeof(type);
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0) {
    return StatusFromErrno(errno, name);
  }
  size = sizeof(listens);
  if (type != SOCK_STREAM ||
      ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 ||
      listens == 0) {
    return Status(EINVAL, name +
                              ", is no stream socket that listens (a unit of "
                              "systemd needs ListenStream= and Accept=no)");
  }
  if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0 ||
      ::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
    return StatusFromErrno(errno, "fcntl of " + name);
  }
  SetInherited(fd, options.keep_alive);
  // It listens: only the backlog changes.
  return ::listen(fd, options.backlog) == 0 ? Status()
                                            : StatusFromErrno(errno, "listen");
}

// Checks the sockets, and that all have one address.
Status PrepareAllAdopted(const std::vector<UniqueFd>& sockets,
                         const Acceptor::Options& options) {
  if (sockets.empty()) {
    return Status(EINVAL, "no sockets were given to listen on");
  }
  const Endpoint first = GetLocalEndpoint(sockets.front().get());
  for (const UniqueFd& socket : sockets) {
    Status status = PrepareAdopted(socket.get(), options);
    if (!status.ok()) return status;
    const Endpoint local = GetLocalEndpoint(socket.get());
    if (local == first) continue;
    return Status(EINVAL, "sockets of two addresses were given to listen on: " +
                              first.ToString() + " and " + local.ToString());
  }
  return Status();
}

std::vector<std::size_t> AllGroups() {
  std::vector<std::size_t> groups(fiber::GetSchedulingGroupCount());
  std::iota(groups.begin(), groups.end(), std::size_t{0});
  return groups;
}

// Where a socket that serves all of `groups` is put: where the caller is.
std::size_t HomeAmong(const std::vector<std::size_t>& groups) {
  const std::size_t here = fiber::GetCurrentSchedulingGroupIndex();
  const bool among =
      std::find(groups.begin(), groups.end(), here) != groups.end();
  return among ? here : groups.front();
}

// A hint at the user of the address.
const char* WhoHas(const Endpoint& address) {
  if (address.family() != AF_UNIX) {
    return " (is another server running? `ss -ltnp` shows who has it)";
  }
  struct stat file;
  const std::string path = SocketFilePath(address);
  if (!path.empty() && ::lstat(path.c_str(), &file) == 0 &&
      !S_ISSOCK(file.st_mode)) {
    return " (there is a file that is no socket; name another one)";
  }
  return " (is another server running? `ss -lxp` shows who has it)";
}

// Returns advice for an error of listening.
const char* AdviceFor(const Endpoint& address, int error) {
  const bool has_port = address.family() != AF_UNIX;
  if (error == EADDRINUSE) return WhoHas(address);
  if (error == EMFILE) return "; raise the limit of descriptors (ulimit -n)";
  if ((error == EACCES || error == EPERM) && has_port) {
    return "; ports below 1024 need root or the capability "
           "CAP_NET_BIND_SERVICE: take a port from 1024 on, or "
           "`setcap cap_net_bind_service+ep` the program";
  }
  if (error == EADDRNOTAVAIL && has_port) {
    return "; no interface of this machine has that address (`ip addr` lists "
           "them)";
  }
  return "";
}

Status ListenError(const Endpoint& address, const Status& cause) {
  std::string text = "listen on " + address.ToString() + ": " + cause.message();
  text += AdviceFor(address, cause.code());
  return Status(cause.code(), std::move(text));
}

}  // namespace

Expected<UniqueFd, Status> OpenListeningSocket(const Endpoint& address,
                                               int backlog, bool reuse_port) {
  Acceptor::Options options;
  options.backlog = backlog;
  const UniqueFd lock = LockFolderOf(SocketFilePath(address));
  auto socket = OpenListening(address, options, reuse_port);
  if (!socket) return ListenError(address, socket.error());
  return socket;
}

Expected<std::unique_ptr<Acceptor>, Status> Acceptor::Listen(
    const Endpoint& address, const Options& options, OnAccept on_accept) {
  const std::size_t groups = options.groups.empty()
                                 ? fiber::GetSchedulingGroupCount()
                                 : options.groups.size();
  auto sockets = OpenAll(address, options, groups);
  if (!sockets) return ListenError(address, sockets.error());
  auto acceptor = Run(*std::move(sockets), options, std::move(on_accept),
                      /*adopted=*/false);
  if (!acceptor) return ListenError(address, acceptor.error());
  return acceptor;
}

Expected<std::unique_ptr<Acceptor>, Status> Acceptor::Adopt(
    std::vector<UniqueFd> sockets, const Options& options, OnAccept on_accept) {
  Status status = PrepareAllAdopted(sockets, options);
  if (!status.ok()) return status;
  return Run(std::move(sockets), options, std::move(on_accept),
             /*adopted=*/true);
}

Expected<std::unique_ptr<Acceptor>, Status> Acceptor::Run(
    std::vector<UniqueFd> sockets, const Options& options, OnAccept on_accept,
    bool adopted) {
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(GetLocalEndpoint(sockets.front().get()),
                   options.groups.empty() ? AllGroups() : options.groups,
                   std::move(on_accept)));
  const auto& groups = acceptor->groups_;
  for (std::size_t i = 0; i < sockets.size(); ++i) {
    const std::size_t group =
        sockets.size() == 1 ? HomeAmong(groups) : groups[i % groups.size()];
    acceptor->listeners_.push_back(MakeRefCounted<Listener>(
        std::move(sockets[i]), group, groups, &acceptor->on_accept_));
  }
  for (const auto& listener : acceptor->listeners_) {
    // On failure the destructor stops those that have started.
    Status status = listener->Start();
    if (status.ok()) continue;
    // Another process may go on with them.
    if (adopted) acceptor->LeaveSockets();
    return status;
  }
  return acceptor;
}

Acceptor::Acceptor(Endpoint local, std::vector<std::size_t> groups,
                   OnAccept on_accept)
    : local_(std::move(local)),
      groups_(std::move(groups)),
      on_accept_(std::move(on_accept)),
      file_(local_) {}

Acceptor::~Acceptor() { Join(); }

void Acceptor::SetBacklog(int backlog) {
  for (const auto& listener : listeners_) listener->SetBacklog(backlog);
}

std::vector<int> Acceptor::sockets() const {
  std::vector<int> sockets;
  for (const auto& listener : listeners_) sockets.push_back(listener->fd());
  return sockets;
}

void Acceptor::LeaveSockets() {
  file_.Forget();
  for (const auto& listener : listeners_) listener->LeaveBacklog();
}

void Acceptor::Stop() {
  file_.Remove();
  for (const auto& listener : listeners_) listener->Stop();
}

void Acceptor::Join() {
  Stop();
  for (const auto& listener : listeners_) listener->Join();
}

std::uint64_t Acceptor::accepted() const noexcept {
  std::uint64_t sum = 0;
  for (const auto& listener : listeners_) sum += listener->accepted();
  return sum;
}

}  // namespace flare::io
