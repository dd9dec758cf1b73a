#include "flare/base/read_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace flare {
namespace {

std::string Written(const std::string& text) {
  std::string path = ::testing::TempDir() + "/read_file_test";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(ReadFile, UpToTheLimit) {
  EXPECT_EQ(*ReadFile(Written(""), 2048), "");
  const std::string bytes("a\0\r\n", 4);
  EXPECT_EQ(*ReadFile(Written(bytes), 4), bytes);
  const std::string full(2048, 'x');
  EXPECT_EQ(*ReadFile(Written(full), 2048), full);
  const std::string path = Written(full + "y");
  const auto more = ReadFile(path, 2048);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code(), EFBIG);
  EXPECT_EQ(more.error().message(),
            "can't read '" + path + "': it has more than 2 KiB");
  EXPECT_TRUE(ReadFile(path, 4).error().message().ends_with("than 4 bytes"));
  std::filesystem::remove(path);
}

TEST(ReadFile, WhatIsNoFile) {
  EXPECT_EQ(ReadFile("/dev/zero", 1024).error().code(), EFBIG);
  const auto absent = ReadFile("/no/such/file", 1024);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ENOENT);
  EXPECT_EQ(absent.error().message(),
            "can't read '/no/such/file': No such file or directory");
  EXPECT_EQ(ReadFile("/", 1024).error().code(), EISDIR);
}

TEST(VersionOfFile, ChangesWithTheFile) {
  EXPECT_EQ(VersionOfFile("/no/such/file"), "");
  const std::string path = Written("1");
  const std::string first = VersionOfFile(path);
  EXPECT_NE(first, "");
  EXPECT_EQ(VersionOfFile(path), first);
  std::ofstream(path) << "22";
  EXPECT_NE(VersionOfFile(path), first);
  std::filesystem::remove(path);
  EXPECT_EQ(VersionOfFile(path), "");
}

}  // namespace
}  // namespace flare
