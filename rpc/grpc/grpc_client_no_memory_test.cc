// Each allocation of a call in turn fails: the session's later output isn't
// written by the caller's builder any more when the call has failed.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/testing/replaced_new.h"
#include "flare/rpc/grpc/grpc_client_protocol.h"
#include "flare/rpc/metadata.h"
#include "gtest/gtest.h"

namespace {

// Allocations that succeed before one fails; negative: all do.
std::atomic<int> before_failure{-1};

}  // namespace

void flare::testing::OnAllocation(std::size_t) {
  if (before_failure >= 0 && before_failure-- == 0) throw std::bad_alloc();
}

namespace flare::rpc {
namespace {

struct Output final : StreamOutput {
  bool WriteSoon(Buffer&& bytes) override {
    sent.Append(std::move(bytes));
    return true;
  }
  void Abort(const flare::Status&) override { aborted = true; }
  void HoldInput() override {}
  void ReleaseInput() override {}

  Buffer sent;
  bool aborted = false;
};

// SETTINGS, and a PING with its answer.
const std::string kSettings("\0\0\0\4\0\0\0\0\0", 9);
const std::string kPing("\0\0\x8\6\0\0\0\0\0eight123", 17);
const std::string kPong("\0\0\x8\6\1\0\0\0\0eight123", 17);

TEST(GrpcClientNoMemory, AFailedCallLeavesNoBuilderBehind) {
  Metadata metadata;
  for (const char* name : {"first", "second", "third"}) {
    ASSERT_TRUE(metadata.Add(name, std::string(40, 'v')).ok());
  }
  int answered = 0;
  bool with_metadata = true;
  for (int n = 0;; ++n) {
    SCOPED_TRACE(n);
    Output output;
    const auto protocol = NewGrpcClientProtocol({}, "127.0.0.1:80");
    protocol->SetOutput(&output);
    OutboundRequest request;
    request.correlation_id = 1;
    request.method = "pkg.Service.Method";
    if (with_metadata) request.metadata = &metadata;
    request.body = CreateBufferSlow("body");
    BufferBuilder builder;
    bool failed = false;
    before_failure = n;
    try {
      static_cast<void>(protocol->Write(std::move(request), &builder));
    } catch (const std::bad_alloc&) {
      failed = true;
    }
    const bool all_done = before_failure >= 0;
    before_failure = -1;
    // The caller's builder is its own again.
    static_cast<void>(builder.DestructiveGet());
    builder.Append("mine");
    Buffer in = CreateBufferSlow(kSettings + kPing);
    InboundResponse response;
    std::size_t need = 0;
    std::string error;
    static_cast<void>(protocol->Cut(in, &response, &need, &error));
    EXPECT_EQ(builder.ByteSize(), 4u);
    if (!output.aborted) {
      EXPECT_TRUE(FlattenSlow(output.sent).ends_with(kPong));
      answered += failed ? 1 : 0;
    }
    if (all_done) {
      EXPECT_FALSE(failed || output.aborted);
      if (!std::exchange(with_metadata, false)) break;
      n = -1;
    }
  }
  // Most allocations are made before the session is asked for anything.
  EXPECT_GE(answered, 5);
}

}  // namespace
}  // namespace flare::rpc
