// Order of the end, which makes a stop graceful:
//
// [S1] Stop() first ends accepting, including connections that wait in the
//      kernel's queue, and waits until no accept callback runs: the set of
//      connections only shrinks from then on.
// [S2] Each connection then reads the input that has arrived, ends its input,
//      answers these requests, flushes, and closes. A protocol with a notice of
//      the end sends that first, and the input ends when the peer has confirmed
//      it, or after a second: requests on their way are still served. Where
//      only a reply can tell the peer, that of the next request does, which is
//      waited for a moment on connections in use.
// [S3] Join() waits for that until the drain timeout. Running calls are told to
//      stop then, and those that watch for it have a moment to answer.
//      Connections that are still open are cut; calls that still run keep their
//      connection and the ServerState alive and finish into the void.
// [S4] From the drain timeout on calls that come to their workers are refused,
//      so that queued calls don't keep the process any longer. If the program
//      was told to quit and its workers are held, another thread does the first
//      part of [S1] in its place, and refuses them from then on.
// [S5] The last connections, and a run of the sweeper, may keep the ServerState
//      for a moment after Join() has returned 0, but use nothing of the user's
//      by then. So ~Server() destroys the objects given to it, unless calls
//      were abandoned: then they go with the last reference.
#include "flare/rpc/server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/timer.h"
#include "flare/io/acceptor.h"
#include "flare/io/fd.h"
#include "flare/io/socket_options.h"
#include "flare/io/tls_context.h"
#include "flare/rpc/admin/admin_port.h"
#include "flare/rpc/admin/http_counters.h"
#include "flare/rpc/admin/inspect_pages.h"
#include "flare/rpc/admin/page_credentials.h"
#include "flare/rpc/admin/profile_pages.h"
#include "flare/rpc/extension.h"
#include "flare/rpc/http/http_site.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/redis_server/redis_server_protocol.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server/generic_adapter.h"
#include "flare/rpc/server/running_calls.h"
#include "flare/rpc/server/server_connection.h"
#include "flare/rpc/server/server_state.h"
#include "flare/rpc/serving/http_interception.h"
#include "flare/rpc/start/running_servers.h"
#include "flare/rpc/tls_names.h"
#include "glog/logging.h"

namespace flare {
namespace {

// The setting for pages on the port of the service.
std::optional<rpc::PagesFor> PagesOf(const Server::Options& options) {
  if (options.no_builtin_pages) return std::nullopt;
  switch (options.builtin_pages) {
    case BuiltinPages::kNone:
      return std::nullopt;
    case BuiltinPages::kLoopback:
      return rpc::PagesFor::kLoopback;
    case BuiltinPages::kEveryone:
      return rpc::PagesFor::kEveryone;
    case BuiltinPages::kDefault:
      break;
  }
  if (!options.admin_address.empty()) return std::nullopt;
  return rpc::PagesFor::kLoopback;
}

// Puts the interceptors of extensions before the server's own.
void TakeExtensions(rpc::Interceptors* interceptors) {
  rpc::Interceptors first;
  for (const auto& extension : InstalledExtensions()) {
    if (extension->server_interceptor != nullptr) {
      first.push_back(extension->server_interceptor);
    }
  }
  interceptors->insert(interceptors->begin(), first.begin(), first.end());
}

// Starts draining the connections that have been idle, or within a message, for
// too long. Runs on a fiber of the timer.
void DrainOverdueConnections(rpc::ServerState* state) {
  const std::int64_t now_ns = NowNs();
  const std::int64_t max_idle_ns = ToNs(state->options().connection_max_idle);
  const std::int64_t max_message_ns = ToNs(state->options().message_timeout);
  state->CloseGreedy();  // Nobody asks if nothing is added any more.
  state->connections.ForEachOpen([&](rpc::ServedConnection* connection) {
    if (max_idle_ns > 0) connection->DrainIfIdle(now_ns - max_idle_ns);
    if (max_message_ns > 0) connection->DrainIfSlow(now_ns - max_message_ns);
  });
}

// Between two samples of the counters of methods, and between two times at
// which connections are told that the budget is no longer tight.
constexpr std::chrono::nanoseconds kLookInterval = std::chrono::seconds(1);

// Connections that were told to end have so long for it, even if the time to
// drain has passed meanwhile, as calls held all workers: for the replies of
// these, and for refusals.
constexpr std::int64_t kLeastDrainNs = kNsPerSecond;

// How long a peer that was told of the end has to say that it knows.
constexpr std::int64_t kMaxNoticeNs = kNsPerSecond;

// Connections on which nothing has come for so long don't linger for a request.
constexpr std::int64_t kActiveNs = kNsPerSecond;

// ": the first of them.", for a log line.
std::string Examples(const std::vector<AbandonedCall>& calls) {
  constexpr std::size_t kMostShown = 5;
  std::string text;
  for (std::size_t i = 0; i != std::min(calls.size(), kMostShown); ++i) {
    text += (i == 0 ? ": " : "; ") + calls[i].ToString();
  }
  return text + (calls.size() > kMostShown ? "; and others." : ".");
}

// Connections beyond the system's limit wait in the backlog without an answer.
void WarnOfFewDescriptors(const rpc::ServerState& state) {
  const std::size_t wanted = state.options().max_concurrent_connections;
  // Four of each group's poller, listening sockets, and the program's own.
  const std::size_t others = 5 * fiber::GetSchedulingGroupCount() + 100;
  const std::size_t limit = io::DescriptorLimit();
  if (limit >= others && limit - others >= wanted) return;
  if (wanted >= std::numeric_limits<int>::max()) return;  // None is meant.
  LOG(WARNING) << state.title() << ": " << wanted
               << " connections (--flare_rpc_server_max_connections) and what "
                  "else is open take up to "
               << wanted + others << " descriptors, but the system allows only "
               << limit
               << "; raise the limit (`ulimit -n`) or lower the setting.";
}

}  // namespace

// The parts that run between Start() and Join().
class Server::Running final : public rpc::RunningServer {
 public:
  // Adopts `sockets`, if there are any, rather than listen on `address`.
  static Expected<std::unique_ptr<Running>> Start(
      const Endpoint& address, std::vector<io::UniqueFd> sockets,
      const io::Acceptor::Options& options,
      const RefPtr<rpc::ServerState>& state) {
    auto running = std::unique_ptr<Running>(new Running(state));
    const auto serve = std::bind_front(&rpc::ServerConnection::Serve, state);
    auto acceptor =
        sockets.empty()
            ? io::Acceptor::Listen(address, options, serve)
            : io::Acceptor::Adopt(std::move(sockets), options, serve);
    if (!acceptor) return acceptor.error();
    running->acceptor_ = *std::move(acceptor);
    running->StartSweeping();
    running->StartLooking();
    running->Add();
    running->added_ = true;
    return running;
  }

  ~Running() {
    if (added_) Remove();
    KillEndTimers();
    if (looker_ != 0) fiber::KillTimer(looker_);
  }

  const Endpoint& local_endpoint() const { return acceptor_->local_endpoint(); }

  std::vector<int> sockets() const { return acceptor_->sockets(); }
  void LeaveSockets() { acceptor_->LeaveSockets(); }

  // Once.
  void Stop() {
    BeginStop();
    acceptor_->Join();  // [S1]
    if (sweeper_ != 0) fiber::KillTimer(sweeper_);
    AnnounceEnd();
    // relaxed: see BeginStop().
    cut_at_ns_ = std::max(drain_deadline_ns_.load(std::memory_order_relaxed),
                          SaturatingAdd(NowNs(), LeastDrainNs()));
  }

  // Sets `*abandoned` to the calls that it cuts short, if there are any.
  std::size_t Join(std::vector<AbandonedCall>* abandoned) {  // [S3]
    const bool gone_soon =
        state_->connections.WaitUntilGone(announced_until_ns_);
    KillEndTimers();
    if (gone_soon) return 0;
    EndAnnounced(state_.Get());  // [S2]
    if (state_->connections.WaitUntilGone(cut_at_ns_)) return 0;
    if (!std::exchange(cut_, true)) {
      if (StopCalls() && state_->connections.WaitUntilGone(
                             SaturatingAdd(NowNs(), LeastDrainNs()))) {
        return 0;
      }
      Cut(abandoned);
    }
    const std::size_t running = state_->statistics().calls_running;
    if (running != 0) return running;
    // Calls aren't counted any more just before their end, and that number
    // isn't ordered with their work. They hold their connections.
    const bool gone = state_->connections.WaitUntilGone(
        SaturatingAdd(NowNs(), ToNs(std::chrono::seconds(1))));
    return gone ? 0 : 1;
  }

 private:
  explicit Running(RefPtr<rpc::ServerState> state) : state_(std::move(state)) {}

  // The time to drain is counted from here. Any thread, any number of times;
  // doesn't block.
  void BeginStop() {
    std::int64_t none = 0;
    const std::int64_t deadline_ns =
        SaturatingAdd(NowNs(), ToNs(state_->options().drain_timeout));
    // relaxed: a time; Stop(), which reads it, has called this.
    if (drain_deadline_ns_.compare_exchange_strong(none, deadline_ns,
                                                   std::memory_order_relaxed)) {
      state_->CloseGates(deadline_ns);  // [S4]
    }
    acceptor_->Stop();
  }

  void StopAtOnce() override {  // [S4]
    // relaxed: whether the program stops it by itself.
    if (drain_deadline_ns_.load(std::memory_order_relaxed) != 0) return;
    BeginStop();
    state_->CloseGates(NowNs());
    LOG(WARNING) << state_->title()
                 << " stops, as the process was told to quit, and begins none "
                    "of the queued calls: its workers are held by others.";
  }

  void AnnounceEnd() {  // [S2]
    const Options& options = state_->options();
    const std::int64_t now_ns = NowNs();
    const std::int64_t half_ns = ToNs(options.drain_timeout) / 2;
    const std::int64_t linger_ns = std::min(half_ns, ToNs(options.stop_linger));
    // Later than the end of the lingering, at which peers may yet be told.
    announced_until_ns_ =
        SaturatingAdd(now_ns, linger_ns + std::min(half_ns / 2, kMaxNoticeNs));
    const std::int64_t active_since_ns =
        linger_ns <= 0 ? std::numeric_limits<std::int64_t>::max()
                       : now_ns - std::max(linger_ns, kActiveNs);
    bool lingers = false;
    state_->connections.ForEachOpen([&](rpc::ServedConnection* connection) {
      lingers |= connection->AnnounceEnd(active_since_ns);
    });
    if (state_->connections.open() == 0) return;
    // Join(), which does the same, may be called late.
    notice_timer_ =
        fiber::SetTimer(ToTimePoint(announced_until_ns_),
                        [state = state_] { EndAnnounced(state.Get()); });
    if (!lingers) return;
    linger_timer_ = fiber::SetTimer(
        ToTimePoint(SaturatingAdd(now_ns, linger_ns)), [state = state_] {
          state->connections.ForEachOpen([](rpc::ServedConnection* connection) {
            connection->EndLingering();
          });
        });
  }

  static void EndAnnounced(rpc::ServerState* state) {
    state->connections.ForEachOpen(
        [](rpc::ServedConnection* connection) { connection->EndAnnounced(); });
  }

  void KillEndTimers() {
    for (fiber::TimerId* const timer : {&linger_timer_, &notice_timer_}) {
      if (*timer != 0) fiber::KillTimer(std::exchange(*timer, 0));
    }
  }

  std::int64_t LeastDrainNs() const {
    return std::min(ToNs(state_->options().drain_timeout), kLeastDrainNs);
  }

  // False: nobody watches for it.
  bool StopCalls() {
    std::size_t stopped = 0;
    state_->connections.ForEachOpen([&](rpc::ServedConnection* connection) {
      stopped += connection->StopCalls();
    });
    return stopped != 0;
  }

  void Cut(std::vector<AbandonedCall>* abandoned) {
    std::string examples = ".";
    try {
      *abandoned = rpc::RunningCalls(state_.Get());
      examples = Examples(*abandoned);
    } catch (const std::bad_alloc&) {  // Then there is no list.
    }
    LOG(WARNING) << state_->title() << ": cutting "
                 << state_->connections.open()
                 << " connection(s) and abandoning "
                 << state_->statistics().calls_running
                 << " call(s) that are not through after the drain timeout"
                 << examples;
    state_->connections.ForEachOpen([](rpc::ServedConnection* connection) {
      connection->Close(Status(ETIMEDOUT, "the server has stopped"));
    });
    state_->connections.WaitUntilClosed();
  }

  void StartSweeping() {
    const Options& options = state_->options();
    const auto interval = options.remove_idle_connection_interval;
    if (interval.count() <= 0 || (options.connection_max_idle.count() <= 0 &&
                                  options.message_timeout.count() <= 0)) {
      return;
    }
    sweeper_ = fiber::SetTimer(
        interval, [state = state_] { DrainOverdueConnections(state.Get()); });
  }

  // Once a second: samples the counters of methods, and has connections that
  // waited for the budget go on, also while it drains.
  void StartLooking() {
    state_->methods.SampleCounters();
    looker_ = fiber::SetTimer(kLookInterval, [state = state_] {
      state->methods.SampleCounters();
      if (!state->budget().TakeWaiting()) return;
      state->connections.ForEachOpen(
          [](rpc::ServedConnection* connection) { connection->LookForRoom(); });
    });
  }

  const RefPtr<rpc::ServerState> state_;
  std::unique_ptr<io::Acceptor> acceptor_;
  fiber::TimerId sweeper_ = 0;
  fiber::TimerId looker_ = 0;
  bool cut_ = false;
  bool added_ = false;
  std::atomic<std::int64_t> drain_deadline_ns_{0};  // 0: it doesn't stop.
  // 0: there is none, any more.
  fiber::TimerId linger_timer_ = 0;
  fiber::TimerId notice_timer_ = 0;
  std::int64_t announced_until_ns_ = 0;
  std::int64_t cut_at_ns_ = 0;
};

Server::Server() : Server(Options()) {}

Server::Server(Options options)
    : state_(MakeRefCounted<rpc::ServerState>(
          rpc::WithinLimits(std::move(options)))),
      http_(std::make_shared<rpc::HttpSite>()),
      http_counters_(std::make_shared<rpc::HttpCounters>()) {}

Server::~Server() {
  if (Join() != 0) return;  // [S5]
  http_->routes.Clear();
  if (redis_ != nullptr) *redis_ = RedisService();
  state_->DropUserCode();
}

bool Server::Fail(std::string what) {
  Status error(rpc::STATUS_FAILED, std::move(what));
  LOG(ERROR) << state_->title() << ": " << error.message();
  if (error_.ok()) error_ = std::move(error);
  return false;
}

bool Server::AddProtocol(const std::string& name) {
  auto known = rpc::ServerProtocolSet::FromNames({name});
  if (!known) return Fail(known.error().message());
  protocols_.push_back(name);
  return true;
}

bool Server::AddProtocols(const std::vector<std::string>& names) {
  bool all = true;
  for (const std::string& name : names) all &= AddProtocol(name);
  return all;
}

bool Server::AddService(std::unique_ptr<google::protobuf::Service> service,
                        ServiceOptions options) {
  if (!AddService(service.get(), std::move(options))) return false;
  state_->owned_services.push_back(std::move(service));
  return true;
}

bool Server::AddService(google::protobuf::Service* service,
                        ServiceOptions options) {
  if (service == nullptr) return Fail("a service that is no object (nullptr)");
  Status added = state_->methods.Add(service, std::move(options.interceptors));
  return added.ok() || Fail(added.message());
}

bool Server::SetGenericService(std::unique_ptr<GenericService> service) {
  if (service == nullptr) {
    return Fail("a generic service that is no object (nullptr)");
  }
  auto adapter = std::make_unique<rpc::GenericAdapter>(std::move(service));
  Status added = state_->methods.AddFallback(adapter.get());
  if (!added.ok()) return Fail(added.message());
  state_->owned_services.push_back(std::move(adapter));
  return true;
}

void Server::AddInterceptor(std::shared_ptr<ServerInterceptor> interceptor) {
  state_->interceptors.push_back(std::move(interceptor));
}

void Server::AddListener(std::shared_ptr<Listener> listener) {
  listeners_.push_back(std::move(listener));
}

bool Server::AddHttpHandler(std::string path, HttpHandlerArgument handler) {
  Status added = http_->routes.AddPath(std::move(path), handler.Release());
  return added.ok() || Fail(added.message());
}

bool Server::AddHttpPrefixHandler(std::string prefix,
                                  HttpHandlerArgument handler) {
  Status added = http_->routes.AddPrefix(std::move(prefix), handler.Release());
  return added.ok() || Fail(added.message());
}

bool Server::AddWebSocketHandler(std::string path, WebSocketHandler handler,
                                 WebSocketServerOptions options) {
  return AddHttpHandler(
      std::move(path),
      NewWebSocketHandler(std::move(handler), std::move(options)));
}

void Server::SetDefaultHttpHandler(HttpHandlerArgument handler) {
  http_->routes.SetDefault(handler.Release());
}

bool Server::AddRedisService(RedisService service) {
  if (redis_ != nullptr) return Fail("it has a Redis service already");
  if (!service.error().ok()) return Fail(service.error().message());
  redis_ = std::make_shared<RedisService>(std::move(service));
  return true;
}

bool Server::ListenOn(const Endpoint& address, int backlog) {
  if (!address_.empty()) {
    return Fail("it was told to listen on " + address_.ToString() +
                " and then on " + address.ToString() +
                "; one server listens on one address");
  }
  if (address.empty()) {
    return Fail(
        "the address to listen on is malformed, or empty; it is made of "
        "numbers (127.0.0.1), not of a host's name");
  }
  address_ = address;
  backlog_ = backlog;
  NameByAddress(address);
  return true;
}

bool Server::AdoptSockets(std::vector<io::UniqueFd> sockets, int backlog) {
  if (sockets.empty()) return Fail("no sockets were given to listen on");
  const Endpoint address = io::GetLocalEndpoint(sockets.front().get());
  if (address.empty()) {
    return Fail("descriptor " + std::to_string(sockets.front().get()) +
                ", which was given to listen on, is no socket with an address");
  }
  if (!ListenOn(address, backlog)) return false;
  sockets_ = std::move(sockets);
  return true;
}

std::vector<int> Server::ListeningSockets() const {
  return running_ == nullptr ? std::vector<int>() : running_->sockets();
}

void Server::LeaveSockets() {
  if (running_ == nullptr) {
    leaves_sockets_ = true;
  } else {
    running_->LeaveSockets();
  }
}

// For log lines.
void Server::NameByAddress(const Endpoint& address) {
  if (state_->options().service_name.empty()) {
    state_->SetName(address.ToString());
  }
}

bool Server::Start() {
  if (!error_.ok()) {
    LOG(ERROR) << state_->title() << " doesn't start: " << error_.message();
    return false;
  }
  if (running_ != nullptr) return Fail("it was started before");
  if (address_.empty()) return Fail("there was no ListenOn()");
  // Handlers and pages are served anyway.
  const std::optional<rpc::PagesFor> pages = PagesOf(state_->options());
  if (protocols_.empty() &&
      (!state_->methods.empty() ||
       (http_->routes.empty() && !pages && redis_ == nullptr))) {
    return Fail("there was no AddProtocol()");
  }
  if (!fiber::IsRuntimeRunning()) {
    return Fail("the fiber runtime isn't running: use flare::Start()");
  }
  io::Acceptor::Options options;
  options.backlog = backlog_;
  options.keep_alive = state_->options().tcp_keep_alive;
  const std::string& set = state_->options().scheduling_groups;
  auto groups = fiber::FindSchedulingGroups(set);
  if (!groups) return Fail(groups.error().message());
  if (!set.empty()) options.groups = *std::move(groups);
  if (Status read = ReadPageCredentials(); !read.ok()) {
    return Fail(read.message());
  }
  if (pages) AddPages(*pages, &http_->routes);
  // Handlers that nobody can reach would be of no use. Behind the others: it
  // takes no connection from the protocols that were asked for.
  if (!http_->routes.empty() && std::find(protocols_.begin(), protocols_.end(),
                                          "http") == protocols_.end()) {
    protocols_.push_back("http");
  }
  http_->routes.Count(http_counters_);
  TakeExtensions(&state_->interceptors);
  if (!state_->interceptors.empty()) {
    http_->routes.Wrap([this](HttpHandlerPtr handler) {
      return rpc::InterceptHttp(std::move(handler), &state_->interceptors);
    });
  }
  if (Status fixed = FixProtocols(); !fixed.ok()) return Fail(fixed.message());
  if (Status tls = SetUpTls(); !tls.ok()) return Fail(tls.message());
  if (Status admin = StartAdmin(); !admin.ok()) {
    return Fail(admin.message());
  }
  const auto services = state_->methods.Services();
  for (const auto& listener : listeners_) listener->OnStart(services);
  rpc::ShowCallsOfFibers();
  auto running = Running::Start(address_, std::move(sockets_), options, state_);
  if (!running) {
    admin_.reset();
    return Fail(running.error().message());
  }
  running_ = *std::move(running);
  if (leaves_sockets_) running_->LeaveSockets();
  endpoint_ = running_->local_endpoint();
  NameByAddress(endpoint_);
  LOG(INFO) << state_->title() << " listens on " << endpoint_.ToString() << " ("
            << state_->protocol_names()
            << (state_->tls() == nullptr ? ")." : "; TLS).")
            << (admin_ == nullptr
                    ? ""
                    : " Pages are on " + admin_endpoint_.ToString() + ".");
  WarnOfFewDescriptors(*state_);
  return true;
}

Status Server::FixProtocols() {
  rpc::HttpMethodPaths::Methods methods;
  for (const rpc::Method* const method : state_->methods.All()) {
    methods.push_back(method->descriptor);
  }
  Status set_up =
      http_->SetUp(state_->options().http_cors_origins,
                   state_->options().compress_http_handlers_from, methods);
  if (!set_up.ok()) return set_up;
  auto set = rpc::ServerProtocolSet::FromNames(
      protocols_, rpc::LimitsOf(state_->options()), http_->uses());
  if (!set) return set.error();
  std::vector<std::string> names = protocols_;
  if (redis_ != nullptr) {
    names.push_back("redis");
    // Last: any line of text may be a command.
    set->Add([redis = redis_.get()](const rpc::Limits& limits,
                                    rpc::ReplySink* sink) {
      return rpc::NewRedisServerProtocol(redis, limits, sink);
    });
  }
  return state_->Freeze(
      *std::move(set), names,
      std::make_shared<std::pair<std::shared_ptr<rpc::HttpSite>,
                                 std::shared_ptr<RedisService>>>(http_,
                                                                 redis_));
}

void Server::AddPages(rpc::PagesFor who, rpc::HttpRoutes* routes) {
  rpc::AddInspectPages(
      [state = state_.Get()] { return state->statistics(); },
      [state = state_.Get()] { return state->methods.statistics(); },
      [counters = http_counters_] { return counters->Read(); },
      {.who = who,
       .credentials = page_credentials_,
       .change_flags = state_->options().pages_change_flags,
       .profiles = state_->options().pages_profiles,
       .stopping = stopping_.get_token()},
      routes);
}

Status Server::ReadPageCredentials() {
  const std::string& file = state_->options().pages_credentials_file;
  if (file.empty()) return Status();
  auto credentials = rpc::PageCredentials::Create(file);
  if (!credentials) {
    return Status(credentials.error().code(),
                  "the credentials of pages: " + credentials.error().message());
  }
  page_credentials_ = *std::move(credentials);
  return Status();
}

Status Server::StartAdmin() {
  const std::string& text = state_->options().admin_address;
  if (text.empty()) return Status();
  std::shared_ptr<io::TlsServerContext> tls;
  if (state_->options().admin_tls) {
    if (!state_->options().tls) {
      return Status(EINVAL,
                    "Options::admin_tls (--flare_rpc_server_admin_tls) needs "
                    "the certificates of Options::tls, which isn't set");
    }
    TlsServerOptions options = *state_->options().tls;
    options.alpn = {"http/1.1"};
    auto context = io::TlsServerContext::Create(options);
    if (!context) return context.error();
    tls = *std::move(context);
  }
  auto address = EndpointFromString(text);
  if (!address) {
    return Status(
        address.error().code(),
        "the admin address \"" + text + "\": " + address.error().message());
  }
  auto admin = rpc::AdminPort::Listen(*address, std::move(tls));
  if (!admin) return admin.error();
  admin_ = *std::move(admin);
  AddPages(rpc::PagesFor::kAdminPort, admin_->routes());
  for (const char* path : {rpc::kCpuProfilePath, rpc::kContentionProfilePath,
                           rpc::kContentionPath}) {
    admin_->ServeApart(path);
  }
  admin_endpoint_ = admin_->local_endpoint();
  return admin_->Start();
}

Status Server::SetUpTls() {
  if (!state_->options().tls) return Status();
  TlsServerOptions options = *state_->options().tls;
  if (options.alpn.empty()) {
    for (const std::string& protocol : protocols_) {
      const std::string name = rpc::AlpnNameOf(protocol);
      if (std::find(options.alpn.begin(), options.alpn.end(), name) ==
          options.alpn.end()) {
        options.alpn.push_back(name);
      }
    }
    // Clients of HTTP offer both, and know HTTP/1.1's form of streams of
    // replies (http_streams.h) as the published one.
    std::stable_partition(options.alpn.begin(), options.alpn.end(),
                          [](const std::string& name) { return name != "h2"; });
  }
  auto context = io::TlsServerContext::Create(options);
  if (!context) return context.error();
  state_->SetTls(*std::move(context));
  return Status();
}

void Server::Stop() {
  if (running_ == nullptr || !stopping_.request_stop()) return;
  for (const auto& listener : listeners_) listener->OnStop();
  running_->Stop();
}

std::size_t Server::Join() {
  if (running_ == nullptr) return 0;
  Stop();
  const std::size_t abandoned = running_->Join(&abandoned_calls_);
  // It asks the runtime, which may end now. Its thread may be making a page.
  if (admin_ != nullptr) fiber::RunBlocking([&] { admin_.reset(); });
  return abandoned;
}

Server::Statistics Server::statistics() const { return state_->statistics(); }

std::vector<Server::MethodStatistics> Server::method_statistics() const {
  return state_->methods.statistics();
}

}  // namespace flare
