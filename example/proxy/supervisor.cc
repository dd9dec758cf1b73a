#include "example/proxy/supervisor.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "example/proxy/admin_pages.h"
#include "example/proxy/config_value.h"
#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/base/unblocked_logging.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/io/fd.h"
#include "flare/rpc/checks/probe.h"
#include "flare/rpc/health_check_options.h"
#include "flare/rpc/start/flags.h"
#include "glog/logging.h"

namespace example::proxy {
namespace {

using flare::Status;

std::string WhereOf(const ProxyConfig& config, const std::string& field) {
  const auto it = config.where.find(field);
  return it == config.where.end() ? "the default of " + field : it->second;
}

// Two sockets for each client; for each event loop its own ones and a socket
// that listens, for each address and the pages; one for each check of health;
// and the program's own. Pipes (copy_mode) come on top.
std::size_t DescriptorsFor(const ProxyConfig& config) {
  return 2 * config.max_connections +
         flare::fiber::GetSchedulingGroupCount() *
             (4 + config.listeners.size() + 1) +
         config.upstreams.size() + 100;
}

// As many descriptors as we may have; a warning if that is too few.
void ProvideDescriptors(const ProxyConfig& config) {
  if (FLAGS_flare_raise_open_files_limit) {
    flare::io::RaiseDescriptorLimit();  // The hard one may have been raised.
  }
  const std::size_t limit = flare::io::DescriptorLimit();
  const std::size_t needed = DescriptorsFor(config);
  if (limit < needed) {
    LOG(WARNING) << WhereOf(config, "max_connections") << ": "
                 << config.max_connections
                 << " connections, and what listens, take up to " << needed
                 << " descriptors, but the system allows only " << limit
                 << "; raise the limit (`ulimit -n`) or lower the setting.";
  }
  flare::io::ReserveDescriptors(needed);  // The runtime's may be less.
}

// Advice where an access log can't be opened, unless its text says that.
const char* AdviceOnAccessLog(int error) {
  switch (error) {
    case EAGAIN:
    case EBUSY:
    case ENFILE:
    case ENOMEM:
      return "";
    case EMFILE:
      return "; raise the limit of descriptors (ulimit -n)";
    default:
      return "; name a file in a folder that exists and may be written to";
  }
}

}  // namespace

int CountUnreachable(const ProxyConfig& config) {
  flare::HealthCheckOptions connect;
  connect.kind = flare::HealthCheckKind::kConnect;
  connect.timeout = config.connect_timeout;
  std::atomic<int> unreachable{0};
  std::vector<flare::Fiber> fibers;
  for (const UpstreamConfig& upstream : config.upstreams) {
    fibers.emplace_back([&] {
      const Status status =
          flare::rpc::CheckServer({.options = connect,
                                   .endpoint = upstream.address,
                                   .host = upstream.name},
                                  {});
      if (status.ok()) return;
      // relaxed: join() orders it before the end.
      unreachable.fetch_add(1, std::memory_order_relaxed);
      LOG(WARNING) << upstream.where << ": upstream '" << upstream.name
                   << "' can't be reached: " << status.message()
                   << "; check the address, and that the server runs.";
    });
  }
  for (flare::Fiber& fiber : fibers) fiber.join();
  return unreachable.load(std::memory_order_relaxed);  // relaxed: see above.
}

Supervisor::Supervisor(ConfigSource source)
    : source_(std::move(source)), started_ns_(flare::NowNs()) {}

Supervisor::~Supervisor() {
  quit_.request_stop();
  hangup_.reset();
  if (admin_) {
    admin_->Stop();
    admin_->Join();
  }
  StopTicker();
  health_.Stop();
  proxy_.reset();  // Before the log that its sessions end in.
}

Status Supervisor::Start(const ProxyConfig& config) {
  flare::ScopedLock guard(control_);
  // Both before anybody can know that we are here: from now on signals don't
  // kill. A reload waits for `control_`.
  (void)flare::CheckForQuitSignal();
  hangup_ = std::make_unique<HangupSignal>([this] { Reload(); });
  ProvideDescriptors(config);
  const Status opened = flare::fiber::RunBlocking(
      [&] { return access_log_.Open(config.access_log); });
  if (!opened.ok()) {
    return Status(opened.code(), WhereOf(config, "access_log") + ": " +
                                     opened.message() +
                                     AdviceOnAccessLog(opened.code()));
  }
  auto proxy = Proxy::Start(
      std::make_shared<const ProxyConfig>(config),
      [this](const SessionReport& report) { OnSessionEnd(report); });
  if (!proxy) return proxy.error();
  proxy_ = std::move(*proxy);
  if (Status status = StartAdmin(config); !status.ok()) return status;
  health_.Update(config, proxy_->upstreams());
  KeepTicking(config.statistics_interval);
  for (const flare::Endpoint& address : proxy_->listening()) {
    LOG(INFO) << "Proxy listens on " << address << ".";
  }
  return Status();
}

Status Supervisor::StartAdmin(const ProxyConfig& config) {
  if (config.admin.empty()) return Status();
  flare::Server::Options options;
  options.service_name = "admin";
  // The address is for pages, and chosen by the user.
  options.builtin_pages = flare::BuiltinPages::kEveryone;
  admin_ = std::make_unique<flare::Server>(options);
  admin_->AddProtocol("http");
  AddAdminPages([this] { return TakeSnapshot(); }, admin_.get());
  admin_->ListenOn(config.admin);
  if (admin_->Start()) return Status();
  // Its code is no errno.
  const std::string why = admin_->error().message();
  admin_.reset();
  return Status(EIO, WhereOf(config, "admin") + ": " + why);
}

void Supervisor::Reload() {
  flare::ScopedLock guard(control_);
  if (!proxy_ || quit_.stop_requested()) return;
  auto config = LoadConfig(source_, quit_.get_token());
  if (quit_.stop_requested()) return;  // Its result comes too late.
  const Status status =
      config ? Apply(std::make_shared<const ProxyConfig>(std::move(*config)))
             : config.error();
  const std::string why = flare::OneLine(status.message());
  if (status.ok()) {
    // relaxed: a number for people.
    const auto now = generation_.fetch_add(1, std::memory_order_relaxed) + 1;
    LOG(INFO) << "Reloaded; this is configuration " << now << ".";
  } else {
    LOG(ERROR) << "Not reloaded, going on as before: " << why;
    // The file was renamed, so it is closed all the same.
    const Status reopened = flare::fiber::RunBlocking(
        [&] { return access_log_.Open(proxy_->config()->access_log); });
    if (!reopened.ok()) LOG(ERROR) << flare::OneLine(reopened.message());
  }
  flare::ScopedLock counters(reload_lock_);
  if (!status.ok()) ++reloads_refused_;
  last_reload_error_ = why;
}

Status Supervisor::Apply(std::shared_ptr<const ProxyConfig> config) {
  const Status opened = flare::fiber::RunBlocking(
      [&] { return access_log_.Open(config->access_log); });
  if (!opened.ok()) {
    return Status(opened.code(),
                  WhereOf(*config, "access_log") + ": " + opened.message());
  }
  const flare::Endpoint admin_before = proxy_->config()->admin;
  if (Status status = proxy_->Reload(config); !status.ok()) {
    return status;
  }
  if (config->admin != admin_before) {
    LOG(WARNING) << WhereOf(*config, "admin")
                 << ": this takes effect with the next start only.";
  }
  ProvideDescriptors(*config);
  health_.Update(*config, proxy_->upstreams());
  KeepTicking(config->statistics_interval);
  return Status();
}

int Supervisor::ServeUntilQuitSignal() {
  flare::WaitForQuitSignal();
  return Drain();
}

int Supervisor::Drain() {
  quit_.request_stop();
  {
    flare::ScopedLock guard(control_);
    // relaxed: for people.
    draining_.store(true, std::memory_order_relaxed);
    proxy_->StopListening();
  }
  const auto deadline = proxy_->config()->drain_deadline;
  LOG(INFO) << "Draining: " << proxy_->statistics().active << " sessions have "
            << FormatDuration(deadline) << " to come to their ends.";
  if (proxy_->WaitUntilIdle(flare::ToSteadyNs(deadline))) {
    LOG(INFO) << "Drained: " << proxy_->statistics().accepted
              << " clients were accepted in total.";
    return 0;
  }
  LOG(WARNING) << "Cutting " << proxy_->statistics().active
               << " sessions that went on for longer than drain_deadline ("
               << FormatDuration(deadline) << ").";
  proxy_->CutAll();
  // So that the last line of statistics has all that they did.
  proxy_->WaitUntilIdle(flare::kNoDeadline);
  return 1;
}

Snapshot Supervisor::TakeSnapshot() const {
  Snapshot snapshot;
  snapshot.uptime_s = flare::ToSeconds(flare::NowNs() - started_ns_);
  // relaxed: for people.
  snapshot.draining = draining_.load(std::memory_order_relaxed);
  snapshot.generation = generation_.load(std::memory_order_relaxed);
  {
    flare::ScopedLock guard(reload_lock_);
    snapshot.reloads_refused = reloads_refused_;
    snapshot.last_reload_error = last_reload_error_;
  }
  for (const flare::Endpoint& address : proxy_->listening()) {
    snapshot.listening.push_back(address.ToString());
  }
  snapshot.sessions = proxy_->statistics();
  snapshot.sessions_per_group = proxy_->sessions_per_group();
  snapshot.access_log_dropped = access_log_.dropped();
  snapshot.log_lines_lost = flare::LostLogLines();
  for (const auto& upstream : proxy_->upstreams()) {
    snapshot.upstreams.push_back({upstream->name(),
                                  upstream->address().ToString(),
                                  upstream->statistics(flare::NowNs()),
                                  health_.StatisticsOf(*upstream)});
  }
  return snapshot;
}

void Supervisor::OnSessionEnd(const SessionReport& report) {
  access_log_.Write(report);
  const bool unusual = report.end == SessionEnd::kNoUpstream ||
                       report.end == SessionEnd::kOverLimit ||
                       report.end == SessionEnd::kBadHeader ||
                       report.end == SessionEnd::kNoRoute;
  if (!unusual) return;
  if (const auto left_out = session_log_.Admit()) {
    LOG(WARNING) << "Client " << flare::OneLine(report.client.ToString())
                 << " was turned away: " << ToString(report.end)
                 << (report.upstream ? ", last tried " + report.upstream->name()
                                     : "")
                 << (report.error != 0
                         ? ": " + std::system_category().message(report.error)
                         : "")
                 << flare::rpc::LogThrottle::NoteOthers(*left_out);
  }
}

void Supervisor::KeepTicking(std::chrono::nanoseconds interval) {
  // One that goes on as it is has its next line when it is due, however often
  // there are reloads.
  if (interval == ticker_interval_) return;
  StopTicker();
  // While there are no lines they leave out events.
  if (ticker_interval_.count() == 0) last_line_ = TakeSnapshot();
  ticker_interval_ = interval;
  if (interval.count() == 0) return;
  ticker_stop_ = std::stop_source();
  ticker_ = flare::Fiber([this, interval, stop = ticker_stop_.get_token()] {
    flare::this_fiber::SetName("statistics");
    bool goes_on = true;
    while (goes_on) {
      // The last line is about a part of the interval: none is left out.
      goes_on = flare::this_fiber::SleepFor(stop, interval);
      try {
        Snapshot now = TakeSnapshot();
        LOG(INFO) << StatisticsLine(last_line_, now,
                                    now.uptime_s - last_line_.uptime_s);
        last_line_ = std::move(now);
      } catch (const std::bad_alloc&) {
        // The next line is about this interval, too.
      }
    }
  });
}

void Supervisor::StopTicker() {
  ticker_stop_.request_stop();
  if (ticker_.joinable()) ticker_.join();
}

}  // namespace example::proxy
