#include "example/rpc/line_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "flare/io/fd.h"
#include "gtest/gtest.h"

namespace example {
namespace {

class LineReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends;
    ASSERT_EQ(pipe(ends.data()), 0);
    from_.Reset(ends[0]);
    to_.Reset(ends[1]);
    lines_.emplace(from_.get());
  }

  void Write(std::string_view text) {
    ASSERT_EQ(write(to_.get(), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
  }
  // "none" at the end.
  std::string Next() {
    const auto line = lines_->Next();
    if (!line) return line.error().message();
    return line->value_or("none");
  }

  flare::io::UniqueFd from_;
  flare::io::UniqueFd to_;
  std::optional<LineReader> lines_;
};

TEST_F(LineReaderTest, GivesLines) {
  Write("one\n\nthree\nfo");
  EXPECT_EQ(Next(), "one");
  EXPECT_EQ(lines_->line(), 1u);
  EXPECT_EQ(Next(), "");
  EXPECT_EQ(Next(), "three");
  EXPECT_EQ(lines_->line(), 3u);
  Write("ur\nlast");
  EXPECT_EQ(Next(), "four");
  to_.Reset();
  EXPECT_EQ(Next(), "last");
  EXPECT_EQ(lines_->line(), 5u);
  EXPECT_EQ(Next(), "none");
  EXPECT_EQ(Next(), "none");
}

TEST_F(LineReaderTest, GivesLongLines) {
  const std::string line(200'000, 'x');
  std::thread writer([&] {
    for (const std::string_view part : {std::string_view(line), {"\ny\n"}}) {
      for (std::size_t sent = 0; sent != part.size();) {
        const ssize_t taken =
            write(to_.get(), part.data() + sent, part.size() - sent);
        ASSERT_GT(taken, 0);
        sent += static_cast<std::size_t>(taken);
      }
    }
  });
  EXPECT_EQ(Next(), line);
  EXPECT_EQ(Next(), "y");
  writer.join();
}

TEST_F(LineReaderTest, StopEndsAWait) {
  std::thread stopper([&] { lines_->Stop(); });
  EXPECT_EQ(Next(), "none");  // Though the pipe is open.
  stopper.join();
  EXPECT_EQ(Next(), "none");
}

TEST_F(LineReaderTest, SaysWhyItCantRead) {
  from_.Reset(open("/", O_RDONLY | O_CLOEXEC));
  lines_.emplace(from_.get());
  EXPECT_EQ(Next(), "can't read stdin: Is a directory");
}

}  // namespace
}  // namespace example
