// Streams of messages, both sides in one process over loopback:
//
//   streams --mode=upload --size=64             one-way, from the client
//   streams --mode=download --size=65536        one-way, from the server
//   streams --mode=chat --streams=20            each message is echoed
//   streams --mode=unary --streams=20           calls, to compare with
//   streams --protocol=grpc                     over gRPC, trpc or baidu-std
//   streams --port=5600 --tls_certificate=C --tls_key=K     serves only
//   streams --server_addr=tls+flare://localhost:5600 --tls_ca=R
//                            calls it; the other flags as for the first
//   streams --streams=5000 --slow_streams=5000 --connections=1000
//                            beside as many whose readers stop at once
//   streams --messages=100000                   of each stream, not for a time
//
// Prints messages and bytes a second, CPU time of a message, latencies of
// echoes, and memory. See docs/performance.md.
#include <gflags/gflags.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/streams/stream_service.pb.h"
#include "flare/base/clock.h"
#include "flare/base/histogram.h"
#include "flare/fiber/latch.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/open_stream.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/server.h"
#include "flare/rpc/stream/call_stream.h"

DEFINE_string(protocol, "flare", "flare, grpc, trpc or baidu-std.");
DEFINE_string(mode, "chat", "upload, download, chat or unary.");
DEFINE_int32(size, 64, "Bytes of each message's body.");
DEFINE_int32(streams, 1, "Streams, or callers, at a time.");
DEFINE_int32(slow_streams, 0,
             "Downloads beside these, of which one message is read.");
DEFINE_int32(connections, 1, "That all of them share.");
DEFINE_int32(seconds, 3, "How long.");
DEFINE_int64(messages, 0,
             "Messages of each stream, in place of --seconds; 0: no limit.");
DEFINE_int32(pause_us, 0,
             "Between the echoes of a stream, which are spread over it.");
DEFINE_int32(port, 0, "Serves there, and makes no streams.");
DEFINE_string(server_addr, "", "Another process that serves, as a URI.");
DEFINE_string(tls_certificate, "", "The server speaks TLS, with this file.");
DEFINE_string(tls_key, "", "The key of that certificate.");
DEFINE_string(tls_ca, "", "Whom streams by TLS trust.");

namespace {

using flare::RpcServerController;
using flare::rpc::CallStream;
using stream_benchmark::StreamMessage;

constexpr std::int64_t kNever = CallStream::kNever;

std::atomic<bool> over{false};
flare::ConcurrentHistogram latencies;  // In ns, of echoes and calls.

// With --pause_us all streams are opened by a first echo each, which isn't
// measured, and then begin evenly over one pause: else they would all echo at
// once, each behind the others.
struct Start {
  flare::fiber::Latch ready;
  flare::fiber::Latch begin{1};
};

class Service : public stream_benchmark::StreamService {
 public:
  void Upload(google::protobuf::RpcController* controller, const StreamMessage*,
              StreamMessage* response,
              google::protobuf::Closure* done) override {
    const auto stream = static_cast<RpcServerController*>(controller)->stream();
    StreamMessage message;
    flare::StreamError error;
    std::int64_t count = 0;
    while (stream->ReadMessage(&message, kNever, &error)) ++count;
    response->set_number(count);
    done->Run();
  }
  void Download(google::protobuf::RpcController* controller,
                const StreamMessage* request, StreamMessage*,
                google::protobuf::Closure* done) override {
    const auto stream = static_cast<RpcServerController*>(controller)->stream();
    for (std::int64_t left = request->number();
         !over && left != 0 && stream->WriteMessage(*request, false, kNever);
         --left) {
      continue;
    }
    done->Run();
  }
  void Chat(google::protobuf::RpcController* controller, const StreamMessage*,
            StreamMessage*, google::protobuf::Closure* done) override {
    const auto stream = static_cast<RpcServerController*>(controller)->stream();
    StreamMessage message;
    flare::StreamError error;
    while (stream->ReadMessage(&message, kNever, &error)) {
      if (!stream->WriteMessage(message, false, kNever)) break;
    }
    done->Run();
  }
  void Unary(google::protobuf::RpcController*, const StreamMessage* request,
             StreamMessage* response,
             google::protobuf::Closure* done) override {
    *response = *request;
    done->Run();
  }
};

// How many messages a stream has, at most.
std::int64_t MessageLimit() {
  return FLAGS_messages != 0 ? FLAGS_messages
                             : std::numeric_limits<std::int64_t>::max();
}

// `index` is the caller, `count` the echo in its order.
void NoteEcho(std::int64_t began_ns, int index, std::int64_t count,
              Start* start) {
  const std::chrono::microseconds pause(FLAGS_pause_us);
  if (pause.count() != 0 && count == 1) {
    start->ready.count_down();
    start->begin.wait();
    flare::this_fiber::SleepFor(pause * index / FLAGS_streams);
    return;
  }
  latencies.Record(flare::NowNs() - began_ns);
  if (pause.count() != 0) flare::this_fiber::SleepFor(pause);
}

// One stream, or one caller. Returns the messages that arrived.
std::int64_t RunOne(flare::RpcChannel* channel, const StreamMessage& message,
                    int index, Start* start) {
  const auto* const descriptor = stream_benchmark::StreamService::descriptor();
  flare::RpcClientController controller;
  controller.SetTimeout(std::chrono::hours(1));
  StreamMessage reply;
  flare::StreamError error;
  std::int64_t count = 0;
  if (FLAGS_mode == "unary") {
    stream_benchmark::StreamService_Stub stub(channel);
    while (!over && count != MessageLimit()) {
      const std::int64_t began_ns = flare::NowNs();
      stub.Unary(&controller, &message, &reply, nullptr);
      if (controller.Failed()) {
        std::fprintf(stderr, "%s\n", controller.ErrorText().c_str());
        return count;
      }
      NoteEcho(began_ns, index, ++count, start);
    }
  } else if (FLAGS_mode == "download") {
    auto stream = flare::rpc::OpenStream(
        channel, descriptor->FindMethodByName("Download"), &controller,
        &message);
    while (!over && stream->ReadMessage(&reply, kNever, &error)) ++count;
    if (over) {
      stream->Cancel();  // The server may be another process.
      return count;
    }
  } else if (FLAGS_mode == "upload") {
    auto stream = flare::rpc::OpenStream(
        channel, descriptor->FindMethodByName("Upload"), &controller, nullptr);
    for (std::int64_t left = MessageLimit();
         !over && left != 0 && stream->WriteMessage(message, false, kNever);
         --left) {
      continue;
    }
    stream->CloseWriting();
    if (stream->ReadMessage(&reply, kNever, &error)) count = reply.number();
  } else {
    auto stream = flare::rpc::OpenStream(
        channel, descriptor->FindMethodByName("Chat"), &controller, nullptr);
    for (std::int64_t began_ns = flare::NowNs();
         !over && count != MessageLimit() &&
         stream->WriteMessage(message, false, kNever) &&
         stream->ReadMessage(&reply, kNever, &error);
         began_ns = flare::NowNs()) {
      NoteEcho(began_ns, index, ++count, start);
    }
    stream->CloseWriting();
    while (stream->ReadMessage(&reply, kNever, &error)) continue;
  }
  if (controller.Failed()) {
    std::fprintf(stderr, "%s\n", controller.ErrorText().c_str());
  }
  return count;
}

// CPU time of the process.
double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) +
           static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Bytes that the process has in memory.
std::int64_t ResidentBytes() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * 4096;
}

// A stream of which only the first message is read.
void ReadOne(flare::RpcChannel* channel, const StreamMessage& message,
             flare::fiber::Latch* stopped, flare::fiber::Latch* end) {
  flare::RpcClientController controller;
  controller.SetTimeout(std::chrono::hours(1));
  auto stream = flare::rpc::OpenStream(
      channel,
      stream_benchmark::StreamService::descriptor()->FindMethodByName(
          "Download"),
      &controller, &message);
  StreamMessage reply;
  flare::StreamError error;
  if (!stream->ReadMessage(&reply, kNever, &error)) {
    std::fprintf(stderr, "%s\n", controller.ErrorText().c_str());
  }
  stopped->count_down();
  end->wait();
  stream->Cancel();
}

// Until the windows of streams that nobody reads are full.
void WaitUntilQuiet() {
  constexpr double kStep = 0.2;
  for (double before = 0; CpuSeconds() - before > kStep / 20;) {
    before = CpuSeconds();
    flare::this_fiber::SleepFor(std::chrono::duration<double>(kStep));
  }
}

// Channels with a connection each, of which the server is known to have
// credits.
std::vector<std::unique_ptr<flare::RpcChannel>> OpenChannels(
    const std::string& uri) {
  std::vector<std::unique_ptr<flare::RpcChannel>> channels;
  for (int i = 0; i != FLAGS_connections; ++i) {
    flare::RpcChannel::Options options{
        .connect_timeout = std::chrono::seconds(10),
        .pool = flare::ConnectionPool::Create()};
    if (!FLAGS_tls_ca.empty()) options.tls.emplace().ca = FLAGS_tls_ca;
    channels.push_back(std::make_unique<flare::RpcChannel>(uri, options));
    flare::RpcClientController controller;
    StreamMessage reply;
    flare::StreamError error;
    auto stream = flare::rpc::OpenStream(
        channels.back().get(),
        stream_benchmark::StreamService::descriptor()->FindMethodByName("Chat"),
        &controller, nullptr);
    stream->CloseWriting();
    while (stream->ReadMessage(&reply, kNever, &error)) continue;
  }
  return channels;
}

// The streams that the flags ask for, at the server `uri`. Prints their
// results.
void Measure(const std::string& uri) {
  std::atomic<std::int64_t> messages{0};
  std::int64_t grown = 0;
  std::int64_t began_ns = 0;
  double cpu = 0;
  {
    const auto channels = OpenChannels(uri);
    const auto channel = [&](int i) {
      return channels[static_cast<std::size_t>(i % FLAGS_connections)].get();
    };
    StreamMessage message;
    message.set_body(std::string(static_cast<std::size_t>(FLAGS_size), 'x'));
    message.set_number(MessageLimit());
    const std::int64_t before = ResidentBytes();
    flare::fiber::TaskGroup slow_readers;
    flare::fiber::Latch stopped(FLAGS_slow_streams);
    flare::fiber::Latch end(1);
    for (int i = 0; i != FLAGS_slow_streams; ++i) {
      slow_readers.Spawn(
          [&, i] { ReadOne(channel(i), message, &stopped, &end); });
    }
    stopped.wait();
    WaitUntilQuiet();
    latencies.Reset();
    began_ns = flare::NowNs();
    cpu = CpuSeconds();
    Start start{.ready = flare::fiber::Latch(FLAGS_streams)};
    flare::fiber::TaskGroup callers;
    for (int i = 0; i != FLAGS_streams; ++i) {
      callers.Spawn([&, i] {
        const std::int64_t count = RunOne(channel(i), message, i, &start);
        if (count == 0) start.ready.count_down();
        messages += count;
      });
    }
    if (FLAGS_pause_us != 0) {
      start.ready.wait();
      WaitUntilQuiet();
      began_ns = flare::NowNs();
      cpu = CpuSeconds();
      start.begin.count_down();
    }
    if (FLAGS_messages != 0) {
      static_cast<void>(callers.Wait());
    } else {
      flare::this_fiber::SleepFor(std::chrono::seconds(FLAGS_seconds));
    }
    cpu = CpuSeconds() - cpu;
    grown = ResidentBytes() - before;
    over = true;
    static_cast<void>(callers.Wait());
    end.count_down();
    static_cast<void>(slow_readers.Wait());
  }
  const double seconds = static_cast<double>(flare::NowNs() - began_ns) / 1e9;
  const auto count = static_cast<double>(messages.load());
  std::printf(
      "%s size=%d streams=%d slow=%d connections=%d: %.0f messages/s, "
      "%.1f MB/s, %.3f us of CPU each, memory grew by %.1f MB\n",
      FLAGS_mode.c_str(), FLAGS_size, FLAGS_streams, FLAGS_slow_streams,
      FLAGS_connections, count / seconds, count / seconds * FLAGS_size / 1e6,
      cpu * 1e6 / count, static_cast<double>(grown) / 1e6);
  if (const flare::Histogram echoes = latencies.Snapshot();
      echoes.count() != 0) {
    std::printf("echoed in us: p50 %.1f, p99 %.1f\n",
                static_cast<double>(echoes.ValueAtQuantile(0.5)) / 1e3,
                static_cast<double>(echoes.ValueAtQuantile(0.99)) / 1e3);
  }
}

int Run(int, char**) {
  if (!FLAGS_server_addr.empty()) {
    Measure(FLAGS_server_addr);
    return 0;
  }
  Service service;
  // All streams are to run, however they queue at the start.
  flare::Server::Options options{
      .max_concurrent_requests = 100'000,
      .max_concurrent_requests_per_connection = 100'000,
      .max_concurrent_streams_per_connection = 100'000,
      .max_request_queueing_delay = {}};
  if (!FLAGS_tls_certificate.empty()) {
    options.tls.emplace().certificates = {
        {FLAGS_tls_certificate, FLAGS_tls_key}};
  }
  flare::Server server(options);
  server.AddService(&service);
  server.AddProtocol(FLAGS_protocol);
  server.ListenOn(flare::EndpointFromIpv4(
      "127.0.0.1", static_cast<std::uint16_t>(FLAGS_port)));
  if (!server.Start()) {
    std::fprintf(stderr, "%s\n", server.error().ToString().c_str());
    return 1;
  }
  if (FLAGS_port != 0) {
    flare::WaitForQuitSignal();
  } else {
    Measure((FLAGS_tls_certificate.empty() ? "" : "tls+") + FLAGS_protocol +
            "://" + server.endpoint().ToString());
  }
  server.Stop();
  server.Join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Run); }
