// Buffer against std::string: random operations, and many threads.

#include <algorithm>
#include <array>
#include <atomic>
#include <iterator>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/read_space.h"
#include "flare/base/testing/buffers.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using buffer_testing::Letters;

// Random operations on a few Buffers and, beside them, on strings.
class Model {
 public:
  explicit Model(int seed) : random_(seed) {}

  void Step() {
    const std::size_t i = Pick(kCount);
    const std::size_t j = Pick(kCount);
    Buffer& b = buffers_[i];
    std::string& s = texts_[i];
    switch (Pick(12)) {
      case 0: {
        const std::string text = Letters(Size(), static_cast<int>(random_()));
        b.Append(text);
        s += text;
        break;
      }
      case 1:
        if (i == j) break;
        b.Append(std::move(buffers_[j]));
        s += std::exchange(texts_[j], {});
        break;
      case 2:
        b.Append(static_cast<const Buffer&>(buffers_[j]));
        s += std::string(texts_[j]);
        break;
      case 3:
        if (i != j) CutTo(i, j);
        break;
      case 4: {
        const std::size_t n = Pick(s.size() + 1);
        b.Skip(n);
        s.erase(0, n);
        break;
      }
      case 5:
        b = buffers_[j];
        s = std::string(texts_[j]);
        break;
      case 6:
        Build(i, j);
        break;
      case 7:
        Read(i);
        break;
      case 8: {
        std::string text = Letters(Size(), static_cast<int>(random_()));
        s += text;
        b.Append(MakeForeignBuffer(std::move(text)));
        break;
      }
      case 9:
        b.CompactIfSparse();
        break;
      case 10:
        b.Clear();
        s.clear();
        break;
      case 11:
        Look(i);
        break;
    }
    // Copies of copies would double forever.
    if (s.size() > kTooLong) {
      b.Skip(s.size() - 100);
      s.erase(0, s.size() - 100);
    }
    Check(i);
    Check(j);
  }

 private:
  static constexpr std::size_t kCount = 5;
  static constexpr std::size_t kTooLong = 300000;

  std::size_t Pick(std::size_t n) { return random_() % n; }
  // Mostly small, sometimes beyond each size of block.
  std::size_t Size() {
    constexpr std::size_t kUpTo[] = {10, 10, 300, 300, 2000, 20000, 100000};
    return Pick(kUpTo[Pick(std::size(kUpTo))]);
  }

  void CutTo(std::size_t from, std::size_t to) {
    const std::size_t n = Pick(texts_[from].size() + 1);
    buffers_[to] = buffers_[from].Cut(n);
    texts_[to] = texts_[from].substr(0, n);
    texts_[from].erase(0, n);
  }

  void Build(std::size_t i, std::size_t j) {
    BufferBuilder builder;
    std::string built;
    char* reserved = nullptr;
    std::size_t reserved_at = 0;
    const std::size_t reserve = Pick(BufferBuilder::kMaxReserve + 1);
    for (std::size_t n = Pick(6); n > 0; --n) {
      const std::string text = Letters(Size(), static_cast<int>(random_()));
      switch (Pick(5)) {
        case 0:
          builder.Append(text);
          built += text;
          break;
        case 1:
          builder.Append(buffers_[j]);
          built += texts_[j];
          break;
        case 2:
          builder.ExpectBytes(Size());
          break;
        case 3: {
          const std::size_t m = text.copy(
              builder.data(), std::min(text.size(), builder.SizeAvailable()));
          builder.MarkWritten(m);
          built += text.substr(0, m);
          break;
        }
        case 4:
          if (reserved) break;
          reserved = builder.Reserve(reserve);
          reserved_at = built.size();
          built += std::string(reserve, '?');
      }
      ASSERT_EQ(builder.ByteSize(), built.size());
      ASSERT_GT(builder.SizeAvailable(), 0u);
    }
    if (reserved) {
      std::fill_n(reserved, reserve, '#');
      std::fill_n(built.begin() + reserved_at, reserve, '#');
    }
    buffers_[i].Append(builder.DestructiveGet());
    texts_[i] += built;
    ASSERT_EQ(builder.ByteSize(), 0u);
  }

  void Read(std::size_t i) {
    ReadSpace space(Pick(2) ? Size() : 0);
    const std::size_t n = Pick(2) ? std::min(Size(), space.capacity())
                                  : Pick(space.capacity() + 1);
    const std::string text = Letters(n, static_cast<int>(random_()));
    std::string_view rest = text;
    for (int k = 0; k < space.iovec_count(); ++k) {
      const struct iovec& iov = space.iovecs()[k];
      rest.remove_prefix(
          rest.copy(static_cast<char*>(iov.iov_base), iov.iov_len));
    }
    ASSERT_TRUE(rest.empty());
    buffers_[i].Append(space.Commit(n));
    texts_[i] += text;
  }

  void Look(std::size_t i) {
    const std::string& s = texts_[i];
    const std::size_t offset = Pick(s.size() + 2);
    std::string out(Pick(5000), '?');
    const std::size_t n = buffers_[i].CopyTo(out.data(), out.size(), offset);
    out.resize(n);
    ASSERT_EQ(out, offset < s.size() ? s.substr(offset, n) : "");
    struct iovec iov[4];
    const std::size_t count = buffers_[i].FillIovecs(iov, 4, offset);
    std::string text;
    for (std::size_t k = 0; k < count; ++k) {
      text.append(static_cast<char*>(iov[k].iov_base), iov[k].iov_len);
    }
    ASSERT_EQ(text, offset < s.size() ? s.substr(offset, text.size()) : "");
  }

  void Check(std::size_t i) {
    const Buffer& b = buffers_[i];
    ASSERT_EQ(b.size(), texts_[i].size());
    ASSERT_EQ(b.empty(), texts_[i].empty());
    std::size_t at = 0;
    for (std::string_view slice : b) {
      ASSERT_FALSE(slice.empty());
      ASSERT_EQ(slice, std::string_view(texts_[i]).substr(at, slice.size()));
      at += slice.size();
    }
    ASSERT_EQ(at, texts_[i].size());
  }

  std::mt19937 random_;
  std::array<Buffer, kCount> buffers_;
  std::array<std::string, kCount> texts_;
};

TEST(BufferModel, RandomOperationsMatchStrings) {
  for (int seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Model model(seed);
    for (int i = 0; i < 300; ++i) {
      model.Step();
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Blocks are written by one thread while slices of them are read, shared and
// dropped by others, and go to the pools of the thread that drops them last.
TEST(BufferModel, SharedByThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 3000;
  constexpr std::size_t kMailboxes = 8;
  struct Mailbox {
    std::mutex mutex;
    Buffer buffer;
    std::string text;
  };
  std::array<Mailbox, kMailboxes> boxes;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < kRounds; ++i) {
        const std::string text =
            Letters(random() % 600, static_cast<int>(random()));
        BufferBuilder builder;
        builder.Append(text);
        Buffer message = builder.DestructiveGet();
        Buffer kept = message;
        Buffer received;
        std::string expected;
        Mailbox& box = boxes[random() % kMailboxes];
        {
          std::scoped_lock lock(box.mutex);
          if (box.text.size() > 20000) {
            received = std::move(box.buffer);
            expected = std::exchange(box.text, {});
          } else if (random() % 2) {
            received = box.buffer;
            expected = box.text;
          }
          box.buffer.Append(std::move(message));
          box.text += text;
        }
        if (FlattenSlow(received) != expected) ++wrong;
        if (FlattenSlow(kept) != text) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  for (Mailbox& box : boxes) EXPECT_EQ(FlattenSlow(box.buffer), box.text);
}

}  // namespace
}  // namespace flare
