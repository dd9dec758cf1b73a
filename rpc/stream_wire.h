// Between a call's messages and the wire format that carries them: a protocol's
// events for the stream of a call (StreamReceiver), its output (StreamWire),
// and where that goes (StreamOutput). No IO and no fibers.
//
// The callers:
//   the connection's reader -> protocol's Cut() -> StreamReceiver
//   the call's fibers       -> StreamWire       -> StreamOutput
#ifndef FLARE_RPC_STREAM_WIRE_H_
#define FLARE_RPC_STREAM_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

// How many bytes of messages a stream takes that nobody has read yet.
struct StreamWindow {
  static constexpr std::size_t kInitial = 64 << 10;
  // While the reader is faster than the input, the window grows up to this.
  static constexpr std::size_t kMax = 1 << 20;
  // A message's charge beside its bytes.
  static constexpr std::size_t kPerMessage = 32;
};

// The messages of one call that come from the peer. All functions are called by
// the connection's reader, one at a time, except OnReset() and OnCredit(),
// which may come at any time, from any thread. None blocks; all may be called
// after the end, and do nothing then.
class StreamReceiver : public RefCounted<StreamReceiver> {
 public:
  virtual ~StreamReceiver() = default;

  // The next message, in the protocol's format. `last`: no other one follows.
  virtual void OnMessage(Buffer&& message, bool last) = 0;
  // The next message, compressed; others or OnEnd() follow. It counts for the
  // window as it came, and is unpacked when it is read: the call fails then if
  // it is corrupt, or larger than `max_size` bytes.
  virtual void OnCompressed(Buffer&& /*message*/,
                            CompressionAlgorithm /*algorithm*/,
                            std::size_t /*max_size*/) {
    OnReset(flare::Status(STATUS_NOT_SUPPORTED,
                          "this stream takes no compressed messages"));
  }
  // The beginning of the next message, or its continuation; others or
  // OnMessage(), with its last part, follow.
  virtual void OnPart(Buffer&& /*part*/) {
    OnReset(flare::Status(STATUS_NOT_SUPPORTED,
                          "this stream takes no messages in parts"));
  }
  // No message follows. On a client `status` is how the call ended. On a server
  // it is OK.
  virtual void OnEnd(const flare::Status& status) = 0;
  // The peer takes so many bytes of messages more. Messages before the first
  // OnCredit() are unlimited where the protocol has no credits.
  virtual void OnCredit(std::size_t bytes) = 0;
  // For a wire without has_credits(): the peer takes so many bytes of messages,
  // counted from the first one, and more by OnCredit(); and it heeds the
  // credits that it is sent. Once at most.
  virtual void OnWindow(std::size_t /*bytes*/) {}
  // For a client: metadata of the server, before its first message or right
  // before the end. Entries of several calls add up.
  virtual void OnMetadata(std::unique_ptr<Metadata> /*metadata*/) {}
  // The call is over without an end: the peer has given it up, or is gone.
  virtual void OnReset(const flare::Status& why) = 0;
  // ... as the next message is larger than this side takes.
  virtual void OnTooLarge(const flare::Status& why) { OnReset(why); }
  // For a client: the server didn't look at the call. True: it begins again on
  // another wire. False: it ends, as OnEnd() or OnReset() is to tell.
  virtual bool OnUnprocessed() { return false; }
  // For a server: the call isn't served, and nothing of the connection is used
  // any more.
  virtual void Drop() = 0;
  // No message follows, though the peer hasn't said so; it can still be sent
  // the rest.
  virtual void OnInputLost(const flare::Status& why) = 0;
};

// Where a connection takes the output of streams. Any thread; doesn't block.
class StreamOutput {
 public:
  // Queues bytes. False: the connection is closed, or about to be.
  virtual bool WriteSoon(Buffer&& bytes) = 0;
  // Closes the connection at once.
  virtual void Abort(const flare::Status& why) = 0;
  // Between the two no more is read off the connection, as one of its streams
  // is full, whose protocol has no credits. Counted.
  virtual void HoldInput() = 0;
  virtual void ReleaseInput() = 0;
  // Tells that something of the connection that waits, to be sent or to be
  // read, holds `after` bytes in place of `before`.
  virtual void CountHeld(std::size_t /*before*/, std::size_t /*after*/) {}
  // For a client: ClientProtocol::SendDelayed() is called a second from now, if
  // the connection is open then.
  virtual void SendLater() {}

 protected:
  ~StreamOutput() = default;
};

// The other direction of one call. One function at a time; none blocks or calls
// back. Dropped when the call needs it no more: later messages of the call are
// then passed over by the protocol.
class StreamWire {
 public:
  virtual ~StreamWire() = default;

  // From here on `receiver` is told the input. Once, before all others. False:
  // the connection is closed.
  virtual bool Begin(RefPtr<StreamReceiver> receiver) = 0;
  // For a server: the call isn't refused, and its method runs next. Once at
  // most, before anything is sent.
  virtual void Accept() {}
  // Takes *body. `last`: nothing follows in this direction; the call succeeded,
  // as far as a server is asked. False: the connection is closed.
  virtual bool SendMessage(OutboundBody&& body, bool last) = 0;
  // Messages may be compressed by `algorithm`. At most once, before the first
  // message, of a client before Begin(). False: they can't, as the protocol or
  // the client doesn't know it.
  virtual bool UseCompression(CompressionAlgorithm /*algorithm*/) {
    return false;
  }
  // SendMessage() of a message that is compressed by the algorithm of
  // UseCompression().
  virtual bool SendCompressed(Buffer&& /*body*/, bool /*last*/) {
    return false;
  }
  // Nothing follows in this direction. On a server `status` is the call's.
  virtual bool SendEnd(const flare::Status& status) = 0;
  // The peer is told, as far as the protocol allows, that the call is given up.
  // Messages that wait for its window needn't be sent.
  virtual void SendReset(const flare::Status& why) = 0;
  // So many bytes of messages have left since the last call, which count as
  // OnCredit(). Asked behind SendMessage().
  virtual std::size_t TakeCredit() { return 0; }
  // So many bytes (StreamWindow::kPerMessage included) were read: the peer may
  // send as many again. Without credits nothing is said.
  virtual void SendCredit(std::size_t bytes) = 0;
  // The protocol has credits, and the peer heeds them.
  virtual bool has_credits() const = 0;
  // Whether a stream that is full holds the connection's input (HoldInput()).
  // Else a peer that sends more than it may breaks the call.
  virtual bool holds_input() const { return !has_credits(); }
  // For a wire that holds input: so many bytes the peer may send unread all the
  // same, whatever the window says, if it doesn't know that.
  virtual std::size_t unread_allowance() const { return 0; }
  // Credit must be granted before a reader waits, however little it is: the
  // peer's window may be smaller than ours.
  virtual bool grants_when_drained() const { return false; }
  // ... and the protocol itself breaks the call of a peer that doesn't.
  virtual bool enforces_window() const { return false; }
  // For a client: Begin() sends nothing, and neither does the end of a call
  // that has sent no message. So the server knows of none until then.
  virtual bool begins_silently() const { return false; }
  // For a client with credits: the receiver may learn of OnUnprocessed(), and
  // the call may begin again on another wire of the kind.
  virtual bool may_be_unprocessed() const { return false; }
  // For a client with credits, behind Begin(): the bytes that the server takes
  // before it grants more.
  virtual std::size_t send_window() const { return StreamWindow::kInitial; }
  // A message's charge beside its bytes, where there are credits.
  virtual std::size_t message_cost() const { return StreamWindow::kPerMessage; }
  virtual void HoldInput() = 0;
  virtual void ReleaseInput() = 0;

  // For a server: metadata for the client, which isn't used after the return.
  // kInitial: before the first message, or with it; called once, before that.
  // kTrailing: with the end, which is sent next. False: the protocol can't
  // carry any there.
  enum class MetadataPlace { kInitial, kTrailing };
  virtual bool AddMetadata(MetadataPlace /*place*/,
                           const Metadata& /*metadata*/) {
    return false;
  }
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_STREAM_WIRE_H_
