// The end of HTTP on a connection: a request whose handler switches to another
// protocol (WebSocket), as the request asks. The reader creates the tunnel with
// the request, since it must not take bytes behind it for HTTP; the handler
// opens it, or leaves it.
//
//   if (!tunnel->Reserve()) return Refuse();
//   Send101();
//   tunnel->Open(receiver);
//
// The client has to wait for the answer before it sends more. If it doesn't, it
// is refused.
//
//  [HT1] All is guarded by lock_, except the receiver's OnInput(), which only
//        the reader calls: it takes the receiver under lock_.
//  [HT2] The receiver is told each of its other events once, by the one that
//        finds it there: Open() tells those that came before.
//  [HT3] The reader alone holds the input, in Take(), under lock_ and between
//        Reserve() and Open() or Leave(), which release it.
#ifndef FLARE_RPC_HTTP_HTTP_TUNNEL_H_
#define FLARE_RPC_HTTP_HTTP_TUNNEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

class OwnRequest;

// The other protocol's side of a connection. None of its functions blocks.
class HttpTunnelReceiver : public RefCounted<HttpTunnelReceiver> {
 public:
  enum class Input {
    kTaken,   // All, or all except an incomplete part.
    kHeld,    // StreamOutput::HoldInput() was called: the rest comes again.
    kBroken,  // *error says why.
  };

  virtual ~HttpTunnelReceiver() = default;

  // Takes bytes off `in`. *need: so many are known to come; 0: unknown. By the
  // connection's reader.
  virtual Input OnInput(Buffer& in, std::size_t* need, std::string* error) = 0;
  // The next input belongs to a part that has begun. By the reader.
  virtual bool WithinMessage() const = 0;
  // Nothing comes any more. `closed`: and nothing can be sent, which may be
  // told later. The first `why` counts. Must not throw.
  virtual void OnEnd(const flare::Status& why, bool closed) = 0;
  // The server stops. Any thread. Must not throw.
  virtual void OnServerStops() {}
};

// The tunnel of a server's connection. Thread-safe; nothing blocks.
class HttpTunnel {
 public:
  // `output` must outlive it. `request`: the one that asks for it.
  HttpTunnel(StreamOutput* output, const OwnRequest* request)
      : output_(output), request_(request) {}

  StreamOutput* output() const { return output_; }
  // Whether it is for `request`: earlier ones are on their way, too.
  bool IsFor(const OwnRequest* request) const { return request == request_; }

  // --- The handler's ---

  enum class Reserved {
    kYes,       // The peer is told next, and then Open() called.
    kStopping,  // The server stops.
    kEnded,     // The input has ended.
    kTooEarly,  // The client didn't wait.
  };
  [[nodiscard]] Reserved Reserve() {
    ScopedLock guard(lock_);
    if (stopping_) return Reserved::kStopping;
    if (ended_) return Reserved::kEnded;
    if (early_) return Reserved::kTooEarly;
    reserved_ = true;
    return Reserved::kYes;
  }
  void Open(const RefPtr<HttpTunnelReceiver>& receiver) {
    bool stopping = false;
    bool closed = false;
    flare::Status end;
    {
      ScopedLock guard(lock_);
      receiver_ = receiver;
      stopping = stopping_;  // [HT2]
      closed = closed_;
      end = end_;
      if (std::exchange(holding_, false)) output_->ReleaseInput();  // [HT3]
    }
    if (stopping) receiver->OnServerStops();
    if (!end.ok()) receiver->OnEnd(end, closed);
  }
  // Reserve() was in vain: all input is dropped.
  void Leave() {
    ScopedLock guard(lock_);
    reserved_ = false;
    if (std::exchange(holding_, false)) output_->ReleaseInput();  // [HT3]
  }
  bool opened() {
    ScopedLock guard(lock_);
    return receiver_ != nullptr;
  }

  // --- The reader's ---

  HttpTunnelReceiver::Input Take(Buffer& in, std::size_t* need,
                                 std::string* error) {
    if (HttpTunnelReceiver* const receiver = ReceiverFor(in)) {
      return receiver->OnInput(in, need, error);
    }
    return in.empty() ? HttpTunnelReceiver::Input::kTaken
                      : HttpTunnelReceiver::Input::kHeld;
  }
  bool WithinMessage() const {
    return known_ != nullptr && known_->WithinMessage();
  }

  // --- Any thread ---

  void End(const flare::Status& why, bool closed) {
    RefPtr<HttpTunnelReceiver> receiver;
    {
      ScopedLock guard(lock_);
      closed_ = closed_ || closed;
      if (!std::exchange(ended_, true)) end_ = why;
      receiver = receiver_;
    }
    if (receiver != nullptr) receiver->OnEnd(why, closed);
  }
  // The server stops. True: the peer is told, by the other protocol.
  bool Stop() {
    RefPtr<HttpTunnelReceiver> receiver;
    bool reserved = false;
    {
      ScopedLock guard(lock_);
      if (!std::exchange(stopping_, true)) receiver = receiver_;
      reserved = reserved_;
    }
    if (receiver != nullptr) receiver->OnServerStops();
    return reserved;
  }

 private:
  // Null: nobody takes `in`, which is held, or dropped.
  HttpTunnelReceiver* ReceiverFor(Buffer& in) {
    if (known_ != nullptr) return known_;
    ScopedLock guard(lock_);
    if (receiver_ != nullptr) return known_ = receiver_.Get();
    if (!reserved_) {
      early_ = !in.empty();
      in.Clear();
    } else if (!std::exchange(holding_, true)) {
      output_->HoldInput();  // [HT3]
    }
    return nullptr;
  }

  StreamOutput* const output_;
  const OwnRequest* const request_;
  HttpTunnelReceiver* known_ = nullptr;  // The reader's: receiver_, once set.
  Spinlock lock_;
  RefPtr<HttpTunnelReceiver> receiver_ FLARE_GUARDED_BY(lock_);
  flare::Status end_ FLARE_GUARDED_BY(lock_);
  bool reserved_ FLARE_GUARDED_BY(lock_) = false;
  bool early_ FLARE_GUARDED_BY(lock_) = false;  // Bytes came before Reserve().
  bool stopping_ FLARE_GUARDED_BY(lock_) = false;
  bool ended_ FLARE_GUARDED_BY(lock_) = false;
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  bool holding_ FLARE_GUARDED_BY(lock_) = false;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_TUNNEL_H_
