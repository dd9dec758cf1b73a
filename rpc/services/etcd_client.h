// Calls to etcd, version 3, as one of its users if there is one. For
// etcd_resolver.h and etcd_registration.h.
//
//   EtcdClient client(*place, options.tls, options.user);
//   if (!client.status().ok()) return client.status();
//   const auto reply = client.Call(stop, [&](RpcClientController* controller) {
//     return etcdserverpb::KV_SyncStub(client.channel()).Put(request,
//                                                           controller);
//   });

#ifndef FLARE_RPC_SERVICES_ETCD_CLIENT_H_
#define FLARE_RPC_SERVICES_ETCD_CLIENT_H_

#include <chrono>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>

#include "flare/base/status.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/services/etcd_place.h"
#include "flare/rpc/services/etcd_user.h"

namespace flare {

// Timeout of calls to etcd. A member that is well takes less.
inline constexpr auto kEtcdTimeout = std::chrono::seconds(1);

// Not thread-safe, except status() and channel(). A user's name and password
// are exchanged for a token, which goes with each call. etcd forgets tokens
// when it is restarted, or after some minutes. Then a new one is asked for.
class EtcdClient {
 public:
  // Look at status() for mistakes. If the place has TLS, `tls` says how to
  // verify etcd; without TLS it is an error. Doesn't contact etcd; doesn't
  // block, unless members have names to look up.
  EtcdClient(const EtcdPlace& place, const std::optional<TlsClientOptions>& tls,
             const std::optional<EtcdUser>& user);

  const Status& status() const { return status_; }
  RpcChannel* channel() { return &channel_; }

  // Returns the result of `call` for a controller: an Expected with a Status.
  // If etcd doesn't accept the token, calls once more with another one. Blocks;
  // ends early when `stop` is requested.
  template <class F>
  auto Call(const std::stop_token& stop, const F& call)
      -> decltype(call(static_cast<RpcClientController*>(nullptr))) {
    bool again = false;
    while (true) {
      if (Status status = LogIn(stop); !status.ok()) return status;
      Attempt attempt(stop);
      AddToken(&attempt.controller);
      auto reply = call(&attempt.controller);
      if (reply || again || !ForgetToken(reply.error())) return reply;
      again = true;
    }
  }

  // --- For streams ---

  // Makes sure that there is a token, if one is needed. Blocks like Call().
  Status LogIn(const std::stop_token& stop);
  void AddToken(RpcClientController* controller) const;
  // True: the token may be the reason of the failure; the next LogIn() asks for
  // another one.
  bool ForgetToken(const Status& failure);
  // False: there is none.
  bool ForgetToken();

  // One attempt of a call, which ends when `stop` is requested.
  struct Attempt {
    explicit Attempt(const std::stop_token& stop)
        : cancel(stop, [this] { controller.StartCancel(); }) {
      controller.SetTimeout(kEtcdTimeout);
    }
    RpcClientController controller;

   private:
    std::stop_callback<std::function<void()>> cancel;
  };

 private:
  const std::optional<EtcdUser> user_;
  RpcChannel channel_;
  Status status_;
  std::string token_;  // Empty: none.
};

}  // namespace flare

#endif  // FLARE_RPC_SERVICES_ETCD_CLIENT_H_
