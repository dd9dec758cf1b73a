// Health checks by grpc.health.v1, for load balancers, Kubernetes and clients
// of gRPC; callable over each protocol of the server.
//
//   auto health = flare::AddHealthService(&server);  // Before Start().
//   ...
//   health->Set("shop.Orders", flare::Health::Status::kNotServing);
//
// From Start() on the server as a whole, whose name is "", and each of its
// services are kServing, except those that were set before. From Stop() on all
// of them are kNotServing. docs/grpc_server.md has more.

#ifndef FLARE_RPC_SERVICES_HEALTH_H_
#define FLARE_RPC_SERVICES_HEALTH_H_

#include <google/protobuf/descriptor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/thread_annotations.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/mutex.h"
#include "flare/rpc/server.h"

namespace flare {

// The statuses of one server's services. Thread-safe, from fibers and plain
// threads; only Watch() blocks.
class Health final : public Server::Listener {
 public:
  enum class Status { kUnknown = 0, kServing = 1, kNotServing = 2 };

  // Sets the status of a service, which need not be one of the server's. Those
  // who watch it are told. No effect from the server's Stop() on.
  void Set(std::string_view service, Status status) FLARE_EXCLUDES(mutex_);
  // Sets that of all services that have one.
  void SetAll(Status status) FLARE_EXCLUDES(mutex_);

  // Nothing: of a service without a status.
  std::optional<Status> Get(std::string_view service) const
      FLARE_EXCLUDES(mutex_);

  struct Change {
    std::optional<Status> status;  // As Get() returns it.
    bool final = false;            // The server stops; no change follows.
  };
  // Blocks the fiber or thread until the status of `service` isn't `last`, or
  // the server stops. Nothing: `stop` was requested before.
  std::optional<Change> Watch(std::string_view service,
                              std::optional<Status> last,
                              const std::stop_token& stop) const
      FLARE_EXCLUDES(mutex_);

 private:
  void OnStart(const std::vector<const google::protobuf::ServiceDescriptor*>&
                   services) override FLARE_EXCLUDES(mutex_);
  void OnStop() override FLARE_EXCLUDES(mutex_);

  std::optional<Status> Find(std::string_view service) const
      FLARE_REQUIRES(mutex_);

  mutable fiber::Mutex mutex_;
  mutable fiber::ConditionVariable changed_;
  std::map<std::string, Status, std::less<>> statuses_ FLARE_GUARDED_BY(mutex_);
  bool stopped_ FLARE_GUARDED_BY(mutex_) = false;
};

// Adds the service to `server`, which must not have been started, once. A
// failure makes Start() fail, as with AddService(). Never null.
std::shared_ptr<Health> AddHealthService(Server* server);

}  // namespace flare

#endif  // FLARE_RPC_SERVICES_HEALTH_H_
