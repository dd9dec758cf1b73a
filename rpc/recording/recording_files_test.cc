#include "flare/rpc/recording/recording_files.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
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
  void MakeFolder() { ASSERT_EQ(mkdir(folder_.c_str(), 0700), 0); }
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
  MakeFolder();
  // A file of an earlier run, and some that aren't a recorder's.
  std::ofstream(folder_ + "/20200101T000000.000000Z-1.calls") << "x";
  const std::vector<std::string> others = {
      folder_ + "/notes.txt", folder_ + "/0.calls",
      folder_ + "/20200101T000000Z-1.calls",
      folder_ + "/20200101T000000.00000xZ-1.calls"};
  for (const std::string& path : others) std::ofstream(path) << "x";
  RecordingFiles files(OptionsOf(1, 2));
  ASSERT_TRUE(files.Prepare().ok());
  for (const char* method : {"a", "b", "c"}) {
    ASSERT_TRUE(files.Write(RecordOf(method)).ok());
  }
  for (const std::string& path : others) {
    EXPECT_TRUE(std::filesystem::remove(path)) << path;
  }
  const auto paths = List();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(MethodsIn(paths[0]), "b");
  EXPECT_EQ(MethodsIn(paths[1]), "c");
}

TEST_F(RecordingFilesTest, GoesOnBehindFilesOfTheFuture) {
  MakeFolder();
  // The clock was set back since.
  const std::string future = folder_ + "/29991231T235959.999999Z-1.calls";
  std::ofstream(future) << EncodeRecordingHead();
  RecordingFiles files(OptionsOf(1, 2));
  ASSERT_TRUE(files.Prepare().ok());
  ASSERT_TRUE(files.Write(RecordOf("a")).ok());
  auto paths = List();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(paths[0], future);
  EXPECT_THAT(paths[1], HasSubstr("/30000101T000000.000000Z-"));
  EXPECT_EQ(MethodsIn(paths[1]), "a");
  ASSERT_TRUE(files.Write(RecordOf("b")).ok());
  ASSERT_TRUE(files.Write(RecordOf("c")).ok());
  paths = List();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(MethodsIn(paths[0]), "b");
  EXPECT_EQ(MethodsIn(paths[1]), "c");
}

// Limits the sizes of files that the process writes to: as on a full disk.
class LittleRoom {
 public:
  explicit LittleRoom(rlim_t bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~LittleRoom() {
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before_), 0);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*const handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

TEST_F(RecordingFilesTest, RemovesTheOldestBeforeAFileIsMade) {
  RecordingFiles files(OptionsOf(1, 2));
  ASSERT_TRUE(files.Prepare().ok());
  ASSERT_TRUE(files.Write(RecordOf("a")).ok());
  ASSERT_TRUE(files.Write(RecordOf("b")).ok());
  {
    const LittleRoom room(kRecordingHeadBytes - 1);
    for (int i = 0; i != 2; ++i) {
      EXPECT_EQ(files.Write(RecordOf("c")).code(), EFBIG);
      const auto paths = List();
      ASSERT_EQ(paths.size(), 1u);
      EXPECT_EQ(MethodsIn(paths[0]), "b");
    }
  }
  ASSERT_TRUE(files.Write(RecordOf("d")).ok());
  ASSERT_EQ(List().size(), 2u);
  EXPECT_EQ(MethodsIn(files.path()), "d");
}

TEST_F(RecordingFilesTest, LeavesNoPartOfARecordBehind) {
  RecordingFiles files(OptionsOf(1000, 2));
  ASSERT_TRUE(files.Prepare().ok());
  ASSERT_TRUE(files.Write(RecordOf("a")).ok());
  {
    const LittleRoom room(kRecordingHeadBytes + RecordOf("a").size() + 5);
    EXPECT_EQ(files.Write(RecordOf("b")).code(), EFBIG);
  }
  ASSERT_TRUE(files.Write(RecordOf("c")).ok());
  EXPECT_EQ(List().size(), 1u);
  EXPECT_EQ(MethodsIn(files.path()), "ac");
}

TEST_F(RecordingFilesTest, BeginsAnotherFileWhenItsOwnIsRemoved) {
  RecordingFiles files(OptionsOf(1000, 2));
  ASSERT_TRUE(files.Prepare().ok());
  ASSERT_TRUE(files.Write(RecordOf("a")).ok());
  ASSERT_TRUE(std::filesystem::remove(files.path()));
  ASSERT_TRUE(files.Write(RecordOf("b")).ok());
  ASSERT_EQ(List().size(), 1u);
  EXPECT_EQ(List().front(), files.path());
  EXPECT_EQ(MethodsIn(files.path()), "b");
}

TEST_F(RecordingFilesTest, RefusesFoldersThatOthersMayWriteTo) {
  MakeFolder();
  for (const mode_t mode : {0720, 0702}) {
    ASSERT_EQ(chmod(folder_.c_str(), mode), 0);
    const Status refused = RecordingFiles(OptionsOf(1000, 2)).Prepare();
    EXPECT_EQ(refused.code(), EPERM);
    EXPECT_THAT(refused.message(),
                HasSubstr(folder_ + ": other users may write there"));
  }
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  EXPECT_TRUE(RecordingFiles(OptionsOf(1000, 2)).Prepare().ok());
}

TEST_F(RecordingFilesTest, RefusesFoldersOfOtherUsers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give folders away";
  MakeFolder();
  ASSERT_EQ(chown(folder_.c_str(), 4711, 4711), 0);
  const Status refused = RecordingFiles(OptionsOf(1000, 2)).Prepare();
  EXPECT_EQ(refused.code(), EPERM);
  EXPECT_THAT(refused.message(), HasSubstr(": it belongs to user 4711, and "
                                           "this process to user 0"));
}

TEST_F(RecordingFilesTest, NeedsToReadTheFolder) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read all folders";
  MakeFolder();
  ASSERT_EQ(chmod(folder_.c_str(), 0300), 0);
  EXPECT_EQ(RecordingFiles(OptionsOf(1000, 2)).Prepare().code(), EACCES);
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
