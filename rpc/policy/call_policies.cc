#include "flare/rpc/policy/call_policies.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "flare/base/read_file.h"
#include "flare/rpc/policy/method_policy.h"
#include "flare/rpc/policy/service_config.h"

namespace flare {
namespace {

std::string_view ServiceOf(std::string_view method) {
  return method.substr(0, std::min(method.rfind('.'), method.size()));
}

}  // namespace

CallPolicies::CallPolicies() = default;
CallPolicies::~CallPolicies() = default;

Status CallPolicies::Set(const std::string& name, CallPolicy policy) {
  Status status = rpc::MethodPolicy::Check(policy);
  if (!status.ok()) return status;
  if (!policies_
           .try_emplace(name,
                        std::make_unique<rpc::MethodPolicy>(std::move(policy)))
           .second) {
    return Status(EEXIST, name.empty()
                              ? "there is a policy for all methods already"
                              : "there is a policy for " + name + " already");
  }
  return Status();
}

CallPolicies::Found CallPolicies::Find(std::string_view method) const {
  const auto named = policies_.find(method);
  if (named != policies_.end()) return {named->second.get(), true};
  const auto of_service = policies_.find(ServiceOf(method));
  if (of_service != policies_.end()) return {of_service->second.get(), false};
  const auto of_all = policies_.find(std::string_view());
  return {of_all != policies_.end() ? of_all->second.get() : nullptr, false};
}

Expected<std::shared_ptr<CallPolicies>, Status> CallPolicies::FromServiceConfig(
    const std::string& json) {
  auto policies = std::make_shared<CallPolicies>();
  auto entries = rpc::ReadServiceConfig(json);
  if (!entries) return entries.error();
  for (rpc::ServiceConfigEntry& entry : *entries) {
    const Status status = policies->Set(entry.name, std::move(entry.policy));
    if (status.ok()) continue;
    return Status(EINVAL, entry.where + ": " + status.message());
  }
  return policies;
}

Expected<std::shared_ptr<CallPolicies>, Status> CallPolicies::FromFile(
    const std::string& path) {
  constexpr std::size_t kMostBytes = 1 << 20;
  auto json = ReadFile(path, kMostBytes);
  if (!json) return json.error();
  auto policies = FromServiceConfig(*json);
  if (policies) return policies;
  return Status(policies.error().code(),
                path + ": " + policies.error().message());
}

}  // namespace flare
