#include "example/rpc/flag_errors.h"

#include <gflags/gflags.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

#include "flare/base/version.h"
#include "flare/init.h"
#include "flare/rpc/start/flag_file.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/start/runtime_flags.h"
#include "glog/logging.h"

namespace GFLAGS_NAMESPACE {
// How gflags ends the process; it exports but doesn't declare it.
extern void (*gflags_exitfunc)(int);
}  // namespace GFLAGS_NAMESPACE

namespace example {

namespace {

bool IsHelpWanted() {
  for (const char* name : {"help", "helpfull", "helpmatch", "helpon",
                           "helppackage", "helpshort", "helpxml"}) {
    if (!google::GetCommandLineFlagInfoOrDie(name).is_default) return true;
  }
  return false;
}

}  // namespace

bool HasGoodFlagFiles(int argc, char** argv) {
  const auto checked = flare::rpc::CheckFlagFiles(argc, argv);
  if (checked) return true;
  std::fprintf(stderr, "%s: %s\n", argv[0], checked.error().message().c_str());
  return false;
}

void ExitWithBadFlags() {
  google::gflags_exitfunc = [](int status) {
    if (IsHelpWanted()) status = 0;
    std::exit(status == 1 ? kBadFlags : status);  // NOLINT: no threads yet
  };
}

int StartProgram(int argc, char** argv, const char* usage,
                 std::function<int(int, char**)> entry) {
  google::SetUsageMessage(usage);
  google::SetVersionString(flare::kVersion);
  ExitWithBadFlags();
  if (!HasGoodFlagFiles(argc, argv)) return kBadFlags;
  bool entered = false;
  const int status = flare::Start(argc, argv, [&](int count, char** words) {
    entered = true;
    return entry(count, words);
  });
  if (entered || (flare::rpc::ValidateFlags().ok() &&
                  flare::rpc::RuntimeOptionsFromFlags())) {
    return status;
  }
  return kBadFlags;
}

bool HasOnlyFlags(int argc, char** argv) {
  if (argc <= 1) return true;
  LOG(ERROR) << "'" << argv[1] << "' is no flag; write --name=value.";
  return false;
}

}  // namespace example
