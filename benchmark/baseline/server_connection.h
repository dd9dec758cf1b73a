// A client's connection to a baseline server: takes calls off its input and
// hands them to the server's handler, in the thread of its loop.

#ifndef BENCHMARK_BASELINE_SERVER_CONNECTION_H_
#define BENCHMARK_BASELINE_SERVER_CONNECTION_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/baseline/call.h"
#include "benchmark/baseline/stream.h"
#include "example/rpc/serving.h"
#include "flare/base/buffer.h"
#include "flare/base/status.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/server_protocol.h"

namespace baseline {

// The handling of calls: the threading model. One for each loop, in whose
// thread all of this is called.
class CallHandler {
 public:
  virtual ~CallHandler() = default;
  // Sees to it that the call is served and replies, now or later.
  virtual void Handle(Call* call) = 0;
  // All that one read has brought was handed over.
  virtual void EndOfBatch() {}
};

// Serves each call there and then.
class InlineHandler final : public CallHandler {
 public:
  explicit InlineHandler(const example::WorkSource& work) : work_(work) {}
  void Handle(Call* call) override;

 private:
  const example::WorkSource work_;
};

class ServerConnection final : public Stream, public flare::rpc::ReplySink {
 public:
  // The objects pointed to must outlive this. `requests` counts those taken.
  ServerConnection(flare::io::UniqueFd fd,
                   const flare::rpc::ServerProtocolSet& protocols,
                   CallHandler* handler, example::RequestCounter* requests);

  // A call of this connection has replied.
  void CallFinished();

  // flare::rpc::ReplySink:
  bool Write(flare::Buffer&& bytes) override;
  void CloseAfterReplies() override { CloseAfterSending(); }
  void Abort(const flare::Status& why) override;

 private:
  bool OnData(flare::Buffer& in, std::size_t* need) override;
  void OnEndOfInput() override { EndInput(); }
  void OnClosed() override;
  bool WantsInput() const override;

  flare::rpc::CutResult Cut(flare::Buffer& in,
                            flare::rpc::InboundRequest* request,
                            std::size_t* need, std::string* error);
  void EndInput();

  CallHandler* const handler_;
  example::RequestCounter* const requests_;
  std::vector<std::unique_ptr<flare::rpc::ServerProtocol>> protocols_;
  // The one that the peer speaks, once that is known.
  flare::rpc::ServerProtocol* speaks_ = nullptr;
  std::size_t calls_ = 0;  // That have not replied.
  bool input_over_ = false;
};

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_SERVER_CONNECTION_H_
