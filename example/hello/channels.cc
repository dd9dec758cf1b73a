// Channels with options: timeouts, sizes, connections of their own,
// interceptors (docs/client_options.md). With example/rpc/server:
//
//   ./channels flare://127.0.0.1:5567

#include <chrono>
#include <iostream>
#include <memory>
#include <string>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/interceptor.h"

namespace echo = example::protobuf_echo;

// Long calls of large messages, which don't make other calls wait.
bool OpenForReports(const std::string& uri, flare::RpcChannel* channel) {
  flare::RpcChannel::Options options;
  options.timeout = std::chrono::seconds(30);
  options.maximum_packet_size = 64 << 20;
  options.max_connections_per_server = 2;
  options.pool = flare::ConnectionPool::Create();  // Shares with no other.
  return channel->Open(uri, options);
}

class LogFailures : public flare::ClientInterceptor {
 public:
  void Intercept(flare::ClientInterceptedCall& call,
                 flare::ClientNext& next) override {
    next.Run();  // Returns when the call has ended.
    if (!call.controller().Failed()) return;
    std::cout << call.method().full_name() << ": "
              << call.controller().ErrorText() << '\n';
  }
};

// One call at a time on each connection, and code around each call.
bool OpenPooled(const std::string& uri, flare::RpcChannel* channel) {
  return channel->Open(uri,
                       {.interceptors = {std::make_shared<LogFailures>()},
                        .connection_kind = flare::ConnectionKind::kPooled});
}

int Entry(int argc, char** argv) {
  if (argc != 2) return 2;
  for (const auto open : {OpenForReports, OpenPooled}) {
    flare::RpcChannel channel;
    if (!open(argv[1], &channel)) return 1;
    echo::EchoRequest request;
    request.set_body("optional");
    auto reply = echo::EchoService_SyncStub(&channel).Echo(request);
    std::cout << (reply ? reply->body() : reply.error().ToString()) << '\n';
  }
  return 0;
}

// Warnings and errors alone, on stderr; servers have files (docs/debugging.md).
FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(minloglevel, 1);

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
