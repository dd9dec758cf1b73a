// Waits of all kinds: see testing/meeting.h.
#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "flare/fiber/barrier.h"
#include "flare/fiber/channel.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/event.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/semaphore.h"
#include "flare/fiber/shared_mutex.h"
#include "flare/fiber/testing/meeting.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "gtest/gtest.h"

namespace flare::fiber {
namespace {

using testing::Common;
using testing::kParties;
using testing::MeetAgainAndAgain;
using testing::Meeting;

class WaitEndsStressTest : public testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(WaitEndsStressTest);

TEST_P(WaitEndsStressTest, Event) {
  MeetAgainAndAgain([](Meeting& meeting) {
    Common<fiber::Event> event;
    meeting.Start([&](int) {
      if (!event->WaitUntil(meeting.stop(), meeting.NearTime())) event->Wait();
      event.Leave();
    });
    meeting.RequestStop();
    meeting.Finish([&] { event->Set(); });
  });
}

// Each waits for its own, which is gone while others are still being set.
TEST_P(WaitEndsStressTest, EventsOnStacks) {
  MeetAgainAndAgain([](Meeting& meeting) {
    std::array<std::atomic<fiber::Event*>, kParties> events{};
    meeting.Start([&](int i) {
      fiber::Event event;
      events[i] = &event;
      if (!event.WaitUntil(meeting.Near())) event.Wait();
    });
    meeting.Finish([&] {
      for (auto& each : events) {
        while (each == nullptr) std::this_thread::yield();
        each.load()->Set();
      }
    });
  });
}

TEST_P(WaitEndsStressTest, Latch) {
  MeetAgainAndAgain([](Meeting& meeting) {
    Common<fiber::Latch> latch(2);
    meeting.Start([&](int i) {
      const auto at = meeting.NearTime();
      if (i == 3) {
        this_fiber::SleepUntil(at);
        latch->count_down();
      }
      if (!latch->wait_until(meeting.stop(), at)) latch->wait();
      latch.Leave();
    });
    meeting.RequestStop();
    meeting.Finish([&] { latch->count_down(); });
  });
}

TEST_P(WaitEndsStressTest, Semaphore) {
  MeetAgainAndAgain([](Meeting& meeting) {
    Common<fiber::Semaphore> units(0);
    meeting.Start([&](int) {
      if (!units->try_acquire_until(meeting.stop(), meeting.NearTime())) {
        units->acquire();
      }
      units.Leave();
    });
    meeting.RequestStop();
    meeting.Finish([&] { units->release(kParties); });
  });
}

// Some give up for good; one comes when it may just be given back.
TEST_P(WaitEndsStressTest, Mutex) {
  MeetAgainAndAgain([](Meeting& meeting) {
    Common<fiber::Mutex> mutex;
    mutex->lock();
    meeting.Start([&](int i) {
      const auto at = meeting.NearTime();
      if (i == 3) this_fiber::SleepUntil(at);
      bool locked = mutex->try_lock_until(meeting.stop(), at);
      if (!locked && i >= 2) {
        mutex->lock();
        locked = true;
      }
      if (locked) mutex->unlock();
      mutex.Leave();
    });
    meeting.RequestStop();
    meeting.Finish([&] { mutex->unlock(); });
  });
}

// Readers take part, too.
TEST_P(WaitEndsStressTest, SharedMutex) {
  MeetAgainAndAgain([](Meeting& meeting) {
    Common<fiber::SharedMutex> mutex;
    const bool read = meeting.number() % 3 == 0;
    read ? mutex->lock_shared() : mutex->lock();
    meeting.Start([&](int i) {
      const auto at = meeting.NearTime();
      if (i == 3) this_fiber::SleepUntil(at);
      if (i % 2 == 0) {
        if (mutex->try_lock_shared_until(meeting.stop(), at)) {
          mutex->unlock_shared();
        }
      } else {
        bool locked = mutex->try_lock_until(meeting.stop(), at);
        if (!locked && i == 3) {
          mutex->lock();
          locked = true;
        }
        if (locked) mutex->unlock();
      }
      mutex.Leave();
    });
    meeting.RequestStop();
    meeting.Finish([&] { read ? mutex->unlock_shared() : mutex->unlock(); });
  });
}

TEST_P(WaitEndsStressTest, ConditionVariable) {
  struct Condition {
    fiber::Mutex mutex;
    fiber::ConditionVariable changed;
    bool set = false;
  };
  MeetAgainAndAgain([](Meeting& meeting) {
    Common<Condition> condition;
    meeting.Start([&](int) {
      const auto set = [&] { return condition->set; };
      {
        std::unique_lock lock(condition->mutex);
        if (!condition->changed.wait_until(lock, meeting.stop(),
                                           meeting.NearTime(), set)) {
          condition->changed.wait(lock, set);
        }
      }
      condition.Leave();
    });
    meeting.RequestStop();
    meeting.Finish([&] {
      const std::scoped_lock lock(condition->mutex);
      condition->set = true;
      condition->changed.notify_all();
    });
  });
}

TEST_P(WaitEndsStressTest, Barrier) {
  MeetAgainAndAgain([](Meeting& meeting) {
    Common<fiber::Barrier<>> barrier(kParties);
    meeting.Start([&](int i) {
      const auto at = meeting.NearTime();
      if (i == 3) this_fiber::SleepUntil(at);
      const auto arrival = barrier->arrive();
      if (!barrier->wait_until(meeting.stop(), arrival, at)) {
        barrier->wait(arrival);
      }
      barrier.Leave();
    });
    meeting.RequestStop();
    meeting.Finish([] {});
  });
}

// The receivers own them: they go while the sender still returns.
TEST_P(WaitEndsStressTest, ChannelsOfReceivers) {
  MeetAgainAndAgain([](Meeting& meeting) {
    std::array<std::atomic<Channel<int>*>, kParties> channels{};
    meeting.Start([&](int i) {
      const auto stop = meeting.stop();
      const auto channel = std::make_unique<Channel<int>>(i % 2);
      channels[i] = channel.get();
      auto value = channel->Receive(WaitLimit{meeting.Near(), &stop});
      if (!value) value = channel->Receive();
      EXPECT_EQ(*value, i);
    });
    meeting.RequestStop();
    meeting.Finish([&] {
      for (int i = 0; i < kParties; ++i) {
        while (channels[i] == nullptr) std::this_thread::yield();
        EXPECT_EQ(channels[i].load()->Send(i), ChannelResult::kDone);
      }
    });
  });
}

TEST_P(WaitEndsStressTest, ChannelsOfSenders) {
  MeetAgainAndAgain([](Meeting& meeting) {
    std::array<std::atomic<Channel<int>*>, kParties> channels{};
    meeting.Start([&](int i) {
      const auto stop = meeting.stop();
      const auto channel = std::make_unique<Channel<int>>();
      channels[i] = channel.get();
      if (channel->Send(i, WaitLimit{meeting.Near(), &stop}) !=
          ChannelResult::kDone) {
        EXPECT_EQ(channel->Send(i), ChannelResult::kDone);
      }
    });
    meeting.RequestStop();
    meeting.Finish([&] {
      for (int i = 0; i < kParties; ++i) {
        while (channels[i] == nullptr) std::this_thread::yield();
        EXPECT_EQ(*channels[i].load()->Receive(), i);
      }
    });
  });
}

// One of two is closed; both go.
TEST_P(WaitEndsStressTest, SelectsAndClosing) {
  struct Pair {
    Channel<int> first;
    Channel<int> second;
  };
  MeetAgainAndAgain([](Meeting& meeting) {
    std::array<std::atomic<Pair*>, kParties> pairs{};
    meeting.Start([&](int i) {
      const auto stop = meeting.stop();
      const auto pair = std::make_unique<Pair>();
      pairs[i] = pair.get();
      std::optional<int> value;
      int sent = 0;
      const auto select = [&](const WaitLimit& limit) {
        return Select(limit, pair->first.Receiving(&value),
                      pair->second.Sending(&sent));
      };
      SelectResult did = select({meeting.Near(), &stop});
      if (did.index == SelectResult::kNone) did = select({});
      EXPECT_EQ(did.index, static_cast<std::size_t>(i % 2));
      EXPECT_EQ(did.result, ChannelResult::kClosed);
    });
    meeting.RequestStop();
    meeting.Finish([&] {
      for (int i = 0; i < kParties; ++i) {
        while (pairs[i] == nullptr) std::this_thread::yield();
        Pair* const pair = pairs[i];
        EXPECT_TRUE((i % 2 == 0 ? pair->first : pair->second).Close());
      }
    });
  });
}

}  // namespace
}  // namespace flare::fiber
