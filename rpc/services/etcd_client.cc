#include "flare/rpc/services/etcd_client.h"

#include <string_view>

#include "flare/rpc/rpc_status.h"
#include "rpc/services/etcd.flare.pb.h"

namespace flare {
namespace {

// The entry of the metadata that etcd looks for.
constexpr char kToken[] = "token";
// etcd has no code of their own for these.
constexpr std::string_view kNoUsers = "authentication is not enabled";
constexpr std::string_view kOldToken = "revision of auth store is old";

bool Says(const Status& status, std::string_view text) {
  return status.message().find(text) != std::string::npos;
}

}  // namespace

EtcdClient::EtcdClient(const EtcdPlace& place,
                       const std::optional<TlsClientOptions>& tls,
                       const std::optional<EtcdUser>& user)
    : user_(user) {
  if (user && !place.tls && !user->allow_plaintext) {
    status_ = EtcdError(
        "the password of etcd's user would be sent in the clear; use TLS, or "
        "EtcdUser::allow_plaintext where nobody else can listen");
    return;
  }
  RpcChannel::Options options;
  // A call that occasions one to etcd may have a deadline, which isn't etcd's.
  options.inherits_context = false;
  options.extensions = false;
  options.tls = tls;
  channel_.Open((place.tls ? "tls+grpc://" : "grpc://") + place.members,
                options);
  status_ = channel_.status();
}

Status EtcdClient::LogIn(const std::stop_token& stop) {
  if (!user_ || !token_.empty()) return {};
  etcdserverpb::AuthenticateRequest request;
  request.set_name(user_->name);
  request.set_password(user_->password);
  Attempt attempt(stop);
  const auto reply = etcdserverpb::Auth_SyncStub(&channel_).Authenticate(
      request, &attempt.controller);
  if (reply) {
    token_ = reply->token();
    return {};
  }
  // It may be enabled later: then calls fail, and this is tried again.
  if (Says(reply.error(), kNoUsers)) return {};
  return Status(reply.error().code(), "etcd doesn't let in the user \"" +
                                          user_->name +
                                          "\": " + reply.error().message());
}

void EtcdClient::AddToken(RpcClientController* controller) const {
  if (!token_.empty()) controller->AddMetadata(kToken, token_);
}

bool EtcdClient::ForgetToken(const Status& failure) {
  return (failure.code() == rpc::STATUS_UNAUTHENTICATED ||
          Says(failure, kOldToken)) &&
         ForgetToken();
}

bool EtcdClient::ForgetToken() {
  const bool forgotten = !token_.empty();
  token_.clear();
  return forgotten;
}

}  // namespace flare
