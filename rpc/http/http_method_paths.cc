#include "flare/rpc/http/http_method_paths.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <cstddef>
#include <utility>

namespace flare::rpc {
namespace {

// Another name for the same path makes it nobody's.
template <class Names>
void Add(std::string path, const std::string& name, Names* names) {
  const auto [entry, first] = names->emplace(std::move(path), name);
  if (!first && entry->second != name) entry->second.clear();
}

}  // namespace

void HttpMethodPaths::SetUp(const Methods& methods, const HttpRoutes& routes) {
  routes_ = &routes;
  for (const auto* const method : methods) {
    const auto& service = *method->service();
    if (method->options().idempotency_level() ==
        google::protobuf::MethodOptions::NO_SIDE_EFFECTS) {
      safe_.emplace(method->full_name());
    }
    for (const std::string_view name : {std::string_view(service.full_name()),
                                        std::string_view(service.name())}) {
      const std::string path = "/" + std::string(name) + "/";
      Add(path, std::string(service.full_name()), &services_);
      Add(path + std::string(method->name()), std::string(method->full_name()),
          &methods_);
    }
  }
}

bool HttpMethodPaths::Read(std::string_view path, std::string* method) const {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos || slash == 0) return false;
  std::string missing;
  const std::string* name = nullptr;
  if (const auto found = methods_.find(path); found != methods_.end()) {
    name = &found->second;
  } else if (const auto service = services_.find(path.substr(0, slash + 1));
             service != services_.end() && !service->second.empty() &&
             slash + 1 != path.size()) {
    missing.append(service->second)
        .append(1, '.')
        .append(path.substr(slash + 1));
    name = &missing;
  }
  if (name == nullptr || name->empty() || routes_->Find(path) != nullptr) {
    return false;
  }
  if (method != nullptr) method->assign(*name);
  return true;
}

bool HttpMethodPaths::MayGet(std::string_view path) const {
  std::string method;
  return !safe_.empty() && Read(path, &method) && safe_.contains(method);
}

}  // namespace flare::rpc
