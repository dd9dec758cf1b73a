// Holds the objects that a text of a URI or a flag may name: protocols,
// balancers and the like, those that are there from the start and those that
// programs add.
//
//   NamedRegistry<LoadBalancerFactory> balancers({{"rr", NewRoundRobin}});
//   balancers.Add("first", NewFirst);
//   if (auto factory = balancers.Find(name)) return (*factory)();
//   return Status(code, balancers.Unknown("load balancer", name));
//
// Thread-safe. Blocks only while another thread is in it; its objects are
// copied in there, and never called.

#ifndef FLARE_BASE_NAMED_REGISTRY_H_
#define FLARE_BASE_NAMED_REGISTRY_H_

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace flare {

template <class T>
class NamedRegistry {
 public:
  using Known = std::map<std::string, T, std::less<>>;

  explicit NamedRegistry(Known known) : known_(std::move(known)) {}

  // False, and no effect: the name is taken.
  bool Add(std::string name, T value) {
    ScopedLock lock(mutex_);
    return known_.try_emplace(std::move(name), std::move(value)).second;
  }

  std::optional<T> Find(std::string_view name) const {
    ScopedLock lock(mutex_);
    const auto found = known_.find(name);
    if (found == known_.end()) return std::nullopt;
    return found->second;
  }

  // Makes the text for a name that isn't there: it lists those that are.
  std::string Unknown(std::string_view what, std::string_view name) const {
    std::string text = "unknown ";
    text.append(what).append(" \"").append(name).append("\"; known are");
    ScopedLock lock(mutex_);
    for (const auto& [known, value] : known_) text.append(" ").append(known);
    return text;
  }

 private:
  mutable ThreadMutex mutex_;
  Known known_ FLARE_GUARDED_BY(mutex_);
};

}  // namespace flare

#endif  // FLARE_BASE_NAMED_REGISTRY_H_
