#include "flare/base/buffer_block.h"

#include <cstring>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/testing/buffers.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using buffer_testing::OnFreshThread;

int destroyed = 0;

TEST(BufferBlock, DestroyedByTheLastReference) {
  destroyed = 0;
  BufferBlock block{1, 0, [](BufferBlock*) { ++destroyed; }};
  block.Ref();
  block.Ref(5);
  block.Deref(4);
  block.Deref();
  block.Deref();
  EXPECT_EQ(destroyed, 0);
  block.Deref();
  EXPECT_EQ(destroyed, 1);
}

TEST(WritableBlock, RefsAreThoseOfSlicesPlusPrepaid) {
  OnFreshThread([] {
    WritableBlock hot = TakeHotBlock(HotBlock::kBuild);
    EXPECT_TRUE(hot.IsSoleOwner());
    BufferBlock* block = hot.TakeRef();
    EXPECT_EQ(block, hot.block);
    EXPECT_FALSE(hot.IsSoleOwner());
    block->Ref();
    block->Deref();
    EXPECT_FALSE(hot.IsSoleOwner());
    block->Deref();
    EXPECT_TRUE(hot.IsSoleOwner());
    hot.Drop();
    EXPECT_FALSE(hot);
  });
}

TEST(WritableBlock, PrepaysAnew) {
  WritableBlock big = MakeWritable(NewBigBlock(), nullptr);
  big.Rewind();
  EXPECT_EQ(big.room(), kBigBlockSize - kBlockHeaderSize);
  EXPECT_EQ(big.prepaid, 1u);
  for (int i = 0; i < 100; ++i) {
    big.TakeRef();
    EXPECT_GE(big.prepaid, 1u);
  }
  EXPECT_FALSE(big.IsSoleOwner());
  big.block->Deref(100);
  EXPECT_TRUE(big.IsSoleOwner());
  big.Drop();
}

TEST(HotBlock, GoesOnWhereItStopped) {
  OnFreshThread([] {
    for (HotBlock which : {HotBlock::kBuild, HotBlock::kRead}) {
      WritableBlock hot = TakeHotBlock(which);
      BufferBlock* slice = hot.TakeRef();
      hot.cursor += 10;
      char* next = hot.cursor;
      GiveBackHotBlock(which, hot);
      hot = TakeHotBlock(which);
      EXPECT_EQ(hot.cursor, next);
      GiveBackHotBlock(which, hot);
      slice->Deref();
      hot = TakeHotBlock(which);
      EXPECT_EQ(hot.cursor, next - 10) << "Not rewound.";
      GiveBackHotBlock(which, hot);
    }
  });
}

TEST(HotBlock, IsReplacedWhenLittleIsLeft) {
  OnFreshThread([] {
    const std::pair<HotBlock, std::size_t> kinds[] = {
        {HotBlock::kBuild, kMinBuildRoom}, {HotBlock::kRead, kMinReadRoom}};
    for (auto [which, min_room] : kinds) {
      WritableBlock hot = TakeHotBlock(which);
      BufferBlock* slice = hot.TakeRef();
      hot.cursor = hot.end - min_room;
      GiveBackHotBlock(which, hot);
      hot = TakeHotBlock(which);
      EXPECT_EQ(hot.block, slice);
      EXPECT_EQ(hot.room(), min_room);
      ++hot.cursor;
      GiveBackHotBlock(which, hot);
      hot = TakeHotBlock(which);
      EXPECT_NE(hot.block, slice);
      EXPECT_GT(hot.room(), min_room);
      slice->Deref();
      GiveBackHotBlock(which, hot);
    }
  });
}

TEST(HotBlock, TheRoomierOneIsKept) {
  OnFreshThread([] {
    WritableBlock first = TakeHotBlock(HotBlock::kBuild);
    WritableBlock second = TakeHotBlock(HotBlock::kBuild);
    EXPECT_NE(first.block, second.block);
    BufferBlock* slice = first.TakeRef();
    first.cursor += 100;
    BufferBlock* kept = second.block;
    GiveBackHotBlock(HotBlock::kBuild, first);
    GiveBackHotBlock(HotBlock::kBuild, second);
    WritableBlock hot = TakeHotBlock(HotBlock::kBuild);
    EXPECT_EQ(hot.block, kept);
    first = {};
    GiveBackHotBlock(HotBlock::kBuild, hot);
    // The slice still owns its block.
    std::memset(NativeData(slice), 'x', 100);
    slice->Deref();
  });
}

// The last one out destroys or rewinds; ThreadSanitizer checks the order.
TEST(WritableBlock, RewoundAfterTheReadersAreDone) {
  constexpr int kReaders = 3;
  for (int round = 0; round < 300; ++round) {
    WritableBlock hot = TakeHotBlock(HotBlock::kBuild);
    std::memset(hot.cursor, round, 64);
    std::vector<std::thread> readers;
    std::atomic<int> wrong = 0;
    for (int i = 0; i < kReaders; ++i) {
      readers.emplace_back(
          [&wrong, round, block = hot.TakeRef(), at = hot.cursor] {
            for (int k = 0; k < 64; ++k) {
              if (at[k] != static_cast<char>(round)) ++wrong;
            }
            block->Deref();
          });
    }
    char* written = hot.cursor;
    hot.cursor += 64;
    while (!hot.IsSoleOwner()) std::this_thread::yield();
    hot.Rewind();
    EXPECT_LE(hot.cursor, written);
    std::memset(hot.cursor, ~round, 128);
    GiveBackHotBlock(HotBlock::kBuild, hot);
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(wrong, 0);
  }
}

struct GivesBackAtExit {
  ~GivesBackAtExit() {
    WritableBlock another = TakeHotBlock(HotBlock::kRead);
    GiveBackHotBlock(HotBlock::kRead, another);
    if (hot) GiveBackHotBlock(HotBlock::kRead, hot);
  }
  WritableBlock hot;
};

// LeakSanitizer checks that nothing stays behind.
TEST(HotBlock, UsableWhileTheThreadExits) {
  for (int i = 0; i < 10; ++i) {
    OnFreshThread([] {
      static thread_local GivesBackAtExit at_exit;
      at_exit.hot = TakeHotBlock(HotBlock::kRead);
      GiveBackHotBlock(HotBlock::kBuild, TakeHotBlock(HotBlock::kBuild));
    });
  }
}

}  // namespace
}  // namespace flare
