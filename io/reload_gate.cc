#include "flare/io/reload_gate.h"

#include <memory>
#include <utility>

#include "flare/fiber/blocking_region.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"

namespace flare::io {
namespace {

// Longer than a look takes unless the file system hangs.
constexpr std::int64_t kPatienceNs = 200 * kNsPerMs;

}  // namespace

void ReloadGate::Look(Function<void()> look) {
  if (!fiber::IsRuntimeRunning()) {
    look();
    return Leave();
  }
  auto done = std::make_shared<fiber::Event>();
  fiber::Spawn([this, look = std::move(look), done]() mutable {
    try {
      fiber::RunBlocking([&] { look(); });
    } catch (const std::bad_alloc&) {  // A later one will do.
    }
    Leave();
    done->Set();
  });
  static_cast<void>(done->WaitUntil(SaturatingAdd(NowNs(), kPatienceNs)));
}

}  // namespace flare::io
