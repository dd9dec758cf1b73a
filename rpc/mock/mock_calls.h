// Mocks for tests of code that calls services: a test says how methods answer,
// and no server, connection or socket is needed.
//
//   flare::testing::MockRpcChannel channel;      // For code that takes a stub
//   channel.Answer("example.Echo.Get", response);   // or a channel.
//   EchoUser user(&channel);
//   EXPECT_TRUE(user.Refresh());
//   EXPECT_EQ(channel.Requests<GetRequest>("example.Echo.Get")[0].key(), "a");
//
//   flare::testing::MockAllChannels mock;        // For code that opens one by
//   mock.Answer("example.Echo.Get", response);   // itself, to any address.
//   EchoUser user("flare://echo.example.com:80");
//
// Whole services can answer, too, say one with methods of gmock (MOCK_METHOD):
//
//   StrictMock<MockEcho> echo;                   // : SyncEcho
//   channel.Serve(&echo);
//   EXPECT_CALL(echo, Get(_, _, _)).WillOnce(...);
//
// Calls are the usual ones in all forms: blocking, with a future or `done`,
// streaming. Timeouts, StartCancel(), execution contexts, attachments, metadata
// and raw bytes work as with a server. A call that nothing answers fails with
// STATUS_METHOD_NOT_FOUND and "no answer was set for example.Echo.Get", which
// is logged, too. docs/testing.md has an example.
//
// A mock replaces the whole call: there are no attempts, so no retries and
// policies, and no wire format, compression and credentials. Tests of those
// need a server.
#ifndef FLARE_RPC_MOCK_MOCK_CALLS_H_
#define FLARE_RPC_MOCK_MOCK_CALLS_H_

#include <google/protobuf/message.h>
#include <google/protobuf/service.h>

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "flare/rpc/extension.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/mock/mock_answer.h"
#include "flare/rpc/rpc_channel.h"

namespace flare::testing {

// The common part of both mocks. Methods are named "package.Service.Method". A
// name that generated code of the program doesn't have, and an answer of
// another type than the method's, end the process with a message.
//
// Thread-safe. Nothing blocks, except the destructor.
class MockCalls {
 public:
  // How calls of `method` are answered from here on.
  void Answer(std::string_view method, MockAnswer answer);
  // How the next one is, once; before the answer of Answer(). Several are used
  // in their order.
  void AnswerOnce(std::string_view method, MockAnswer answer);
  // Has `service`, of generated code, answer calls of its methods that have no
  // answer of their own. Borrowed: it must outlive the mock.
  void Serve(google::protobuf::Service* service);

  // Calls of `method` that have come, answered or not.
  std::size_t CountCalls(std::string_view method) const;
  // Their requests, in order, unless the method's clients stream. `Request` is
  // the method's.
  template <class Request>
  std::vector<Request> Requests(std::string_view method) const {
    std::vector<Request> requests;
    for (const auto& request : RequestsOf(method, Request::descriptor())) {
      requests.push_back(static_cast<const Request&>(*request));
    }
    return requests;
  }

 protected:
  MockCalls();
  // Calls fail from here on. Waits for functions and services that still answer
  // one, and until functions and their captures are destroyed, though its
  // caller may not wait any more: controllers tell them so (IsCanceled(),
  // GetStopToken()). Blocks the fiber (or thread).
  ~MockCalls();
  MockCalls(const MockCalls&) = delete;
  MockCalls& operator=(const MockCalls&) = delete;

  std::shared_ptr<ClientInterceptor> interceptor() const;

 private:
  class State;
  class Interceptor;

  std::vector<std::shared_ptr<const google::protobuf::Message>> RequestsOf(
      std::string_view method, const google::protobuf::Descriptor* type) const;

  const std::shared_ptr<State> state_;
};

// A channel without servers. Must outlive its calls that block.
class MockRpcChannel : public MockCalls, public RpcChannel {
 public:
  MockRpcChannel();
  // Takes the interceptors, which wrap the mock, the timeouts, and
  // `inherits_context`.
  explicit MockRpcChannel(const Options& options);
};

// Answers the calls of all channels that are opened while it lives, whatever
// their URI: host names aren't looked up, except by the resolver "dns".
// Interceptors and policies of such channels don't run for unary calls. One at
// a time.
class MockAllChannels : public MockCalls {
 public:
  MockAllChannels();
  ~MockAllChannels();

 private:
  const InstalledExtension extension_;
};

}  // namespace flare::testing

#endif  // FLARE_RPC_MOCK_MOCK_CALLS_H_
