// Passes TCP and Unix-socket connections on to a set of servers.
//
//   tcp_proxy --listen=0.0.0.0:8080 --upstreams=10.0.0.1:80,10.0.0.2:80
//   tcp_proxy --config=proxy.yaml
//
// docs/proxy.md describes flags, file, signals and exit status.

#include <gflags/gflags.h>
#include <signal.h>

#include <cerrno>

#include "example/proxy/config.h"
#include "example/proxy/supervisor.h"
#include "example/rpc/flag_errors.h"
#include "flare/base/status.h"
#include "flare/base/string.h"
#include "flare/init/override_flag.h"
#include "glog/logging.h"

DEFINE_bool(check_config, false,
            "Only read the settings and try to connect to the upstreams. Exit "
            "status 2: the settings are wrong; 1: an upstream can't be "
            "reached; 0: all is well.");

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(logbufsecs, 0);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");
// Both connections of a client in one event loop.
FLARE_OVERRIDE_FLAG(flare_scheduling_group_size, 1);

namespace example::proxy {
namespace {

constexpr int kBadConfiguration = kBadFlags;

// The exit status of a failed start. The settings may be right where the system
// has too few threads or descriptors, or too little memory.
int ExitStatusOf(const flare::Status& error) {
  switch (error.code()) {
    case EAGAIN:  // Threads.
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
      return 1;
    default:
      return kBadConfiguration;
  }
}

int Check(const ProxyConfig& config) {
  const int unreachable = CountUnreachable(config);
  if (unreachable != 0) return 1;
  LOG(INFO) << "The settings are right, and all upstreams can be reached.";
  return 0;
}

int Entry(int argc, char** argv) {
  if (!HasOnlyFlags(argc, argv)) return kBadConfiguration;
  const ConfigSource source = ConfigSourceFromFlags();
  const auto config = LoadConfig(source);
  if (!config) {
    LOG(ERROR) << flare::OneLine(config.error().message());
    return ExitStatusOf(config.error());
  }
  if (FLAGS_check_config) return Check(*config);

  Supervisor supervisor(source);
  if (const auto status = supervisor.Start(*config); !status.ok()) {
    LOG(ERROR) << flare::OneLine(status.message());
    return ExitStatusOf(status);
  }
  return supervisor.ServeUntilQuitSignal();
}

}  // namespace
}  // namespace example::proxy

int main(int argc, char** argv) {
  // Meaningless while there is nothing to reload: at the start and at the end.
  ::signal(SIGHUP, SIG_IGN);
  return example::StartProgram(
      argc, argv, "passes connections on to servers; see docs/proxy.md",
      example::proxy::Entry);
}
