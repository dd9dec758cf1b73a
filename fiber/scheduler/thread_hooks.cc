#include "flare/fiber/scheduler/thread_hooks.h"

namespace flare::fiber {
namespace {

ThreadHooks installed_hooks;

}  // namespace

void SetThreadHooks(const ThreadHooks& hooks) { installed_hooks = hooks; }

void OnFiberThreadStart() {
  if (installed_hooks.start != nullptr) installed_hooks.start();
}

void OnFiberThreadEnd() {
  if (installed_hooks.end != nullptr) installed_hooks.end();
}

void OnSuspensionUnderLock(const WaitReason& reason) {
  if (installed_hooks.suspension_under_lock != nullptr) {
    installed_hooks.suspension_under_lock(reason);
  }
}

}  // namespace flare::fiber
