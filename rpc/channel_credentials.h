// A credential that a channel adds to the metadata of each call, and that is
// renewed before it expires:
//
//   auto credentials = flare::ChannelCredentials::Create(
//       []() -> flare::Expected<flare::Credential> {
//         auto token = AskTheTokenServer();             // May block.
//         if (!token) return token.error();
//         return flare::Credential{.value = "Bearer " + token->text,
//                                  .expires = token->expires};
//       });
//   if (!credentials) return Fail(credentials.error());
//   flare::RpcChannel channel("tls+grpc://orders:443",
//                             {.credentials = *credentials});
//
// Calls never wait for a renewal: a thread of this object does that. For
// entries that differ from call to call use RpcClientController::AddMetadata()
// or a ClientInterceptor.
#ifndef FLARE_RPC_CHANNEL_CREDENTIALS_H_
#define FLARE_RPC_CHANNEL_CREDENTIALS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/metadata.h"

namespace flare {

struct Credential {
  // The whole value of the entry: "Bearer abc". As Metadata::Add() takes it.
  std::string value;
  // It is sent until then. The default: for ever, and never renewed.
  std::chrono::steady_clock::time_point expires =
      std::chrono::steady_clock::time_point::max();
};

struct ChannelCredentialsOptions {
  // The entry's name.
  std::string name = "authorization";
  // A credential is renewed so long before it expires; one that is valid for
  // less than twice as long, after half of its time.
  std::chrono::nanoseconds ahead = std::chrono::minutes(1);
  // Between a renewal that has failed and the next.
  std::chrono::nanoseconds retry_after = std::chrono::seconds(1);
  // Sends the credential over plain connections, too, where everybody on the
  // path can read it. False: such a channel can't be opened.
  bool allow_plaintext = false;
};

// Thread-safe. Any number of channels may share one.
class ChannelCredentials {
 public:
  using Fetch = std::function<Expected<Credential>()>;

  // Calls `fetch` once, which may block, and then on a plain thread for each
  // renewal. `fetch` must not throw. Fails as it does, or if its value or the
  // name can't be metadata.
  static Expected<std::shared_ptr<ChannelCredentials>> Create(
      Fetch fetch, ChannelCredentialsOptions options = {});

  // Waits for a `fetch` that runs.
  ~ChannelCredentials();
  ChannelCredentials(const ChannelCredentials&) = delete;
  ChannelCredentials& operator=(const ChannelCredentials&) = delete;

  // Adds the entry, unless there is one of that name: a call's own counts.
  // Fails with rpc::STATUS_UNAUTHENTICATED if the credential has expired; the
  // text says why it couldn't be renewed. Doesn't block.
  Status AddTo(Metadata* metadata) const FLARE_EXCLUDES(lock_);

  bool allows_plaintext() const { return options_.allow_plaintext; }

 private:
  struct Current {
    std::string value;
    std::int64_t expires_ns;  // NowNs()
  };

  ChannelCredentials(Fetch fetch, ChannelCredentialsOptions options);

  Expected<std::shared_ptr<const Current>> Ask() const;
  // How long after now a credential that has just come is renewed.
  std::chrono::nanoseconds RenewalOf(const Current& current) const;
  void RunRenewals(std::chrono::nanoseconds first) FLARE_EXCLUDES(lock_);
  // False: the object ends.
  bool SleepFor(std::chrono::nanoseconds span);

  const Fetch fetch_;
  const ChannelCredentialsOptions options_;

  mutable Spinlock lock_;
  std::shared_ptr<const Current> current_ FLARE_GUARDED_BY(lock_);
  std::string last_error_ FLARE_GUARDED_BY(lock_);

  // Belongs to the thread, and its end. A std::mutex, which a
  // std::condition_variable takes.
  std::mutex ending_mutex_;
  std::condition_variable ending_changed_;
  bool ending_ = false;
  std::thread thread_;  // None if the first credential never expires.
};

}  // namespace flare

#endif  // FLARE_RPC_CHANNEL_CREDENTIALS_H_
