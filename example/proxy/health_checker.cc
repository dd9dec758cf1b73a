#include "example/proxy/health_checker.h"

#include <cerrno>
#include <chrono>
#include <random>
#include <utility>

#include "example/proxy/health_probe.h"
#include "example/proxy/proxy_protocol.h"
#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/fiber/this_fiber.h"
#include "glog/logging.h"

namespace example::proxy {
namespace {

// What a server that expects a PROXY header is sent: one that names nobody, as
// the connection stands for no client. By the specification (2.2) it is LOCAL;
// servers may refuse a PROXY of an unknown family.
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

bool HealthVerdict::Note(bool good, int rise, int fall) {
  if (!decided_) {
    decided_ = true;
    healthy_ = good;
    return true;
  }
  if (good == healthy_) {
    against_ = 0;
    return false;
  }
  if (++against_ < (good ? rise : fall)) return false;
  against_ = 0;
  healthy_ = good;
  return true;
}

CheckPauses::CheckPauses(const HealthCheckConfig& config)
    : interval_(config.interval),
      span_(config.interval / 100 * config.jitter),
      seed_(flare::MixBits(std::random_device{}())) {}

std::chrono::nanoseconds CheckPauses::Next() {
  const auto random =
      static_cast<double>(flare::MixBits(++seed_) >> 11) * 0x1p-52;
  // From interval - span to interval + span.
  return interval_ + std::chrono::nanoseconds(static_cast<std::int64_t>(
                         static_cast<double>(span_.count()) * (random - 1)));
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
    fibers_.emplace_back([this, config = config.health_check,
                          header = HeaderFor(config.send_proxy_protocol),
                          stop = stop_.get_token(), patient] {
      Observe(config, header, stop, patient.get());
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

void HealthChecker::Observe(const HealthCheckConfig& config,
                            const std::string& header,
                            const std::stop_token& stop, Patient* patient) {
  flare::this_fiber::SetName("health_check");
  CheckPauses pauses(config);
  do {
    const std::int64_t began_ns = flare::NowNs();
    const flare::Status status =
        ProbeServer(config, patient->upstream->name(),
                    patient->upstream->address(), header, stop);
    if (status.code() == ECANCELED) return;
    Note(config, status, patient);
    if (config.cut_sessions) NoteSilence(status, began_ns, patient);
  } while (flare::this_fiber::SleepFor(stop, pauses.Next()));
}

void HealthChecker::Note(const HealthCheckConfig& config,
                         const flare::Status& status, Patient* patient) {
  {
    flare::ScopedLock guard(patient->lock);
    ++patient->statistics.checks;
    if (!status.ok()) ++patient->statistics.failures;
    patient->statistics.last_error = status.message();
  }
  if (IsShortage(status.code())) return;  // Held against nobody.
  Upstream& upstream = *patient->upstream;
  if (status.ok()) upstream.EndFailures();
  if (!patient->verdict.Note(status.ok(), config.rise, config.fall)) return;
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
  if (IsShortage(status.code())) return;
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
