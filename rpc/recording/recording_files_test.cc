#include "flare/rpc/recording/recording_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "flare/rpc/recording/recording_format.h"
#include "flare/rpc/recording/recording_reader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare {
namespace {

using ::testing::HasSubstr;

class RecordingFilesTest : public ::testing::Test {
 protected:
  RecordingFilesTest() {
    std::string folder =
        std::filesystem::temp_directory_path() / "recording_XXXXXX";
    folder_ = std::string(mkdtemp(folder.data())) + "/calls";
  }
  ~RecordingFilesTest() override {
    std::filesystem::remove_all(std::filesystem::path(folder_).parent_path());
  }

  RecordingFiles::Options OptionsOf(std::size_t bytes, std::size_t files) {
    return {.folder = folder_, .bytes_per_file = bytes, .max_files = files};
  }
  std::vector<std::string> List() {
    auto paths = ListRecordings(folder_);
    EXPECT_TRUE(paths) << paths.error();
    return paths ? *paths : std::vector<std::string>();
  }
  static std::string RecordOf(const std::string& method) {
    RecordedCall call;
    call.method = method;
    return EncodeRecord(call);
  }
  // The methods in a file, in order.
  static std::string MethodsIn(const std::string& path) {
    std::string methods;
    const auto reader = RecordingReader::Open(path);
    EXPECT_TRUE(reader) << reader.error();
    for (auto call = (*reader)->Next(); call && *call;
         call = (*reader)->Next()) {
      methods += (*call)->method;
    }
    EXPECT_FALSE((*reader)->cut_off());
    return methods;
  }

  std::string folder_;
};

TEST_F(RecordingFilesTest, MakesNoFileBeforeTheFirstRecord) {
  RecordingFiles files(OptionsOf(1000, 3));
  ASSERT_TRUE(files.Prepare().ok());
  EXPECT_TRUE(List().empty());
  ASSERT_TRUE(files.Write(RecordOf("a")).ok());
  ASSERT_TRUE(files.Write(RecordOf("b") + RecordOf("c")).ok());
  ASSERT_EQ(List().size(), 1u);
  EXPECT_EQ(List().front(), files.path());
  EXPECT_EQ(MethodsIn(files.path()), "abc");
}

TEST_F(RecordingFilesTest, IsForThisUserOnly) {
  RecordingFiles files(OptionsOf(1000, 3));
  ASSERT_TRUE(files.Prepare().ok());
  ASSERT_TRUE(files.Write(RecordOf("a")).ok());
  struct stat found {};
  ASSERT_EQ(stat(folder_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 077, 0u);
  ASSERT_EQ(stat(files.path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 077, 0u);
}

TEST_F(RecordingFilesTest, BeginsAnotherFileWhenOneIsFull) {
  const std::size_t record = RecordOf("a").size();
  RecordingFiles files(OptionsOf(kRecordingHeadBytes + 2 * record, 10));
  ASSERT_TRUE(files.Prepare().ok());
  for (const char* method : {"a", "b", "c", "d", "e"}) {
    ASSERT_TRUE(files.Write(RecordOf(method)).ok());
  }
  const auto paths = List();
  ASSERT_EQ(paths.size(), 3u);
  EXPECT_EQ(MethodsIn(paths[0]), "ab");
  EXPECT_EQ(MethodsIn(paths[1]), "cd");
  EXPECT_EQ(MethodsIn(paths[2]), "e");
}

TEST_F(RecordingFilesTest, ALongRecordHasAFileOfItsOwn) {
  RecordingFiles files(OptionsOf(1, 10));
  ASSERT_TRUE(files.Prepare().ok());
  ASSERT_TRUE(files.Write(RecordOf("a")).ok());
  ASSERT_TRUE(files.Write(RecordOf("b")).ok());
  const auto paths = List();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(MethodsIn(paths[0]), "a");
  EXPECT_EQ(MethodsIn(paths[1]), "b");
}

TEST_F(RecordingFilesTest, RemovesTheOldest) {
  std::filesystem::create_directory(folder_);
  // A file of an earlier run, and one that isn't ours.
  std::ofstream(folder_ + "/20200101T000000.000000Z-1.calls") << "x";
  std::ofstream(folder_ + "/notes.txt") << "x";
  RecordingFiles files(OptionsOf(1, 2));
  ASSERT_TRUE(files.Prepare().ok());
  for (const char* method : {"a", "b", "c"}) {
    ASSERT_TRUE(files.Write(RecordOf(method)).ok());
  }
  const auto paths = List();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(MethodsIn(paths[0]), "b");
  EXPECT_EQ(MethodsIn(paths[1]), "c");
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/notes.txt"));
}

TEST_F(RecordingFilesTest, TellsWhyThereCanBeNoFiles) {
  RecordingFiles nowhere({.folder = folder_ + "/a/b"});
  const Status missing = nowhere.Prepare();
  EXPECT_EQ(missing.code(), ENOENT);
  EXPECT_THAT(missing.message(), HasSubstr(folder_ + "/a/b"));
  std::ofstream(folder_) << "a file";
  RecordingFiles file(OptionsOf(1000, 1));
  EXPECT_EQ(file.Prepare().code(), ENOTDIR);
}

TEST_F(RecordingFilesTest, GoesOnWhenTheFolderIsBack) {
  RecordingFiles files(OptionsOf(1, 10));
  ASSERT_TRUE(files.Prepare().ok());
  std::filesystem::remove(folder_);
  const Status gone = files.Write(RecordOf("a"));
  EXPECT_EQ(gone.code(), ENOENT);
  EXPECT_THAT(gone.message(), HasSubstr(folder_));
  std::filesystem::create_directory(folder_);
  ASSERT_TRUE(files.Write(RecordOf("b")).ok());
  EXPECT_EQ(MethodsIn(files.path()), "b");
}

}  // namespace
}  // namespace flare
