// Puts load on grpc_echo_server, as example/rpc's press does on our server, by
// gRPC's callback interface: a closed loop of --max_pending calls on
// --connections connections. Compiled by tools/peers.
//
//   grpc_echo_client --server_addr=127.0.0.1:5571 --connections=2
//       --max_pending=20 --warmup=1 --duration=10 --json=result.json
//
// Prints the same report as press; docs/press.md describes the JSON. Exit
// status 0 if all calls succeeded, 1 if one failed or gflags refuses a flag, 2
// for values that make no sense.

#include <gflags/gflags.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "example/rpc/call_recorder.h"
#include "example/rpc/echo_service.grpc.pb.h"
#include "example/rpc/report.h"
#include "flare/base/clock.h"
#include "grpcpp/grpcpp.h"

DEFINE_string(server_addr, "127.0.0.1:5571", "host:port of the server");
DEFINE_int32(connections, 1, "connections to the server");
DEFINE_int32(max_pending, 10, "calls under way at a time");
DEFINE_int32(timeout, 1000, "milliseconds after which a call has failed");
DEFINE_int32(body_size, 0, "bytes of each request's body");
DEFINE_double(warmup, 0, "seconds of load before the measurement begins");
DEFINE_double(duration, 10, "seconds to measure");
DEFINE_string(json, "", "file for the results; -: stdout");

namespace {

namespace echo = example::protobuf_echo;

// Our own status, beyond gRPC's: the reply differs from the request.
constexpr int kWrongReply = 102;

// One call after another until `stopping`. The next one begins in the callback
// of the last one, so a loop needs no thread.
class CallLoop {
 public:
  CallLoop(echo::EchoService::Stub* stub, const std::atomic<bool>* stopping,
           std::latch* ended, example::CallRecorder* recorder)
      : stub_(stub), stopping_(stopping), ended_(ended), recorder_(recorder) {
    request_.set_body(std::string(FLAGS_body_size, 'x'));
  }

  void Next() {
    context_.emplace();
    context_->set_deadline(std::chrono::system_clock::now() +
                           std::chrono::milliseconds(FLAGS_timeout));
    sent_ns_ = flare::NowNs();
    stub_->async()->Echo(
        &*context_, &request_, &response_,
        [this](const grpc::Status& status) { Answered(status); });
  }

 private:
  void Answered(const grpc::Status& status) {
    const std::int64_t latency_ns = flare::NowNs() - sent_ns_;
    if (!status.ok()) {
      recorder_->Failed(status.error_code());
    } else if (response_.body().size() != request_.body().size()) {
      recorder_->Failed(kWrongReply);
    } else {
      recorder_->Succeeded(latency_ns);
    }
    // relaxed: a caller that sees it late makes one more call.
    if (stopping_->load(std::memory_order_relaxed)) {
      ended_->count_down();
    } else {
      Next();
    }
  }

  echo::EchoService::Stub* const stub_;
  const std::atomic<bool>* const stopping_;
  std::latch* const ended_;
  example::CallRecorder* const recorder_;
  // A context serves a single call.
  std::optional<grpc::ClientContext> context_;
  echo::EchoRequest request_;
  echo::EchoResponse response_;
  std::int64_t sent_ns_ = 0;
};

std::vector<std::unique_ptr<echo::EchoService::Stub>> Connect() {
  grpc::ChannelArguments arguments;
  // Channels to the same address would share one connection otherwise.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // We repeat nothing, either.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  std::vector<std::unique_ptr<echo::EchoService::Stub>> stubs;
  for (int i = 0; i != FLAGS_connections; ++i) {
    stubs.push_back(echo::EchoService::NewStub(grpc::CreateCustomChannel(
        FLAGS_server_addr, grpc::InsecureChannelCredentials(), arguments)));
  }
  return stubs;
}

void SleepSeconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

example::Summary Measure() {
  const auto stubs = Connect();
  std::atomic<bool> stopping{false};
  std::latch ended(FLAGS_max_pending);
  example::CallRecorder recorder;
  std::vector<std::unique_ptr<CallLoop>> loops;
  for (int i = 0; i != FLAGS_max_pending; ++i) {
    loops.push_back(std::make_unique<CallLoop>(stubs[i % stubs.size()].get(),
                                               &stopping, &ended, &recorder));
  }
  for (const auto& loop : loops) loop->Next();

  example::Summary summary;
  SleepSeconds(FLAGS_warmup);
  summary.warm_up = recorder.Take();
  const std::int64_t begin_ns = flare::NowNs();
  SleepSeconds(FLAGS_duration);
  summary.calls = recorder.Take();
  summary.seconds = static_cast<double>(flare::NowNs() - begin_ns) * 1e-9;
  summary.qps =
      static_cast<double>(summary.calls.successes()) / summary.seconds;
  // relaxed: as in CallLoop.
  stopping.store(true, std::memory_order_relaxed);
  ended.wait();
  summary.calls.Merge(recorder.Take());
  return summary;
}

// The flags' fault, if any.
std::string CheckFlags(int argc, char** argv) {
  if (argc > 1) return std::string("not a flag: ") + argv[1];
  if (FLAGS_connections < 1 || FLAGS_max_pending < 1 || FLAGS_timeout < 1) {
    return "--connections, --max_pending and --timeout must be positive";
  }
  if (FLAGS_body_size < 0 || FLAGS_warmup < 0 || FLAGS_duration <= 0) {
    return "--body_size and --warmup can't be negative, and --duration must be "
           "positive";
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> command_line(argv, argv + argc);
  gflags::SetUsageMessage("presses a gRPC server; see docs/peers.md");
  gflags::SetVersionString("gRPC " + grpc::Version());
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  if (const std::string wrong = CheckFlags(argc, argv); !wrong.empty()) {
    std::cerr << "grpc_echo_client: " << wrong << '\n';
    return 2;
  }
  std::ofstream file;
  if (!FLAGS_json.empty() && FLAGS_json != "-") {
    file.open(FLAGS_json);
    if (!file) {
      std::cerr << "grpc_echo_client: can't write " << FLAGS_json << '\n';
      return 2;
    }
  }
  example::Summary summary = Measure();
  summary.command_line = command_line;
  std::cerr << example::ReportLine(summary.calls, summary.seconds) << '\n';
  if (!FLAGS_json.empty()) {
    std::ostream& out = file.is_open() ? file : std::cout;
    if (!(out << example::SummaryJson(summary) << std::flush)) {
      std::cerr << "grpc_echo_client: can't write " << FLAGS_json << '\n';
      return 1;
    }
  }
  return summary.AllWell() ? 0 : 1;
}
