#include "flare/rpc/access_control.h"

#include <utility>

#include "flare/base/clock.h"
#include "flare/base/read_file.h"
#include "flare/base/string.h"
#include "flare/rpc/access/access_rules.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare {

const PeerIdentity* CallCredentials::peer_identity() const {
  const PeerIdentity* const shown = call_.controller().peer_identity();
  return shown != nullptr && shown->verified ? shown : nullptr;
}

std::optional<std::string_view> CallCredentials::Get(
    std::string_view name) const {
  if (call_.http_request() != nullptr) {
    return call_.http_request()->headers()->TryGet(name);
  }
  return call_.controller().GetRequestMetadata().Get(name);
}

std::optional<std::string_view> CallCredentials::BearerToken() const {
  constexpr std::string_view kScheme = "Bearer ";
  const auto value = Get("authorization");
  if (!value || value->size() <= kScheme.size() ||
      !IEquals(value->substr(0, kScheme.size()), kScheme)) {
    return std::nullopt;
  }
  return Trim(value->substr(kScheme.size()));
}

Expected<std::shared_ptr<AccessControl>> AccessControl::Create(
    AccessControlOptions options) {
  std::shared_ptr<AccessControl> access(new AccessControl(std::move(options)));
  if (access->options_.rules_file.empty()) return access;
  access->version_ = access->VersionOfFile();
  bool was_read = false;
  auto rules = access->ReadRules(&was_read);
  if (!rules) return rules.error();
  ScopedLock guard(access->lock_);
  access->rules_ = *std::move(rules);
  return access;
}

AccessControl::AccessControl(AccessControlOptions options)
    : options_(std::move(options)), reload_gate_(options_.reload_interval) {}

AccessControl::~AccessControl() = default;

void AccessControl::Intercept(InterceptedCall& call, ServerNext& next) {
  const CallCredentials credentials(call);
  std::string identity;
  if (options_.authenticate) {
    auto found = options_.authenticate(credentials);
    if (!found)
      return Deny(found.error().code(), found.error().message(), &call);
    identity = *std::move(found);
  }
  if (!options_.rules_file.empty()) {
    reload_gate_.LookIfDue(this, &AccessControl::CheckFile);
    const rpc::AccessCaller caller{.identity = identity,
                                   .certificate = credentials.peer_identity()};
    if (!rules()->Allows(caller, call.method())) {
      if (caller.anonymous()) {
        return Deny(rpc::STATUS_UNAUTHENTICATED,
                    std::string(call.method()) +
                        " isn't for anonymous callers: show credentials",
                    &call);
      }
      const std::string& name =
          identity.empty() ? caller.certificate->subject : identity;
      return Deny(rpc::STATUS_PERMISSION_DENIED,
                  name + " may not call " + std::string(call.method()), &call);
    }
  }
  if (!identity.empty()) call.controller().SetCaller(std::move(identity));
  next.Run();
}

void AccessControl::Deny(int code, std::string reason, InterceptedCall* call) {
  if (auto left_out = denied_log_.Admit()) {
    LOG(WARNING) << "a call of " << OneLine(std::string(call->method()))
                 << " by " << OneLine(call->peer().ToString())
                 << " is denied: " << OneLine(reason)
                 << rpc::LogThrottle::Note(*left_out);
  }
  call->SetFailed(code, std::move(reason));
  if (code != rpc::STATUS_UNAUTHENTICATED) return;
  if (HttpResponse* const response = call->http_response()) {
    response->headers()->Set("WWW-Authenticate", options_.challenge);
  } else {
    call->controller().AddResponseMetadata("www-authenticate",
                                           options_.challenge);
  }
}

// --- the file --------------------------------------------------------------

std::string AccessControl::VersionOfFile() const {
  return flare::VersionOfFile(options_.rules_file);
}

Expected<AccessControl::Rules> AccessControl::ReadRules(bool* was_read) const {
  const auto text = ReadFile(options_.rules_file, rpc::AccessRules::kMaxBytes);
  *was_read = static_cast<bool>(text);
  if (!text) return text.error();
  auto rules = rpc::AccessRules::Parse(*text);
  if (!rules) {
    return flare::Status(rules.error().code(),
                         options_.rules_file + ':' + rules.error().message());
  }
  return Rules(std::make_shared<const rpc::AccessRules>(*std::move(rules)));
}

void AccessControl::CheckFile() {
  std::string version = VersionOfFile();
  if (version == version_) return;
  bool was_read = false;
  auto rules = ReadRules(&was_read);
  // A file that is there but can't be read now is read at the next look.
  if (was_read || version.empty()) version_ = std::move(version);
  if (!rules) {
    LOG(ERROR) << "rules of access stay as they were: "
               << rules.error().message();
    return;
  }
  LOG(INFO) << "rules of access are now those of " << options_.rules_file
            << ": " << (*rules)->size();
  ScopedLock guard(lock_);
  rules_.swap(*rules);
}

AccessControl::Rules AccessControl::rules() const {
  ScopedLock guard(lock_);
  return rules_;
}

}  // namespace flare
