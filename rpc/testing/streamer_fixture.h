// A server of streaming methods, and a client of it, for tests.
//
//   class MyTest : public StreamerTest {};
//   TEST_F(MyTest, Counts) {
//     auto reader = stub_.Count(MakeNumber(3), &controller_);
//     ...
//   }
#ifndef FLARE_RPC_TESTING_STREAMER_FIXTURE_H_
#define FLARE_RPC_TESTING_STREAMER_FIXTURE_H_

#include <google/protobuf/service.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "flare/base/endpoint.h"
#include "flare/base/future.h"
#include "flare/fiber/event.h"
#include "flare/fiber/future.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/server.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/rpc_fixture.h"
#include "gtest/gtest.h"
#include "rpc/testing/streamer.flare.pb.h"

namespace flare::rpc::testing {

inline Number MakeNumber(std::int64_t value, std::size_t padding = 0) {
  Number number;
  number.set_value(value);
  number.set_padding(std::string(padding, 'x'));
  return number;
}

// Does what a test says; by default as its methods' names say.
class FlexibleStreamer : public SyncStreamer {
 public:
  void Double(const Number& request, Number* response,
              RpcServerController*) override {
    response->set_value(2 * request.value());
  }
  void Sum(StreamReader<Number> reader, Number* response,
           RpcServerController* controller) override {
    if (on_sum) return on_sum(std::move(reader), response, controller);
    std::int64_t sum = 0;
    for (const Number& number : reader) sum += number.value();
    response->set_value(sum);
  }
  void Count(const Number& request, StreamWriter<Number> writer,
             RpcServerController* controller) override {
    if (on_count) return on_count(request, std::move(writer), controller);
    for (std::int64_t i = 0; i != request.value(); ++i) {
      if (!writer.Write(MakeNumber(i, request.padding().size()))) return;
    }
    writer.Close();
  }
  void Echo(StreamReader<Number> reader, StreamWriter<Number> writer,
            RpcServerController* controller) override {
    if (on_echo) {
      return on_echo(std::move(reader), std::move(writer), controller);
    }
    for (const Number& number : reader) {
      if (!writer.Write(number)) return;
    }
    writer.Close();
  }

  std::function<void(StreamReader<Number>, Number*, RpcServerController*)>
      on_sum;
  std::function<void(const Number&, StreamWriter<Number>, RpcServerController*)>
      on_count;
  std::function<void(StreamReader<Number>, StreamWriter<Number>,
                     RpcServerController*)>
      on_echo;
};

class StreamerTest : public RpcTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(RpcTest::SetUp());
    server_.emplace(server_options());
    server_->AddService(&service());
    AddInterceptors(&*server_);
    server_->AddProtocols({"flare", "trpc", "baidu-std", "grpc"});
    server_->ListenOn(EndpointFromIpv4("127.0.0.1", 0));
    ASSERT_TRUE(server_->Start());
    ASSERT_TRUE(channel_.Open("flare://" + server_->endpoint().ToString()));
  }
  void TearDown() override {
    ShutdownClientSide();
    server_.reset();
    RpcTest::TearDown();
  }

  virtual Server::Options server_options() { return {.service_name = "test"}; }
  virtual google::protobuf::Service& service() { return service_; }
  virtual void AddInterceptors(Server*) {}

  FlexibleStreamer service_;
  std::optional<Server> server_;
  RpcChannel channel_;
  Streamer_SyncStub stub_{&channel_};
  RpcClientController controller_;
};

// A call of Echo both of whose ends are the test's. `Stub` is one of
// Streamer's.
template <class Stub>
class StreamPairTestOf : public StreamerTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StreamerTest::SetUp());
    service_.on_echo = [this](StreamReader<Number> reader,
                              StreamWriter<Number> writer,
                              RpcServerController* controller) {
      server_reader_ = std::move(reader);
      server_writer_ = std::move(writer);
      server_controller_ = controller;
      opened_.Set();
      ended_.Wait();
      server_reader_ = {};
      server_writer_ = {};
    };
    std::tie(reader_, writer_) = Stub(&channel_).Echo(&controller_);
    // The server learns of the call by its first message.
    auto written = writer_.Write(MakeNumber(0));
    if constexpr (std::is_same_v<decltype(written), Future<bool>>) {
      ASSERT_TRUE(fiber::BlockingGet(std::move(written)));
    } else {
      ASSERT_TRUE(written);
    }
    opened_.Wait();
    ASSERT_TRUE(server_reader_.Read());
  }
  void TearDown() override {
    ended_.Set();
    reader_ = {};
    writer_ = {};
    StreamerTest::TearDown();
  }

  // The method ends, which drops its streams.
  void EndCall() { ended_.Set(); }
  void EndCall(int code, std::string text) {
    server_controller_->SetFailed(code, std::move(text));
    ended_.Set();
  }
  // All messages were written, and the call has succeeded.
  void CloseAndEndCall() {
    server_writer_.Close();
    ended_.Set();
  }

  // Writes until there is no room.
  static void Fill(StreamWriter<Number>* writer) {
    writer->SetExpiration(std::chrono::milliseconds(20));
    while (writer->Write(MakeNumber(0, 10'000))) continue;
    writer->SetExpiration(std::chrono::hours(1));
  }

  using Pair = decltype(std::declval<Stub>().Echo());
  typename Pair::first_type reader_;
  typename Pair::second_type writer_;
  StreamReader<Number> server_reader_;
  StreamWriter<Number> server_writer_;
  RpcServerController* server_controller_ = nullptr;

 private:
  fiber::Event opened_;
  fiber::Event ended_;
};

using StreamPairTest = StreamPairTestOf<Streamer_SyncStub>;
using AsyncStreamPairTest = StreamPairTestOf<Streamer_AsyncStub>;

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_STREAMER_FIXTURE_H_
