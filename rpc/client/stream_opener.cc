#include "flare/rpc/client/stream_opener.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/function.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/task.h"
#include "flare/rpc/channel_credentials.h"
#include "flare/rpc/client/call_counters.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/client/context_stop.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

// A stream belongs to the call in whose context it was opened.
struct FailWithContext {
  RefPtr<CallStream> stream;
  fiber::ExecutionContext* context;
  void operator()() const {
    // Its deadline is the stream's, whose own timer says so.
    if (context->stop_cause() == fiber::StopCause::kDeadline &&
        context->deadline_ns() != 0) {
      return;
    }
    stream->Fail(ContextEnded(*context));
  }
};

// The time left until then, as sent to the server; 0: no limit.
std::uint32_t TimeoutOnWire(std::int64_t deadline_ns, std::int64_t now_ns) {
  if (deadline_ns == CallStream::kNever) return 0;
  const std::int64_t ms = (deadline_ns - now_ns - 1) / kNsPerMs + 1;
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(
      ms, 1, std::numeric_limits<std::uint32_t>::max()));
}

// Keeps a connection that has another user yet.
class Use {
 public:
  explicit Use(ClientConnection* connection) : connection_(connection) {
    connection->AddUser();
  }
  ~Use() { connection_->RemoveUser(); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  ClientConnection* const connection_;
};

// Tells the server's health of the end. How long a stream takes is the
// service's affair, and so is how one ends that the server has answered:
// Route::OnAnswered() has counted it. `closed`: why the connection was, if so.
void EndCounted(Route::Choice* choice, const CallStream::Ending& ending,
                const flare::Status& closed, std::int64_t began_ns) {
  // The stream says STATUS_IO_ERROR also of one that hasn't come about.
  const int status =
      ending.by == CallStream::EndedBy::kConnection && !closed.ok()
          ? closed.code()
          : ending.status;
  const bool by_us = ending.by == CallStream::EndedBy::kUs;
  const bool known =
      !ending.answered && !by_us && ending.status != STATUS_OVERLOADED;
  if (ending.answered) choice->probe = 0;
  Route::End(choice, status,
             ending.by == CallStream::EndedBy::kServer ? Route::Ending::kReply
                                                       : Route::Ending::kOther,
             known ? std::max<std::int64_t>(0, NowNs() - began_ns) : -1);
}

// Connections on which a call tries to begin, while they turn out to be ended.
constexpr int kMaxTries = 3;

// Gives back the connection, and the choice of its server.
Function<void(const CallStream::Ending&)> ReleaseOf(
    ClientConnection* connection, const Route::Choice& choice,
    std::int64_t began_ns) {
  return [connection, choice, began_ns](const CallStream::Ending& ending) {
    Route::Choice counted = choice;
    if (counted.counted()) {
      EndCounted(&counted, ending, connection->close_reason(), began_ns);
    }
    connection->CloseIfThrough();
    connection->Release(/*clean=*/false);
  };
}

flare::Status TooLate() {
  return flare::Status(STATUS_TIMEOUT,
                       "the deadline had passed before the stream was opened");
}

flare::Status NotOneWay() {
  return flare::Status(STATUS_NOT_SUPPORTED, "streaming calls aren't one-way");
}

flare::Status TakesNoCalls() {
  return flare::Status(STATUS_OUT_OF_SERVICE,
                       "the server takes no further calls on this connection");
}

// Begins a call again that its server didn't look at. The caller's objects may
// be gone.
struct SecondBegin {
  RefPtr<Route> route;
  // The caller's, for name resolutions and load balancers, as these may be the
  // user's. Null: none.
  RefPtr<fiber::ExecutionContext> context;
  std::string method;
  bool client_streams = false;
  Metadata metadata;  // Without the channel's credential, until Run().
  std::int64_t deadline_ns = 0;
  std::optional<std::uint64_t> balancing_key;
  Route::Choice choice;  // Made before; the next server follows it.

  // Once. A call that can't begin fails.
  void Run(CallStream* stream) {
    const fiber::ExecutionContextScope scope(context);
    try {
      const flare::Status begun = Begin(stream);
      if (!begun.ok()) stream->Fail(begun);
    } catch (const std::bad_alloc&) {
      stream->Fail(flare::Status(STATUS_FAILED));
    }
  }

  flare::Status Begin(CallStream* stream) {
    if (route->credentials() != nullptr) {
      // It may have been renewed.
      flare::Status added = route->credentials()->AddTo(&metadata);
      if (!added.ok()) return added;
    }
    const std::uint64_t* const key = balancing_key ? &*balancing_key : nullptr;
    for (int i = 0; i != kMaxTries; ++i) {
      choice.table = nullptr;
      choice.probe = 0;
      auto acquired = route->AcquireForStream(deadline_ns, key, &choice);
      if (!acquired) return acquired.error();
      if (BeginOn(*acquired, stream)) return {};
    }
    return TakesNoCalls();
  }

  // Takes over the caller's use of the connection, and `choice`, also if it
  // throws. True: no other connection is needed.
  bool BeginOn(ClientConnection* connection, CallStream* stream) {
    const Use use(connection);
    const std::int64_t now = NowNs();
    CallStream::Another another{
        .output = connection->output(),
        .on_answered = Route::OnAnswered(choice),
        .on_detached = ReleaseOf(connection, choice, now)};
    try {
      another.wire = connection->protocol().OpenStream(
          {.method = method,
           .timeout_ms = TimeoutOnWire(deadline_ns, now),
           .client_streams = client_streams,
           .shared = connection->kind() == ConnectionKind::kMultiplexed,
           .metadata = metadata.empty() ? nullptr : &metadata},
          connection);
      if (stream->Restart(&another) || stream->over()) return true;
    } catch (const std::bad_alloc&) {
      another.wire.reset();
      if (another.on_detached) {
        another.on_detached({.by = CallStream::EndedBy::kUs});
      }
      throw;
    }
    if (connection->established()) connection->Retire();
    return false;
  }
};

}  // namespace

CallStream::News StreamOpener::NewsFor(RpcClientController* controller) {
  if (controller == nullptr) return {};
  return [controller](std::unique_ptr<Metadata> metadata,
                      const flare::Status& failure) {
    controller->TakeStreamNews(std::move(metadata), failure);
  };
}

RefPtr<CallStream> StreamOpener::Failed(const flare::Status& why,
                                        RpcClientController* controller) {
  RefPtr<CallStream> stream =
      CallStream::Create({.on_news = NewsFor(controller)});
  stream->Fail(why);
  return stream;
}

// On a fiber, as it may have to wait for a connection.
Function<void(RefPtr<CallStream>)> StreamOpener::BeginAgain(
    const Route::Choice& choice, const Call& call) {
  const Arguments& arguments = *call.arguments;
  auto second = std::make_shared<SecondBegin>();
  second->route = RefPtr<Route>(ref_ptr, arguments.route);
  second->method = arguments.method->full_name();
  second->client_streams = arguments.method->client_streaming();
  second->context = fiber::ExecutionContext::Capture();
  second->metadata = arguments.wishes->bytes().request_metadata;
  second->deadline_ns = call.deadline_ns;
  if (const std::uint64_t* key = arguments.wishes->balancing_key()) {
    second->balancing_key = *key;
  }
  second->choice.peer = choice.peer;
  return [second = std::move(second)](RefPtr<CallStream> stream) {
    try {
      fiber::Spawn([second, stream] { second->Run(stream.Get()); });
    } catch (const std::bad_alloc&) {
      stream->Fail(flare::Status(STATUS_FAILED));
    }
  };
}

// Takes over the caller's use of the connection, and `choice`.
RefPtr<CallStream> StreamOpener::BeginOn(ClientConnection* connection,
                                         const Route::Choice& choice,
                                         const Call& call, Begun* begun) {
  const Arguments& arguments = *call.arguments;
  RpcClientController* const controller = arguments.controller;
  *begun = Begun::kNo;
  auto release = ReleaseOf(connection, choice, call.now_ns);
  auto wire = connection->protocol().OpenStream(
      {.method = arguments.method->full_name(),
       .timeout_ms = TimeoutOnWire(call.deadline_ns, call.now_ns),
       .client_streams = arguments.method->client_streaming(),
       .shared = connection->kind() == ConnectionKind::kMultiplexed,
       .metadata = call.metadata},
      connection);
  if (wire == nullptr) {
    const bool has_streams = connection->protocol().has_streams();
    release({.by = CallStream::EndedBy::kUs});
    return Failed(flare::Status(STATUS_NOT_SUPPORTED,
                                arguments.route->protocol() +
                                    (has_streams ? " has no streams of requests"
                                                 : " has no streaming calls")),
                  controller);
  }
  const bool silent = wire->begins_silently();
  RefPtr<CallStream> stream = CallStream::Create(
      {.format = arguments.route->format(),
       .deadline_ns = call.deadline_ns,
       .on_news = NewsFor(controller),
       .compression = arguments.wishes->GetCompressionAlgorithm(),
       .observer = arguments.observer,
       .metadata = arguments.metadata,
       .on_answered = Route::OnAnswered(choice),
       .on_detached = std::move(release),
       .on_unprocessed = wire->may_be_unprocessed()
                             ? BeginAgain(choice, call)
                             : Function<void(RefPtr<CallStream>)>()});
  if (controller != nullptr) controller->remote_peer_ = connection->peer();
  // The stream may end at once, and with it its use of the connection.
  const Use use(connection);
  const bool started = stream->Start(std::move(wire), connection->output());
  // The server ends the connection, or has no number for a further stream, and
  // knows nothing of the call. If it ends it from here on the connection waits
  // for the stream, which it finds in its table behind refusing calls.
  const bool refused = !started || (silent && connection->calls().closed());
  if (!refused) {
    *begun = Begun::kYes;
    return stream;
  }
  *begun = Begun::kNotConnected;
  if (connection->established()) {
    *begun = Begun::kNotHere;
    connection->Retire();
  }
  flare::Status why = connection->close_reason();
  if (why.ok()) why = TakesNoCalls();
  stream->OnNotBegun(why);
  return stream;
}

std::int64_t StreamOpener::DeadlineOf(const Arguments& arguments,
                                      std::int64_t now_ns,
                                      fiber::ExecutionContext** context) {
  const RpcClientController& wishes = *arguments.wishes;
  const ClientSettings& settings = arguments.route->settings();
  *context = settings.inherits_context && wishes.GetInheritsContext()
                 ? fiber::ExecutionContext::Current()
                 : nullptr;
  return DeadlineIn(*context,
                    wishes.DeadlineFrom(now_ns).value_or(
                        SaturatingAdd(now_ns, ToNs(settings.stream_timeout))));
}

void StreamOpener::Follow(const RefPtr<CallStream>& stream,
                          const Arguments& arguments, std::int64_t deadline_ns,
                          fiber::ExecutionContext* context) {
  if (arguments.controller != nullptr) arguments.controller->BindStream(stream);
  if (context != nullptr) {
    stream->KeepUntilDetached(std::make_shared<ContextStop<FailWithContext>>(
        context, FailWithContext{stream, context}));
  }
  if (arguments.request != nullptr) {
    // If it can't be sent the first read says why.
    static_cast<void>(
        stream->WriteMessage(*arguments.request, /*last=*/true, deadline_ns));
  }
}

RefPtr<CallStream> StreamOpener::OpenOn(std::unique_ptr<StreamWire> wire,
                                        Arguments arguments) {
  RpcClientController* const controller = arguments.controller;
  const std::string& metadata_error = arguments.wishes->bytes().metadata_error;
  if (!metadata_error.empty()) {
    return Failed(flare::Status(STATUS_NOT_SUPPORTED, metadata_error),
                  controller);
  }
  if (arguments.wishes->GetOneWay()) return Failed(NotOneWay(), controller);
  const std::int64_t now = NowNs();
  fiber::ExecutionContext* context = nullptr;
  const std::int64_t deadline = DeadlineOf(arguments, now, &context);
  if (deadline <= now) return Failed(TooLate(), controller);
  RefPtr<CallStream> stream =
      CallStream::Create({.deadline_ns = deadline,
                          .on_news = NewsFor(controller),
                          .observer = std::move(arguments.observer),
                          .metadata = arguments.metadata});
  if (!stream->Start(std::move(wire), /*output=*/nullptr)) {
    stream->OnNotBegun(TakesNoCalls());
    return stream;
  }
  Follow(stream, arguments, deadline, context);
  return stream;
}

RefPtr<CallStream> StreamOpener::Open(Arguments arguments) {
  const std::int64_t now = NowNs();
  const std::uint16_t counters = arguments.route->CountersOf(arguments.method);
  RefPtr<CallStream> stream = Begin(std::move(arguments), now);
  if (counters == MethodCallCounters::kNone) return stream;
  MethodCallCounters::BeginStream(counters);
  stream->SetOnEnded([counters, now](int status) {
    MethodCallCounters::EndStream(counters, status, NowNs() - now);
  });
  return stream;
}

RefPtr<CallStream> StreamOpener::Begin(Arguments arguments, std::int64_t now) {
  Route* const route = arguments.route;
  RpcClientController* const controller = arguments.controller;
  const RpcClientController& wishes = *arguments.wishes;
  const auto fail = [controller](int code, std::string why) {
    return Failed(flare::Status(code, std::move(why)), controller);
  };
  const RpcClientController::Bytes& bytes = wishes.bytes();
  Metadata with_credentials;
  const Metadata& metadata = route->credentials() != nullptr
                                 ? with_credentials
                                 : bytes.request_metadata;
  if (!bytes.metadata_error.empty()) {
    return fail(STATUS_NOT_SUPPORTED, bytes.metadata_error);
  }
  if (wishes.GetOneWay()) return Failed(NotOneWay(), controller);
  if (route->credentials() != nullptr) {
    with_credentials = bytes.request_metadata;
    const flare::Status added = route->credentials()->AddTo(&with_credentials);
    if (!added.ok()) return Failed(added, controller);
  }
  if (!metadata.empty() && !route->traits().metadata) {
    return fail(STATUS_NOT_SUPPORTED,
                route->protocol() + " doesn't carry metadata");
  }
  fiber::ExecutionContext* context = nullptr;
  const std::int64_t deadline = DeadlineOf(arguments, now, &context);
  if (deadline <= now) return Failed(TooLate(), controller);
  const Call call{.arguments = &arguments,
                  .metadata = metadata.empty() ? nullptr : &metadata,
                  .now_ns = now,
                  .deadline_ns = deadline};
  RefPtr<CallStream> stream;
  Begun begun = Begun::kNotHere;
  Route::Choice choice;
  for (int i = 0; i != kMaxTries; ++i) {
    auto acquired =
        route->AcquireForStream(deadline, wishes.balancing_key(), &choice);
    if (!acquired) return Failed(acquired.error(), controller);
    stream = BeginOn(*acquired, choice, call, &begun);
    choice.table = nullptr;  // The stream's release ends it.
    choice.probe = 0;
    const bool again =
        begun == Begun::kNotHere ||
        (begun == Begun::kNotConnected && i == 0 && route->Hopeful());
    if (!again) break;
  }
  if (begun != Begun::kYes) return stream;
  Follow(stream, arguments, deadline, context);
  return stream;
}

}  // namespace flare::rpc
