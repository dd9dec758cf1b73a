#include "flare/rpc/start/flag_file.h"

#include <gflags/gflags.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/string.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

DEFINE_int32(flag_file_number, 1, "");
DEFINE_bool(flag_file_bool, false, "");

namespace flare::rpc {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

class FlagFileTest : public ::testing::Test {
 protected:
  FlagFileTest() : folder_(::testing::TempDir() + "/flag_files/") {
    std::filesystem::create_directories(folder_);
  }
  ~FlagFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + name; }

  // Returns its path.
  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(Path(name)) << text;
    return Path(name);
  }

  static Expected<std::vector<std::string>, flare::Status> Check(
      std::vector<const char*> words) {
    words.insert(words.begin(), "/bin/the_server");
    return CheckFlagFiles(static_cast<int>(words.size()), words.data());
  }
  // The warnings for a file with this text.
  std::vector<std::string> WarningsOf(const std::string& text) {
    const std::string flag = "--flagfile=" + Write("flags", text);
    const auto checked = Check({flag.c_str()});
    EXPECT_TRUE(checked) << checked.error().message();
    return checked ? *checked : std::vector<std::string>();
  }
  // The error of a command line that is refused.
  static std::string ErrorOf(std::vector<const char*> words) {
    const auto checked = Check(std::move(words));
    return checked ? "none" : checked.error().message();
  }

 private:
  const std::string folder_;
};

TEST_F(FlagFileTest, NothingIsSaidOfWhatGflagsUnderstands) {
  EXPECT_THAT(*Check({"--flag_file_number=3", "word", "--flagfile"}),
              IsEmpty());
  EXPECT_THAT(WarningsOf(""), IsEmpty());
  const std::string all =
      "# a remark\n\n  --flag_file_number=2\n-flag_file_bool\n"
      "--noflag_file_bool=1\n--flag_file_bool=true\n--flag-file-number=3";
  for (const char* end : {"\n", "\r\n", "\r"}) {
    std::string text;
    for (const std::string_view line : Split(all, '\n', true)) {
      text.append(line).append(end);
    }
    EXPECT_THAT(WarningsOf(text), IsEmpty());
    FLAGS_flag_file_number = 1;
    FLAGS_flag_file_bool = false;
    EXPECT_TRUE(gflags::ReadFlagsFromString(text, "/bin/the_server", false));
    EXPECT_EQ(FLAGS_flag_file_number, 3);
    EXPECT_TRUE(FLAGS_flag_file_bool);
  }
  EXPECT_THAT(WarningsOf("other_program\nthe_* third\n--flag_file_number=3\n"
                         "/bin/the_server\n--flag_file_number=4\n"),
              IsEmpty());
}

TEST_F(FlagFileTest, WhatIsPassedOverIsListed) {
  EXPECT_THAT(
      WarningsOf("--flag_file_nubmer=2\n--flag_file_number=3\n"
                 "--nosuch\n--flag_file_number\n"),
      ElementsAre(AllOf(StartsWith("--flagfile=" + Path("flags") + ": "),
                        HasSubstr("the_server"),
                        EndsWith(": line 1 (--flag_file_nubmer), line 3 "
                                 "(--nosuch), line 4 (--flag_file_number)."))));
  EXPECT_THAT(WarningsOf("--flag_file_number=3\njunk\nmore\n\n--such=1\n"),
              ElementsAre(EndsWith(": line 2 (junk).")));
  EXPECT_THAT(WarningsOf("junk"), ElementsAre(EndsWith(": line 1 (junk).")));
  // gflags keeps the blank, and so knows no such flag.
  EXPECT_THAT(WarningsOf("--noflag_file_bool \n"),
              ElementsAre(EndsWith(": line 1 (--noflag_file_bool ).")));
  // One carriage return, and all before it is one line, here a remark.
  const std::string mixed = "\n# a remark\n--flag_file_number=7\r\n";
  EXPECT_THAT(WarningsOf(mixed),
              ElementsAre(EndsWith(
                  ": all that follows line 2 up to a carriage return.")));
  FLAGS_flag_file_number = 1;
  EXPECT_TRUE(gflags::ReadFlagsFromString(mixed, "/bin/the_server", false));
  EXPECT_EQ(FLAGS_flag_file_number, 1);
}

TEST_F(FlagFileTest, FilesWithinFilesAreLookedInto) {
  const std::string inner = Write("inner", "--nosuch\n");
  EXPECT_THAT(WarningsOf("--flagfile=" + inner + "\n--flagfile=" + inner),
              ElementsAre(HasSubstr("inner"), HasSubstr("inner")));
  EXPECT_THAT(WarningsOf("other\n--flagfile=/nonexistent\n"),
              ElementsAre(EndsWith("line 1 (other).")));
}

TEST_F(FlagFileTest, WhatCannotBeReadIsRefused) {
  EXPECT_EQ(ErrorOf({"--flagfile=/nonexistent"}),
            "--flagfile=/nonexistent: No such file or directory.");
  EXPECT_EQ(ErrorOf({"word", "-flagfile", "/nonexistent"}),
            "--flagfile=/nonexistent: No such file or directory.");
  EXPECT_EQ(ErrorOf({"--flagfile=/"}), "--flagfile=/: it is a folder.");
  EXPECT_EQ(ErrorOf({"--", "--flagfile=/"}), "none");
  const std::string two = "--flagfile=" + Write("empty", "") + ",/nonexistent";
  EXPECT_THAT(ErrorOf({two.c_str()}), HasSubstr("=/nonexistent: No such"));
  const std::string itself = "--flagfile=" + Path("itself");
  Write("other", itself + "\n");
  Write("itself", "--flagfile=" + Path("other") + "\n");
  EXPECT_EQ(ErrorOf({itself.c_str()}), itself + ": it includes itself.");
}

// They can be read once.
TEST_F(FlagFileTest, PipesAreLeftAlone) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  const std::string pipe = "--flagfile=" + Path("pipe");
  EXPECT_THAT(*Check({pipe.c_str()}), IsEmpty());
}

}  // namespace
}  // namespace flare::rpc
