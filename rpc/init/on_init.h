// Runs code inside flare::Start(), before the fiber runtime starts:
//
//   FLARE_ON_INIT([] { LoadTables(); });
//   FLARE_ON_INIT(10, &OpenDevice, &CloseDevice);  // priority, start, end
//
// At namespace scope of a .cc file. Flags are parsed and logging works by
// then; fibers don't. Smaller priorities run first (0 if not given), equal
// ones in order of registration; end functions run in the opposite order after
// the runtime has ended.
#ifndef FLARE_RPC_INIT_ON_INIT_H_
#define FLARE_RPC_INIT_ON_INIT_H_

#include <functional>
#include <utility>

#define FLARE_ON_INIT(...) FLARE_ON_INIT_AT_LINE(__LINE__, __VA_ARGS__)
#define FLARE_ON_INIT_AT_LINE(line, ...) FLARE_ON_INIT_NAMED(line, __VA_ARGS__)
#define FLARE_ON_INIT_NAMED(line, ...) \
  static const ::flare::init::OnInit flare_on_init_##line(__VA_ARGS__)

namespace flare::init {

// Registers itself, for the life of the process. Use the macro.
class OnInit {
 public:
  explicit OnInit(std::function<void()> start) : OnInit(0, std::move(start)) {}
  OnInit(int priority, std::function<void()> start,
         std::function<void()> end = nullptr);
};

}  // namespace flare::init

#endif  // FLARE_RPC_INIT_ON_INIT_H_
