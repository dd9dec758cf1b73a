#include "flare/rpc/services/health.h"

#include <mutex>
#include <utility>

#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/stream_writer.h"
#include "rpc/services/health.flare.pb.h"

namespace flare {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class HealthService final : public grpc::health::v1::SyncHealth {
 public:
  explicit HealthService(std::shared_ptr<Health> health)
      : health_(std::move(health)) {}

  void Check(const HealthCheckRequest& request, HealthCheckResponse* response,
             RpcServerController* controller) override {
    const auto status = health_->Get(request.service());
    if (!status) {
      return controller->SetFailed(
          rpc::StatusFromGrpc(rpc::GrpcCode::kNotFound),
          "the health of service \"" + request.service() + "\" is unknown");
    }
    response->set_status(WireStatus(*status));
  }

  void Watch(const HealthCheckRequest& request,
             StreamWriter<HealthCheckResponse> writer,
             RpcServerController* controller) override {
    const std::stop_token stop = controller->GetStopToken();
    HealthCheckResponse response;
    for (auto change = Health::Change{health_->Get(request.service())};;) {
      response.set_status(change.status ? WireStatus(*change.status)
                                        : HealthCheckResponse::SERVICE_UNKNOWN);
      if (!writer.Write(response)) return;  // The caller has left.
      if (change.final) {
        return controller->SetFailed(
            rpc::StatusFromGrpc(rpc::GrpcCode::kUnavailable),
            "the server stops");
      }
      const auto next = health_->Watch(request.service(), change.status, stop);
      if (!next) {
        return controller->SetFailed(
            rpc::StatusFromGrpc(rpc::GrpcCode::kCancelled),
            "the caller watches no longer");
      }
      change = *next;
    }
  }

 private:
  static HealthCheckResponse::ServingStatus WireStatus(Health::Status status) {
    return static_cast<HealthCheckResponse::ServingStatus>(status);
  }

  const std::shared_ptr<Health> health_;
};

}  // namespace

void Health::Set(std::string_view service, Status status) {
  ScopedLock guard(mutex_);
  if (stopped_) return;
  statuses_.insert_or_assign(std::string(service), status);
  changed_.notify_all();
}

void Health::SetAll(Status status) {
  ScopedLock guard(mutex_);
  if (stopped_) return;
  for (auto& [service, its] : statuses_) its = status;
  changed_.notify_all();
}

std::optional<Health::Status> Health::Get(std::string_view service) const {
  ScopedLock guard(mutex_);
  return Find(service);
}

std::optional<Health::Status> Health::Find(std::string_view service) const {
  const auto found = statuses_.find(service);
  if (found == statuses_.end()) return std::nullopt;
  return found->second;
}

std::optional<Health::Change> Health::Watch(std::string_view service,
                                            std::optional<Status> last,
                                            const std::stop_token& stop) const {
  std::unique_lock lock(mutex_);
  std::optional<Change> change;
  changed_.wait(lock, stop, [&]() FLARE_NO_THREAD_SAFETY_ANALYSIS {
    const auto now = Find(service);
    if (stopped_ || now != last) change = Change{now, stopped_};
    return change.has_value();
  });
  return change;
}

void Health::OnStart(
    const std::vector<const google::protobuf::ServiceDescriptor*>& services) {
  ScopedLock guard(mutex_);
  statuses_.try_emplace("", Status::kServing);
  for (const auto* const service : services) {
    statuses_.try_emplace(std::string(service->full_name()), Status::kServing);
  }
  changed_.notify_all();
}

void Health::OnStop() {
  ScopedLock guard(mutex_);
  for (auto& [service, status] : statuses_) status = Status::kNotServing;
  stopped_ = true;
  changed_.notify_all();
}

std::shared_ptr<Health> AddHealthService(Server* server) {
  auto health = std::make_shared<Health>();
  server->AddListener(health);
  server->AddService(std::make_unique<HealthService>(health));
  return health;
}

}  // namespace flare
