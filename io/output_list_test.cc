#include "flare/io/output_list.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/clock.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

using PushResult = OutputList::PushResult;
using ReleaseResult = OutputList::ReleaseResult;

OutputNode* NodeOf(std::string_view text) {
  return OutputNode::Make(CreateBufferSlow(text));
}

// Their texts, joined; frees them.
std::string Join(OutputNode* nodes) {
  std::string all;
  for (OutputNode* node = nodes; node != nullptr; node = node->next) {
    all += FlattenSlow(node->data);
  }
  OutputNode::FreeAll(nodes);
  return all;
}

TEST(OutputNode, KeepsWhatItWasMadeOf) {
  OutputNode* const node = OutputNode::Make(CreateBufferSlow("abc"), true);
  EXPECT_EQ(FlattenSlow(node->data), "abc");
  EXPECT_TRUE(node->last);
  OutputNode::Free(node);
  // From the pool again, without a trace of the former use.
  OutputNode* const again = OutputNode::Make(Buffer());
  EXPECT_TRUE(again->data.empty());
  EXPECT_FALSE(again->last);
  OutputNode::Free(again);
}

TEST(OutputList, FirstPushTakesTheRole) {
  OutputList list;
  EXPECT_EQ(list.Push(NodeOf("a")), PushResult::kBecomeFlusher);
  EXPECT_EQ(list.Push(NodeOf("b")), PushResult::kQueued);
  EXPECT_EQ(list.Push(NodeOf("c")), PushResult::kQueued);
  const OutputList::Taken taken = list.TakeAll();
  EXPECT_FALSE(taken.closed);
  EXPECT_EQ(Join(taken.nodes), "abc");
}

TEST(OutputList, RoleLastsUntilReleased) {
  OutputList list;
  ASSERT_EQ(list.Push(NodeOf("a")), PushResult::kBecomeFlusher);
  EXPECT_EQ(Join(list.TakeAll().nodes), "a");
  EXPECT_EQ(list.TakeAll().nodes, nullptr);
  EXPECT_EQ(list.Push(NodeOf("b")), PushResult::kQueued);
  EXPECT_EQ(list.Release(), ReleaseResult::kNotEmpty);
  EXPECT_EQ(Join(list.TakeAll().nodes), "b");
  EXPECT_EQ(list.Release(), ReleaseResult::kReleased);
  EXPECT_EQ(list.Push(NodeOf("c")), PushResult::kBecomeFlusher);
}

TEST(OutputList, HeldFromTheStart) {
  OutputList list(/*held=*/true);
  EXPECT_EQ(list.Push(NodeOf("a")), PushResult::kQueued);
  EXPECT_EQ(list.Release(), ReleaseResult::kNotEmpty);
  EXPECT_EQ(Join(list.TakeAll().nodes), "a");
  EXPECT_EQ(list.Release(), ReleaseResult::kReleased);
}

TEST(OutputList, CloseWithoutFlusher) {
  OutputList list;
  EXPECT_FALSE(list.closed());
  const OutputList::Closed closed = list.Close();
  EXPECT_EQ(closed.nodes, nullptr);
  EXPECT_FALSE(closed.flusher);
  EXPECT_TRUE(list.closed());
  OutputNode* const node = NodeOf("late");
  EXPECT_EQ(list.Push(node), PushResult::kClosed);
  EXPECT_EQ(FlattenSlow(node->data), "late");  // Still ours.
  OutputNode::Free(node);
}

TEST(OutputList, CloseTakesWhatIsQueued) {
  OutputList list;
  ASSERT_EQ(list.Push(NodeOf("a")), PushResult::kBecomeFlusher);
  const OutputList::Closed closed = list.Close();
  EXPECT_TRUE(closed.flusher);
  EXPECT_EQ(Join(closed.nodes), "a");
  // The flusher learns of it by whatever it does next.
  EXPECT_TRUE(list.TakeAll().closed);
  EXPECT_EQ(list.Release(), ReleaseResult::kClosed);
}

TEST(OutputList, CloseUnderABusyFlusher) {
  OutputList list;
  ASSERT_EQ(list.Push(NodeOf("a")), PushResult::kBecomeFlusher);
  EXPECT_EQ(Join(list.TakeAll().nodes), "a");
  const OutputList::Closed closed = list.Close();
  EXPECT_TRUE(closed.flusher);
  EXPECT_EQ(closed.nodes, nullptr);
  EXPECT_EQ(list.Release(), ReleaseResult::kClosed);
}

// A flusher that can't send any more; others close later, or not at all.
TEST(OutputList, CloseByTheFlusher) {
  OutputList list;
  ASSERT_EQ(list.Push(NodeOf("a")), PushResult::kBecomeFlusher);
  EXPECT_EQ(Join(list.TakeAll().nodes), "a");
  ASSERT_EQ(list.Push(NodeOf("b")), PushResult::kQueued);
  EXPECT_EQ(Join(list.Close().nodes), "b");
  EXPECT_TRUE(list.closed());
  OutputNode* const node = NodeOf("late");
  EXPECT_EQ(list.Push(node), PushResult::kClosed);
  OutputNode::Free(node);
  // The node with the role is included.
  const OutputList::Closed closed = list.Close();
  EXPECT_EQ(closed.nodes, nullptr);
  EXPECT_TRUE(closed.flusher);
}

TEST(OutputList, CloseByTheFlusherAfterAnother) {
  OutputList list;
  ASSERT_EQ(list.Push(NodeOf("a")), PushResult::kBecomeFlusher);
  EXPECT_EQ(Join(list.TakeAll().nodes), "a");
  EXPECT_TRUE(list.Close().flusher);
  EXPECT_EQ(list.Close().nodes, nullptr);
  EXPECT_TRUE(list.closed());
}

TEST(OutputList, DestructionFreesWhatIsQueued) {  // The leak checker looks.
  OutputList list;
  ASSERT_EQ(list.Push(NodeOf("a")), PushResult::kBecomeFlusher);
  ASSERT_EQ(list.Push(NodeOf("b")), PushResult::kQueued);
}

// Producers whose pushes hand out the flusher's role, as writers of a
// connection do; its new holder flushes at once, so that the role wanders.
class Pipe {
 public:
  explicit Pipe(int producers) : last_(producers, -1) {}

  // False: closed.
  bool Write(int producer, int number) {
    const std::string text =
        std::to_string(producer) + ":" + std::to_string(number);
    OutputNode* const node = NodeOf(text);
    switch (list_.Push(node)) {
      case PushResult::kQueued:
        return true;
      case PushResult::kBecomeFlusher:
        Flush();
        return true;
      case PushResult::kClosed:
        OutputNode::Free(node);
        return false;
    }
    return false;
  }

  OutputList& list() { return list_; }
  int flushers_left() const { return flushers_left_.load(); }
  // After all have ended.
  int received() const { return received_; }
  bool in_order() const { return in_order_; }

 private:
  void Flush() {
    do {
      const OutputList::Taken taken = list_.TakeAll();
      for (OutputNode* n = taken.nodes; n != nullptr; n = n->next) {
        Consume(FlattenSlow(n->data));
      }
      OutputNode::FreeAll(taken.nodes);
    } while (Again());
  }

  bool Again() {
    switch (list_.Release()) {
      case ReleaseResult::kReleased:
        return false;
      case ReleaseResult::kNotEmpty:
        return true;
      case ReleaseResult::kClosed:
        break;
    }
    flushers_left_.fetch_add(1);
    return false;
  }

  // Plain variables: the role orders their use.
  void Consume(const std::string& text) {
    const auto colon = text.find(':');
    const auto producer = std::stoul(text.substr(0, colon));
    const int number = std::stoi(text.substr(colon + 1));
    if (number <= last_[producer]) in_order_ = false;
    last_[producer] = number;
    ++received_;
  }

  OutputList list_;
  std::vector<int> last_;
  int received_ = 0;
  bool in_order_ = true;
  std::atomic<int> flushers_left_{0};
};

TEST(OutputListStress, NothingIsLostOrReordered) {
  constexpr int kProducers = 4;
  constexpr int kEach = 20000;
  Pipe pipe(kProducers);
  std::vector<std::thread> threads;
  for (int p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (int i = 0; i < kEach; ++i) EXPECT_TRUE(pipe.Write(p, i));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(pipe.received(), kProducers * kEach);
  EXPECT_TRUE(pipe.in_order());
  // The role is free again.
  EXPECT_FALSE(pipe.list().Close().flusher);
}

TEST(OutputListStress, CloseAmidPushes) {
  constexpr int kRounds = 300;
  constexpr int kProducers = 3;
  // Fewer on a busy machine, where the one who closes comes late.
  const std::int64_t end = NowNs() + 5'000'000'000;
  for (int round = 0; round < kRounds && NowNs() < end; ++round) {
    Pipe pipe(kProducers);
    std::atomic<int> accepted{0};
    std::vector<std::thread> threads;
    for (int p = 0; p < kProducers; ++p) {
      threads.emplace_back([&, p] {
        for (int i = 0; pipe.Write(p, i); ++i) accepted.fetch_add(1);
      });
    }
    while (accepted.load() < round % 50) std::this_thread::yield();
    const OutputList::Closed closed = pipe.list().Close();
    for (auto& thread : threads) thread.join();
    int dropped = 0;
    for (OutputNode* n = closed.nodes; n != nullptr; n = n->next) ++dropped;
    OutputNode::FreeAll(closed.nodes);
    // Each accepted node went to the flusher or to the closer, and a flusher
    // that the closer counts on has noticed.
    EXPECT_EQ(pipe.received() + dropped, accepted.load());
    EXPECT_TRUE(pipe.in_order());
    EXPECT_EQ(pipe.flushers_left(), closed.flusher ? 1 : 0);
  }
}

}  // namespace
}  // namespace flare::io
