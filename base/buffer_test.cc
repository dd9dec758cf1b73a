#include "flare/base/buffer.h"

#include <initializer_list>
#include <string>
#include <vector>

#include "flare/base/testing/buffers.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using buffer_testing::Letters;

// A Buffer of slices that cannot merge, one per text.
Buffer Sliced(std::initializer_list<std::string_view> texts) {
  Buffer buffer;
  for (std::string_view text : texts) {
    buffer.Append(MakeReferencingBuffer(text.data(), text.size()));
  }
  return buffer;
}

TEST(Buffer, Empty) {
  Buffer b;
  EXPECT_TRUE(b.empty());
  EXPECT_TRUE(b.Empty());
  EXPECT_EQ(b.size(), 0u);
  EXPECT_EQ(b.ByteSize(), 0u);
  EXPECT_EQ(b.begin(), b.end());
  EXPECT_EQ(b.FirstContiguous(), "");
  EXPECT_EQ(FlattenSlow(b), "");
  b.Clear();
  b.Skip(0);
  EXPECT_TRUE(b.Cut(0).empty());
  b.Append(Buffer());
  b.Append(static_cast<const Buffer&>(Buffer()));
  b.Append(std::string_view());
  b.CompactIfSparse();
  EXPECT_EQ(b.SliceCount(), 0u);
  struct iovec iov;
  EXPECT_EQ(b.FillIovecs(&iov, 1), 0u);
  char c;
  EXPECT_EQ(b.CopyTo(&c, 1), 0u);
  EXPECT_EQ(b.Peek(1, &c), "");
}

TEST(Buffer, CreateAndFlatten) {
  for (std::size_t size : {1, 100, 1024, 16320, 16321, 70000, 1 << 20}) {
    const std::string text = Letters(size);
    Buffer b = CreateBufferSlow(text);
    EXPECT_EQ(b.size(), size);
    EXPECT_EQ(FlattenSlow(b), text);
    EXPECT_EQ(FlattenSlow(b, 10), text.substr(0, 10));
    EXPECT_EQ(FlattenSlow(b, 0), "");
  }
}

TEST(Buffer, MovesLeaveEmpty) {
  Buffer a = Sliced({"one", "two"});
  Buffer b = std::move(a);
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(a.begin(), a.end());
  EXPECT_EQ(FlattenSlow(b), "onetwo");
  a = std::move(b);
  EXPECT_EQ(FlattenSlow(a), "onetwo");
  EXPECT_TRUE(b.empty());
  Buffer& self = a;
  a = std::move(self);
  EXPECT_EQ(FlattenSlow(a), "onetwo");
  a.Append(Sliced({"three"}));
  b.Append(std::move(a));
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(FlattenSlow(b), "onetwothree");
  a.Append(Sliced({"again"}));
  EXPECT_EQ(FlattenSlow(a), "again");
}

TEST(Buffer, CopiesShare) {
  Buffer a = CreateBufferSlow("shared text");
  Buffer b = a;
  EXPECT_EQ(a.FirstContiguous().data(), b.FirstContiguous().data());
  a.Skip(7);
  EXPECT_EQ(FlattenSlow(b), "shared text");
  a.Append(" and more");
  EXPECT_EQ(FlattenSlow(a), "text and more");
  EXPECT_EQ(FlattenSlow(b), "shared text");
  b = a;
  EXPECT_EQ(FlattenSlow(b), "text and more");
  const Buffer& self = b;
  b = self;
  EXPECT_EQ(FlattenSlow(b), "text and more");
}

TEST(Buffer, AppendToItselfByCopy) {
  Buffer a = Sliced({"ab", "cd"});
  a.Append(static_cast<const Buffer&>(a));
  EXPECT_EQ(FlattenSlow(a), "abcdabcd");
  Buffer one = CreateBufferSlow("xy");
  one.Append(static_cast<const Buffer&>(one));
  EXPECT_EQ(FlattenSlow(one), "xyxy");
}

TEST(Buffer, CutEverywhere) {
  const std::string all = "abcdefghij";
  for (std::size_t n = 0; n <= all.size(); ++n) {
    Buffer rest = Sliced({"abc", "d", "efgh", "ij"});
    Buffer front = rest.Cut(n);
    EXPECT_EQ(front.size(), n);
    EXPECT_EQ(rest.size(), all.size() - n);
    EXPECT_EQ(FlattenSlow(front), all.substr(0, n));
    EXPECT_EQ(FlattenSlow(rest), all.substr(n));
    // Both have proper ends: appending works.
    front.Append(Sliced({"+"}));
    rest.Append(Sliced({"-"}));
    EXPECT_EQ(FlattenSlow(front), all.substr(0, n) + "+");
    EXPECT_EQ(FlattenSlow(rest), all.substr(n) + "-");
    front.Append(std::move(rest));
    EXPECT_EQ(FlattenSlow(front), all.substr(0, n) + "+" + all.substr(n) + "-");
  }
}

TEST(Buffer, CutAndRejoinMerges) {
  Buffer rest = CreateBufferSlow("hello world");
  Buffer front = rest.Cut(5);
  front.Append(std::move(rest));
  EXPECT_EQ(front.SliceCount(), 1u);
  EXPECT_EQ(front.FirstContiguous(), "hello world");
}

TEST(Buffer, MergeKeepsWhatFollows) {
  Buffer rest = CreateBufferSlow("hello");
  rest.Append(Sliced({" ", "world"}));
  Buffer front = rest.Cut(2);
  front.Append(std::move(rest));
  EXPECT_EQ(front.SliceCount(), 3u);
  front.Append(Sliced({"!"}));
  EXPECT_EQ(FlattenSlow(front), "hello world!");
}

TEST(Buffer, SkipEverywhere) {
  const std::string all = "abcdefghij";
  for (std::size_t n = 0; n <= all.size(); ++n) {
    Buffer b = Sliced({"abc", "d", "efgh", "ij"});
    b.Skip(n);
    EXPECT_EQ(FlattenSlow(b), all.substr(n));
    b.Append(Sliced({"!"}));
    EXPECT_EQ(FlattenSlow(b), all.substr(n) + "!");
  }
}

TEST(BufferDeathTest, TooMuch) {
  Buffer b = CreateBufferSlow("abc");
  EXPECT_DEATH(b.Skip(4), "Can't skip more");
  EXPECT_DEATH(static_cast<void>(b.Cut(4)), "Can't cut more");
}

TEST(Buffer, CopyTo) {
  Buffer b = Sliced({"abc", "d", "efgh"});
  const std::string all = "abcdefgh";
  for (std::size_t offset = 0; offset <= 10; ++offset) {
    for (std::size_t n = 0; n <= 10; ++n) {
      std::string out(n, '?');
      const std::string want =
          offset < all.size() ? all.substr(offset, n) : std::string();
      EXPECT_EQ(b.CopyTo(out.data(), n, offset), want.size());
      EXPECT_EQ(out, want + std::string(n - want.size(), '?'));
    }
  }
}

TEST(Buffer, Peek) {
  Buffer b = Sliced({"abcd", "efgh"});
  char scratch[16] = {};
  EXPECT_EQ(b.Peek(4, scratch), "abcd");
  EXPECT_EQ(b.Peek(4, scratch).data(), b.FirstContiguous().data());
  EXPECT_EQ(b.Peek(5, scratch), "abcde");
  EXPECT_EQ(b.Peek(5, scratch).data(), scratch);
  EXPECT_EQ(b.Peek(16, scratch), "abcdefgh");
  EXPECT_EQ(b.Peek(0, scratch), "");
  EXPECT_EQ(b.size(), 8u);
}

TEST(Buffer, FillIovecs) {
  Buffer b = Sliced({"abc", "d", "efgh"});
  const std::string all = "abcdefgh";
  for (std::size_t max = 0; max <= 4; ++max) {
    for (std::size_t skip = 0; skip <= 9; ++skip) {
      struct iovec iov[4];
      const std::size_t n = b.FillIovecs(iov, max, skip);
      EXPECT_LE(n, max);
      std::string text;
      for (std::size_t i = 0; i < n; ++i) {
        EXPECT_GT(iov[i].iov_len, 0u);
        text.append(static_cast<char*>(iov[i].iov_base), iov[i].iov_len);
      }
      const std::string rest =
          skip < all.size() ? all.substr(skip) : std::string();
      EXPECT_EQ(text, rest.substr(0, text.size()));
      if (max >= 3) {
        EXPECT_EQ(text, rest);
      }
    }
  }
}

TEST(Buffer, ForeignMemory) {
  std::string long_text = Letters(100000);
  const char* where = long_text.data();
  std::string copy = long_text;
  Buffer b = MakeForeignBuffer(std::move(long_text));
  EXPECT_EQ(b.FirstContiguous().data(), where) << "It was copied.";
  EXPECT_EQ(FlattenSlow(b), copy);
  EXPECT_EQ(FlattenSlow(MakeForeignBuffer("short")), "short");
  EXPECT_TRUE(MakeForeignBuffer("").empty());
}

TEST(Buffer, ReferencingMemoryIsGivenBackOnce) {
  int given_back = 0;
  const std::string text = "text of somebody else";
  Buffer copy;
  {
    Buffer b =
        MakeReferencingBuffer(text.data(), text.size(), [&] { ++given_back; });
    EXPECT_EQ(b.FirstContiguous().data(), text.data());
    copy = b;
    copy.Skip(5);
    Buffer part = copy.Cut(2);
    EXPECT_EQ(FlattenSlow(part), "of");
  }
  EXPECT_EQ(given_back, 0);
  copy.Clear();
  EXPECT_EQ(given_back, 1);
  Buffer empty = MakeReferencingBuffer(nullptr, 0, [&] { ++given_back; });
  EXPECT_TRUE(empty.empty());
  EXPECT_EQ(given_back, 2);
}

TEST(Buffer, CompactIfSparse) {
  Buffer dense = CreateBufferSlow(Letters(200000));
  const std::size_t slices = dense.SliceCount();
  dense.CompactIfSparse();
  EXPECT_EQ(dense.SliceCount(), slices);

  // Single bytes trickle in between the reads of other connections.
  Buffer sparse;
  std::string model;
  for (int i = 0; i < 5000; ++i) {
    sparse.Append(MakeReferencingBuffer("x", 1));
    model += 'x';
    sparse.CompactIfSparse();
    ASSERT_LE(sparse.SliceCount(), 16 + sparse.size() / 4096);
  }
  EXPECT_EQ(FlattenSlow(sparse), model);
}

TEST(PacedCompaction, BoundsWhatGrows) {
  PacedCompaction compaction;
  Buffer buffer;
  // Emptied in between, as an input is: earlier looks say nothing.
  for (const std::size_t size : {300'000, 200, 50'000}) {
    std::string model;
    const std::string piece = Letters(10);
    while (model.size() < size) {
      buffer.Append(MakeReferencingBuffer(piece.data(), piece.size()));
      model += piece;
      compaction.AfterAppend(&buffer);
      ASSERT_LE(buffer.SliceCount(), 33 + buffer.size() / 2048);
    }
    EXPECT_EQ(FlattenSlow(buffer), model);
    buffer.Clear();
  }
}

TEST(Buffer, IterationMatchesSlices) {
  Buffer b = Sliced({"a", "bc", "def"});
  std::vector<std::string_view> slices(b.begin(), b.end());
  EXPECT_EQ(slices, (std::vector<std::string_view>{"a", "bc", "def"}));
  EXPECT_EQ(b.SliceCount(), 3u);
  auto it = b.begin();
  EXPECT_EQ(*it++, "a");
  EXPECT_EQ(*it, "bc");
}

}  // namespace
}  // namespace flare
