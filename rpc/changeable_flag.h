// Flags that may change while the program runs: gflags doesn't know which of
// them are read again, so each is declared beside its definition.
//
//   DEFINE_int32(cache_seconds, 60, "Seconds that an entry is kept.");
//   FLARE_CHANGEABLE_FLAG(cache_seconds);
//   ...
//   const int seconds = flare::ReadFlag(FLAGS_cache_seconds);  // At each use.
//
// The page /inspect/flags changes them where the server allows that
// (docs/debugging.md), and so does ChangeFlag(). Validators of gflags
// (DEFINE_validator) are asked about new values.
//
// Numbers and bools only: other threads may read a flag while it is written,
// which only hardware's own words survive. For text use a handler of your own
// that exchanges a std::shared_ptr under a lock.
#ifndef FLARE_RPC_CHANGEABLE_FLAG_H_
#define FLARE_RPC_CHANGEABLE_FLAG_H_

#include <atomic>
#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"

// At namespace scope of a .cc file that defines or declares the flag.
#define FLARE_CHANGEABLE_FLAG(flag)                                  \
  static const ::flare::ChangeableFlag flare_changeable_flag_##flag( \
      #flag, &FLAGS_##flag)

namespace flare {

template <class T>
concept ChangeableFlagType =
    std::same_as<T, bool> || std::same_as<T, std::int32_t> ||
    std::same_as<T, std::uint32_t> || std::same_as<T, std::int64_t> ||
    std::same_as<T, std::uint64_t> || std::same_as<T, double>;

// The value of a flag that may be changed meanwhile: as cheap as a plain read,
// but a compiler can't keep an older value. Any thread; nothing blocks.
template <ChangeableFlagType T>
T ReadFlag(T& flag) {
  // relaxed: a flag orders nothing else. gflags writes by one aligned store.
  return std::atomic_ref<T>(flag).load(std::memory_order_relaxed);
}

// Declares a flag, for the life of the process. Use the macro.
class ChangeableFlag {
 public:
  // Looks at all values after a change; a failure takes it back.
  using Check = Status (*)();

  template <ChangeableFlagType T>
  ChangeableFlag(const char* name, T*, Check check = nullptr)
      : ChangeableFlag(name, check) {}

 private:
  ChangeableFlag(const char* name, Check check);
};

// Changes a flag that is declared, or glog's --minloglevel, --stderrthreshold,
// --v or --vmodule, and returns its old value. For --vmodule
// ("server=2,net*=1") the patterns in `value` get their levels, and others keep
// theirs. The log says so as a warning, with `by`, the one who does it. Fails,
// and changes nothing, with ENOENT if there is no such flag, EPERM if it isn't
// declared, and EINVAL if it refuses the value.
//
// Any thread or fiber. Blocks the thread while another change goes on, so
// validators mustn't suspend the fiber.
Expected<std::string, Status> ChangeFlag(const std::string& name,
                                         const std::string& value,
                                         const std::string& by);

// The names of all flags that ChangeFlag() takes, sorted. Any thread.
std::vector<std::string> ChangeableFlags();

}  // namespace flare

#endif  // FLARE_RPC_CHANGEABLE_FLAG_H_
