#include "flare/rpc/start/command_line.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>
#include <vector>

#include "flare/base/version.h"

namespace flare::rpc {
namespace {

bool h_flag = false;
bool h_default = false;

// At run time: defined the usual way, it would end each program that has one of
// its own.
void DefineShortHelp() {
  gflags::CommandLineFlagInfo info;
  if (gflags::GetCommandLineFlagInfo("h", &info)) return;
  gflags::FlagRegisterer("h", "as --help", __FILE__, &h_flag, &h_default);
}

void SetVersion() {
  if (*gflags::VersionString() != '\0') return;
  gflags::SetVersionString(std::string("unknown, with flare ") + kVersion);
}

bool IsHelpWanted() {
  std::string help;
  return h_flag ||
         (gflags::GetCommandLineOption("help", &help) && help == "true");
}

// The files in which glog, gflags and this file define flags, by one flag of
// each.
std::set<std::string> LibraryFiles() {
  std::set<std::string> files{__FILE__};
  for (const char* flag : {"flagfile", "help", "tab_completion_word",
                           "logtostderr", "v", "symbolize_stacktrace"}) {
    gflags::CommandLineFlagInfo info;
    if (gflags::GetCommandLineFlagInfo(flag, &info))
      files.insert(info.filename);
  }
  return files;
}

}  // namespace

std::string HelpText() {
  std::string text = gflags::ProgramInvocationShortName();
  // gflags' text if the program has set no usage message.
  const std::string_view usage = gflags::ProgramUsage();
  if (!usage.starts_with("Warning: ")) text.append(": ").append(usage);
  text += "\n\n";

  std::vector<gflags::CommandLineFlagInfo> flags;
  gflags::GetAllFlags(&flags);
  const std::set<std::string> library_files = LibraryFiles();
  std::erase_if(flags, [&](const gflags::CommandLineFlagInfo& flag) {
    return flag.name.starts_with("flare_") ||
           library_files.contains(flag.filename);
  });
  std::ranges::sort(flags, {}, &gflags::CommandLineFlagInfo::name);
  for (const auto& flag : flags) text += gflags::DescribeOneFlag(flag);
  if (!flags.empty()) text += '\n';
  return text +
         "--helpfull shows the flags of flare, glog and gflags, too; --version "
         "the version.\n";
}

void ParseCommandLine(int* argc, char*** argv) {
  DefineShortHelp();
  SetVersion();
  gflags::ParseCommandLineNonHelpFlags(argc, argv, /*remove_flags=*/true);
  if (IsHelpWanted()) {
    std::fputs(HelpText().c_str(), stdout);
    std::exit(0);  // NOLINT(concurrency-mt-unsafe): there is one thread.
  }
  gflags::HandleCommandLineHelpFlags();
}

}  // namespace flare::rpc
