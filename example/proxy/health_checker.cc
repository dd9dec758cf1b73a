#include "example/proxy/health_checker.h"

#include <cerrno>
#include <utility>

#include "example/proxy/proxy_protocol.h"
#include "flare/base/clock.h"
#include "flare/rpc/checks/probe.h"
#include "flare/rpc/health_check_options.h"
#include "glog/logging.h"

namespace example::proxy {
namespace {

// The header for a server that expects a PROXY header: it names nobody, as the
// connection has no client. By the specification (2.2) it is LOCAL; servers may
// refuse a PROXY of an unknown family.
std::string HeaderFor(ProxyProtocol protocol) {
  switch (protocol) {
    case ProxyProtocol::kV1:
      return FormatProxyHeaderV1({}, {});
    case ProxyProtocol::kV2:
      return FormatLocalHeaderV2();
    case ProxyProtocol::kNone:
      break;
  }
  return "";
}

}  // namespace

flare::rpc::ServerCheck CheckOf(const ProxyConfig& config,
                                const std::string& name,
                                const flare::Endpoint& address) {
  const HealthCheckConfig& wanted = config.health_check;
  const bool is_http = wanted.type == HealthCheckConfig::Type::kHttp;
  // Without the address that tells upstreams of one name apart.
  const std::string host =
      name.starts_with("unix:") ? name : name.substr(0, name.find('@'));
  return {.options = {.kind = is_http ? flare::HealthCheckKind::kHttp
                                      : flare::HealthCheckKind::kConnect,
                      .target = is_http ? wanted.path : "",
                      .interval = wanted.interval,
                      .jitter_percent = wanted.jitter,
                      .timeout = wanted.timeout,
                      .rise = wanted.rise,
                      .fall = wanted.fall},
          .endpoint = address,
          .host = wanted.host.empty() ? host : wanted.host,
          .first_bytes = HeaderFor(config.send_proxy_protocol),
          .http_status = wanted.status};
}

void HealthChecker::Update(
    const ProxyConfig& config,
    const std::vector<flare::RefPtr<Upstream>>& upstreams) {
  Stop();
  stop_ = std::stop_source();
  const bool checks =
      config.health_check.type != HealthCheckConfig::Type::kNone;
  std::vector<std::shared_ptr<Patient>> patients;
  for (const flare::RefPtr<Upstream>& upstream : upstreams) {
    if (!checks || !config.health_check.cut_sessions) {
      upstream->SetSilentSince(0);
    }
    if (!checks) {
      upstream->SetHealthy(true);
      continue;
    }
    std::shared_ptr<Patient> patient = Find(*upstream);
    if (patient == nullptr) patient = std::make_shared<Patient>(upstream);
    fibers_.emplace_back(
        [this, check = CheckOf(config, upstream->name(), upstream->address()),
         cuts = config.health_check.cut_sessions, stop = stop_.get_token(),
         patient] {
          flare::rpc::RepeatChecks(
              check, stop, /*turn=*/nullptr,
              [&](const flare::Status& status, std::int64_t began_ns) {
                Note(check, status, patient.get());
                if (cuts) NoteSilence(status, began_ns, patient.get());
              });
        });
    patients.push_back(std::move(patient));
  }
  flare::ScopedLock guard(lock_);
  patients_.swap(patients);
}

void HealthChecker::Stop() {
  stop_.request_stop();
  for (flare::Fiber& fiber : fibers_) fiber.join();
  fibers_.clear();
}

HealthChecker::Statistics HealthChecker::StatisticsOf(
    const Upstream& upstream) const {
  const std::shared_ptr<Patient> patient = Find(upstream);
  if (patient == nullptr) return {};
  flare::ScopedLock guard(patient->lock);
  return patient->statistics;
}

std::shared_ptr<HealthChecker::Patient> HealthChecker::Find(
    const Upstream& upstream) const {
  flare::ScopedLock guard(lock_);
  for (const auto& patient : patients_) {
    if (patient->upstream.Get() == &upstream) return patient;
  }
  return nullptr;
}

void HealthChecker::Note(const flare::rpc::ServerCheck& check,
                         const flare::Status& status, Patient* patient) {
  {
    flare::ScopedLock guard(patient->lock);
    ++patient->statistics.checks;
    if (!status.ok()) ++patient->statistics.failures;
    patient->statistics.last_error = status.message();
  }
  Upstream& upstream = *patient->upstream;
  if (status.ok()) upstream.EndFailures();
  if (!patient->verdict.Note(status, check.options)) return;
  upstream.SetHealthy(patient->verdict.healthy());
  if (status.ok()) {
    LOG(INFO) << "Upstream " << upstream.name() << " is healthy.";
  } else {
    LOG(WARNING) << "Upstream " << upstream.name()
                 << " is unhealthy: " << status.message();
  }
}

// A server that refuses checks, or answers them badly, ends its connections by
// itself. One that is gone without a word does not.
void HealthChecker::NoteSilence(const flare::Status& status,
                                std::int64_t began_ns, Patient* patient) {
  const bool silent = status.code() == ETIMEDOUT ||
                      status.code() == EHOSTUNREACH ||
                      status.code() == ENETUNREACH;
  if (flare::rpc::IsShortage(status.code())) return;
  Upstream& upstream = *patient->upstream;
  if (!silent) {
    patient->silent_from_ns = patient->silent_for_ns = 0;
    return upstream.SetSilentSince(0);
  }
  if (patient->silent_from_ns == 0) patient->silent_from_ns = began_ns;
  if (patient->verdict.healthy()) return;
  const std::int64_t now = flare::NowNs();
  if (patient->silent_for_ns == 0) {
    patient->silent_for_ns = now - patient->silent_from_ns;
  }
  upstream.SetSilentSince(now - patient->silent_for_ns);
  if (on_silent_) on_silent_();
}

}  // namespace example::proxy
