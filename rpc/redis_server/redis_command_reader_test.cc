#include "flare/rpc/redis_server/redis_command_reader.h"

#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/redis_server/redis_line.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using namespace std::literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Result = RedisCommandReader::Result;
using Command = std::vector<std::string>;

struct Outcome {
  std::vector<Command> commands;
  std::string failure;
  bool within = false;

  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome Read(std::string_view bytes, std::size_t piece = 1 << 20,
             std::size_t max_size = 1 << 20) {
  RedisCommandReader reader(max_size);
  RedisCommands commands;
  Outcome outcome;
  const auto read_all = [&](Buffer* in) {
    while (!in->empty()) {
      if (reader.Read(in, &commands) == Result::kFailed) break;
    }
  };
  for (std::size_t at = 0; at < bytes.size() && reader.failure().empty();
       at += piece) {
    Buffer in = testing::SlicedBuffer(bytes.substr(at, piece), piece);
    read_all(&in);
  }
  std::vector<std::string_view> words;
  for (std::size_t i = 0; i != commands.size(); ++i) {
    commands.Get(i, &words);
    outcome.commands.emplace_back(words.begin(), words.end());
  }
  outcome.failure = reader.failure();
  outcome.within = reader.within();
  return outcome;
}

TEST(RedisCommandReaderTest, ReadsArraysOfStrings) {
  const std::string bytes =
      "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n*1\r\n$4\r\nPING\r\n"
      "*3\r\n$3\r\nSET\r\n$0\r\n\r\n$5\r\na\r\n\0b\r\n"s;
  const Outcome whole = Read(bytes);
  EXPECT_THAT(whole.commands,
              ElementsAre(Command{"GET", "key"}, Command{"PING"},
                          Command{"SET", "", "a\r\n\0b"s}));
  EXPECT_EQ(whole.failure, "");
  EXPECT_FALSE(whole.within);
  for (std::size_t piece = 1; piece != bytes.size(); ++piece) {
    EXPECT_EQ(Read(bytes, piece), whole) << piece;
  }
}

TEST(RedisCommandReaderTest, KnowsWhetherACommandIsIncomplete) {
  const std::string bytes = "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
  for (std::size_t n = 1; n != bytes.size(); ++n) {
    const Outcome part = Read(bytes.substr(0, n));
    EXPECT_TRUE(part.within) << n;
    EXPECT_THAT(part.commands, IsEmpty()) << n;
    EXPECT_EQ(part.failure, "") << n;
  }
}

TEST(RedisCommandReaderTest, ReadsLines) {
  EXPECT_THAT(Read("PING\r\n\r\n  set  key 'a b'\n  \nget key").commands,
              ElementsAre(Command{"PING"}, Command{"set", "key", "a b"}));
}

TEST(RedisCommandReaderTest, PassesOverEmptyArrays) {
  EXPECT_THAT(Read("*0\r\n*-1\r\n*1\r\n$4\r\nPING\r\n").commands,
              ElementsAre(Command{"PING"}));
}

TEST(RedisCommandReaderTest, RefusesMalformedInput) {
  const struct {
    std::string bytes;
    std::string_view failure;
  } cases[] = {
      {"*x\r\n", "invalid multibulk length"},
      {"*1\n", "invalid multibulk length"},
      {"*1048577\r\n", "invalid multibulk length"},
      {"*99999999999999999999\r\n", "invalid multibulk length"},
      {"*" + std::string(32, '1'), "too big mbulk count string"},
      {"*1\r\n:4\r\n", "expected '$', got ':'"},
      {"*1\r\n\r\n", "expected '$', got '\\x0d'"},
      {"*1\r\n$-1\r\n", "invalid bulk length"},
      {"*1\r\n$x\r\n", "invalid bulk length"},
      {"*1\r\n$4\n", "invalid bulk length"},
      {"*1\r\n$" + std::string(32, '1'), "too big bulk count string"},
      {"*1\r\n$2000000\r\n", "the command is too large"},
      {"*1\r\n$9223372036854775807\r\n", "the command is too large"},
      {"*100000\r\n", "the command is too large"},
      {"*1\r\n$4\r\nPINGER\r\n", "a string is longer than its length says"},
      {"*1\r\n$4\r\nPING\rX", "a string is longer than its length says"},
      {"get \"key\r\n", "unbalanced quotes in request"},
      {std::string((64 << 10) + 1, 'a'), "too big inline request"},
      {"POST / HTTP/1.1\r\n", "this is no HTTP server"},
      {"host: here\r\n", "this is no HTTP server"},
  };
  for (const auto& c : cases) {
    const std::string before = "*1\r\n$4\r\nECHO\r\n";
    for (const std::size_t piece : {std::size_t{1}, std::size_t{1} << 20}) {
      const Outcome outcome = Read(before + c.bytes, piece);
      EXPECT_EQ(outcome.failure, "Protocol error: " + std::string(c.failure))
          << c.bytes.substr(0, 100);
      EXPECT_FALSE(outcome.within) << c.bytes.substr(0, 100);
      EXPECT_THAT(outcome.commands, ElementsAre(Command{"ECHO"}));
    }
  }
}

TEST(RedisCommandReaderTest, LimitsACommandNotItsConnection) {
  constexpr std::size_t kCost = RedisCommands::kWordCost;
  std::string bytes;
  for (int i = 0; i != 100; ++i)
    bytes += "*1\r\n$50\r\n" + std::string(50, 'a') + "\r\n";
  const Outcome outcome = Read(bytes, 7, /*max_size=*/50 + kCost);
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.commands.size(), 100u);
  EXPECT_NE(Read(bytes, 7, /*max_size=*/49 + kCost).failure, "");
  // Words without bytes take memory, too.
  EXPECT_NE(Read("*5\r\n", 7, 5 * kCost - 1).failure, "");
  EXPECT_EQ(Read("*5\r\n", 7, 5 * kCost).failure, "");
  EXPECT_NE(Read("a b c d e\n", 7, 5 * kCost + 4).failure, "");
}

// Any bytes, in any pieces: commands within the limits, or a failure.
TEST(RedisCommandReaderTest, SurvivesMutations) {
  const std::string good =
      "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\nping \"a\\x41\"\r\n*1\r\n$4\r\nPING\r\n";
  std::mt19937 random(7);
  for (int round = 0; round != 3000; ++round) {
    std::string bytes = good;
    for (int i = 0; i != 3; ++i) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = "*$\r\n0129-\"'\\\0"[random() % 13];
          break;
        case 1:
          bytes.erase(at, 1 + random() % 4);
          bytes += ' ';
          break;
        default:
          bytes.insert(at, bytes.substr(random() % bytes.size(), 8));
      }
    }
    const Outcome whole = Read(bytes);
    EXPECT_EQ(Read(bytes, 1 + random() % 9), whole) << bytes;
    for (const Command& command : whole.commands) EXPECT_FALSE(command.empty());
  }
}

TEST(RedisCommandsTest, MovesAnIncompleteCommand) {
  RedisCommandReader reader(1000);
  RedisCommands commands;
  Buffer in = CreateBufferSlow(
      "*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nva");
  ASSERT_EQ(reader.Read(&in, &commands), Result::kCommand);
  ASSERT_EQ(reader.Read(&in, &commands), Result::kNeedMore);
  RedisCommands next;
  commands.MoveRest(&next);
  EXPECT_EQ(commands.size(), 1u);
  EXPECT_EQ(commands.memory(), 4 + RedisCommands::kWordCost);
  EXPECT_EQ(next.size(), 0u);
  in = CreateBufferSlow("lue\r\n");
  ASSERT_EQ(reader.Read(&in, &next), Result::kCommand);
  std::vector<std::string_view> words;
  next.Get(0, &words);
  EXPECT_THAT(words, ElementsAre("SET", "key", "value"));
  commands.Get(0, &words);
  EXPECT_THAT(words, ElementsAre("PING"));
}

TEST(RedisLineTest, SplitsByRedisRules) {
  const auto split = [](std::string_view line) {
    Command words;
    return SplitRedisLine(line, &words) ? words : Command{"(bad)"};
  };
  EXPECT_THAT(split(""), IsEmpty());
  EXPECT_THAT(split(" a\tb "), ElementsAre("a", "b"));
  EXPECT_THAT(split(R"("a b" '' "")"), ElementsAre("a b", "", ""));
  EXPECT_THAT(split(R"("\n\r\t\b\a\x41\xzz\"\q")"),
              ElementsAre("\n\r\t\b\aAxzz\"q"));
  EXPECT_THAT(split(R"('\'\n"')"), ElementsAre("'\\n\""));
  EXPECT_THAT(split(R"(ab"c d")"), ElementsAre("abc d"));
  for (const std::string_view bad :
       {"\"", "'", "\"a", "'a\\'", "\"a\"b", "'a'b", "\"\\"}) {
    EXPECT_THAT(split(bad), ElementsAre("(bad)")) << bad;
  }
}

}  // namespace
}  // namespace flare::rpc
