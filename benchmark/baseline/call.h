// One call of a baseline server, from its bytes to its reply, as ServerCall in
// flare, without its dispatch to any service: here there is the echo.
//
//   Call* call = Call::New();              // In the loop's thread: cut it,
//   ...cut call->request...                // count it.
//   call->Serve(methods, work, [] {});     // In any thread.
//   call->Reply();                         // In the loop's: sends, recycles.

#ifndef BENCHMARK_BASELINE_CALL_H_
#define BENCHMARK_BASELINE_CALL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "benchmark/baseline/event_loop.h"
#include "example/rpc/echo_service.pb.h"
#include "example/rpc/work.h"
#include "flare/base/intrusive_list.h"
#include "flare/base/status.h"
#include "flare/rpc/server_protocol.h"

namespace baseline {

class ServerConnection;

inline constexpr std::string_view kEchoMethod =
    "example.protobuf_echo.EchoService.Echo";
inline constexpr std::string_view kRelayMethod =
    "example.protobuf_echo.RelayService.Relay";

// Pooled. Used by one thread at a time; nothing blocks but Serve(), for as long
// as the work takes. As a task of its connection's loop it replies.
class Call final : public LoopTask {
 public:
  enum class Methods { kEcho, kEchoAndRelay };

  static Call* New();
  void Recycle();

  // From bytes to the request's message. False: the call has failed, and
  // there is nothing left to do but to Reply().
  [[nodiscard]] bool Parse(Methods methods);

  // The body of a parsed call. It may be taken away.
  std::string* body() { return body_; }
  const example::Work& requested_work() const { return requested_work_; }

  // With the fields of an earlier call; maybe the one that the request is in,
  // or that the response will be.
  template <class Message>
  Message* message() {
    return &std::get<Message>(messages_);
  }

  // The end of a call: the response's message, or the reason why there is none.
  void Answer(const std::string& body);
  void Fail(const flare::Status& status);

  // Parse, work, answer with an echo. `before_work` is called if it will take
  // time.
  template <class BeforeWork>
  void Serve(Methods methods, const example::WorkSource& source,
             BeforeWork&& before_work) {
    if (!Parse(methods)) return;
    const example::Work work = DrawWork(source);
    if (work.kind != example::WorkKind::kNone) {
      before_work();
      example::DoWorkOnThread(work);
    }
    AnswerWithEcho();
  }

  // Sends its reply, tells the connection, and recycles the call. In the loop's
  // thread.
  void Reply();
  void RunInLoop() override { Reply(); }

  Call* next = nullptr;  // For any queue it is in.
  ServerConnection* connection = nullptr;
  flare::rpc::ServerProtocol* protocol = nullptr;
  flare::rpc::InboundRequest request;
  flare::rpc::OutboundResponse response;

 private:
  enum class Outcome : std::uint8_t {
    kReply,     // `response` has it
    kRejected,  // by the protocol, which says so
    kClose,     // there is nobody to answer
  };

  template <class Request>
  bool ParseMessage();
  template <class Response>
  void AnswerAs(const std::string& body);
  void AnswerWithEcho();
  example::Work DrawWork(const example::WorkSource& source) const {
    return requested_work_.kind != example::WorkKind::kNone ? requested_work_
                                                            : source.Draw();
  }

  Outcome outcome_ = Outcome::kReply;
  bool is_relay_ = false;
  example::Work requested_work_;
  std::string* body_ = nullptr;  // In the request's message.
  std::string error_;            // For response.description.
  bool large_ = false;           // Some message.

  // As ServerCall's (rpc/server/call_messages.h), used again by the next call.
  std::tuple<example::protobuf_echo::EchoRequest,
             example::protobuf_echo::EchoResponse,
             example::protobuf_echo::RelayRequest,
             example::protobuf_echo::RelayResponse>
      messages_;
};
using CallQueue = flare::IntrusiveQueue<Call, &Call::next>;

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_CALL_H_
