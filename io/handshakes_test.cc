#include "flare/io/handshakes.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace flare::io {
namespace {

struct Recorded : Handshakes::Entry {
  Recorded(std::string name, std::string* log)
      : name(std::move(name)), log(log) {}
  void OnTurn() override { *log += name + " may go on. "; }
  std::function<void()> MakeWay() override {
    return [this] { *log += name + " makes way. "; };
  }

  std::string name;
  std::string* log;
};

TEST(HandshakesTest, StepsTakeTurnsInTheirOrder) {
  std::string log;
  Handshakes all(2);
  Recorded a("a", &log), b("b", &log), c("c", &log), d("d", &log);
  for (Recorded* const e : {&a, &b, &c, &d}) all.Begin(e);
  EXPECT_TRUE(all.BeginStep(&a));
  EXPECT_TRUE(all.BeginStep(&b));
  EXPECT_FALSE(all.BeginStep(&c));
  EXPECT_FALSE(all.BeginStep(&d));
  EXPECT_EQ(log, "");
  all.EndStep();  // Ends a's.
  EXPECT_EQ(log, "c may go on. ");
  // Behind those that wait.
  EXPECT_FALSE(all.BeginStep(&a));
  all.EndStep();  // Ends b's.
  all.EndStep();  // Ends c's.
  EXPECT_EQ(log, "c may go on. d may go on. a may go on. ");
  all.EndStep();
  all.EndStep();
  EXPECT_TRUE(all.BeginStep(&b));
  all.EndStep();
  for (Recorded* const e : {&a, &b, &c, &d}) all.End(e);
}

TEST(HandshakesTest, TheOldestMakesWay) {
  std::string log;
  Handshakes all(1);
  EXPECT_FALSE(all.MakeRoom());
  Recorded a("a", &log), b("b", &log), c("c", &log);
  for (Recorded* const e : {&a, &b, &c}) all.Begin(e);
  all.End(&a);
  EXPECT_TRUE(all.MakeRoom());
  EXPECT_TRUE(all.MakeRoom());
  EXPECT_EQ(log, "b makes way. c makes way. ");
  EXPECT_FALSE(all.MakeRoom());
  all.End(&b);  // They end, too.
  all.End(&c);
}

// Each has its steps done by its caller, as tasks would.
struct Stepping : Handshakes::Entry {
  void OnTurn() override { turns.fetch_add(1); }
  std::function<void()> MakeWay() override {
    return [made_way = made_way] { made_way->store(true); };
  }

  std::atomic<int> turns{0};
  std::shared_ptr<std::atomic<bool>> made_way =
      std::make_shared<std::atomic<bool>>(false);
};

TEST(HandshakesTest, NeverMoreStepsThanMayRunAndNoTurnIsLost) {
  constexpr int kThreads = 6, kMost = 2, kRounds = 2000;
  Handshakes all(kMost);
  std::atomic<int> running{0};
  std::atomic<bool> too_many{false}, over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i != kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round != kRounds; ++round) {
        Stepping mine;
        all.Begin(&mine);
        if (!all.BeginStep(&mine)) {
          while (mine.turns.load() == 0) std::this_thread::yield();
        }
        if (running.fetch_add(1) >= kMost) too_many.store(true);
        running.fetch_sub(1);
        all.EndStep();
        all.End(&mine);
      }
    });
  }
  std::thread accepting([&] {
    while (!over.load()) {
      all.MakeRoom();
      std::this_thread::yield();
    }
  });
  for (std::thread& thread : threads) thread.join();
  over.store(true);
  accepting.join();
  EXPECT_FALSE(too_many.load());
  EXPECT_FALSE(all.MakeRoom());
}

}  // namespace
}  // namespace flare::io
