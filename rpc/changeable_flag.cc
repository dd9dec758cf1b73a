#include "flare/rpc/changeable_flag.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "flare/base/string.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "glog/logging.h"

FLARE_CHANGEABLE_FLAG(minloglevel);
FLARE_CHANGEABLE_FLAG(stderrthreshold);
FLARE_CHANGEABLE_FLAG(v);

namespace flare {
namespace {

constexpr char kVmodule[] = "vmodule";

// Filled in before main().
std::map<std::string, ChangeableFlag::Check>& DeclaredFlags() {
  static auto* const flags = new std::map<std::string, ChangeableFlag::Check>();
  return *flags;
}

// Serialises changes, so that each knows the value that it replaces.
ThreadMutex change_lock;

Status RefusedValue(const gflags::CommandLineFlagInfo& flag,
                    const std::string& value) {
  return Status(EINVAL,
                "--" + flag.name + " doesn't take \"" + OneLine(value) +
                    "\": it is of the type " + flag.type +
                    (flag.has_validator_fn
                         ? ", and the program's validator may have refused it"
                         : ""));
}

struct ModuleLevel {
  std::string pattern;
  int level;
};

// Takes a text such as "server=2,net*=1".
Expected<std::vector<ModuleLevel>, Status> ParseVmodule(
    const std::string& text) {
  std::vector<ModuleLevel> levels;
  for (const std::string_view piece : Split(text, ',')) {
    const std::size_t equals = piece.rfind('=');
    const auto level = equals == piece.npos
                           ? std::nullopt
                           : TryParse<int>(piece.substr(equals + 1));
    if (equals == 0 || !level) {
      return Status(EINVAL, "--vmodule doesn't take \"" + OneLine(text) +
                                "\": it is a list FILE=LEVEL,..., without the "
                                "suffixes of files: server=2,net*=1");
    }
    levels.push_back({std::string(piece.substr(0, equals)), *level});
  }
  return levels;
}

// Is there a text that both patterns match? Goes from their ends to their
// beginnings: `now[j]` says it of the rest of `a` and that of `b` from j on.
bool Overlap(std::string_view a, std::string_view b) {
  std::vector<bool> now(b.size() + 1);
  for (std::size_t i = a.size() + 1; i-- != 0;) {
    const std::vector<bool> later =
        std::exchange(now, std::vector<bool>(b.size() + 1));
    const char in_a = i < a.size() ? a[i] : '\0';
    for (std::size_t j = b.size() + 1; j-- != 0;) {
      const char in_b = j < b.size() ? b[j] : '\0';
      const bool both = in_a != '\0' && in_b != '\0';
      if (in_a == '*' || in_b == '*') {
        now[j] = (in_a != '\0' && later[j]) || (in_b != '\0' && now[j + 1]);
      } else if (both) {
        const bool fit = in_a == in_b || in_a == '?' || in_b == '?';
        now[j] = fit && later[j + 1];
      } else {
        now[j] = in_a == in_b;  // Both are at their ends.
      }
    }
  }
  return now[0];
}

// Sets the level of one pattern in a list. A file keeps the first pattern that
// it got, so glog would pass over another one, or a part of its files.
Status Merge(const ModuleLevel& wanted, std::vector<ModuleLevel>* all) {
  const auto known = std::find_if(
      all->begin(), all->end(),
      [&](const ModuleLevel& one) { return one.pattern == wanted.pattern; });
  if (known != all->end()) {
    known->level = wanted.level;
    return Status();
  }
  for (const ModuleLevel& one : *all) {
    if (!Overlap(one.pattern, wanted.pattern)) continue;
    return Status(EINVAL, "--vmodule doesn't take \"" +
                              OneLine(wanted.pattern) + "\" beside \"" +
                              OneLine(one.pattern) +
                              "\": a file keeps its first pattern. Change "
                              "the level of that one, or name other files");
  }
  all->push_back(wanted);
  return Status();
}

// glog reads the flag once, and keeps patterns that it knows for good.
Status SetVmodule(const std::string& before, const std::string& value) {
  auto wanted = ParseVmodule(value);
  if (!wanted) return wanted.error();
  // Has glog read the flag now, if it hasn't yet: it is written below.
  static_cast<void>(VLOG_IS_ON(1));
  // Levels that were given at the start are well, or glog has passed over them.
  std::vector<ModuleLevel> all;
  if (auto known = ParseVmodule(before)) all = *std::move(known);
  for (const ModuleLevel& each : *wanted) {
    Status status = Merge(each, &all);
    if (!status.ok()) return status;
  }
  for (const ModuleLevel& each : *wanted) {
    google::SetVLOGLevel(each.pattern.c_str(), each.level);
  }
  std::string text;
  for (const ModuleLevel& each : all) {
    text += (text.empty() ? "" : ",") + each.pattern + '=' +
            std::to_string(each.level);
  }
  gflags::SetCommandLineOption(kVmodule, text.c_str());
  return Status();
}

Status SetDeclared(const gflags::CommandLineFlagInfo& flag,
                   const std::string& value, ChangeableFlag::Check check) {
  const auto set = [&](const std::string& text) {
    return !gflags::SetCommandLineOption(flag.name.c_str(), text.c_str())
                .empty();
  };
  if (!set(value)) return RefusedValue(flag, value);
  if (check == nullptr) return Status();
  Status status = check();
  if (!status.ok()) set(flag.current_value);
  return status;
}

bool ShowsWarnings() {
  return ReadFlag(FLAGS_minloglevel) <= google::GLOG_WARNING;
}

void SetLeastLevel(int level) {
  gflags::SetCommandLineOption("minloglevel", std::to_string(level).c_str());
}

Status NotDeclared(const std::string& name) {
  return Status(
      EPERM, "--" + name +
                 " can't be changed while the program runs: nothing says that "
                 "it is read again. Set it on the command line. These can be "
                 "changed: --" +
                 Join(ChangeableFlags(), ", --") +
                 "; the program declares others by FLARE_CHANGEABLE_FLAG "
                 "(flare/rpc/changeable_flag.h).");
}

}  // namespace

ChangeableFlag::ChangeableFlag(const char* name, Check check) {
  DeclaredFlags()[name] = check;
}

std::vector<std::string> ChangeableFlags() {
  std::vector<std::string> names = {kVmodule};
  for (const auto& [name, check] : DeclaredFlags()) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

Expected<std::string, Status> ChangeFlag(const std::string& name,
                                         const std::string& value,
                                         const std::string& by) {
  ScopedLock guard(change_lock);
  gflags::CommandLineFlagInfo flag;
  if (!gflags::GetCommandLineFlagInfo(name.c_str(), &flag)) {
    return Status(ENOENT, "there is no flag --" + OneLine(name));
  }
  const auto found = DeclaredFlags().find(flag.name);
  const bool is_vmodule = flag.name == kVmodule;
  if (found == DeclaredFlags().end() && !is_vmodule) {
    return NotDeclared(flag.name);
  }
  const bool showed = ShowsWarnings();
  Status status = is_vmodule ? SetVmodule(flag.current_value, value)
                             : SetDeclared(flag, value, found->second);
  if (!status.ok()) {
    LOG(WARNING) << status.message() << " (asked for by " << OneLine(by) << ")";
    return status;
  }
  // A new least level would hide the line that says so.
  const bool hides = showed && !ShowsWarnings();
  const int level = ReadFlag(FLAGS_minloglevel);
  if (hides) SetLeastLevel(google::GLOG_WARNING);
  LOG(WARNING) << "--" << flag.name << " is changed from \""
               << OneLine(flag.current_value) << "\" to \"" << OneLine(value)
               << "\" by " << OneLine(by) << ".";
  if (hides) SetLeastLevel(level);
  return flag.current_value;
}

}  // namespace flare
