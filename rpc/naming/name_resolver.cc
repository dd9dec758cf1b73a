#include "flare/rpc/name_resolver.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/expected.h"
#include "flare/base/named_registry.h"
#include "flare/base/status.h"
#include "flare/rpc/naming/background_resolution.h"
#include "flare/rpc/naming/dns_resolution.h"
#include "flare/rpc/naming/file_resolution.h"
#include "flare/rpc/naming/list_resolution.h"
#include "flare/rpc/naming/refresh_gate.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

// Those with more knowledge than RegisterNameResolver()'s: how often to look
// again, and how to treat hosts that aren't known now.
using KnownResolver = Resolution (*)(std::string_view address,
                                     std::shared_ptr<NameResolution>* later,
                                     const UpdateInterval& interval);

struct Known {
  std::string_view name;
  KnownResolver resolve;
};

constexpr Known kKnown[] = {
    {"list", ResolveList},
    {"dns",
     [](std::string_view address, std::shared_ptr<NameResolution>*,
        const UpdateInterval& interval) {
       return ResolveDns(address, interval);
     }},
    {"file",
     [](std::string_view address, std::shared_ptr<NameResolution>*,
        const UpdateInterval& interval) {
       return ResolveFile(address, interval);
     }},
};

NamedRegistry<NameResolver>& Resolvers() {
  static auto* registry = [] {
    auto* made = new NamedRegistry<NameResolver>({});
    for (const Known& known : kKnown) {
      made->Add(std::string(known.name),
                [resolve = known.resolve](std::string_view address) {
                  return resolve(address, nullptr, {});
                });
    }
    return made;
  }();
  return *registry;
}

}  // namespace

bool RegisterNameResolver(std::string name, NameResolver resolver) {
  return Resolvers().Add(std::move(name), std::move(resolver));
}

Expected<std::shared_ptr<NameResolution>, flare::Status> ResolveName(
    std::string_view resolver, std::string_view address,
    std::shared_ptr<NameResolution>* later,
    std::optional<std::chrono::nanoseconds> update_interval) {
  for (const Known& known : kKnown) {
    if (known.name == resolver) {
      return known.resolve(address, later, update_interval);
    }
  }
  const std::optional<NameResolver> found = Resolvers().Find(resolver);
  if (!found) {
    return flare::Status(STATUS_INVALID_CHANNEL,
                         Resolvers().Unknown("name resolver", resolver));
  }
  return (*found)(address);
}

void StopNameResolution() { RefreshGate::Instance()->Close(); }

void ResumeNameResolution() { RefreshGate::Instance()->Open(); }

void SetHostLookupForTesting(HostLookup lookup) {
  SetHostLookup(std::move(lookup));
}

}  // namespace flare::rpc
