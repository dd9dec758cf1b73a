// Random damage to valid input: see protocol_fuzzing.h for the invariants.
#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/sanitizer.h"
#include "flare/rpc/wire/protocol_fuzzing.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using testing::CheckClientBytes;
using testing::CheckServerBytes;
using testing::SeedBytes;

constexpr int kRounds = 1500;

class Mutator {
 public:
  explicit Mutator(unsigned seed) : rng_(seed) {}

  std::string Next() {
    std::string bytes = Seed();
    for (int n = rng_() % 4; n != 0; --n) Damage(&bytes);
    return bytes;
  }

 private:
  const std::string& Seed() { return seeds_[rng_() % seeds_.size()]; }

  char Byte() {
    // Those that mean something to a parser, more often than others.
    constexpr std::string_view kInteresting("\r\n\0 :;,\t/?09afAF\x7f\x80\xff",
                                            20);
    return rng_() % 2 ? kInteresting[rng_() % kInteresting.size()]
                      : static_cast<char>(rng_());
  }

  void Damage(std::string* bytes) {
    std::size_t at = bytes->empty() ? 0 : rng_() % bytes->size();
    switch (rng_() % 7) {
      case 0:
        if (!bytes->empty()) (*bytes)[at] = Byte();
        break;
      case 1:
        bytes->insert(at, 1, Byte());
        break;
      case 2:
        bytes->erase(at, 1 + rng_() % 4);
        break;
      case 3:
        bytes->resize(at);
        break;
      case 4:
        bytes->insert(at, bytes->substr(at, 1 + rng_() % 40));
        break;
      case 5:
        *bytes += Seed();
        break;
      default:
        bytes->insert(at, rng_() % 2000, Byte());
    }
  }

  std::mt19937 rng_;
  std::vector<std::string> seeds_ = SeedBytes();
};

TEST(ProtocolMutation, ServersSurviveDamagedInput) {
  Mutator mutator(1);
  for (int i = 0; i != kRounds; ++i) {
    SCOPED_TRACE(i);
    CheckServerBytes(mutator.Next());
  }
}

TEST(ProtocolMutation, ClientsSurviveDamagedInput) {
  Mutator mutator(2);
  for (int i = 0; i != kRounds; ++i) CheckClientBytes(mutator.Next());
}

TEST(ProtocolMutation, EveryTruncationOfEverySeed) {
  for (const std::string& seed : SeedBytes()) {
    for (std::size_t size = 0; size <= seed.size(); ++size) {
      CheckServerBytes(std::string_view(seed).substr(0, size));
      CheckClientBytes(std::string_view(seed).substr(0, size));
    }
  }
}

// By two or three other bytes each, in slow builds by one.
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
constexpr std::size_t kStep = 5;
#else
constexpr std::size_t kStep = 2;
#endif

TEST(ProtocolMutation, EveryByteOfEverySeedReplaced) {
  constexpr std::string_view kOthers("\0\n\r \xff", 5);
  std::size_t n = 0;
  for (const std::string& seed : SeedBytes()) {
    for (std::size_t at = 0; at != seed.size(); ++at) {
      for (std::size_t i = at % kStep; i < kOthers.size(); i += kStep) {
        std::string bytes = seed;
        bytes[at] = kOthers[i];
        CheckServerBytes(bytes);
        CheckClientBytes(bytes);
        ++n;
      }
    }
  }
  EXPECT_GT(n, 1000U);
}

// The seeds themselves are valid.
TEST(ProtocolMutation, SeedsAreValid) {
  auto set = ServerProtocolSet::FromNames(testing::FuzzedProtocols(),
                                          testing::FuzzLimits());
  ASSERT_TRUE(set);
  std::vector<std::size_t> messages;
  std::vector<std::string> streams;
  for (const std::string& seed : SeedBytes()) {
    std::size_t count = 0;
    for (std::size_t i = 0; i != set->size(); ++i) {
      for (const auto& message :
           testing::ReadAsServer(*set, i, seed, 1000).messages) {
        if (message != "refused") ++count;
        if (message.starts_with("stream")) streams.push_back(message);
      }
    }
    for (const std::string& scheme : testing::FuzzedSchemes()) {
      for (const auto& message :
           testing::ReadAsClient(scheme, seed, 1000).messages) {
        if (message[0] == '0') ++count;
      }
    }
    messages.push_back(count);
  }
  EXPECT_EQ(messages,
            (std::vector<std::size_t>{1, 2, 1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1,
                                      1, 2, 2, 0, 1, 1, 1, 2, 1, 1, 2, 0, 1,
                                      1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 1}));
  EXPECT_EQ(streams, std::vector<std::string>{
                         "stream\nmessage x\nmessage x\npart x\nmessage "
                         "y\ncredit 5\nend"});
}

}  // namespace
}  // namespace flare::rpc
