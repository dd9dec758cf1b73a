#include "flare/rpc/start/flag_file.h"

#include <fnmatch.h>
#include <gflags/gflags.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "flare/base/read_file.h"
#include "flare/base/string.h"

namespace flare::rpc {
namespace {

using FileId = std::pair<dev_t, ino_t>;

constexpr std::size_t kMostBytes = 1 << 20;

// "name" or "name=value" of "--name" and so on; empty: it's no flag.
std::string_view WithoutDashes(std::string_view word) {
  if (!word.starts_with('-')) return {};
  word.remove_prefix(word.starts_with("--") ? 2 : 1);
  return word;
}

// Whether gflags can make something of "name=value", "name" or "noname".
bool IsKnown(std::string_view flag) {
  const std::size_t equals = flag.find('=');
  std::string name(flag.substr(0, equals));
  gflags::CommandLineFlagInfo info;
  if (gflags::GetCommandLineFlagInfo(name.c_str(), &info)) {
    return equals != flag.npos || info.type == "bool";
  }
  return name.starts_with("no") &&  // Whatever value there is.
         gflags::GetCommandLineFlagInfo(name.c_str() + 2, &info) &&
         info.type == "bool";
}

class Checker {
 public:
  explicit Checker(std::string_view program)
      : program_(program),
        short_program_(program.substr(program.rfind('/') + 1)) {}

  // `names`: of files, separated by commas.
  flare::Status CheckAll(std::string_view names) {
    for (const std::string_view name : Split(names, ',')) {
      if (flare::Status s = Check(std::string(name)); !s.ok()) return s;
    }
    return flare::Status();
  }

  std::vector<std::string> TakeWarnings() { return std::move(warnings_); }

 private:
  flare::Status Check(const std::string& name) {
    const auto bad = [&](int code, const std::string& why) {
      return flare::Status(code, "--flagfile=" + name + ": " + why + ".");
    };
    struct stat info;
    if (::stat(name.c_str(), &info) != 0) {
      const int error = errno;
      return bad(error, std::generic_category().message(error));
    }
    if (S_ISDIR(info.st_mode)) return bad(EISDIR, "it is a folder");
    if (!S_ISREG(info.st_mode)) return flare::Status();
    const FileId id(info.st_dev, info.st_ino);
    if (std::ranges::find(open_, id) != open_.end()) {
      return bad(ELOOP, "it includes itself");
    }
    const auto text = ReadFile(name, kMostBytes);
    if (!text) return bad(text.error().code(), text.error().message());
    open_.push_back(id);
    flare::Status checked = CheckLines(name, *text);
    open_.pop_back();
    return checked;
  }

  // As gflags goes through them: blanks in front of a line are skipped, and it
  // ends at the next carriage return, if there is any, else at a newline.
  flare::Status CheckLines(const std::string& name, const std::string& text) {
    std::string passed_over;
    const auto pass_over = [&](const std::string& what) {
      passed_over += (passed_over.empty() ? "" : ", ") + what;
    };
    std::string programs;         // The line where a list of these began.
    bool among_programs = false;  // Within such a list.
    bool ours = true;             // The flags below it are for this program.
    std::ptrdiff_t number = 1;
    const char* counted = text.data();
    std::size_t end = 0;
    for (;;) {
      const std::size_t begin = text.find_first_not_of(" \t\n\v\f\r", end);
      if (begin == text.npos) break;
      end = text.find('\r', begin);
      if (end == text.npos) end = text.find('\n', begin);
      const std::string_view line =
          std::string_view(text).substr(begin, end - begin);
      number +=
          std::count(std::exchange(counted, line.data()), line.data(), '\n');
      if (line.find('\n') != line.npos) {
        pass_over("all that follows line " + std::to_string(number) +
                  " up to a carriage return");
      }
      if (line.starts_with('#')) continue;
      // Values may be nobody's business.
      const std::string place = "line " + std::to_string(number) + " (" +
                                OneLine(line.substr(0, line.find('='))) + ")";
      if (!line.starts_with('-')) {
        if (!std::exchange(among_programs, true)) {
          programs = place;
          ours = false;
        }
        ours = ours || IsOurs(line);
        continue;
      }
      if (std::exchange(among_programs, false) && !ours) pass_over(programs);
      if (!ours) continue;
      const std::string_view flag = WithoutDashes(line);
      if (!IsKnown(flag)) pass_over(place);
      if (!flag.starts_with("flagfile=")) continue;
      flare::Status s = CheckAll(flag.substr(flag.find('=') + 1));
      if (!s.ok()) return s;
    }
    if (among_programs && !ours) pass_over(programs);
    if (passed_over.empty()) return flare::Status();
    warnings_.push_back("--flagfile=" + name + ": passed over, as not for " +
                        short_program_ + ": " + passed_over + ".");
    return flare::Status();
  }

  // Whether a list of programs, as patterns, has this one.
  bool IsOurs(std::string_view patterns) const {
    return std::ranges::any_of(
        Split(patterns, ' '), [&](std::string_view pattern) {
          const std::string p(pattern);
          return fnmatch(p.c_str(), program_.c_str(), FNM_PATHNAME) == 0 ||
                 fnmatch(p.c_str(), short_program_.c_str(), FNM_PATHNAME) == 0;
        });
  }

  const std::string program_;
  const std::string short_program_;
  std::vector<FileId> open_;  // Each included by the one before.
  std::vector<std::string> warnings_;
};

}  // namespace

Expected<std::vector<std::string>, flare::Status> CheckFlagFiles(
    int argc, const char* const* argv) {
  Checker checker(argv[0]);
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view flag = WithoutDashes(argv[i]);
    std::string_view names;
    if (flag == "flagfile" && i + 1 < argc) {
      names = argv[++i];
    } else if (flag.starts_with("flagfile=")) {
      names = flag.substr(flag.find('=') + 1);
    }
    if (flare::Status s = checker.CheckAll(names); !s.ok()) return s;
  }
  return checker.TakeWarnings();
}

}  // namespace flare::rpc
