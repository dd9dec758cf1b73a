// One kept-alive HTTP connection that carries one request at a time.
//
//   auto* connection = new HttpConnection(peer, group, waiter);
//   connection->Send(request, deadline);   // waiter->OnReply() follows
//   ...
//   connection->Release();
//
// Rules:
//  [HC1] It is used by its owner until Release() and by its stream until
//        OnClosed() has run; the last one to leave deletes it.
//  [HC2] A request is ended by OnData() or OnClosed(), which exclude each
//        other, after having cleared waiting_, so it ends once.
//  [HC3] The timer is armed together with setting waiting_, and cancelled
//        before that is cleared, all under lock_, which the timer's callback
//        doesn't take: it only closes the stream.
//  [HC4] Once OnClosed() has run no request is taken; the owner makes a new
//        connection. A connection that ends with a reply ends the request in
//        OnClosed(), so that the owner finds it closed.

#ifndef EXAMPLE_RPC_HTTP_CONNECTION_H_
#define EXAMPLE_RPC_HTTP_CONNECTION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/event.h"
#include "flare/fiber/timer.h"
#include "flare/io/stream_connection.h"
#include "flare/io/transport.h"
#include "flare/rpc/http/http_response_reader.h"

namespace example {

struct HttpReply {
  // If not OK, there was none; the code is one of flare::rpc::Status.
  flare::Status failure;
  int status = 0;      // 200
  std::string reason;  // "OK"
  flare::Buffer body;
};

class HttpConnection final : private flare::io::StreamHandler,
                             private flare::fiber::Timer {
 public:
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // The request has ended. On a worker; must not block. May call Send() of
    // this or another connection, and Release().
    virtual void OnReply(HttpReply reply) = 0;
  };

  // For one owner. Begins to connect with the first request. `waiter` must
  // live until Release(). Null `transport`: without TLS.
  HttpConnection(const flare::Endpoint& peer, std::size_t group, Waiter* waiter,
                 std::unique_ptr<flare::io::Transport> transport);

  // Sends a request, all of its bytes; not while another is under way. False:
  // the connection has closed meanwhile, nothing will happen. Fails at
  // `deadline_ns` with STATUS_TIMEOUT, and closes the connection. Any thread;
  // doesn't block.
  [[nodiscard]] bool Send(const flare::Buffer& request,
                          std::int64_t deadline_ns);

  // The owner is through with it, and no request is under way.
  void Release();
  // Releases it after having closed it; blocks the fiber until that has
  // happened.
  void CloseAndRelease();

 private:
  ~HttpConnection() override;

  void OnConnected() override;
  bool OnData(flare::Buffer& in, std::size_t* need,
              std::string* error) override;
  void OnClosed(const flare::Status& why) override;

  flare::Status Failure(const flare::Status& why) const;

  Waiter* const waiter_;
  flare::RefPtr<flare::io::StreamConnection> stream_;
  std::atomic<int> users_{2};  // [HC1]

  // For the stream's callbacks.
  bool connected_ = false;
  flare::rpc::HttpResponseReader reader_;
  std::string scratch_;
  bool has_last_reply_ = false;  // [HC4]
  HttpReply last_reply_;

  flare::Spinlock lock_;
  bool started_ FLARE_GUARDED_BY(lock_) = false;
  bool waiting_ FLARE_GUARDED_BY(lock_) = false;
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  flare::fiber::Event gone_;  // OnClosed() has run.
};

}  // namespace example

#endif  // EXAMPLE_RPC_HTTP_CONNECTION_H_
