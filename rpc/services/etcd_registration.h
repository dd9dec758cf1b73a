// A server that tells etcd, version 3, where it is. Channels find it there by
// the resolver "etcd" (etcd_resolver.h):
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
// The key has a lease, which is kept alive by a fiber. So the server disappears
// from etcd some seconds after it has died. docs/discovery.md has more.

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
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/server.h"
#include "flare/rpc/services/etcd_place.h"

namespace flare {

struct EtcdRegistrationOptions {
  // The server disappears so long after it has last been heard of; renewed
  // each third of it. etcd takes 2 seconds for less.
  std::chrono::seconds lease{10};
  // Stop() waits so long after the server was taken out, so that clients learn
  // of it before the server refuses calls.
  std::chrono::nanoseconds leave_time = std::chrono::milliseconds(200);
  // How "tls+etcd://..." checks etcd, and what it shows to it. Nothing: the
  // roots of the system.
  std::optional<TlsClientOptions> tls = {};
};

// Start() and Stop() from one fiber or thread, the rest from any.
class EtcdRegistration final : public Server::Listener {
 public:
  using Options = EtcdRegistrationOptions;

  // Reads "etcd://10.0.0.1:2379,10.0.0.2:2379/services/echo/": members of etcd,
  // and the beginning of the key. Over TLS it is "tls+etcd://...". Fails with a
  // text that says what is wrong, or if an option makes no sense. Asks nothing
  // yet, so doesn't block.
  static Expected<std::shared_ptr<EtcdRegistration>, Status> Create(
      std::string_view uri, const Options& options = Options());

  // Does Stop().
  ~EtcdRegistration() override;

  // Whether `server` can be registered: Start() fails with the same text. For
  // programs that check their flags first.
  static Status CheckAddress(std::string_view server);

  // Begins to register `server`: the address by which clients know it, and
  // maybe its weight, as in a list ("10.0.0.1:5567;weight=3"). The key is the
  // prefix and the address. Fails if that can't be right; doesn't wait for
  // etcd, nor block, and etcd may be away: then it goes on trying. Once, in a
  // running runtime.
  Status Start(std::string_view server);

  // Takes the server out of etcd, if it is there, and waits for the leave time.
  // Blocks the fiber or thread, for a second more if etcd doesn't answer: then
  // the lease runs out by itself, and the log says so. No effect a second time.
  // By the server's Stop() if this is its listener.
  void Stop();

  // Whether etcd has the server, as of the last answer.
  bool registered() const { return failure().ok(); }
  // Why not, or ok. A text for people.
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
  RpcChannel channel_;
  std::string key_;
  std::string value_;
  std::stop_source stop_;
  Fiber fiber_;
  // The fiber's, and after its end Stop()'s.
  std::int64_t lease_ = 0;  // 0: none.
  std::int64_t lease_seconds_ = 0;
  bool put_ = false;  // With this lease.
  EtcdPauses pauses_;
  mutable Spinlock lock_;
  Status state_ FLARE_GUARDED_BY(lock_);
};

}  // namespace flare

#endif  // FLARE_RPC_SERVICES_ETCD_REGISTRATION_H_
