#include "flare/io/readiness.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace flare::io {
namespace {

using Turn = Readiness::Turn;

TEST(Readiness, OneEdgeOneRun) {
  Readiness r;
  EXPECT_TRUE(r.Signal());
  EXPECT_EQ(r.Begin(), Turn::kRead);
  EXPECT_TRUE(r.Finish());
  EXPECT_TRUE(r.Signal());
}

TEST(Readiness, EdgesBeforeTheReadNeedNoSecondOne) {
  Readiness r;
  EXPECT_TRUE(r.Signal());
  EXPECT_FALSE(r.Signal());
  EXPECT_FALSE(r.Signal());
  EXPECT_EQ(r.Begin(), Turn::kRead);
  EXPECT_TRUE(r.Finish());
}

TEST(Readiness, EdgesDuringTheReadNeedOneMore) {
  Readiness r;
  ASSERT_TRUE(r.Signal());
  ASSERT_EQ(r.Begin(), Turn::kRead);
  EXPECT_FALSE(r.Signal());
  EXPECT_FALSE(r.Signal());
  EXPECT_FALSE(r.Finish());
  EXPECT_EQ(r.Begin(), Turn::kRead);
  EXPECT_TRUE(r.Finish());
}

TEST(Readiness, HangUpIsRemembered) {
  Readiness r;
  ASSERT_TRUE(r.Signal());
  EXPECT_FALSE(r.hang_up());
  EXPECT_FALSE(r.Signal(/*hang_up=*/true));
  EXPECT_TRUE(r.hang_up());
  ASSERT_EQ(r.Begin(), Turn::kRead);
  ASSERT_TRUE(r.Finish());
  EXPECT_TRUE(r.hang_up());
}

TEST(Readiness, PausedBeforeAnEdge) {
  Readiness r;
  r.Pause();
  EXPECT_FALSE(r.Signal());
  EXPECT_FALSE(r.Signal());
  EXPECT_TRUE(r.Resume());
  EXPECT_FALSE(r.Resume());  // That reader is still on its way.
  EXPECT_EQ(r.Begin(), Turn::kRead);
  EXPECT_TRUE(r.Finish());
}

TEST(Readiness, ResumeWithoutAnythingToRead) {
  Readiness r;
  r.Pause();
  EXPECT_FALSE(r.Resume());
  EXPECT_TRUE(r.Signal());
}

TEST(Readiness, PausedWhileScheduled) {
  Readiness r;
  ASSERT_TRUE(r.Signal());
  r.Pause();
  EXPECT_EQ(r.Begin(), Turn::kLeft);
  EXPECT_FALSE(r.Signal());
  // The input that caused the first edge is still unread.
  EXPECT_TRUE(r.Resume());
  EXPECT_EQ(r.Begin(), Turn::kRead);
  EXPECT_TRUE(r.Finish());
}

TEST(Readiness, PausedWhileReading) {
  Readiness r;
  ASSERT_TRUE(r.Signal());
  ASSERT_EQ(r.Begin(), Turn::kRead);
  r.Pause();
  EXPECT_TRUE(r.Finish());  // All was read.
  EXPECT_FALSE(r.Signal());
  EXPECT_TRUE(r.Resume());
}

TEST(Readiness, ABreakIsHeardOfInAPause) {
  Readiness r;
  r.Pause();
  EXPECT_FALSE(r.Signal());
  EXPECT_TRUE(r.Signal(/*hang_up=*/true, /*broken=*/true));
  EXPECT_FALSE(r.Signal(/*hang_up=*/true, /*broken=*/true));
  EXPECT_FALSE(r.Resume());  // Its reader is on its way.
  r.Pause();
  EXPECT_EQ(r.Begin(), Turn::kBroken);
  EXPECT_FALSE(r.Stop());  // The reader still has its role.
  EXPECT_EQ(r.Begin(), Turn::kStopped);
}

TEST(Readiness, WithoutAPauseABreakIsRead) {
  Readiness r;
  EXPECT_TRUE(r.Signal(/*hang_up=*/true, /*broken=*/true));
  EXPECT_EQ(r.Begin(), Turn::kRead);
  r.Pause();  // By earlier reads.
  EXPECT_EQ(r.Begin(), Turn::kBroken);
}

TEST(Readiness, PausedAndResumedWhileReading) {
  Readiness r;
  ASSERT_TRUE(r.Signal());
  ASSERT_EQ(r.Begin(), Turn::kRead);
  r.Pause();
  EXPECT_FALSE(r.Signal());
  EXPECT_FALSE(r.Resume());  // The reader is there and has to look again.
  EXPECT_FALSE(r.Finish());
  EXPECT_EQ(r.Begin(), Turn::kRead);
  EXPECT_TRUE(r.Finish());
}

TEST(Readiness, StopSchedulesALastReader) {
  Readiness r;
  EXPECT_TRUE(r.Stop());
  EXPECT_EQ(r.Begin(), Turn::kStopped);
  // Nobody gets the role any more.
  EXPECT_FALSE(r.Signal());
  EXPECT_FALSE(r.Resume());
  EXPECT_FALSE(r.Stop());
}

TEST(Readiness, StopUnderAReader) {
  Readiness r;
  ASSERT_TRUE(r.Signal());
  ASSERT_EQ(r.Begin(), Turn::kRead);
  EXPECT_FALSE(r.Stop());
  EXPECT_FALSE(r.Finish());
  EXPECT_EQ(r.Begin(), Turn::kStopped);
}

TEST(Readiness, StopBeatsPause) {
  Readiness r;
  r.Pause();
  EXPECT_FALSE(r.Signal());
  EXPECT_TRUE(r.Stop());
  EXPECT_EQ(r.Begin(), Turn::kStopped);

  Readiness paused_later;
  EXPECT_TRUE(paused_later.Stop());
  paused_later.Pause();
  EXPECT_EQ(paused_later.Begin(), Turn::kStopped);
  EXPECT_FALSE(paused_later.Resume());
}

// Random sequences of one thread against a model with the states spelt out.
TEST(Readiness, HeldFromTheStart) {
  Readiness r(/*held=*/true);
  EXPECT_FALSE(r.Signal());
  EXPECT_FALSE(r.Finish());  // The owner's: to schedule the reader.
  EXPECT_EQ(r.Begin(), Turn::kRead);
  EXPECT_TRUE(r.Finish());
  EXPECT_TRUE(r.Signal());
  Readiness without_edges(/*held=*/true);
  EXPECT_TRUE(without_edges.Finish());
  EXPECT_TRUE(without_edges.Signal());
  Readiness stopped(/*held=*/true);
  EXPECT_FALSE(stopped.Stop());  // Its owner schedules the reader.
  EXPECT_EQ(stopped.Begin(), Turn::kStopped);
}

TEST(Readiness, BehavesLikeItsModel) {
  std::mt19937 random(20240607);
  for (int round = 0; round < 2000; ++round) {
    Readiness r;
    bool active = false;   // A reader is there ...
    bool reading = false;  // ... and between Begin and Finish.
    bool again = false;
    bool paused = false;
    bool stopped = false;
    for (int step = 0; step < 40; ++step) {
      switch (random() % 6) {
        case 0: {
          const bool expected = !active && !paused;
          EXPECT_EQ(r.Signal(), expected);
          if (expected) {
            active = true;
          } else {
            again = true;
          }
          break;
        }
        case 1:
          r.Pause();
          paused = true;
          break;
        case 2: {
          const bool expected = !active && again;
          EXPECT_EQ(r.Resume(), expected);
          paused = false;
          if (expected) {
            active = true;
            again = false;
          }
          break;
        }
        case 3:
          if (random() % 8 != 0) break;
          EXPECT_EQ(r.Stop(), !active);
          active = again = stopped = true;
          break;
        case 4:
          if (!active || reading) break;
          if (stopped) {
            EXPECT_EQ(r.Begin(), Turn::kStopped);
          } else if (paused) {
            EXPECT_EQ(r.Begin(), Turn::kLeft);
            active = false;
            again = true;
          } else {
            EXPECT_EQ(r.Begin(), Turn::kRead);
            again = false;
            reading = true;
          }
          break;
        default:
          if (!reading) break;
          EXPECT_EQ(r.Finish(), !again);
          if (!again) active = false;
          reading = false;
          break;
      }
    }
  }
}

// A socket made of a counter: producers add bytes and make edges, the producer
// that must schedule a reader runs it on the spot or hands it to a helper.
class Source {
 public:
  void Produce() {
    available_.fetch_add(1);
    if (readiness_.Signal()) Read();
  }
  void Pause() { readiness_.Pause(); }
  void Resume() {
    if (readiness_.Resume()) Read();
  }
  void Stop() {
    if (readiness_.Stop()) Read();
  }

  int consumed() const { return consumed_; }
  int stopped() const { return stopped_; }

 private:
  void Read() {
    for (;;) {
      switch (readiness_.Begin()) {
        case Turn::kLeft:
          return;
        case Turn::kStopped:
          ++stopped_;
          return;
        case Turn::kBroken:
        case Turn::kRead:
          break;
      }
      consumed_ += available_.exchange(0);  // Plain: guarded by the role.
      if (readiness_.Finish()) return;
    }
  }

  Readiness readiness_;
  std::atomic<int> available_{0};
  int consumed_ = 0;
  int stopped_ = 0;
};

TEST(ReadinessStress, NoEdgeIsLost) {
  constexpr int kProducers = 3;
  constexpr int kEach = 50000;
  Source source;
  std::vector<std::thread> threads;
  for (int p = 0; p < kProducers; ++p) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) source.Produce();
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(source.consumed(), kProducers * kEach);
}

TEST(ReadinessStress, NoEdgeIsLostWhilePausing) {
  constexpr int kEach = 50000;
  Source source;
  std::atomic<bool> done{false};
  std::thread pauser([&] {
    while (!done.load()) {
      source.Pause();
      source.Resume();
    }
  });
  std::vector<std::thread> producers;
  for (int p = 0; p < 2; ++p) {
    producers.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) source.Produce();
    });
  }
  for (auto& thread : producers) thread.join();
  done.store(true);
  pauser.join();
  source.Resume();
  EXPECT_EQ(source.consumed(), 2 * kEach);
}

TEST(ReadinessStress, StopsExactlyOnce) {
  for (int round = 0; round < 500; ++round) {
    Source source;
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) source.Produce();
    });
    threads.emplace_back([&] {
      source.Pause();
      source.Resume();
      source.Pause();
    });
    threads.emplace_back([&] { source.Stop(); });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(source.stopped(), 1);
  }
}

TEST(WritableWait, IgnoresEventsWhileNobodyCares) {
  WritableWait w;
  EXPECT_FALSE(w.OnWritable());
  w.Arm();
  w.Disarm();
  EXPECT_FALSE(w.OnWritable());
}

TEST(WritableWait, WakesAWaiterOnce) {
  WritableWait w;
  w.Arm();
  EXPECT_TRUE(w.Wait());
  EXPECT_TRUE(w.OnWritable());
  EXPECT_FALSE(w.OnWritable());
}

TEST(WritableWait, AnEdgeAfterArmingPreventsTheWait) {
  WritableWait w;
  w.Arm();
  EXPECT_FALSE(w.OnWritable());
  EXPECT_FALSE(w.OnWritable());
  EXPECT_FALSE(w.Wait());
  // Disarmed: as at the beginning.
  EXPECT_FALSE(w.OnWritable());
  w.Arm();
  EXPECT_TRUE(w.Wait());
  EXPECT_TRUE(w.OnWritable());
}

TEST(WritableWait, DisarmingForgetsAnEdge) {
  WritableWait w;
  w.Arm();
  EXPECT_FALSE(w.OnWritable());
  w.Disarm();
  w.Arm();
  EXPECT_TRUE(w.Wait());
}

// A socket buffer of one byte: the flusher "sends" by filling it, the peer
// empties it and makes an edge. With a lost edge, this test hangs.
TEST(WritableWaitStress, NoEdgeIsLost) {
  constexpr int kBytes = 30000;  // Each is waited for, on busy machines, too.
  WritableWait wait;
  std::atomic<bool> full{false};
  std::atomic<int> sent{0};
  std::mutex mutex;
  std::condition_variable scheduled;
  int runs_due = 1;

  std::thread flusher([&] {
    while (sent.load() < kBytes) {
      {
        std::unique_lock guard(mutex);
        scheduled.wait(guard, [&] { return runs_due > 0; });
        EXPECT_EQ(runs_due, 1) << "two flushers";
        --runs_due;
      }
      bool armed = false;
      while (sent.load() < kBytes) {
        if (!full.exchange(true)) {
          sent.fetch_add(1);
        } else if (!armed) {
          wait.Arm();
          armed = true;
        } else {
          if (wait.Wait()) break;
          armed = false;
        }
      }
    }
  });
  int received = 0;
  while (received < kBytes) {
    if (!full.exchange(false)) continue;
    ++received;
    if (wait.OnWritable()) {
      std::scoped_lock guard(mutex);
      ++runs_due;
      scheduled.notify_one();
    }
  }
  flusher.join();
  EXPECT_EQ(sent.load(), kBytes);
}

}  // namespace
}  // namespace flare::io
