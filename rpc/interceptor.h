// Interceptors wrap calls, those of a server (ServerInterceptor) or of a
// channel (ClientInterceptor): for authentication, logging, metrics, limits of
// one's own.
//
//   class Authentication : public flare::ServerInterceptor {
//     void Intercept(flare::InterceptedCall& call,
//                    flare::ServerNext& next) override {
//       if (!IsKnown(call.peer())) return call.SetFailed(1401, "who is it?");
//       next.Run();                               // The rest, and the method.
//       if (call.failed()) LOG(WARNING) << call.method() << " failed";
//     }
//   };
//
//   server.AddInterceptor(std::make_shared<Authentication>());
//
//   class LogFailures : public flare::ClientInterceptor {
//     void Intercept(flare::ClientInterceptedCall& call,
//                    flare::ClientNext& next) override {
//       next.Run();                               // The rest, and the call.
//       if (call.controller().Failed()) LOG(WARNING) << "...";
//     }
//   };
//
//   flare::RpcChannel channel(
//       uri, {.interceptors = {std::make_shared<LogFailures>()}});
//
// See docs/interceptors.md, and docs/client_options.md for channels.
#ifndef FLARE_RPC_INTERCEPTOR_H_
#define FLARE_RPC_INTERCEPTOR_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/message_observer.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/stream_wire.h"

namespace flare {

class RpcClientController;

// A call, or a plain HTTP request, as interceptors see it. Lives as long as
// Intercept() runs. Not thread-safe.
class InterceptedCall {
 public:
  // For a call of a method.
  InterceptedCall(const google::protobuf::MethodDescriptor* descriptor,
                  RpcServerController* controller,
                  const google::protobuf::Message* request,
                  google::protobuf::Message* response)
      : descriptor_(descriptor),
        method_(controller->NameOf(*descriptor)),
        controller_(controller),
        request_(request),
        response_(response) {}
  // For a request for an HTTP handler.
  InterceptedCall(RpcServerController* controller,
                  const HttpRequest* http_request, HttpResponse* http_response)
      : controller_(controller),
        http_request_(http_request),
        http_response_(http_response) {}
  InterceptedCall(const InterceptedCall&) = delete;
  InterceptedCall& operator=(const InterceptedCall&) = delete;

  // "package.Service.Method"; of an HTTP request its path. Where a
  // GenericService gets the call it is what the caller says.
  std::string_view method() const {
    return descriptor_ != nullptr ? method_ : http_request_->path();
  }
  // Null for HTTP requests; of calls that a GenericService gets that of
  // "flare.rpc.Generic.Call", whose messages are empty.
  const google::protobuf::MethodDescriptor* descriptor() const {
    return descriptor_;
  }
  const Endpoint& peer() const { return controller_->GetRemotePeer(); }

  // Returns the controller that the method sees, and changes. HTTP handlers
  // don't see it, and it can't say whether their request is cancelled:
  // ExecutionContext::Current() can.
  RpcServerController& controller() { return *controller_; }
  const RpcServerController& controller() const { return *controller_; }

  // Null for HTTP requests. The response is that of the method when next.Run()
  // has returned; before that, and if it isn't called, it is empty and may be
  // filled in.
  const google::protobuf::Message* request() const { return request_; }
  google::protobuf::Message* response() const { return response_; }

  // Null for calls of methods. In the response likewise; if the handler has
  // sent it in pieces (HttpBodyWriter), changes come too late.
  const HttpRequest* http_request() const { return http_request_; }
  HttpResponse* http_response() const { return http_response_; }

  // Has `observer` told of each message of a streaming call, both ways, from
  // here on. To be called before next.Run(); next.Run() returns when the method
  // has, and the observer isn't called after the call. The single request of a
  // method whose client doesn't stream isn't among them: it is request(). Has
  // no effect for other calls.
  void ObserveMessages(MessageObserver observer) {
    controller_->ObserveMessages(std::move(observer));
  }

  // Whether the call fails as things are: for HTTP a status of 400 or more.
  bool failed() const;
  // Returns the status that the caller is told: the code of the controller (0:
  // success), or HTTP's status.
  int status() const;
  // Makes it fail: as the controller's SetFailed(); over plain HTTP with a
  // short text and 503 (STATUS_OVERLOADED, STATUS_OUT_OF_SERVICE), 504
  // (STATUS_TIMEOUT), 401 (STATUS_UNAUTHENTICATED, with "WWW-Authenticate:
  // Bearer"), 403 (STATUS_PERMISSION_DENIED) or 500.
  void SetFailed(int code, std::string reason);

  // When the caller stops waiting; empty if it hasn't said.
  std::optional<std::chrono::steady_clock::time_point> deadline() const {
    return controller_->GetTimeout();
  }
  // When the request was read off the socket; and how long ago that is.
  std::chrono::steady_clock::time_point received_at() const {
    return controller_->GetTimestampReceived();
  }
  std::chrono::nanoseconds elapsed() const {
    return controller_->GetElapsedTime();
  }

 private:
  const google::protobuf::MethodDescriptor* descriptor_ = nullptr;
  const std::string_view method_;  // Empty for HTTP requests.
  RpcServerController* const controller_;
  const google::protobuf::Message* request_ = nullptr;
  google::protobuf::Message* response_ = nullptr;
  const HttpRequest* http_request_ = nullptr;
  HttpResponse* http_response_ = nullptr;
};

class ServerNext;

class ServerInterceptor {
 public:
  virtual ~ServerInterceptor() = default;

  // Called for each call, in its fiber and its execution context, on many
  // fibers at a time. May block. Calls next.Run() once, or not at all, and then
  // answers by itself: by SetFailed(), or by filling in the response. An
  // exception fails the call with STATUS_FAILED.
  virtual void Intercept(InterceptedCall& call, ServerNext& next) = 0;
};

// Runs the rest behind an interceptor: those that were added later, and the
// method or the HTTP handler.
class ServerNext {
 public:
  // Returns when the method has answered: if it is asynchronous, when it has
  // run `done`, for which the fiber waits. An exception of an interceptor or
  // the method has failed the call by then, and goes no further. A second time
  // nothing happens, except for a line in the log.
  virtual void Run() = 0;
  void operator()(InterceptedCall&) { Run(); }

 protected:
  ~ServerNext() = default;
};

// --------------------------------------------------------------------------
// The calling side: RpcChannel::Options::interceptors
// --------------------------------------------------------------------------

// A call that a channel is about to make, or has made.
class ClientInterceptedCall {
 public:
  ClientInterceptedCall(const google::protobuf::MethodDescriptor* method,
                        std::string_view name, RpcClientController* controller,
                        const google::protobuf::Message* request,
                        google::protobuf::Message* response,
                        bool carries_metadata,
                        std::chrono::nanoseconds default_timeout,
                        bool inherits_context)
      : method_(method),
        name_(name),
        controller_(controller),
        request_(request),
        response_(response),
        carries_metadata_(carries_metadata),
        default_timeout_(default_timeout),
        inherits_context_(inherits_context) {}
  ClientInterceptedCall(const ClientInterceptedCall&) = delete;
  ClientInterceptedCall& operator=(const ClientInterceptedCall&) = delete;

  // For a GenericStub's call it is "flare.rpc.Generic.Call".
  const google::protobuf::MethodDescriptor& method() const { return *method_; }
  // "package.Service.Method"; also of a GenericStub's call.
  std::string_view method_name() const { return name_; }

  // The caller's; or one of the channel's if the caller has none, or one of
  // another class. Before the call it takes timeout, attachment and so on;
  // after it, it has the outcome, times and the server's address. SetFailed()
  // on it decides, or changes, how the call ends.
  RpcClientController& controller() const { return *controller_; }

  // Whether the channel's protocol can carry metadata with the request. Where
  // it can't, calls with some fail.
  bool carries_metadata() const { return carries_metadata_; }

  // The channel's timeout of such calls, which holds if the controller has none
  // of its own.
  std::chrono::nanoseconds default_timeout() const { return default_timeout_; }

  // Whether the channel's calls belong to the one in whose execution context
  // they are made, unless their controllers say otherwise
  // (RpcChannel::Options::inherits_context).
  bool inherits_context() const { return inherits_context_; }

  // Has `observer` told of each message of a streaming call, both ways. To be
  // called before next.Run(). Reads may go on after that has returned, by when
  // the last message has come from the server. Has no effect for other calls.
  void ObserveMessages(MessageObserver observer) {
    if (!observer_) {
      observer_ = std::move(observer);
      return;
    }
    observer_ = [first = std::move(observer_),
                 second = std::move(observer)](const ObservedMessage& message) {
      first(message);
      second(message);
    };
  }
  const MessageObserver& observer() const { return observer_; }

  // For code that answers in place of servers (mock/mock_calls.h): next.Run()
  // makes a streaming call on `wire`, and uses no server. To be called before
  // it. Has no effect for other calls.
  void UseWire(std::unique_ptr<rpc::StreamWire> wire) {
    wire_ = std::move(wire);
  }
  // Null: there is none, or it was taken.
  std::unique_ptr<rpc::StreamWire> TakeWire() { return std::move(wire_); }

  // Null if the caller sends raw bytes, or a stream of messages.
  const google::protobuf::Message* request() const { return request_; }

  // Filled in by the call, or by an interceptor that answers by itself. Null if
  // the caller wants raw bytes, and of streaming calls.
  google::protobuf::Message* response() const { return response_; }

 private:
  const google::protobuf::MethodDescriptor* const method_;
  const std::string_view name_;
  RpcClientController* const controller_;
  const google::protobuf::Message* const request_;
  google::protobuf::Message* const response_;
  const bool carries_metadata_;
  const std::chrono::nanoseconds default_timeout_;
  const bool inherits_context_;
  MessageObserver observer_;
  std::unique_ptr<rpc::StreamWire> wire_;
};

// The interceptors behind one, and the call itself.
class ClientNext {
 public:
  // Runs them, and returns when the call has ended: blocks the fiber (or the
  // thread). May be run again: that is another call, with the request of the
  // first and a timeout of its own; of a streaming call only if it has failed
  // before it began.
  virtual void Run() = 0;

 protected:
  ~ClientNext() = default;
};

// Used by many calls at the same time.
class ClientInterceptor {
 public:
  virtual ~ClientInterceptor() = default;

  // Runs on the caller's fiber, or thread, for calls that block; else on a
  // fiber of its own, for which the request is copied. In the execution context
  // of the caller. Time that passes before next.Run() isn't part of the call's
  // timeout.
  //
  // A streaming call has a fiber of its own for the interceptors, too. Its
  // caller reads and writes once next.Run() has begun the call, and next.Run()
  // returns when the last message has come, or the call has failed. So outcome
  // and metadata can be seen then, and not be changed; controller() isn't the
  // caller's, but has its options.
  virtual void Intercept(ClientInterceptedCall& call, ClientNext& next) = 0;
};

// --- Requests of HttpClients (http_client.h), by extensions (extension.h) ---

// Sends the request, with its redirections.
using HttpClientNext = std::function<Expected<HttpResponse>()>;

// Thread-safe.
class HttpClientInterceptor {
 public:
  virtual ~HttpClientInterceptor() = default;

  // A request to `server`, "https://example.com": has its method, its body and
  // all fields but those that the client itself writes; fields may be added.
  // Returns the result of next(), which is called once at most, or another one.
  // On the fiber (or thread) of the request; may block.
  virtual Expected<HttpResponse> Intercept(const std::string& server,
                                           HttpRequest* request,
                                           const HttpClientNext& next) = 0;
};

}  // namespace flare

#endif  // FLARE_RPC_INTERCEPTOR_H_
