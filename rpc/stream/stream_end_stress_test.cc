// All parties that may end a stream, at once: its reader and its writer, the
// peer's end, reset or loss, the deadline, a canceller and a server's method
// that returns. In each shape of the runtime. The sanitizers find who comes too
// late; here it is counted that everybody comes to an end, and that each end is
// told once.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/clock.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/testing/stress.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream/call_stream.h"
#include "flare/rpc/stream_wire.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

// How long a party waits before it tries again, or gives up.
constexpr std::int64_t kMomentNs = 20'000;

// The deeds of one stream and of its users.
struct Round {
  std::atomic<int> read{0};
  std::atomic<int> written{0};
  std::atomic<int> observed{0};
  std::atomic<int> failures{0};
  std::atomic<int> detached{0};
  // The wire's, not atomic: the stream's lock has to do.
  int ends = 0;       // SendEnd(), or a last message.
  int after_end = 0;  // Messages, or another end.
  int resets = 0;
  int after_detach = 0;  // Any use.
  int wires_gone = 0;
};

class RecordingWire final : public StreamWire {
 public:
  explicit RecordingWire(std::shared_ptr<Round> round)
      : round_(std::move(round)) {}
  ~RecordingWire() override {
    Use();
    ++round_->wires_gone;
  }

  bool Begin(RefPtr<StreamReceiver>) override { return Use(); }
  bool SendMessage(OutboundBody&&, bool last) override {
    round_->after_end += round_->ends;
    round_->ends += last ? 1 : 0;
    return Use();
  }
  bool SendEnd(const flare::Status&) override {
    round_->after_end += round_->ends++;
    return Use();
  }
  void SendReset(const flare::Status&) override {
    ++round_->resets;
    Use();
  }
  void SendCredit(std::size_t) override { Use(); }
  bool has_credits() const override { return true; }
  std::size_t send_window() const override { return 1; }
  std::size_t message_cost() const override { return 0; }
  void HoldInput() override { Use(); }
  void ReleaseInput() override { Use(); }

 private:
  bool Use() {
    round_->after_detach += round_->detached;
    return true;
  }

  const std::shared_ptr<Round> round_;
};

class StreamEndStressTest : public fiber::testing::RuntimeTest {
 protected:
  // Ends one stream after the other.
  class Ender {
   public:
    Ender(bool is_server, unsigned seed)
        : is_server_(is_server), random_(seed) {}

    void EndOne() {
      const auto round = std::make_shared<Round>();
      const RefPtr<CallStream> stream = Create(round);
      std::vector<Fiber> parties;
      parties.push_back(Reader(stream, round));
      parties.push_back(Writer(stream, round));
      parties.push_back(Peer(stream));
      if (Die(2) == 0) parties.push_back(Canceller(stream));
      if (!is_server_) {
        parties.emplace_back([stream] { stream->WaitForEnd(); });
      }
      for (Fiber& party : parties) party.join();
      EXPECT_TRUE(stream->over());
      ExpectEnded(round);
    }

   private:
    unsigned Die(unsigned sides) {
      return static_cast<unsigned>(random_()) % sides;
    }

    RefPtr<CallStream> Create(const std::shared_ptr<Round>& round) {
      RefPtr<CallStream> stream = CallStream::Create(
          {.is_server = is_server_,
           .deadline_ns =
               Die(2) == 0 ? NowNs() + Die(5) * kMomentNs : CallStream::kNever,
           .send_window = 1,
           .observer = [round](const ObservedMessage&) { ++round->observed; },
           .on_detached =
               [round](const CallStream::Ending&) { ++round->detached; }});
      stream->SetOnFailed([round](const flare::Status&) { ++round->failures; });
      EXPECT_TRUE(stream->Start(std::make_unique<RecordingWire>(round), {}));
      return stream;
    }

    Fiber Reader(RefPtr<CallStream> stream, std::shared_ptr<Round> round) {
      constexpr unsigned kToTheEnd = 7;
      return Fiber([stream, round, reads = Die(kToTheEnd + 1),
                    is_patient = Die(2) == 0] {
        for (unsigned i = 0; i != reads || reads == kToTheEnd; ++i) {
          Buffer message;
          StreamError error;
          const std::int64_t deadline_ns =
              is_patient ? CallStream::kNever : NowNs() + kMomentNs;
          if (stream->Read(&message, deadline_ns, &error)) {
            ++round->read;
          } else if (error != StreamError::Timeout || stream->over()) {
            return;
          }
        }
        stream->DropReader();
      });
    }

    // On a server it is the method.
    Fiber Writer(RefPtr<CallStream> stream, std::shared_ptr<Round> round) {
      return Fiber([stream, round, is_server = is_server_, writes = Die(8),
                    says_last = Die(2) == 0, fails = Die(2) == 0] {
        for (unsigned i = 0; i != writes; ++i) {
          const bool last = says_last && i + 1 == writes;
          if (stream->Write(CreateBufferSlow("x"), last, NowNs() + kMomentNs)) {
            ++round->written;
          }
        }
        stream->CloseWriting();
        if (!is_server) return;
        stream->Finish(fails ? flare::Status(STATUS_FAILED, "as it has to")
                             : flare::Status());
        stream->Detach();
      });
    }

    Fiber Peer(RefPtr<CallStream> stream) {
      return Fiber([stream, messages = Die(4), end = Die(5)] {
        for (unsigned i = 0; i != messages; ++i) {
          stream->OnMessage(CreateBufferSlow("x"), /*last=*/false);
          stream->OnCredit(1);
        }
        const flare::Status why(STATUS_IO_ERROR, "the connection is lost");
        switch (end) {
          case 0:
            return stream->OnMessage(CreateBufferSlow("x"), /*last=*/true);
          case 1:
            return stream->OnEnd(flare::Status());
          case 2:
            return stream->OnEnd(flare::Status(STATUS_FAILED, "refused"));
          case 3:
            stream->OnInputLost(why);
            [[fallthrough]];
          default:
            return stream->OnReset(why);
        }
      });
    }

    Fiber Canceller(RefPtr<CallStream> stream) {
      return Fiber([stream, yields = Die(4)] {
        for (unsigned i = 0; i != yields; ++i) this_fiber::Yield();
        stream->Cancel();
      });
    }

    // The timer's callback may be the last one to leave.
    static void ExpectEnded(const std::shared_ptr<Round>& round) {
      const std::int64_t end_ns = NowNs() + 30 * kNsPerSecond;
      while (round->detached == 0) {
        ASSERT_LT(NowNs(), end_ns);
        this_fiber::Yield();
      }
      EXPECT_EQ(round->detached, 1);
      EXPECT_EQ(round->wires_gone, 1);
      EXPECT_EQ(round->after_detach, 0);
      EXPECT_EQ(round->after_end, 0);
      EXPECT_LE(round->ends, 1);
      EXPECT_LE(round->resets, 1);
      EXPECT_LE(round->failures, 1);
      EXPECT_EQ(round->observed, round->read + round->written);
    }

    const bool is_server_;
    std::minstd_rand random_;
  };

  void EndMany(bool is_server) {
    const std::int64_t until_ns =
        NowNs() + fiber::testing::StressNs(200'000'000);
    std::vector<Fiber> fibers;
    for (unsigned i = 0; i != 3; ++i) {
      fibers.emplace_back([is_server, seed = i + 1, until_ns] {
        Ender ender(is_server, seed);
        do {
          ender.EndOne();
        } while (NowNs() < until_ns && !HasFailure());
      });
    }
    for (Fiber& fiber : fibers) fiber.join();
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(StreamEndStressTest);

TEST_P(StreamEndStressTest, OfClients) { EndMany(/*is_server=*/false); }

TEST_P(StreamEndStressTest, OfServers) { EndMany(/*is_server=*/true); }

}  // namespace
}  // namespace flare::rpc::testing
