// An answer of a mock (mock_calls.h): a message, a failure, or a function.
//
//   mock.Answer("example.Echo.Get", response);
//   mock.Answer("example.Echo.Get", flare::Status(1001, "no such thing"));
//   mock.Answer("example.Echo.Get",
//               [](const GetRequest& request, GetResponse* response,
//                  flare::RpcServerController* controller) { ... });
//   mock.Answer("example.Echo.Get", MockAnswer(response).After(10ms));
//
// Functions are as the methods of a generated SyncX, also for methods that
// stream:
//
//   void(const Request&, Response*, RpcServerController*)
//   void(const Request&, StreamWriter<Response>, RpcServerController*)
//   void(StreamReader<Request>, Response*, RpcServerController*)
//   void(StreamReader<Request>, StreamWriter<Response>, RpcServerController*)
//
// They run on a fiber of their own and may block. Their controller has the
// call's attachment, metadata and deadline, and takes those of the reply. An
// exception fails the call with STATUS_FAILED.
#ifndef FLARE_RPC_MOCK_MOCK_ANSWER_H_
#define FLARE_RPC_MOCK_MOCK_ANSWER_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/status.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"

namespace flare::testing {

// A value; copies share a function.
class MockAnswer {
 public:
  // Messages of a generated X::CallMethod(); those of streams are the
  // controller's.
  using Handler = std::function<void(const google::protobuf::Message* request,
                                     google::protobuf::Message* response,
                                     RpcServerController* controller)>;

  // Implicit, so that Answer() takes a message. A method whose clients stream
  // answers when all requests were read. One that streams itself sends this
  // message alone.
  template <std::derived_from<google::protobuf::Message> M>
  MockAnswer(const M& response)
      : MockAnswer(Message(std::make_unique<M>(response))) {}
  // A failure. Ends the process if it is none.
  MockAnswer(Status failure);
  // With types of parameters that it names: not `auto`.
  template <class F>
  requires requires(F f) { std::function{f}; }
  MockAnswer(F function)
      : MockAnswer(OfFunction(std::function{std::move(function)})) {}

  // The answer begins so much later, on the runtime's clock: in a deterministic
  // run (fiber/testing/deterministic.h) it takes no time. Callers that don't
  // wait for so long get STATUS_TIMEOUT.
  template <class Rep, class Period>
  MockAnswer After(std::chrono::duration<Rep, Period> delay) && {
    delay_ns_ = ToNs(delay);
    return std::move(*this);
  }

  // --- For mocks ---

  // Why it is no answer of `method`; empty if it is one.
  std::string WhyNotFor(const google::protobuf::MethodDescriptor& method) const;
  // Fills in the response, or fails the call. Blocks the fiber.
  void Run(const google::protobuf::MethodDescriptor& method,
           const google::protobuf::Message* request,
           google::protobuf::Message* response,
           RpcServerController* controller) const;

 private:
  using Message = std::shared_ptr<const google::protobuf::Message>;
  using Controller = RpcServerController*;

  // Types of a function's parameters.
  struct Types {
    const google::protobuf::Descriptor* request;
    const google::protobuf::Descriptor* response;
    bool client_streams;
    bool server_streams;
  };

  explicit MockAnswer(Message response) : response_(std::move(response)) {}
  MockAnswer(Types types, Handler handler)
      : types_(types), handler_(std::move(handler)) {}

  template <class Q, class R>
  static MockAnswer OfFunction(
      std::function<void(const Q&, R*, Controller)> f) {
    return {{Q::descriptor(), R::descriptor(), false, false},
            [f = std::move(f)](const google::protobuf::Message* request,
                               google::protobuf::Message* response,
                               Controller controller) {
              f(*static_cast<const Q*>(request), static_cast<R*>(response),
                controller);
            }};
  }
  template <class Q, class R>
  static MockAnswer OfFunction(
      std::function<void(const Q&, StreamWriter<R>, Controller)> f) {
    return {
        {Q::descriptor(), R::descriptor(), false, true},
        [f = std::move(f)](const google::protobuf::Message* request,
                           google::protobuf::Message*, Controller controller) {
          f(*static_cast<const Q*>(request), controller->GetStreamWriter<R>(),
            controller);
        }};
  }
  template <class Q, class R>
  static MockAnswer OfFunction(
      std::function<void(StreamReader<Q>, R*, Controller)> f) {
    return {{Q::descriptor(), R::descriptor(), true, false},
            [f = std::move(f)](const google::protobuf::Message*,
                               google::protobuf::Message* response,
                               Controller controller) {
              f(controller->GetStreamReader<Q>(), static_cast<R*>(response),
                controller);
            }};
  }
  template <class Q, class R>
  static MockAnswer OfFunction(
      std::function<void(StreamReader<Q>, StreamWriter<R>, Controller)> f) {
    return {
        {Q::descriptor(), R::descriptor(), true, true},
        [f = std::move(f)](const google::protobuf::Message*,
                           google::protobuf::Message*, Controller controller) {
          f(controller->GetStreamReader<Q>(), controller->GetStreamWriter<R>(),
            controller);
        }};
  }

  void GiveResponse(const google::protobuf::MethodDescriptor& method,
                    google::protobuf::Message* response,
                    RpcServerController* controller) const;

  std::int64_t delay_ns_ = 0;
  // One of the three.
  Message response_;
  Status failure_;
  Types types_{};
  Handler handler_;
};

}  // namespace flare::testing

#endif  // FLARE_RPC_MOCK_MOCK_ANSWER_H_
