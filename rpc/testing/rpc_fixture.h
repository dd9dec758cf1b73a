// A runtime with epoll under it, for tests of either side; see
// client_fixture.h and server_fixture.h.
#ifndef FLARE_RPC_TESTING_RPC_FIXTURE_H_
#define FLARE_RPC_TESTING_RPC_FIXTURE_H_

#include <gflags/gflags.h>

#include <optional>

#include "flare/base/status.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/io/epoll_poller.h"
#include "flare/rpc/start/flags.h"
#include "gtest/gtest.h"

DECLARE_int32(flare_rpc_server_max_request_queueing_delay);

namespace flare::rpc::testing {

class RpcTest : public ::testing::Test {
 protected:
  // However busy the machine is, calls to which a test gives no time of their
  // own, and connections, don't end by it; nor are calls refused because they
  // have waited.
  RpcTest() {
    FLAGS_flare_rpc_client_default_rpc_timeout_ms = 20'000;
    FLAGS_flare_rpc_client_connect_timeout_ms = 20'000;
    FLAGS_flare_rpc_server_max_request_queueing_delay = 0;
  }

  void SetUp() override {
    fiber::RuntimeOptions options;
    options.concurrency = workers();
    options.group_size = group_size();
    options.make_poller = io::EpollPoller::Factory();
    const flare::Status started = fiber::StartRuntime(options);
    ASSERT_TRUE(started.ok()) << started.ToString();
  }

  void TearDown() override { fiber::TerminateRuntime(); }

  virtual int workers() const { return 2; }
  virtual std::optional<int> group_size() const { return std::nullopt; }

 private:
  gflags::FlagSaver flags_;  // Tests may change them.
};

// `Base`, which is an RpcTest, in each shape of the runtime: with
// FLARE_INSTANTIATE_RUNTIME_TEST (fiber/testing/runtime_fixture.h).
template <class Base>
class InEachShape
    : public Base,
      public ::testing::WithParamInterface<fiber::testing::RuntimeShape> {
 protected:
  int workers() const override { return GetParam().workers; }
  std::optional<int> group_size() const override {
    return GetParam().group_size;
  }
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_RPC_FIXTURE_H_
