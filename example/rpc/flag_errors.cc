#include "example/rpc/flag_errors.h"

#include <gflags/gflags.h>

#include <cstdlib>

#include "glog/logging.h"

namespace GFLAGS_NAMESPACE {
// How gflags ends the process; it exports but doesn't declare it.
extern void (*gflags_exitfunc)(int);
}  // namespace GFLAGS_NAMESPACE

namespace example {

void ExitWithBadFlags() {
  // --help and the like end with other values than 1.
  google::gflags_exitfunc = [](int status) {
    std::exit(status == 1 ? kBadFlags : status);
  };
}

bool HasOnlyFlags(int argc, char** argv) {
  if (argc <= 1) return true;
  LOG(ERROR) << "'" << argv[1] << "' is no flag; write --name=value.";
  return false;
}

}  // namespace example
