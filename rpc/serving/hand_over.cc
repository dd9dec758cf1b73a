// Messages are single bytes on a stream socket:
//
//   older process -> successor   kSockets, with descriptors: the socket at the
//                                path, and those that listen
//   successor -> older process   kReady
//   older process -> successor   kYours: it stops; kTooLate: it goes on
//
// The end of the connection in place of an answer means that the other process
// has ended, or begins to. Both processes have the socket at the path, but only
// one of them accepts there: the older one until it has sent kYours.
#include "flare/rpc/hand_over.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>

#include "flare/base/clock.h"
#include "flare/fiber/blocking_region.h"
#include "flare/io/acceptor.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/server.h"
#include "glog/logging.h"

namespace flare {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kSockets = 'S';
constexpr char kReady = 'R';
constexpr char kYours = 'Y';
constexpr char kTooLate = 'L';
// In place of a byte that was heard.
constexpr char kEnd = 0;        // The peer has ended.
constexpr char kNothing = '-';  // Nothing has come in time.

constexpr int kDoorBacklog = 16;

// The most in one message, by the kernel's limit (SCM_MAX_FD).
constexpr std::size_t kMaxDescriptors = 253;

constexpr milliseconds kAnswerTime = seconds(5);
constexpr milliseconds kReleaseTime = seconds(10);
constexpr milliseconds kStartTime = seconds(60);

struct Control {
  alignas(cmsghdr)
      std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> bytes{};
};

// Only processes of this user and of root may get or give sockets.
Status CheckUser(int peer_fd) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (::getsockopt(peer_fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return StatusFromErrno(errno, "SO_PEERCRED");
  }
  if (peer.uid == ::geteuid() || peer.uid == 0) return Status();
  return Status(EPERM, "process " + std::to_string(peer.pid) +
                           " belongs to user " + std::to_string(peer.uid) +
                           ", this one to user " + std::to_string(::geteuid()));
}

// True if `fd` has input, or its end has come; false if the time is over, or
// `quit` (-1: none) has input.
bool WaitFor(int fd, int quit, milliseconds timeout) {
  const std::int64_t end_ns = NowNs() + ToNs(timeout);
  for (;;) {
    std::array<pollfd, 2> waits{{{fd, POLLIN, 0}, {quit, POLLIN, 0}}};
    const std::int64_t left_ms =
        std::max<std::int64_t>((end_ns - NowNs()) / kNsPerMs, 0);
    const int n = ::poll(waits.data(), waits.size(), static_cast<int>(left_ms));
    if (n >= 0) return n > 0 && waits[1].revents == 0;
    if (errno != EINTR) return false;
  }
}

bool Tell(int fd, char what) { return ::send(fd, &what, 1, MSG_NOSIGNAL) == 1; }

char Hear(int fd, int quit, milliseconds timeout) {
  if (!WaitFor(fd, quit, timeout)) return kNothing;
  char what = kEnd;
  return ::recv(fd, &what, 1, 0) == 1 ? what : kEnd;
}

bool SendSockets(int fd, const std::vector<int>& sockets) {
  Control control;
  char what = kSockets;
  iovec part{&what, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = CMSG_SPACE(sockets.size() * sizeof(int));
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sockets.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), sockets.data(), sockets.size() * sizeof(int));
  return ::sendmsg(fd, &message, MSG_NOSIGNAL) == 1;
}

// Empty: none came.
std::vector<io::UniqueFd> ReceiveSockets(int fd) {
  std::vector<io::UniqueFd> sockets;
  if (!WaitFor(fd, -1, kAnswerTime)) return sockets;
  Control control;
  char what = kEnd;
  iovec part{&what, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  if (::recvmsg(fd, &message, MSG_CMSG_CLOEXEC) != 1) return sockets;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const std::size_t bytes = header->cmsg_len - CMSG_LEN(0);
    for (std::size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
      int socket = -1;
      std::memcpy(&socket, CMSG_DATA(header) + at, sizeof(int));
      sockets.emplace_back(socket);
    }
  }
  // Some of the descriptors alone would leave connections unaccepted.
  if (what != kSockets || (message.msg_flags & MSG_CTRUNC) != 0) {
    sockets.clear();
  }
  return sockets;
}

Status Explain(const std::string& path, const Status& cause) {
  return Status(cause.code(), "hand-over at " + path + ": " + cause.message());
}

}  // namespace

Expected<std::unique_ptr<HandOver>, Status> HandOver::Begin(
    std::string path, const Endpoint& address) {
  auto at = EndpointFromString("unix:" + path);
  if (!at) return Explain(path, at.error());
  std::unique_ptr<HandOver> self(new HandOver(std::move(path), address));
  Status connected = fiber::RunBlocking([&] { return self->Connect(*at); });
  if (!connected.ok()) return Explain(self->path_, connected);
  if (self->predecessor_) return self;
  auto door = io::OpenListeningSocket(*at, kDoorBacklog);
  if (!door) return Explain(self->path_, door.error());
  self->door_ = *std::move(door);
  self->Own();
  return self;
}

// Gets the sockets of the process that serves, if there is one.
Status HandOver::Connect(const Endpoint& at) {
  auto fd = io::CreateStreamSocket(AF_UNIX);
  if (!fd) return fd.error();
  sockaddr_storage storage;
  const socklen_t length = at.ToSockaddr(&storage);
  if (::connect(fd->get(), reinterpret_cast<const sockaddr*>(&storage),
                length) != 0) {
    // Nobody is there. If it is a file that is no socket, listening tells.
    if (errno == ENOENT || errno == ECONNREFUSED) return Status();
    return StatusFromErrno(errno, "connect");
  }
  if (Status status = CheckUser(fd->get()); !status.ok()) return status;
  predecessor_ = *std::move(fd);
  return Receive();
}

Status HandOver::Receive() {
  sockets_ = ReceiveSockets(predecessor_.get());
  if (sockets_.size() < 2) {
    return Status(ETIMEDOUT,
                  "the process that listens there gives no sockets: it begins "
                  "or ends, hands them to another one, or is no server of this "
                  "kind; try again");
  }
  door_ = std::move(sockets_.front());
  sockets_.erase(sockets_.begin());
  const Endpoint theirs = io::GetLocalEndpoint(sockets_.front().get());
  Endpoint ours = address_;
  if (ours.port() == 0) ours.set_port(theirs.port());
  if (ours == theirs) return Status();
  return Status(EADDRNOTAVAIL,
                "the process that serves listens on " + theirs.ToString() +
                    ", not on " + ours.ToString() +
                    "; a successor has to take the same address");
}

bool HandOver::ListenOn(Server* server, int backlog) {
  server_ = server;
  if (sockets_.empty()) return server->ListenOn(address_, backlog);
  return server->AdoptSockets(std::move(sockets_), backlog);
}

Status HandOver::Ready(std::function<void()> on_handed_over) {
  on_handed_over_ = std::move(on_handed_over);
  sockets_.clear();
  for (const int fd : server_->ListeningSockets()) {
    sockets_.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!sockets_.back()) return Explain(path_, StatusFromErrno(errno, "dup"));
  }
  if (sockets_.empty() || sockets_.size() >= kMaxDescriptors) {
    return Explain(path_, Status(EINVAL, std::to_string(sockets_.size()) +
                                             " sockets can't be handed over"));
  }
  quit_ = io::UniqueFd(::eventfd(0, EFD_CLOEXEC));
  if (!quit_) return Explain(path_, StatusFromErrno(errno, "eventfd"));
  if (predecessor_) {
    Status status = fiber::RunBlocking([this] { return AwaitRelease(); });
    if (!status.ok()) return status;
  }
  thread_ = std::thread([this] { Run(); });
  return Status();
}

// Until the process before this one has let go of the sockets.
Status HandOver::AwaitRelease() {
  Tell(predecessor_.get(), kReady);  // If it has ended, the answer says so.
  switch (Hear(predecessor_.get(), -1, kReleaseTime)) {
    case kYours:
      LOG(INFO) << "Has taken over from the process at " << path_ << '.';
      break;
    case kTooLate:
      return Explain(path_, Status(ETIMEDOUT,
                                   "this process took too long to start; the "
                                   "one before it goes on"));
    case kNothing:
      LOG(WARNING) << "Hand-over at " << path_
                   << ": the process before this one doesn't answer, but may "
                      "still serve; end it if it doesn't by itself.";
      break;
    default:
      LOG(WARNING) << "Hand-over at " << path_
                   << ": the process before this one has ended meanwhile.";
      ListenAnew();
      break;
  }
  predecessor_.Reset();
  Own();
  return Status();
}

// If the process before this one has removed the file. Fails if the file is
// there, as somebody listens: this process.
void HandOver::ListenAnew() {
  auto door = io::OpenListeningSocket(EndpointFromUnix(path_), kDoorBacklog);
  if (door) door_ = *std::move(door);
}

// The file at the path is ours from now on.
void HandOver::Own() {
  struct stat file;
  if (path_.front() == '@' || ::lstat(path_.c_str(), &file) != 0) return;
  file_device_ = file.st_dev;
  file_inode_ = file.st_ino;
  PLOG_IF(WARNING, ::chmod(path_.c_str(), S_IRUSR | S_IWUSR) != 0)
      << "chmod of " << path_;
}

// Unless another process has put another one in its place.
void HandOver::RemoveFile() {
  struct stat file;
  if (file_inode_ != 0 && ::lstat(path_.c_str(), &file) == 0 &&
      file.st_dev == file_device_ && file.st_ino == file_inode_) {
    ::unlink(path_.c_str());
  }
}

void HandOver::Run() {
  constexpr milliseconds kLong = std::chrono::hours(1);
  for (;;) {
    if (WaitFor(door_.get(), quit_.get(), kLong)) {
      const io::UniqueFd successor(::accept4(door_.get(), nullptr, nullptr,
                                             SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (successor) {
        if (Serve(successor.get())) return;
      } else {
        // The queue isn't empty: without descriptors this would spin.
        static_cast<void>(WaitFor(quit_.get(), -1, milliseconds(100)));
      }
    } else if (WaitFor(quit_.get(), -1, milliseconds(0))) {
      return;
    }
  }
}

// True: the successor serves in our place.
bool HandOver::Serve(int successor) {
  if (const Status status = CheckUser(successor); !status.ok()) {
    // Everybody on the machine may connect to an abstract name.
    static rpc::LogThrottle throttle;
    if (const auto left_out = throttle.Admit()) {
      LOG(ERROR) << "Hand-over at " << path_ << " refused: " << status.message()
                 << rpc::LogThrottle::Note(*left_out) << '.';
    }
    return false;
  }
  std::vector<int> sockets{door_.get()};
  for (const io::UniqueFd& socket : sockets_) sockets.push_back(socket.get());
  if (!SendSockets(successor, sockets)) {
    PLOG(WARNING) << "Hand-over at " << path_ << ": can't send the sockets";
    return false;
  }
  const char heard = Hear(successor, quit_.get(), kStartTime);
  // The successor goes on then: it sees the end of the connection. It needs the
  // file of a Unix socket, and makes a new one at the path, so both are settled
  // before that end.
  if (WaitFor(quit_.get(), -1, milliseconds(0))) {
    if (heard != kEnd) server_->LeaveSockets();
    RemoveFile();
    file_inode_ = 0;
    return false;
  }
  if (heard != kReady) {
    if (heard == kNothing) Tell(successor, kTooLate);
    LOG(WARNING) << "Hand-over at " << path_ << ": the successor "
                 << (heard == kNothing ? "didn't get ready in time"
                                       : "ended before it was ready")
                 << "; this process goes on.";
    return false;
  }
  if (!Tell(successor, kYours)) {
    LOG(WARNING) << "Hand-over at " << path_
                 << ": the successor ended when it was ready; this process "
                    "goes on.";
    return false;
  }
  server_->LeaveSockets();
  file_inode_ = 0;
  LOG(INFO) << "Handed the sockets over at " << path_
            << "; this process is to stop.";
  sockets_.clear();
  door_.Reset();
  on_handed_over_();
  return true;
}

HandOver::~HandOver() {
  if (thread_.joinable()) {
    io::SignalEventFd(quit_.get());
    fiber::RunBlocking([this] { thread_.join(); });
  }
  // Never ready: the process before this one goes on with the sockets.
  if (predecessor_ && server_ != nullptr) server_->LeaveSockets();
  RemoveFile();
}

}  // namespace flare
