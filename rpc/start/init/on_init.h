// Runs code inside flare::Start(), before the fiber runtime starts:
//
//   FLARE_ON_INIT([] { LoadTables(); });
//   FLARE_ON_INIT(&OpenDevice, &CloseDevice);        // start, end
//   FLARE_ON_INIT(10, &OpenDevice, &CloseDevice);    // priority, start, end
//
// At namespace scope of a .cc file. Flags are parsed and logging works by
// then; fibers don't. Smaller priorities run first (0 if not given), equal
// ones in order of registration; end functions run in the opposite order after
// the runtime has ended. Both run at each flare::Start().
#ifndef FLARE_RPC_START_INIT_ON_INIT_H_
#define FLARE_RPC_START_INIT_ON_INIT_H_

#include <utility>

#include "flare/base/function.h"

// Numbered, not by lines: a macro of yours may have two.
#define FLARE_ON_INIT(...) FLARE_ON_INIT_AS(__COUNTER__, __VA_ARGS__)
#define FLARE_ON_INIT_AS(number, ...) FLARE_ON_INIT_NAMED(number, __VA_ARGS__)
// With a semicolon, as the published macro: there is code without one.
#define FLARE_ON_INIT_NAMED(number, ...) \
  static const ::flare::init::OnInit flare_on_init_##number(__VA_ARGS__);

namespace flare::init {

// Registers itself, for the life of the process. Use the macro.
class OnInit {
 public:
  explicit OnInit(Function<void()> start, Function<void()> end = nullptr)
      : OnInit(0, std::move(start), std::move(end)) {}
  OnInit(int priority, Function<void()> start, Function<void()> end = nullptr);
};

}  // namespace flare::init

#endif  // FLARE_RPC_START_INIT_ON_INIT_H_
