// Changes the default of a flag, also of one that a library defines:
//
//   FLARE_OVERRIDE_FLAG(logtostderr, true);
//   FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");
//
// At namespace scope of a .cc file. Takes effect inside flare::Start(), after
// the command line was parsed; a value given there wins. With
// FLARE_FORCE_OVERRIDE_FLAG it doesn't. Overriding a flag twice, one that
// doesn't exist, or with a value that it refuses, makes Start() fail with a
// message.
#ifndef FLARE_RPC_START_INIT_OVERRIDE_FLAG_H_
#define FLARE_RPC_START_INIT_OVERRIDE_FLAG_H_

#include <charconv>
#include <string>
#include <type_traits>

#define FLARE_OVERRIDE_FLAG(flag, value)                               \
  static const ::flare::init::FlagOverride flare_flag_override_##flag( \
      #flag, value, false)

#define FLARE_FORCE_OVERRIDE_FLAG(flag, value)                         \
  static const ::flare::init::FlagOverride flare_flag_override_##flag( \
      #flag, value, true)

namespace flare::init {

// Registers itself, for the life of the process. Use the macros.
class FlagOverride {
 public:
  template <class T>
  FlagOverride(const char* flag, const T& value, bool force)
      : FlagOverride(flag, ToText(value), force) {}
  FlagOverride(const char* flag, std::string value, bool force);

 private:
  template <class T>
  static std::string ToText(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value ? "true" : "false";
    } else if constexpr (std::is_arithmetic_v<T>) {
      // All of it, and no more: std::to_string() has 0.000000 for 1e-7.
      char text[64];
      return std::string(text,
                         std::to_chars(text, text + sizeof(text), value).ptr);
    } else {
      return value;
    }
  }
};

}  // namespace flare::init

#endif  // FLARE_RPC_START_INIT_OVERRIDE_FLAG_H_
