// Controls which callers may call which methods: an interceptor of a server
// that finds out the caller, and lets through only calls that the rules of a
// file allow.
//
//   auto access = flare::AccessControl::Create(
//       {.authenticate =
//            [](const flare::CallCredentials& call)
//            -> flare::Expected<std::string> {
//          const auto token = call.BearerToken();
//          if (!token) return std::string();        // Anonymous.
//          if (auto user = FindUser(*token)) return *user;
//          return flare::Status(flare::rpc::STATUS_UNAUTHENTICATED,
//                               "the token is unknown");
//        },
//        .rules_file = "access.json"});
//   if (!access) return Fail(access.error().ToString());
//   server.AddInterceptor(*access);
//
// For calls in all protocols, unary or streaming, and for HTTP handlers and the
// pages under /inspect. docs/security.md has the format of rules, and the
// answers that denied callers get. To look at connections before they send
// anything use Server::Options::conn_filter.
#ifndef FLARE_RPC_ACCESS_CONTROL_H_
#define FLARE_RPC_ACCESS_CONTROL_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/io/reload_gate.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/log_throttle.h"

namespace flare {

namespace rpc {
class AccessRules;
}  // namespace rpc

// Shows the credentials of a call to an authentication. Lives as long as that
// runs. Nothing here blocks.
class CallCredentials {
 public:
  explicit CallCredentials(const InterceptedCall& call) : call_(call) {}

  // As InterceptedCall::method() and peer().
  std::string_view method() const { return call_.method(); }
  const Endpoint& peer() const { return call_.peer(); }
  // The certificate that the caller has shown, if that was verified; else null.
  const PeerIdentity* peer_identity() const;
  // The first entry of that name in the call's metadata, or the field of an
  // HTTP request. The name is in lower case.
  std::optional<std::string_view> Get(std::string_view name) const;
  // TOKEN of "authorization: Bearer TOKEN"; nullopt: there is none, or it is of
  // another scheme.
  std::optional<std::string_view> BearerToken() const;

 private:
  const InterceptedCall& call_;
};

struct AccessControlOptions {
  // Finds out the caller: a name, or an empty text for an anonymous one. A
  // failure is the call's: rpc::STATUS_UNAUTHENTICATED for credentials that are
  // wrong, rpc::STATUS_OUT_OF_SERVICE where they can't be checked now. Called
  // for each call, on its fiber, on many at a time; may block. Null: callers
  // have certificates, or are anonymous.
  std::function<Expected<std::string>(const CallCredentials&)> authenticate =
      nullptr;
  // A file of rules. Empty: callers that aren't refused by `authenticate` may
  // call everything; anonymous callers may, too.
  std::string rules_file = "";
  // The field WWW-Authenticate of replies that ask for credentials.
  std::string challenge = "Bearer";
  // Between two looks at the file. 0: it isn't read again.
  std::chrono::nanoseconds reload_interval = std::chrono::seconds(1);
};

// Denied calls fail with rpc::STATUS_UNAUTHENTICATED if their caller is
// anonymous, else with rpc::STATUS_PERMISSION_DENIED, and are counted
// (ServerStatistics). The log has a line about them, at most one a second.
//
// To the method the name is RpcServerController::caller(), to an HTTP handler
// HttpServerContext::caller.
//
// Thread-safe. May be used by several servers.
class AccessControl final : public ServerInterceptor,
                            public std::enable_shared_from_this<AccessControl> {
 public:
  // Reads the file, which blocks the thread. Fails if that can't be read, or
  // has a mistake: "access.json:3:14: who: ...".
  static Expected<std::shared_ptr<AccessControl>> Create(
      AccessControlOptions options);

  ~AccessControl() override;

  void Intercept(InterceptedCall& call, ServerNext& next) override;

 private:
  using Rules = std::shared_ptr<const rpc::AccessRules>;

  explicit AccessControl(AccessControlOptions options);

  // Returns a text that tells one version of the file from another; empty:
  // there is none.
  std::string VersionOfFile() const;
  // *was_read: whether the file could be read, whatever is in it.
  Expected<Rules> ReadRules(bool* was_read) const;
  // Blocks the thread.
  void CheckFile() FLARE_EXCLUDES(lock_);
  Rules rules() const FLARE_EXCLUDES(lock_);
  void Deny(int code, std::string reason, InterceptedCall* call);

  const AccessControlOptions options_;
  io::ReloadGate reload_gate_;
  std::string version_;  // For CheckFile().
  mutable Spinlock lock_;
  Rules rules_ FLARE_GUARDED_BY(lock_);
  rpc::LogThrottle denied_log_;
};

}  // namespace flare

#endif  // FLARE_RPC_ACCESS_CONTROL_H_
