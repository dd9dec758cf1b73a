#include "flare/base/read_space.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/testing/buffers.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using buffer_testing::OnFreshThread;

constexpr std::size_t kReadRoom = kReadBlockSize - kBlockHeaderSize;
constexpr std::size_t kBigRoom = kBigBlockSize - kBlockHeaderSize;

// Stands for readv.
Buffer Receive(std::string_view bytes, std::size_t hint = 0) {
  ReadSpace space(hint);
  std::string_view rest = bytes;
  for (int i = 0; i < space.iovec_count() && !rest.empty(); ++i) {
    const struct iovec& iov = space.iovecs()[i];
    rest.remove_prefix(
        rest.copy(static_cast<char*>(iov.iov_base), iov.iov_len));
  }
  return space.Commit(bytes.size() - rest.size());
}

TEST(ReadSpace, WithoutHintIsOnePiece) {
  OnFreshThread([] {
    ReadSpace space;
    EXPECT_EQ(space.iovec_count(), 1);
    EXPECT_EQ(space.capacity(), kReadRoom);
    EXPECT_EQ(space.iovecs()[0].iov_len, space.capacity());
  });
}

TEST(ReadSpace, CapacityIsTheSum) {
  for (std::size_t hint : {0u, 1u, 40000u, 1000000u, 100000000u}) {
    ReadSpace space(hint);
    std::size_t sum = 0;
    for (int i = 0; i < space.iovec_count(); ++i) {
      sum += space.iovecs()[i].iov_len;
    }
    EXPECT_EQ(space.capacity(), sum);
    EXPECT_GE(sum, ReadSpace::kMinCapacity);
    EXPECT_LE(space.iovec_count(), 1 + ReadSpace::kMaxBigBlocks);
    if (hint < ReadSpace::kMaxBigBlocks * kBigRoom) {
      EXPECT_GE(sum, hint);
    }
  }
}

TEST(ReadSpace, CommitNothing) {
  OnFreshThread([] {
    const void* where;
    {
      ReadSpace space;
      where = space.iovecs()[0].iov_base;
      EXPECT_TRUE(space.Commit(0).empty());
    }
    {
      ReadSpace space(1 << 20);
      EXPECT_EQ(space.iovecs()[0].iov_base, where);
    }
    ReadSpace space;
    EXPECT_EQ(space.iovecs()[0].iov_base, where);
  });
}

TEST(ReadSpace, CommitAll) {
  std::string text(300000, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i * 7 + i / 1000);
  }
  for (std::size_t hint : {0u, 100u, 65472u, 65473u, 200000u, 300000u}) {
    ReadSpace probe(hint);
    Buffer b = Receive(text, hint);
    EXPECT_EQ(FlattenSlow(b), text.substr(0, b.size()));
    EXPECT_GE(b.size(), std::min<std::size_t>(hint, text.size()));
  }
}

TEST(ReadSpace, AdjacentReadsMerge) {
  OnFreshThread([] {
    Buffer input;
    for (int i = 0; i < 100; ++i) {
      input.Append(Receive("message of some thirty bytes.\n"));
    }
    EXPECT_EQ(input.SliceCount(), 1u);
    EXPECT_EQ(input.size(), 3000u);
  });
}

TEST(ReadSpace, StartsAnewWhenNothingIsInUse) {
  OnFreshThread([] {
    const char* first = Receive("x").FirstContiguous().data();
    for (int i = 0; i < 1000; ++i) {
      Buffer b = Receive(std::string(1000, 'x'));
      ASSERT_EQ(b.FirstContiguous().data(), first);
    }
  });
}

TEST(ReadSpace, LivingBytesAreNeverOverwritten) {
  OnFreshThread([] {
    std::vector<Buffer> alive;
    std::vector<std::string> texts;
    for (int i = 0; i < 3000; ++i) {
      texts.push_back(std::to_string(i) + std::string(i % 300, '.'));
      alive.push_back(Receive(texts.back(), i % 10 ? 0 : 100000));
      if (i % 3 == 0) alive[i / 2] = Buffer();
    }
    for (std::size_t i = 0; i < alive.size(); ++i) {
      if (!alive[i].empty()) {
        ASSERT_EQ(FlattenSlow(alive[i]), texts[i]);
      }
    }
  });
}

TEST(ReadSpace, AlwaysHasRoom) {
  OnFreshThread([] {
    std::vector<Buffer> alive;
    for (int i = 0; i < 200; ++i) {
      ReadSpace space;
      ASSERT_GE(space.capacity(), ReadSpace::kMinCapacity);
      alive.push_back(
          space.Commit(std::min<std::size_t>(space.capacity(), 1 + i * 97)));
    }
  });
}

TEST(ReadSpace, RestOfABigBlockIsReadToNext) {
  OnFreshThread([] {
    const std::string text(100000, 'x');
    Buffer body = Receive(text, 1 << 20);
    EXPECT_EQ(body.size(), text.size());
    EXPECT_EQ(body.SliceCount(), 3u);
    // Goes on where it stopped: a large body read piece by piece lies in few
    // slices all the same.
    body.Append(Receive("y"));
    EXPECT_EQ(body.SliceCount(), 3u);
    for (int i = 0; i < 100; ++i) body.Append(Receive(text, 1 << 20));
    EXPECT_LE(body.SliceCount(), 5 + 101 * text.size() / (kBigRoom - 8192));
    EXPECT_EQ(FlattenSlow(body),
              text + "y" + std::string(100 * text.size(), 'x'));
  });
}

TEST(ReadSpace, LargeBodyTakesFewPieces) {
  OnFreshThread([] {
    const std::string text(4 << 20, 'b');
    Buffer body;
    int reads = 0;
    while (body.size() < text.size()) {
      body.Append(Receive(std::string_view(text).substr(body.size()),
                          text.size() - body.size()));
      ++reads;
    }
    EXPECT_LE(reads, 5);
    EXPECT_LE(body.SliceCount(), 70u);
  });
}

TEST(ReadSpace, SeveralAtOnce) {
  OnFreshThread([] {
    ReadSpace a;
    ReadSpace b(100000);
    std::memcpy(a.iovecs()[0].iov_base, "aa", 2);
    std::memcpy(b.iovecs()[0].iov_base, "bb", 2);
    EXPECT_EQ(FlattenSlow(a.Commit(2)), "aa");
    EXPECT_EQ(FlattenSlow(b.Commit(2)), "bb");
  });
}

TEST(ReadSpace, EndsOnAnotherThread) {
  for (int i = 0; i < 50; ++i) {
    auto space = std::make_unique<ReadSpace>(100000);
    std::memcpy(space->iovecs()[0].iov_base, "text", 4);
    Buffer b;
    std::thread([&] {
      b = space->Commit(4);
      space.reset();
      EXPECT_EQ(FlattenSlow(Receive("of the other thread")),
                "of the other thread");
    }).join();
    EXPECT_EQ(FlattenSlow(b), "text");
  }
}

TEST(ReadSpaceDeathTest, CommitsNoMoreThanThereIs) {
  ReadSpace space;
  EXPECT_DEATH(static_cast<void>(space.Commit(space.capacity() + 1)),
               "Can't commit more");
}

TEST(ReadSpace, RealSocket) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  std::string sent;
  for (int i = 0; sent.size() < 600000; ++i) sent += std::to_string(i) + ",";
  std::thread writer([&] {
    Buffer output = CreateBufferSlow(sent);
    while (!output.empty()) {
      struct iovec iov[3];
      const std::size_t n = output.FillIovecs(iov, 3);
      const ssize_t written = writev(fds[0], iov, static_cast<int>(n));
      ASSERT_GT(written, 0);
      output.Skip(static_cast<std::size_t>(written));
    }
    close(fds[0]);
  });
  Buffer input;
  while (true) {
    ReadSpace space(sent.size() - input.size());
    const ssize_t n = readv(fds[1], space.iovecs(), space.iovec_count());
    ASSERT_GE(n, 0);
    if (n == 0) break;
    input.Append(space.Commit(static_cast<std::size_t>(n)));
  }
  writer.join();
  close(fds[1]);
  EXPECT_EQ(FlattenSlow(input), sent);
}

}  // namespace
}  // namespace flare
