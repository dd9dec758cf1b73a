// The draws for each call of a load: whether it is of the tail, and the size of
// its body.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "example/rpc/echo_load_fixture.h"
#include "example/rpc/echo_service.flare.pb.h"
#include "example/rpc/load_test_fixture.h"
#include "example/rpc/size_distribution.h"
#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/rpc_server_controller.h"
#include "gtest/gtest.h"

namespace example {
namespace {

using namespace std::literals;
using Failures = std::map<int, std::uint64_t>;

class CallDrawsTest : public EchoLoadTest {};

// The requests of a load.
class Requests {
 public:
  void Add(const protobuf_echo::EchoRequest& request) {
    flare::ScopedLock guard(lock_);
    ++sizes_[request.body().size()];
    if (request.work() == protobuf_echo::NONE) return;
    EXPECT_EQ(request.work(), protobuf_echo::SPIN);
    EXPECT_EQ(request.work_us(), 7u);
    ++tail_;
  }
  std::map<std::size_t, int> sizes() const {
    flare::ScopedLock guard(lock_);
    return sizes_;
  }
  int tail() const {
    flare::ScopedLock guard(lock_);
    return tail_;
  }

 private:
  mutable flare::Spinlock lock_;
  std::map<std::size_t, int> sizes_ FLARE_GUARDED_BY(lock_);
  int tail_ FLARE_GUARDED_BY(lock_) = 0;
};

TEST_F(CallDrawsTest, TailIsMarkedAndCountedApart) {
  Requests seen;
  LoadOptions options =
      StartServer(nullptr, [&](const auto& request) { seen.Add(request); });
  options.requests = 1000;
  options.max_pending = 10;
  options.tail_work = {WorkKind::kSpin, 7us};
  for (CallerKind kind : kAllKinds) {
    for (double qps : {0.0, 1e6}) {
      options.caller_kind = kind;
      options.qps = qps;
      options.tail_ratio = 0.2;
      const int before = seen.tail();
      const auto [ordinary, tail] = RunWithTail(options);
      EXPECT_EQ(ordinary.successes() + tail.successes(), 1000u);
      EXPECT_EQ(tail.successes(), seen.tail() - before);
      // Ten standard deviations.
      EXPECT_NEAR(static_cast<double>(tail.successes()), 200, 126);
    }
  }
}

TEST_F(CallDrawsTest, TailMayBeAllOrNothing) {
  LoadOptions options = StartServer();
  options.requests = 100;
  for (double ratio : {0.0, 1.0}) {
    options.tail_ratio = ratio;
    const auto [ordinary, tail] = RunWithTail(options);
    EXPECT_EQ(ordinary.successes(), 100 * (1 - ratio));
    EXPECT_EQ(tail.successes(), 100 * ratio);
  }
}

TEST_F(CallDrawsTest, FailuresOfTheTailAreCountedApart) {
  LoadOptions options = StartServer([](int, protobuf_echo::EchoResponse*,
                                       flare::RpcServerController* controller) {
    controller->SetFailed(1234, "");
  });
  options.requests = 10;
  options.tail_ratio = 1;
  const auto [ordinary, tail] = RunWithTail(options);
  EXPECT_EQ(ordinary.failures, Failures());
  EXPECT_EQ(tail.failures, (Failures{{1234, 10}}));
}

TEST_F(CallDrawsTest, SizesAreDrawnForEachCall) {
  Requests seen;
  LoadOptions options =
      StartServer(nullptr, [&](const auto& request) { seen.Add(request); });
  options.requests = 1000;
  options.max_pending = 3;
  options.body = std::string(2000, 'b');
  options.body_sizes = *ParseSizeDistribution("0:1,10-12:2,2000:1");
  options.verify = true;
  EXPECT_EQ(Run(options).successes(), 1000u);
  const auto sizes = seen.sizes();
  EXPECT_EQ(sizes.size(), 5u);
  for (std::size_t size : {0, 2000}) EXPECT_NEAR(sizes.at(size), 250, 140);
  for (std::size_t size : {10, 11, 12}) EXPECT_NEAR(sizes.at(size), 167, 120);
}

// Loads of different seeds don't have their tails at the same calls.
TEST_F(CallDrawsTest, SeedsDiffer) {
  LoadOptions options = StartServer();
  options.requests = 1000;
  options.tail_ratio = 0.5;
  std::set<std::uint64_t> tails;
  for (options.seed = 0; options.seed != 5; ++options.seed) {
    tails.insert(RunWithTail(options).second.successes());
  }
  EXPECT_GT(tails.size(), 1u);
}

}  // namespace
}  // namespace example
