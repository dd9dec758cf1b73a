#include "flare/rpc/metadata.h"

#include <string>
#include <vector>

#include "flare/rpc/rpc_status.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

std::vector<std::string> EntriesOf(const Metadata& metadata) {
  std::vector<std::string> entries;
  for (const Metadata::Entry entry : metadata) {
    entries.push_back(std::string(entry.name) + "=" + std::string(entry.value));
  }
  return entries;
}

std::string Refusal(std::string_view name, std::string_view value) {
  Metadata metadata;
  const Status status = metadata.Add(name, value);
  EXPECT_EQ(metadata.empty(), !status.ok());
  EXPECT_EQ(status.code(), status.ok() ? 0 : rpc::STATUS_NOT_SUPPORTED);
  return std::string(status.message());
}

TEST(MetadataTest, KeepsOrderAndRepetitions) {
  Metadata metadata;
  EXPECT_TRUE(metadata.empty());
  EXPECT_TRUE(metadata.Add("b", "1").ok());
  EXPECT_TRUE(metadata.Add("A-x_y.9", "2").ok());
  EXPECT_TRUE(metadata.Add("b", "").ok());
  EXPECT_EQ(EntriesOf(metadata),
            (std::vector<std::string>{"b=1", "a-x_y.9=2", "b="}));
  EXPECT_EQ(metadata.size(), 3u);
  EXPECT_EQ(metadata.byte_size(), 11u);
  EXPECT_EQ(metadata.Get("B"), "1");
  EXPECT_EQ(metadata.Get("a-X_y.9"), "2");
  EXPECT_EQ(metadata.Get("c"), std::nullopt);
  EXPECT_EQ(metadata.GetAll("b"), (std::vector<std::string_view>{"1", ""}));
  EXPECT_TRUE(metadata.GetAll("c").empty());
  EXPECT_TRUE(metadata.Contains("b"));
}

TEST(MetadataTest, SetReplacesAndRemoveTellsHowMany) {
  Metadata metadata;
  for (const char* value : {"1", "2", "3"}) {
    ASSERT_TRUE(metadata.Add("a", value).ok());
    ASSERT_TRUE(metadata.Add("b", value).ok());
  }
  EXPECT_TRUE(metadata.Set("A", "4").ok());
  EXPECT_EQ(EntriesOf(metadata),
            (std::vector<std::string>{"b=1", "b=2", "b=3", "a=4"}));
  EXPECT_FALSE(metadata.Set("a", "\n").ok());
  EXPECT_EQ(metadata.Get("a"), "4");
  EXPECT_EQ(metadata.Remove("B"), 3u);
  EXPECT_EQ(metadata.Remove("B"), 0u);
  EXPECT_EQ(metadata.byte_size(), 2u);
  metadata.Clear();
  EXPECT_TRUE(metadata.empty());
  EXPECT_EQ(metadata.byte_size(), 0u);
}

// A value may be one of the object's own.
TEST(MetadataTest, CopiesItsOwnValues) {
  Metadata metadata;
  ASSERT_TRUE(metadata.Add("a", std::string(100, 'x')).ok());
  for (int i = 0; i != 20; ++i) {
    ASSERT_TRUE(metadata.Add("b", std::string(*metadata.Get("a"))).ok());
  }
  for (const std::string_view value : metadata.GetAll("b")) {
    EXPECT_EQ(value, std::string(100, 'x'));
  }
}

TEST(MetadataTest, RefusesNames) {
  for (const char* name : {"", "a b", "a:", "a\r\nb", "\xc3\xa4", "a/b"}) {
    EXPECT_EQ(Refusal(name, "v").substr(0, 10), "metadata \"") << name;
  }
  EXPECT_EQ(Refusal("a\nb", "v"),
            "metadata \"a?b\" can't be sent: a name consists of letters, "
            "digits, '-', '_' and '.'");
  for (const char* name : {"Content-Length", "host", "Transfer-Encoding",
                           "connection", "Rpc-SeqNo", "grpc-timeout"}) {
    EXPECT_EQ(Refusal(name, "v"), "metadata \"" + std::string(name) +
                                      "\" can't be sent: protocols use this "
                                      "name themselves");
  }
  EXPECT_EQ(Refusal("hosts", "v"), "");
  EXPECT_EQ(Refusal("rpcs", "v"), "");
  EXPECT_EQ(Refusal("grpc-status-details-bin", "v"), "");
  EXPECT_EQ(Refusal("grpc-retry-pushback-ms", "250"), "");
}

TEST(MetadataTest, RefusesValuesThatAreNoText) {
  for (const char* value : {"a\r\nb: c", "\x7f", "\t", "\xc3\xa4"}) {
    EXPECT_EQ(Refusal("a", value),
              "metadata \"a\" can't be sent: its value isn't printable ASCII; "
              "names of other values end in \"-bin\"");
    EXPECT_EQ(Refusal("a-bin", value), "");
    EXPECT_EQ(Refusal("A-BIN", value), "");
  }
  for (const char* value : {" a", "a ", " "}) {
    EXPECT_EQ(Refusal("a", value),
              "metadata \"a\" can't be sent: its value begins or ends with a "
              "blank");
  }
  EXPECT_EQ(Refusal("a", "a b"), "");
}

TEST(MetadataTest, RefusesTooMuch) {
  Metadata metadata;
  for (std::size_t i = 0; i != Metadata::kMaxEntries; ++i) {
    ASSERT_TRUE(metadata.Add("a", "").ok());
  }
  EXPECT_EQ(metadata.Add("a", "").message(),
            "metadata \"a\" can't be sent: there are 128 entries already, the "
            "limit");
  metadata.Clear();
  EXPECT_TRUE(
      metadata.Add("a", std::string(Metadata::kMaxBytes - 1, 'x')).ok());
  EXPECT_EQ(metadata.Add("b", "").message(),
            "metadata \"b\" can't be sent: names and values would exceed the "
            "limit of 16384 bytes");
  EXPECT_EQ(metadata.size(), 1u);
}

TEST(MetadataTest, TakesValuesOfPeersAsTheyAre) {
  Metadata metadata;
  EXPECT_TRUE(metadata.AddReceived("X-User", "\xc3\xa4\n"));
  EXPECT_FALSE(metadata.AddReceived("", "v"));
  EXPECT_FALSE(metadata.AddReceived("a b", "v"));
  EXPECT_FALSE(metadata.AddReceived("Content-Type", "v"));
  EXPECT_EQ(EntriesOf(metadata), std::vector<std::string>{"x-user=\xc3\xa4\n"});
}

}  // namespace
}  // namespace flare
