// The echo server in tRPC's merged mode: connections are spread over threads,
// and all that a connection needs (reading, parsing, the handler, writing) is
// done by its thread. With --forward_to an asynchronous relay.
// docs/baselines.md
//
//   merge_server --port=5567 --threads=8
//   merge_server --port=5569 --threads=8 --forward_to=trpc://127.0.0.1:5567

#include <gflags/gflags.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/baseline/program.h"
#include "benchmark/baseline/relay.h"
#include "benchmark/baseline/server_connection.h"
#include "benchmark/baseline/serving.h"
#include "example/rpc/work.h"
#include "flare/rpc/protocol_registry.h"
#include "glog/logging.h"

DEFINE_string(work, "none",
              "The work of each call: none, sleep_thread, spin (sleep_fiber "
              "sleeps the thread, too). Unused with --forward_to.");
DEFINE_int32(work_us, 50, "How many microseconds of it.");
DEFINE_string(work_dist, "fixed",
              "Always so many (fixed), or that on average (poisson).");
DEFINE_string(forward_to, "",
              "Pass calls on to this server, such as trpc://127.0.0.1:5567.");
DEFINE_int32(downstream_connections, 1,
             "Connections of each thread to --forward_to.");
DEFINE_int32(downstream_timeout, 1000,
             "Milliseconds after which a call that was passed on has failed.");

namespace baseline {
namespace {

// More than a machine's ports let one address have.
constexpr int kMaxDownstreamConnections = 100'000;

flare::Expected<RelayOptions, flare::Status> RelayOptionsFromFlags() {
  const auto bad = [](std::string text) {
    return flare::Status(EINVAL, std::move(text));
  };
  if (FLAGS_work != "none") {
    return bad("--work and --forward_to don't go together.");
  }
  if (FLAGS_downstream_connections < 1 ||
      FLAGS_downstream_connections > kMaxDownstreamConnections) {
    return bad("--downstream_connections must be between 1 and " +
               std::to_string(kMaxDownstreamConnections) + ".");
  }
  if (FLAGS_downstream_timeout < 1) {
    return bad("--downstream_timeout must be positive.");
  }
  auto server = ParseServerAddress(FLAGS_forward_to);
  if (!server) return bad("Bad --forward_to: " + server.error().message());
  if (!flare::rpc::IsClientProtocol(server->scheme)) {
    return bad("Bad --forward_to: there is no protocol " + server->scheme +
               ".");
  }
  RelayOptions options;
  options.server = *std::move(server);
  options.connections = static_cast<std::size_t>(FLAGS_downstream_connections);
  options.timeout_ms = static_cast<std::uint32_t>(FLAGS_downstream_timeout);
  return options;
}

int Main() {
  const auto address = ListenAddressFromFlags();
  if (!address) return RefuseFlags(address.error().message());
  const auto threads = ThreadsFromFlags();
  if (!threads) return RefuseFlags(threads.error().message());
  const auto work =
      example::MakeWorkSource(FLAGS_work, FLAGS_work_us, FLAGS_work_dist);
  if (!work) return RefuseFlags(work.error().message());
  std::optional<RelayOptions> relay;
  if (!FLAGS_forward_to.empty()) {
    auto options = RelayOptionsFromFlags();
    if (!options) return RefuseFlags(options.error().message());
    relay = *std::move(options);
  }

  BlockQuitSignals();
  example::RequestCounter requests;
  const auto protocols =
      flare::rpc::ServerProtocolSet::FromNames({"trpc", "flare", "http+pb"});
  CHECK(protocols) << protocols.error();
  std::vector<std::unique_ptr<CallHandler>> handlers;
  LoopServer server("merge_server", *threads);
  for (std::size_t i = 0; i != server.size(); ++i) {
    if (relay) {
      handlers.push_back(std::make_unique<Relay>(server.loop(i), *relay));
    } else {
      handlers.push_back(std::make_unique<InlineHandler>(*work));
    }
  }
  return server.Run(
      *address,
      [&](flare::io::UniqueFd fd, std::size_t index) {
        return std::make_unique<ServerConnection>(
            std::move(fd), *protocols, handlers[index].get(), &requests);
      },
      requests);
}

}  // namespace
}  // namespace baseline

int main(int argc, char** argv) {
  baseline::BeginProgram(
      argc, argv, "echoes or relays, in merged mode; see docs/baselines.md");
  return baseline::Main();
}
