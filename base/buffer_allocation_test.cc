// Counts calls of the general allocator: there must be none per message.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/function.h"
#include "flare/base/object_pool.h"
#include "flare/base/read_space.h"
#include "flare/base/testing/replaced_new.h"
#include "gtest/gtest.h"

namespace {

std::atomic<long> allocations = 0;
// The allocation that fails, and whether those after it do, too. 0: none.
std::atomic<long> failing = 0;
std::atomic<bool> all_fail = false;

}  // namespace

void flare::testing::OnAllocation(std::size_t) {
  ++allocations;
  if (failing != 0 &&
      (all_fail ? allocations >= failing : allocations == failing)) {
    throw std::bad_alloc();
  }
}

namespace flare {
namespace {

// How many allocations `f` makes once it has run a few times.
template <class F>
long AllocationsOf(F f) {
  for (int i = 0; i < 20; ++i) f();
  const long before = allocations;
  for (int i = 0; i < 100; ++i) f();
  return allocations - before;
}

TEST(Allocations, AreCounted) {
  // By a call: compilers may leave new expressions out.
  EXPECT_GE(AllocationsOf([] { ::operator delete(::operator new(4)); }), 100);
}

TEST(Allocations, NoneForABatchOfMessages) {
  EXPECT_EQ(AllocationsOf([] {
              Buffer output;
              for (int i = 0; i < 500; ++i) {
                BufferBuilder builder;
                char* head = builder.Reserve(16);
                std::fill_n(head, 16, 'h');
                builder.Append("method and body");
                output.Append(builder.DestructiveGet());
              }
              while (!output.empty()) output.Skip(31);
            }),
            0);
}

TEST(Allocations, NoneForReadsAndCuts) {
  EXPECT_EQ(AllocationsOf([] {
              Buffer input;
              for (int i = 0; i < 20; ++i) {
                ReadSpace space;
                std::fill_n(static_cast<char*>(space.iovecs()[0].iov_base),
                            4000, 'x');
                input.Append(space.Commit(4000));
                while (input.size() >= 60) {
                  Buffer message = input.Cut(60);
                  Buffer body = message.Cut(20);
                }
              }
            }),
            0);
}

TEST(Allocations, NoneForLargeMessages) {
  static const std::string text(1 << 20, 'x');
  EXPECT_EQ(AllocationsOf([] {
              ReadSpace space(1 << 20);
              Buffer body = space.Commit(space.capacity());
              BufferBuilder builder;
              builder.Append(text);
              body.Append(builder.DestructiveGet());
            }),
            0);
}

TEST(Allocations, NoneForReferencingBuffers) {
  static const std::string text(1000, 'x');
  EXPECT_EQ(AllocationsOf([] {
              int done = 0;
              {
                Buffer b = MakeReferencingBuffer(text.data(), text.size(),
                                                 [&done] { ++done; });
                Buffer copy = b;
              }
              ASSERT_EQ(done, 1);
            }),
            0);
}

TEST(Allocations, NoneForPooledObjects) {
  EXPECT_EQ(AllocationsOf([] {
              std::array<PooledPtr<std::string>, 200> all;
              for (auto& p : all) p = MakePooled<std::string>();
            }),
            0);
}

TEST(Allocations, NoneForFunctionsOf48Bytes) {
  std::array<char, 40> ballast{};
  int calls = 0;
  EXPECT_EQ(AllocationsOf([&] {
              Function<void()> f = [&calls, ballast] {
                calls += 1 + ballast[0];
              };
              Function<void()> g = std::move(f);
              g();
            }),
            0);
  EXPECT_EQ(calls, 120);
}

// The `n`-th allocation from now on fails; with `all`, those behind it, too.
class Shortage {
 public:
  explicit Shortage(long n, bool all = false) {
    all_fail = all;
    failing = allocations + n;
  }
  ~Shortage() { failing = 0; }
};

struct Item {
  std::array<char, 100> bytes;
};

TEST(Shortages, GivingBackNeedsNoMemory) {
  std::vector<Item*> items(1000);
  for (Item*& item : items) item = ObjectPool<Item>::Get();
  const Shortage shortage(1, /*all=*/true);
  // More than a thread keeps; there is no list yet to keep the others in.
  for (Item* const item : items) ObjectPool<Item>::Put(item);
}

std::size_t BytesOf(const Buffer& buffer) {
  std::size_t bytes = 0;
  for (std::string_view slice : buffer) bytes += slice.size();
  return bytes;
}

// Many blocks and slices, of each way to make them.
void Make(std::vector<Buffer>* buffers) {
  const std::string text(3000, 'x');
  for (int i = 0; i != 30; ++i) {
    {
      BufferBuilder builder;
      builder.Append(text);
      buffers->push_back(builder.DestructiveGet());
      builder.ExpectBytes(200'000);
      for (int j = 0; j != 70; ++j) builder.Append(text);
      buffers->push_back(builder.DestructiveGet());
    }
    ReadSpace space(300'000);
    buffers->push_back(space.Commit(space.capacity()));
    for (int j = 0; j != 20; ++j) {
      buffers->push_back(buffers->back().Cut(100));
      Buffer* const from = &buffers->at(buffers->size() - 2);
      buffers->back().Append(*from);
      std::swap(*from, buffers->back());
    }
  }
}

TEST(Shortages, BuffersStayWhole) {
  int failed = 0;
  std::vector<Buffer> kept;  // So that the pools are empty.
  kept.reserve(100'000);
  for (long n = 1; n != 60; ++n) {
    const std::size_t before = kept.size();
    try {
      const Shortage shortage(n);
      Make(&kept);
    } catch (const std::bad_alloc&) {
      ++failed;
    }
    for (std::size_t i = before; i != kept.size(); ++i) {
      ASSERT_EQ(kept[i].size(), BytesOf(kept[i]));
    }
  }
  EXPECT_GT(failed, 10);  // A ReadSpace does without large blocks.
}

}  // namespace
}  // namespace flare
