// Registers a server in etcd, version 3, where channels find it by the resolver
// "etcd" (etcd_resolver.h):
//
//   auto registration =
//       flare::EtcdRegistration::Create("etcd://10.0.0.1:2379/services/echo/");
//   if (!registration) return registration.error();
//   server.AddListener(*registration);
//   if (!server.Start()) ...
//   (*registration)->Start(server.endpoint().ToString());
//   ...
//   server.Stop();  // Takes it out of etcd first.
//
// The key has a lease, which a fiber renews. So a server that has died
// disappears from etcd some seconds later. docs/discovery.md has more.

#ifndef FLARE_RPC_SERVICES_ETCD_REGISTRATION_H_
#define FLARE_RPC_SERVICES_ETCD_REGISTRATION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>

#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/fiber.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/server.h"
#include "flare/rpc/services/etcd_client.h"
#include "flare/rpc/services/etcd_place.h"
#include "flare/rpc/services/etcd_user.h"

namespace flare {

struct EtcdRegistrationOptions {
  // Time after the last renewal at which the server disappears from etcd. The
  // lease is renewed every third of it. etcd takes less than 2 seconds for 2.
  std::chrono::seconds lease{10};
  // How long Stop() waits after it has taken the server out of etcd, so that
  // clients learn of it before the server refuses calls.
  std::chrono::nanoseconds leave_time = std::chrono::milliseconds(200);
  // How to verify etcd's certificate over "tls+etcd://", and the certificate
  // that is shown to it. Nothing: the roots of the system, and none.
  std::optional<TlsClientOptions> tls = {};
  // The user of etcd that may write the key. Nothing: etcd asks for none, or
  // knows the user by the certificate.
  std::optional<EtcdUser> user = {};
};

// Start() and Stop() from one fiber or thread, the rest from any.
class EtcdRegistration final : public Server::Listener {
 public:
  using Options = EtcdRegistrationOptions;

  // `uri` is "etcd://10.0.0.1:2379,10.0.0.2:2379/services/echo/": the members
  // of etcd, and the prefix of the key. Over TLS it is "tls+etcd://...". Fails,
  // with a text that names the mistake, if the URI is malformed or an option
  // makes no sense. Doesn't contact etcd, so doesn't block.
  static Expected<std::shared_ptr<EtcdRegistration>, Status> Create(
      std::string_view uri, const Options& options = Options());

  // Does Stop().
  ~EtcdRegistration() override;

  // Whether `server` can be registered: Start() fails with the same text. For
  // programs that check their flags first.
  static Status CheckAddress(std::string_view server);

  // Begins to register `server`: the address that clients connect to, and its
  // attributes, if any, as in a list ("10.0.0.1:5567;weight=3"). The key is the
  // prefix and the address. Fails if that is malformed or no address to connect
  // to. Doesn't block: a fiber tries until etcd answers. Call it once, in a
  // running runtime.
  Status Start(std::string_view server);

  // Takes the server out of etcd, if it is there, and waits for the leave time.
  // Blocks the fiber or thread, for a second more if etcd doesn't answer: then
  // the lease runs out by itself, and the log says so. If etcd is slow and has
  // forgotten the user's token, four calls may take a second each. No effect a
  // second time.
  // Server::Stop() calls this if the object is a listener of the server.
  void Stop();

  // Whether etcd has the server, according to its last answer.
  bool registered() const { return failure().ok(); }
  // Why etcd doesn't have the server, or ok. A text for people.
  Status failure() const;

 private:
  EtcdRegistration(const EtcdPlace& place, const Options& options);

  void OnStop() override { Stop(); }

  void Run();
  Status Renew();
  Status Grant();
  Status KeepAlive();
  Status Put();
  void Revoke();
  void SetState(Status state);

  const std::string prefix_;
  const Options options_;
  std::string key_;
  std::string value_;
  std::stop_source stop_;
  Fiber fiber_;
  // Used by the fiber, and after its end by Stop().
  EtcdClient client_;
  std::int64_t lease_ = 0;  // 0: none.
  std::int64_t lease_seconds_ = 0;
  bool put_ = false;  // With this lease.
  EtcdPauses pauses_;
  mutable Spinlock lock_;
  Status state_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare

#endif  // FLARE_RPC_SERVICES_ETCD_REGISTRATION_H_
