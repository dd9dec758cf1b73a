#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/testing/buffers.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using buffer_testing::OnFreshThread;

constexpr std::size_t kBuildRoom = kBuildBlockSize - kBlockHeaderSize;

TEST(BufferBuilder, Empty) {
  BufferBuilder builder;
  EXPECT_EQ(builder.ByteSize(), 0u);
  EXPECT_GE(builder.SizeAvailable(), kMinBuildRoom);
  EXPECT_TRUE(builder.DestructiveGet().empty());
  builder.Append("");
  builder.Append(std::string_view());
  builder.Append(Buffer());
  builder.MarkWritten(0);
  EXPECT_EQ(builder.ByteSize(), 0u);
  EXPECT_TRUE(builder.DestructiveGet().empty());
}

TEST(BufferBuilder, PiecesBecomeOneSlice) {
  BufferBuilder builder;
  builder.Append("abc");
  builder.Append('d');
  builder.Append("efg", 2);
  builder.Append(CreateBufferSlow("gh"));
  std::memcpy(builder.data(), "ij", 2);
  builder.MarkWritten(2);
  EXPECT_EQ(builder.ByteSize(), 10u);
  Buffer b = builder.DestructiveGet();
  EXPECT_EQ(b.SliceCount(), 1u);
  EXPECT_EQ(b.FirstContiguous(), "abcdefghij");
}

TEST(BufferBuilder, UsableAfterDestructiveGet) {
  BufferBuilder builder;
  builder.Append("first");
  Buffer first = builder.DestructiveGet();
  EXPECT_EQ(builder.ByteSize(), 0u);
  builder.Append("second");
  Buffer second = builder.DestructiveGet();
  EXPECT_EQ(FlattenSlow(first), "first");
  EXPECT_EQ(FlattenSlow(second), "second");
  first.Append(std::move(second));
  EXPECT_EQ(first.SliceCount(), 1u);
}

TEST(BufferBuilder, MessagesOfOneThreadAreAdjacent) {
  OnFreshThread([] {
    Buffer output;
    for (int i = 0; i < 100; ++i) {
      BufferBuilder builder;
      builder.Append("message of some thirty bytes.\n");
      output.Append(builder.DestructiveGet());
    }
    EXPECT_EQ(output.size(), 3000u);
    EXPECT_EQ(output.SliceCount(), 1u) << "One iovec for a hundred messages.";
  });
}

TEST(BufferBuilder, StartsAnewWhenNothingIsInUse) {
  OnFreshThread([] {
    const char* first = nullptr;
    for (int i = 0; i < 3; ++i) {
      BufferBuilder builder;
      if (!first) first = builder.data();
      EXPECT_EQ(builder.data(), first);
      builder.Append("gone soon");
      Buffer message = builder.DestructiveGet();
    }
    BufferBuilder builder;
    EXPECT_EQ(builder.data(), first);
  });
}

TEST(BufferBuilder, LivingMessagesAreNeverOverwritten) {
  OnFreshThread([] {
    std::vector<Buffer> alive;
    std::vector<std::string> texts;
    for (int i = 0; i < 2000; ++i) {
      texts.push_back("message " + std::to_string(i) +
                      std::string(i % 100, '.'));
      BufferBuilder builder;
      builder.Append(texts.back());
      alive.push_back(builder.DestructiveGet());
      if (i % 3 == 0) alive[i / 2] = Buffer();
    }
    for (std::size_t i = 0; i < alive.size(); ++i) {
      if (!alive[i].empty()) {
        EXPECT_EQ(FlattenSlow(alive[i]), texts[i]);
      }
    }
  });
}

TEST(BufferBuilder, WhatWasNotTakenIsForgotten) {
  OnFreshThread([] {
    BufferBuilder outer;
    outer.Append("kept");
    const char* next;
    {
      BufferBuilder builder;
      next = builder.data();
      builder.Append("dropped");
    }
    BufferBuilder builder;
    EXPECT_EQ(builder.data(), next);
    EXPECT_EQ(FlattenSlow(outer.DestructiveGet()), "kept");
  });
}

TEST(BufferBuilder, SpansBlocks) {
  const std::string line = "0123456789";
  for (std::size_t lines : {100u, 1632u, 1633u, 5000u, 100000u}) {
    BufferBuilder builder;
    std::string model;
    for (std::size_t i = 0; i < lines; ++i) {
      builder.Append(line);
      model += line;
    }
    Buffer b = builder.DestructiveGet();
    EXPECT_EQ(FlattenSlow(b), model);
    EXPECT_LE(b.SliceCount(), 2 + model.size() / (kBuildRoom - kMinBuildRoom));
  }
}

TEST(BufferBuilder, ReserveIsContiguousAndFilledInLater) {
  for (std::size_t n : {0u, 1u, 16u, 1024u}) {
    BufferBuilder builder;
    std::vector<char*> reserved;
    for (int i = 0; i < 50; ++i) {
      reserved.push_back(builder.Reserve(n));
      builder.Append("|");
    }
    std::string model;
    for (std::size_t i = 0; i < reserved.size(); ++i) {
      std::fill_n(reserved[i], n, static_cast<char>('a' + i % 26));
      model += std::string(n, static_cast<char>('a' + i % 26)) + "|";
    }
    EXPECT_EQ(FlattenSlow(builder.DestructiveGet()), model);
  }
}

TEST(BufferBuilder, ReserveJustFits) {
  BufferBuilder builder;
  const std::size_t fill = builder.SizeAvailable() - 100;
  builder.Append(std::string(fill, 'x'));
  char* reserved = builder.Reserve(100);
  std::memset(reserved, 'y', 100);
  EXPECT_EQ(FlattenSlow(builder.DestructiveGet()),
            std::string(fill, 'x') + std::string(100, 'y'));
  EXPECT_GT(builder.SizeAvailable(), 0u);
}

TEST(BufferBuilder, FillingABlockToTheLastByte) {
  BufferBuilder builder;
  std::string model;
  for (int i = 0; i < 5; ++i) {
    const std::size_t n = builder.SizeAvailable();
    std::memset(builder.data(), 'a' + i, n);
    builder.MarkWritten(n);
    EXPECT_GT(builder.SizeAvailable(), 0u);
    model += std::string(n, static_cast<char>('a' + i));
  }
  EXPECT_EQ(builder.ByteSize(), model.size());
  EXPECT_EQ(FlattenSlow(builder.DestructiveGet()), model);
}

TEST(BufferBuilder, LongBuffersAreLinked) {
  std::string text(BufferBuilder::kCopyAtMost + 1, 'x');
  const char* where = text.data();
  BufferBuilder builder;
  builder.Append("head");
  builder.Append(MakeReferencingBuffer(text.data(), text.size()));
  builder.Append("tail");
  Buffer b = builder.DestructiveGet();
  EXPECT_EQ(FlattenSlow(b), "head" + text + "tail");
  ASSERT_EQ(b.SliceCount(), 3u);
  b.Skip(4);
  EXPECT_EQ(b.FirstContiguous().data(), where);
}

TEST(BufferBuilder, ShortBuffersAreCopied) {
  const std::string text(BufferBuilder::kCopyAtMost, 'x');
  BufferBuilder builder;
  builder.Append("head");
  builder.Append(MakeReferencingBuffer(text.data(), text.size()));
  builder.Append("tail");
  Buffer b = builder.DestructiveGet();
  EXPECT_EQ(b.FirstContiguous(), "head" + text + "tail");
}

TEST(BufferBuilder, LargeTextGoesToLargeBlocks) {
  const std::string text(1 << 20, 'x');
  BufferBuilder builder;
  builder.Append(text);
  builder.Append("end");
  Buffer b = builder.DestructiveGet();
  EXPECT_EQ(FlattenSlow(b), text + "end");
  EXPECT_LE(b.SliceCount(), 20u);
}

TEST(BufferBuilder, ExpectedBytesGoToLargeBlocks) {
  BufferBuilder builder;
  builder.Append("head");
  builder.ExpectBytes(1 << 20);
  for (int i = 0; i < 1 << 17; ++i) builder.Append("12345678");
  Buffer b = builder.DestructiveGet();
  EXPECT_EQ(b.size(), 4u + (1 << 20));
  EXPECT_LE(b.SliceCount(), 20u);
  // Back to ordinary blocks for the next message.
  builder.Append("small");
  EXPECT_LE(builder.SizeAvailable(), kBigBlockSize);
  EXPECT_EQ(FlattenSlow(builder.DestructiveGet()), "small");
}

TEST(BufferBuilder, SeveralAtOnce) {
  std::vector<std::unique_ptr<BufferBuilder>> builders;
  for (int i = 0; i < 5; ++i) {
    builders.push_back(std::make_unique<BufferBuilder>());
  }
  for (int round = 0; round < 5000; ++round) {
    for (int i = 0; i < 5; ++i) builders[i]->Append(&"abcde"[i], 1);
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(FlattenSlow(builders[i]->DestructiveGet()),
              std::string(5000, static_cast<char>('a' + i)));
  }
}

// A fiber that suspends while it builds goes on, and ends, on another thread.
TEST(BufferBuilder, EndsOnAnotherThread) {
  for (int i = 0; i < 100; ++i) {
    auto builder = std::make_unique<BufferBuilder>();
    builder->Append("begun here, ");
    Buffer result;
    std::thread([&] {
      builder->Append(std::string(20000, 'x'));
      builder->Append(" ended there");
      result = builder->DestructiveGet();
      builder.reset();
      BufferBuilder next;
      next.Append("of the other thread");
      Buffer other = next.DestructiveGet();
    }).join();
    BufferBuilder own;
    own.Append("of this thread");
    EXPECT_EQ(FlattenSlow(result),
              "begun here, " + std::string(20000, 'x') + " ended there");
    EXPECT_EQ(FlattenSlow(own.DestructiveGet()), "of this thread");
  }
}

// More slices from one block than are prepaid at once.
TEST(BufferBuilder, MoreSlicesThanPrepaid) {
  OnFreshThread([] {
    for (int i = 0; i < 50000; ++i) {
      BufferBuilder builder;
      builder.Append('x');
      Buffer b = builder.DestructiveGet();
      ASSERT_EQ(b.FirstContiguous(), "x");
    }
    std::vector<Buffer> alive;
    for (int i = 0; i < 50000; ++i) {
      BufferBuilder builder;
      builder.Append('y');
      alive.push_back(builder.DestructiveGet());
    }
    for (const Buffer& b : alive) ASSERT_EQ(b.FirstContiguous(), "y");
  });
}

}  // namespace
}  // namespace flare
