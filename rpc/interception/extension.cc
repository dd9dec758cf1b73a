#include "flare/rpc/extension.h"

#include <algorithm>
#include <utility>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"

namespace flare {
namespace {

struct ExtensionRegistry {
  static ExtensionRegistry* Get() {
    static auto* const registry = new ExtensionRegistry();
    return registry;
  }

  ThreadMutex lock;
  std::vector<std::shared_ptr<const Extension>> installed
      FLARE_GUARDED_BY(lock);
};

}  // namespace

InstalledExtension::InstalledExtension(Extension extension)
    : extension_(std::make_shared<const Extension>(std::move(extension))) {
  ExtensionRegistry* const registry = ExtensionRegistry::Get();
  ScopedLock guard(registry->lock);
  registry->installed.push_back(extension_);
}

InstalledExtension::~InstalledExtension() {
  ExtensionRegistry* const registry = ExtensionRegistry::Get();
  ScopedLock guard(registry->lock);
  std::erase(registry->installed, extension_);
}

std::vector<std::shared_ptr<const Extension>> InstalledExtensions() {
  ExtensionRegistry* const registry = ExtensionRegistry::Get();
  ScopedLock guard(registry->lock);
  return registry->installed;
}

}  // namespace flare
