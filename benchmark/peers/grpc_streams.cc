// Streams of messages by gRPC's callback interface, both sides in one process
// over loopback, with the modes, the flags and the output of
// benchmark/streams. Compiled by tools/peers.
//
//   grpc_streams --mode=upload --size=64        one-way, from the client
//   grpc_streams --mode=download --size=65536   one-way, from the server
//   grpc_streams --mode=chat --streams=20       each message is echoed
#include <gflags/gflags.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/streams/stream_service.grpc.pb.h"
#include "grpcpp/grpcpp.h"

DEFINE_string(mode, "chat", "upload, download or chat");
DEFINE_int32(size, 64, "bytes of each message's body");
DEFINE_int32(streams, 1, "streams at a time");
DEFINE_int32(connections, 1, "that all of them share");
DEFINE_int32(seconds, 3, "how long");

namespace {

using stream_benchmark::StreamMessage;
using stream_benchmark::StreamService;

std::atomic<bool> over{false};

// The server's side. Each object lives until its stream is done.

class Upload final : public grpc::ServerReadReactor<StreamMessage> {
 public:
  explicit Upload(StreamMessage* reply) : reply_(reply) {
    StartRead(&message_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) {
      reply_->set_number(count_);
      return Finish(grpc::Status::OK);
    }
    ++count_;
    StartRead(&message_);
  }
  void OnDone() override { delete this; }

 private:
  StreamMessage* const reply_;
  StreamMessage message_;
  std::int64_t count_ = 0;
};

class Download final : public grpc::ServerWriteReactor<StreamMessage> {
 public:
  explicit Download(const StreamMessage& message) : message_(message) {
    StartWrite(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok || over) return Finish(grpc::Status::OK);
    StartWrite(&message_);
  }
  void OnDone() override { delete this; }

 private:
  const StreamMessage message_;
};

class Chat final
    : public grpc::ServerBidiReactor<StreamMessage, StreamMessage> {
 public:
  Chat() { StartRead(&message_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    StartWrite(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    StartRead(&message_);
  }
  void OnDone() override { delete this; }

 private:
  StreamMessage message_;
};

class Service final : public StreamService::CallbackService {
 public:
  grpc::ServerReadReactor<StreamMessage>* Upload(
      grpc::CallbackServerContext*, StreamMessage* reply) override {
    return new class Upload(reply);
  }
  grpc::ServerWriteReactor<StreamMessage>* Download(
      grpc::CallbackServerContext*, const StreamMessage* request) override {
    return new class Download(*request);
  }
  grpc::ServerBidiReactor<StreamMessage, StreamMessage>* Chat(
      grpc::CallbackServerContext*) override {
    return new class Chat();
  }
};

// The client's side: a stream, whose end can be waited for.
class Client {
 public:
  explicit Client(const StreamMessage& message) : message_(message) {}
  virtual ~Client() = default;

  // Returns how many messages have arrived.
  std::int64_t Wait() {
    std::unique_lock guard(mutex_);
    changed_.wait(guard, [this] { return ended_; });
    return count_;
  }

 protected:
  void End(const grpc::Status& status) {
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.error_message().c_str());
    }
    const std::lock_guard guard(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

  const StreamMessage message_;
  grpc::ClientContext context_;
  StreamMessage reply_;
  std::int64_t count_ = 0;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
};

class UploadClient final : public Client,
                           public grpc::ClientWriteReactor<StreamMessage> {
 public:
  UploadClient(StreamService::Stub* stub, const StreamMessage& message)
      : Client(message) {
    stub->async()->Upload(&context_, &reply_, this);
    StartWrite(&message_);
    StartCall();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return;
    if (over) return StartWritesDone();
    StartWrite(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    count_ = reply_.number();
    End(status);
  }
};

class DownloadClient final : public Client,
                             public grpc::ClientReadReactor<StreamMessage> {
 public:
  DownloadClient(StreamService::Stub* stub, const StreamMessage& message)
      : Client(message) {
    stub->async()->Download(&context_, &message_, this);
    StartRead(&reply_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++count_;
    StartRead(&reply_);
  }
  void OnDone(const grpc::Status& status) override { End(status); }
};

class ChatClient final
    : public Client,
      public grpc::ClientBidiReactor<StreamMessage, StreamMessage> {
 public:
  ChatClient(StreamService::Stub* stub, const StreamMessage& message)
      : Client(message) {
    stub->async()->Chat(&context_, this);
    Next();
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++count_;
    OnHalf();
  }
  void OnWriteDone(bool ok) override {
    if (ok) OnHalf();
  }
  void OnDone(const grpc::Status& status) override { End(status); }

 private:
  void Next() {
    halves_ = 2;
    StartRead(&reply_);
    if (over) {
      StartWritesDone();
    } else {
      StartWrite(&message_);
    }
  }
  // A reply may come before its message is known to be written.
  void OnHalf() {
    if (--halves_ == 0) Next();
  }

  std::atomic<int> halves_{0};
};

std::unique_ptr<Client> NewClient(StreamService::Stub* stub,
                                  const StreamMessage& message) {
  if (FLAGS_mode == "upload") {
    return std::make_unique<UploadClient>(stub, message);
  }
  if (FLAGS_mode == "download") {
    return std::make_unique<DownloadClient>(stub, message);
  }
  return std::make_unique<ChatClient>(stub, message);
}

std::vector<std::unique_ptr<StreamService::Stub>> Connect(int port) {
  grpc::ChannelArguments arguments;
  // Channels to the same address would share one connection otherwise.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::vector<std::unique_ptr<StreamService::Stub>> stubs;
  for (int i = 0; i != FLAGS_connections; ++i) {
    stubs.push_back(StreamService::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(),
        arguments)));
  }
  return stubs;
}

}  // namespace

int main(int argc, char** argv) {
  gflags::SetUsageMessage("streams by gRPC; see docs/performance.md");
  gflags::SetVersionString("gRPC " + grpc::Version());
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  if (argc > 1 || FLAGS_streams < 1 || FLAGS_connections < 1 ||
      FLAGS_size < 0 || FLAGS_seconds < 1 ||
      (FLAGS_mode != "upload" && FLAGS_mode != "download" &&
       FLAGS_mode != "chat")) {
    std::fprintf(stderr, "grpc_streams: a flag is wrong; see --help\n");
    return 2;
  }
  Service service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  const auto stubs = Connect(port);
  StreamMessage message;
  message.set_body(std::string(static_cast<std::size_t>(FLAGS_size), 'x'));
  const auto began = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i != FLAGS_streams; ++i) {
    clients.push_back(NewClient(
        stubs[static_cast<std::size_t>(i % FLAGS_connections)].get(), message));
  }
  std::this_thread::sleep_for(std::chrono::seconds(FLAGS_seconds));
  over = true;
  std::int64_t messages = 0;
  for (const auto& client : clients) messages += client->Wait();
  const std::chrono::duration<double> lasted =
      std::chrono::steady_clock::now() - began;
  const double rate = static_cast<double>(messages) / lasted.count();
  std::printf(
      "%s size=%d streams=%d connections=%d: %.0f messages/s, %.1f MB/s\n",
      FLAGS_mode.c_str(), FLAGS_size, FLAGS_streams, FLAGS_connections, rate,
      rate * FLAGS_size / 1e6);
  server->Shutdown(std::chrono::system_clock::now());
}
