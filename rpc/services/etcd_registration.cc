#include "flare/rpc/services/etcd_registration.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/fiber/event.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/naming/list_resolution.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "glog/logging.h"
#include "rpc/services/etcd.flare.pb.h"

namespace flare {
namespace {

constexpr std::string_view kScheme = "etcd://";
constexpr std::string_view kTls = "tls+";

// Whether the address is that of a socket which listens on all addresses of the
// machine.
bool IsWildcard(std::string_view name) {
  return name.starts_with("0.0.0.0:") || name.starts_with("[::]:");
}

}  // namespace

Expected<std::shared_ptr<EtcdRegistration>, Status> EtcdRegistration::Create(
    std::string_view uri, const Options& options) {
  const bool tls = uri.starts_with(kTls);
  const std::string_view plain = tls ? uri.substr(kTls.size()) : uri;
  if (!plain.starts_with(kScheme)) {
    return EtcdError("\"" + std::string(uri) +
                     "\" doesn't begin with etcd://, as in "
                     "etcd://10.0.0.1:2379/services/echo/");
  }
  auto place = ReadEtcdPlace(plain.substr(kScheme.size()));
  if (!place) return place.error();
  place->tls = tls;
  if (options.lease < std::chrono::seconds(1) ||
      options.leave_time < std::chrono::nanoseconds(0)) {
    return EtcdError(
        "a lease in etcd lasts for at least a second, and no time "
        "is negative");
  }
  std::shared_ptr<EtcdRegistration> made(new EtcdRegistration(*place, options));
  if (!made->client_.status().ok()) return made->client_.status();
  return made;
}

EtcdRegistration::EtcdRegistration(const EtcdPlace& place,
                                   const Options& options)
    : prefix_(place.prefix),
      options_(options),
      client_(place, options.tls, options.user),
      pauses_(kNsPerSecond),
      state_(rpc::STATUS_NO_PEER, "etcd wasn't told of the server yet") {}

EtcdRegistration::~EtcdRegistration() { Stop(); }

Status EtcdRegistration::CheckAddress(std::string_view server) {
  const std::string_view text = Trim(server);
  const auto entry = rpc::ReadListEntry(text);
  if (!entry) return entry.error();
  if (entry->name.empty() || IsWildcard(entry->name)) {
    return EtcdError("\"" + std::string(text) +
                     "\" is no address that clients can connect to; name the "
                     "one to register in etcd");
  }
  return {};
}

Status EtcdRegistration::Start(std::string_view server) {
  if (Status checked = CheckAddress(server); !checked.ok()) return checked;
  value_ = std::string(Trim(server));
  key_ = prefix_ + rpc::ReadListEntry(value_)->name;
  fiber_ = Fiber([this] { Run(); });
  return {};
}

void EtcdRegistration::Stop() {
  stop_.request_stop();
  if (!fiber_.joinable()) return;
  fiber_.join();
  if (lease_ != 0) Revoke();
  SetState(Status(rpc::STATUS_CHANNEL_SHUTDOWN, "the server stops"));
}

Status EtcdRegistration::failure() const {
  ScopedLock guard(lock_);
  return state_;
}

void EtcdRegistration::Run() {
  const std::stop_token stop = stop_.get_token();
  while (!stop.stop_requested()) {
    Status renewed = Renew();
    if (stop.stop_requested()) return;
    std::int64_t pause_ns = 0;
    if (renewed.ok()) {
      pauses_.Reset();
      pause_ns = lease_seconds_ * kNsPerSecond / 3;
      pauses_.set_limit_ns(std::min(pause_ns, kNsPerSecond));
    } else {
      pause_ns = pauses_.NextNs();
    }
    SetState(std::move(renewed));
    static_cast<void>(
        this_fiber::SleepFor(stop, std::chrono::nanoseconds(pause_ns)));
  }
}

// A put that failed may have taken effect, or may yet. Its lease is kept, so
// that the end of the lease is also the end of the key.
Status EtcdRegistration::Renew() {
  if (lease_ != 0) {
    if (Status kept = KeepAlive(); !kept.ok()) return kept;
  }
  if (lease_ == 0) {
    if (Status granted = Grant(); !granted.ok()) return granted;
  }
  return put_ ? Status() : Put();
}

Status EtcdRegistration::Grant() {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(options_.lease.count());
  const auto reply =
      client_.Call(stop_.get_token(), [&](RpcClientController* controller) {
        return etcdserverpb::Lease_SyncStub(client_.channel())
            .LeaseGrant(request, controller);
      });
  if (!reply) return reply.error();
  if (!reply->error().empty()) return EtcdError(reply->error());
  lease_ = reply->id();
  // etcd allows more, but nobody needs it.
  lease_seconds_ = std::clamp<std::int64_t>(reply->ttl(), 1, 86'400);
  put_ = false;
  return {};
}

// Ok: the lease is alive, or is known to be lost, and then lease_ is 0.
Status EtcdRegistration::KeepAlive() {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease_);
  if (Status status = client_.LogIn(stop_.get_token()); !status.ok()) {
    return status;
  }
  EtcdClient::Attempt attempt(stop_.get_token());
  client_.AddToken(&attempt.controller);
  StreamReader<etcdserverpb::LeaseKeepAliveResponse> reader;
  StreamWriter<etcdserverpb::LeaseKeepAliveRequest> writer;
  std::tie(reader, writer) = etcdserverpb::Lease_SyncStub(client_.channel())
                                 .LeaseKeepAlive(&attempt.controller);
  static_cast<void>(writer.WriteLast(request));
  const auto reply = reader.Read();
  if (!reply) {
    const Status& status = reader.status();
    client_.ForgetToken(status);  // The next attempt comes soon.
    return status.ok() ? EtcdError("etcd has ended a stream of leases")
                       : status;
  }
  if (reply->ttl() > 0) return {};
  LOG(WARNING) << "etcd has lost the lease of \"" << key_
               << "\"; the server is registered again";
  lease_ = 0;
  return {};
}

Status EtcdRegistration::Put() {
  etcdserverpb::PutRequest request;
  request.set_key(key_);
  request.set_value(value_);
  request.set_lease(lease_);
  const auto reply =
      client_.Call(stop_.get_token(), [&](RpcClientController* controller) {
        return etcdserverpb::KV_SyncStub(client_.channel())
            .Put(request, controller);
      });
  if (!reply) return reply.error();
  put_ = true;
  return {};
}

void EtcdRegistration::Revoke() {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(std::exchange(lease_, 0));
  // stop_ has been requested, but this shall be done.
  const auto reply =
      client_.Call(std::stop_token(), [&](RpcClientController* controller) {
        return etcdserverpb::Lease_SyncStub(client_.channel())
            .LeaseRevoke(request, controller);
      });
  if (!reply) {
    LOG(WARNING) << "the server can't be taken out of etcd: "
                 << reply.error().ToString() << "; its key \"" << key_
                 << "\" goes within " << lease_seconds_ << " seconds";
    return;
  }
  LOG(INFO) << "the server isn't registered in etcd any more: \"" << key_
            << '"';
  fiber::Event never;
  static_cast<void>(never.WaitFor(options_.leave_time));
}

void EtcdRegistration::SetState(Status state) {
  {
    ScopedLock guard(lock_);
    if (state.message() == state_.message() && state.ok() == state_.ok()) {
      return;
    }
    state_ = state;
  }
  if (state.ok()) {
    LOG(INFO) << "the server is registered in etcd: \"" << key_ << "\" is "
              << value_;
  } else if (!stop_.stop_requested()) {
    LOG(WARNING) << "the server can't be registered in etcd as \"" << key_
                 << "\", which is tried again: " << state.ToString();
  }
}

}  // namespace flare
