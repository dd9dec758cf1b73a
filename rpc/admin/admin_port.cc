#include "flare/rpc/admin/admin_port.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <exception>
#include <functional>
#include <limits>
#include <new>
#include <system_error>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/string.h"
#include "flare/fiber/execution_context.h"
#include "flare/io/acceptor.h"
#include "flare/io/socket_options.h"
#include "flare/rpc/http/http_compression.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/http_message.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

constexpr std::int64_t kMaxAdminConnectionNs = 10 * kNsPerSecond;
constexpr std::int64_t kNoDeadline = std::numeric_limits<std::int64_t>::max();
constexpr int kAdminBacklog = 128;

// How long the thread accepts nothing when it has no descriptors left.
constexpr std::int64_t kAdminAcceptPauseNs = kNsPerSecond / 10;

bool IsWorthAnotherTry() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

// Reads input that nobody wants; false: there is no more, and never will be.
bool DropInput(int fd) {
  char rest[4096];
  // So that a peer that sends without end doesn't keep the thread.
  constexpr int kReads = 16;
  for (int i = 0; i != kReads; ++i) {
    const ssize_t n = ::recv(fd, rest, sizeof(rest), 0);
    if (n <= 0) return n < 0 && IsWorthAnotherTry();
  }
  return true;
}

std::string AdminReplyText(const HttpResponse& response, bool head_only) {
  const int status = static_cast<int>(response.status());
  std::string text = "HTTP/1.1 " + std::to_string(status) + ' ' +
                     std::string(HttpReasonPhrase(status)) + "\r\n" +
                     response.headers()->ToString() +
                     "Content-Length: " + std::to_string(response.body_size()) +
                     "\r\nConnection: close\r\n\r\n";
  if (!head_only) text += *response.body();
  return text;
}

// Without a writer: the pages send no pieces.
HttpServerContext AdminContextOf(const Endpoint& peer) {
  HttpServerContext context;
  context.remote_peer = peer;
  context.received_at = std::chrono::steady_clock::now();
  context.dispatched_at = context.received_at;
  return context;
}

}  // namespace

class AdminPort::ApartPage {
 public:
  // Throws std::system_error if the system has no more threads. `wake`: an
  // eventfd to signal at the end.
  ApartPage(std::function<std::string()> make, int wake)
      : thread_([this, make = std::move(make), wake] {
          try {
            context_->Execute([&] { reply_ = make(); });
          } catch (const std::bad_alloc&) {  // The connection is lost.
          }
          // release: pairs with the acquire in done() [AP1].
          done_.store(true, std::memory_order_release);
          io::SignalEventFd(wake);
        }) {}
  // Has the page end, and waits for that.
  ~ApartPage() {
    context_->RequestStop(fiber::StopCause::kCallerGone);
    thread_.join();
  }
  ApartPage(const ApartPage&) = delete;
  ApartPage& operator=(const ApartPage&) = delete;

  // acquire: pairs with the release above [AP1].
  bool done() const { return done_.load(std::memory_order_acquire); }
  std::string TakeReply() { return std::move(reply_); }

 private:
  const RefPtr<fiber::ExecutionContext> context_ =
      fiber::ExecutionContext::Create();
  std::string reply_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

Expected<std::unique_ptr<AdminPort>, flare::Status> AdminPort::Listen(
    const Endpoint& address, std::shared_ptr<io::TlsServerContext> tls) {
  auto listening = io::OpenListeningSocket(address, kAdminBacklog);
  if (!listening) return listening.error();
  return std::unique_ptr<AdminPort>(
      new AdminPort(*std::move(listening), std::move(tls)));
}

AdminPort::AdminPort(io::UniqueFd listening,
                     std::shared_ptr<io::TlsServerContext> tls)
    : listening_(std::move(listening)),
      tls_(std::move(tls)),
      local_(io::GetLocalEndpoint(listening_.get())),
      stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  events_.reserve(kMaxConnections + 3);
}

AdminPort::~AdminPort() {
  if (thread_.joinable()) {
    io::SignalEventFd(stop_.get());
    thread_.join();
  }
  const std::string_view path = local_.path();
  if (!path.empty() && path.front() != '\0') {
    // Nobody else has taken it while this one listens.
    static_cast<void>(::unlink(std::string(path).c_str()));
  }
}

flare::Status AdminPort::Start() {
  if (!stop_ || !wake_)
    return flare::Status(EMFILE, "no eventfd for the admin port");
  // The program's signals are for other threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  flare::Status status;
  try {
    thread_ = std::thread([this] { Main(); });
  } catch (const std::system_error& error) {
    status = flare::Status(
        EAGAIN, std::string("no thread for the admin port: ") + error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

void AdminPort::Main() {
  pthread_setname_np(pthread_self(), "admin");
  while (WaitForEvents()) {
    AcceptSome();
    connections_.remove_if(
        [this](Connection& connection) { return !AdvanceOrDrop(&connection); });
  }
}

// Without memory the port waits, and a connection is lost; the thread goes on.
void AdminPort::AcceptSome() {
  try {
    Accept();
  } catch (const std::bad_alloc&) {
    can_accept_ = false;
  }
}

bool AdminPort::AdvanceOrDrop(Connection* connection) {
  try {
    return Advance(connection);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool AdminPort::WaitForEvents() {
  std::vector<pollfd>& events = events_;  // Has room for all.
  events.assign({{stop_.get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}});
  std::int64_t deadline_ns = kNoDeadline;
  if (connections_.size() < kMaxConnections) {
    if (can_accept_) {
      events.push_back({listening_.get(), POLLIN, 0});
    } else {
      deadline_ns = NowNs() + kAdminAcceptPauseNs;
    }
  }
  for (const Connection& connection : connections_) {
    const bool sends = !connection.output.empty() && !connection.ended;
    events.push_back(
        {connection.fd.get(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
    deadline_ns = std::min(deadline_ns, connection.deadline_ns);
  }
  int timeout_ms = -1;
  if (deadline_ns != kNoDeadline) {
    const std::int64_t rest_ns = deadline_ns - NowNs();
    timeout_ms = static_cast<int>(
        std::clamp<std::int64_t>(rest_ns / kNsPerMs + 1, 0, 60'000));
  }
  static_cast<void>(::poll(events.data(), events.size(), timeout_ms));
  can_accept_ = true;
  if (events[1].revents != 0) {
    eventfd_t count = 0;
    static_cast<void>(::eventfd_read(wake_.get(), &count));
  }
  return events[0].revents == 0;
}

void AdminPort::Accept() {
  while (connections_.size() < kMaxConnections) {
    sockaddr_storage storage;
    socklen_t length = sizeof(storage);
    auto* const address = reinterpret_cast<sockaddr*>(&storage);
    io::UniqueFd fd(::accept4(listening_.get(), address, &length,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      can_accept_ = IsWorthAnotherTry() || errno == ECONNABORTED;
      return;
    }
    std::unique_ptr<io::Transport> transport;
    if (tls_ != nullptr) {
      transport = tls_->NewTransport();
      if (transport == nullptr) continue;  // There is no memory.
      transport->Attach(fd.get());
    }
    connections_.push_back({.fd = std::move(fd),
                            .transport = std::move(transport),
                            .secure = tls_ == nullptr,
                            .peer = Endpoint::FromSockaddr(address, length),
                            .deadline_ns = NowNs() + kMaxAdminConnectionNs,
                            .input = {},
                            .page = {},
                            .output = {}});
  }
}

bool AdminPort::Advance(Connection* connection) {
  if (connection->page != nullptr && !AdvancePage(connection)) return false;
  if (connection->page != nullptr) return true;
  if (!connection->secure && !ShakeHands(connection)) return false;
  // Input that has arrived is read even if pages of others took long.
  if (connection->secure && connection->output.empty() && !Read(connection)) {
    return false;
  }
  if (NowNs() >= connection->deadline_ns) return false;
  if (connection->output.empty()) return true;
  if (!connection->ended) return Send(connection);
  // A close with unread input would reset the connection, and the peer might
  // lose the reply.
  return DropInput(connection->fd.get());
}

// False: the peer has left.
bool AdminPort::AdvancePage(Connection* connection) {
  if (!connection->page->done()) return DropInput(connection->fd.get());
  connection->output = connection->page->TakeReply();
  connection->page.reset();
  connection->deadline_ns = NowNs() + kMaxAdminConnectionNs;
  return !connection->output.empty();
}

// Also true while it goes on.
bool AdminPort::ShakeHands(Connection* connection) {
  switch (connection->transport->Handshake()) {
    case io::Transport::Progress::kDone:
      connection->secure = true;
      return true;
    case io::Transport::Progress::kWaiting:
      return true;
    case io::Transport::Progress::kFailed:
      break;
  }
  if (const auto left_out = handshake_log_.Admit()) {
    LOG(WARNING) << "the admin port, connection from "
                 << OneLine(connection->peer.ToString()) << ": "
                 << OneLine(connection->transport->failure().message())
                 << LogThrottle::Note(*left_out);
  }
  return false;
}

ssize_t AdminPort::Receive(Connection* connection, char* to, std::size_t size) {
  if (connection->transport == nullptr) {
    return ::recv(connection->fd.get(), to, size, 0);
  }
  const iovec piece{to, size};
  return connection->transport->Receive(&piece, 1);
}

ssize_t AdminPort::SendSome(Connection* connection, std::string_view bytes) {
  if (connection->transport == nullptr) {
    return ::send(connection->fd.get(), bytes.data(), bytes.size(),
                  MSG_NOSIGNAL);
  }
  const iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  return connection->transport->Send(&piece, 1, 0);
}

bool AdminPort::Read(Connection* connection) {
  std::string& input = connection->input;
  constexpr std::string_view kEnd = "\r\n\r\n";
  char bytes[4096];
  for (;;) {
    const ssize_t n = Receive(connection, bytes, sizeof(bytes));
    if (n <= 0) return n < 0 && IsWorthAnotherTry();
    input.append(bytes, static_cast<std::size_t>(n));
    const std::size_t end = input.find(kEnd);
    if (end != std::string::npos) {
      Answer(std::string_view(input).substr(0, end + kEnd.size()), connection);
      return true;
    }
    if (input.size() > kMaxHeadSize) break;
    // poll() doesn't tell of bytes that a transport has.
    if (connection->transport == nullptr || n != sizeof(bytes)) return true;
  }
  HttpResponse response;
  FillHttpError(HttpStatus::RequestHeaderFieldsTooLarge,
                "The head of the request is too large.", &response);
  connection->output = AdminReplyText(response, /*head_only=*/false);
  return true;
}

void AdminPort::Answer(std::string_view head, Connection* connection) {
  HttpHead parsed;
  constexpr std::size_t kMaxFields = 100;
  if (const HttpFault fault = ParseRequestHead(head, kMaxFields, &parsed)) {
    HttpResponse response;
    FillHttpError(static_cast<HttpStatus>(fault.status), fault.text, &response);
    connection->output = AdminReplyText(response, /*head_only=*/false);
    connection->deadline_ns = NowNs() + kMaxAdminConnectionNs;
    return;
  }
  HttpRequest request;
  request.set_method(parsed.method);
  request.set_uri(parsed.target);
  request.headers()->AssignLines(parsed.fields);
  if (apart_.contains(request.path())) {
    return AnswerApart(std::move(request), connection);
  }
  connection->output = MakePage(request, connection->peer);
  // Others may have had their pages made meanwhile.
  connection->deadline_ns = NowNs() + kMaxAdminConnectionNs;
}

void AdminPort::AnswerApart(HttpRequest request, Connection* connection) {
  try {
    connection->page = std::make_unique<ApartPage>(
        [this, request = std::move(request), peer = connection->peer] {
          return MakePage(request, peer);
        },
        wake_.get());
    connection->deadline_ns = kNoDeadline;  // The page's own.
  } catch (const std::system_error& error) {
    HttpResponse response;
    FillHttpError(HttpStatus::ServiceUnavailable,
                  std::string("No thread for the page: ") + error.what(),
                  &response);
    connection->output = AdminReplyText(response, /*head_only=*/false);
  }
}

std::string AdminPort::MakePage(const HttpRequest& request,
                                const Endpoint& peer) const {
  HttpResponse response;
  HttpServerContext context = AdminContextOf(peer);
  HttpHandler* const handler = routes_.Find(request.path());
  const auto fail = [&response](const char* why) {
    LOG(ERROR) << "A page of the admin port has failed: " << why;
    response.clear();
    FillHttpError(HttpStatus::InternalServerError, "The page has failed.",
                  &response);
  };
  try {
    if (handler == nullptr) {
      FillHttpError(HttpStatus::NotFound,
                    "There is no such page: /inspect lists them.", &response);
    } else {
      handler->HandleRequest(request, &response, &context);
      CompressReply(request, context.compress_from, &response);
    }
  } catch (const std::exception& error) {
    fail(error.what());
  } catch (...) {  // Thrown by a gauge function of the program's.
    fail("an exception of a class that isn't std::exception");
  }
  return AdminReplyText(response, request.method() == HttpMethod::Head);
}

bool AdminPort::Send(Connection* connection) {
  const std::string& output = connection->output;
  while (connection->sent != output.size()) {
    const ssize_t n =
        SendSome(connection, std::string_view(output).substr(connection->sent));
    if (n < 0) return IsWorthAnotherTry();
    connection->sent += static_cast<std::size_t>(n);
  }
  if (connection->transport != nullptr &&
      connection->transport->SendEnd() != 0) {
    return IsWorthAnotherTry();
  }
  connection->ended = true;
  return ::shutdown(connection->fd.get(), SHUT_WR) == 0;
}

}  // namespace flare::rpc
