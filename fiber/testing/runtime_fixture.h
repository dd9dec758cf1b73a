// A fixture for tests that need the runtime: each test runs with several
// numbers of workers and groups, and the runtime's end is part of it.
//
//   class MutexTest : public testing::RuntimeTest {};
//   FLARE_INSTANTIATE_RUNTIME_TEST(MutexTest);
//   TEST_P(MutexTest, Excludes) { ... }

#ifndef FLARE_FIBER_TESTING_RUNTIME_FIXTURE_H_
#define FLARE_FIBER_TESTING_RUNTIME_FIXTURE_H_

#include <ostream>
#include <string>

#include "flare/fiber/fiber.h"
#include "flare/fiber/runtime.h"
#include "gtest/gtest.h"

namespace flare::fiber::testing {

struct RuntimeShape {
  int workers;
  int group_size;
  const char* optimize_for;

  friend std::ostream& operator<<(std::ostream& out, const RuntimeShape& s) {
    return out << s.workers << " workers in groups of " << s.group_size << ", "
               << s.optimize_for;
  }
};

class RuntimeTest : public ::testing::TestWithParam<RuntimeShape> {
 protected:
  void SetUp() override {
    RuntimeOptions options;
    options.concurrency = GetParam().workers;
    options.group_size = GetParam().group_size;
    options.optimize_for = GetParam().optimize_for;
    options.work_stealing_ratio = 1;
    const Status status = StartRuntime(options);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  void TearDown() override {
    // Every fiber that was suspended has been resumed.
    if (IsRuntimeRunning()) TerminateRuntime();
  }

  // Calls `f` on a plain thread and on a fiber.
  template <class F>
  static void OnBoth(F f) {
    f();
    Fiber(f).join();
  }
};

inline std::string RuntimeShapeName(
    const ::testing::TestParamInfo<RuntimeShape>& info) {
  return "Workers" + std::to_string(info.param.workers) + "GroupsOf" +
         std::to_string(info.param.group_size);
}

// One worker alone; two and four that steal from each other and are woken
// lazily, or at once; groups that steal from each other.
#define FLARE_INSTANTIATE_RUNTIME_TEST(name)                            \
  INSTANTIATE_TEST_SUITE_P(                                             \
      Shapes, name,                                                     \
      ::testing::Values(                                                \
          ::flare::fiber::testing::RuntimeShape{1, 1, "neutral"},       \
          ::flare::fiber::testing::RuntimeShape{2, 2, "io-heavy"},      \
          ::flare::fiber::testing::RuntimeShape{4, 4, "compute-heavy"}, \
          ::flare::fiber::testing::RuntimeShape{4, 2, "neutral"}),      \
      ::flare::fiber::testing::RuntimeShapeName)

}  // namespace flare::fiber::testing

#endif  // FLARE_FIBER_TESTING_RUNTIME_FIXTURE_H_
