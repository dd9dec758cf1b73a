// A StreamConnection speaks to this in place of its socket: TLS, for instance.
// Connections without one use the socket directly, at the cost of a branch.
//
// Handshake() and Receive() are called in the reader's role, Send() and
// SendEnd() in the flusher's; the two run at the same time on two workers.
// Nothing blocks. Errors are those of the system calls that each function
// replaces: -1 and errno.
#ifndef FLARE_IO_TRANSPORT_H_
#define FLARE_IO_TRANSPORT_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "flare/base/status.h"
#include "flare/io/tls_options.h"

namespace flare::io {

class Handshakes;

class Transport {
 public:
  enum class Progress { kDone, kWaiting, kFailed };

  virtual ~Transport() = default;

  // The socket, before anything else. It stays the caller's.
  virtual void Attach(int fd) = 0;

  // Goes on with the handshake. Called again at each event of the socket,
  // until it is done or failed.
  virtual Progress Handshake() = 0;
  // How long it may take in all, in ns; 0: as long as it likes.
  virtual std::int64_t handshake_timeout_ns() const = 0;
  // Those among which this one takes turns; they live as long as the transport.
  // Null: none.
  virtual Handshakes* handshakes() const { return nullptr; }

  // Receives as recv(2). Less than there is room for: all that had arrived was
  // taken, unless HasMore(). EPROTO: see failure(). EINTR: the bytes that
  // were taken have brought none for the caller; there may be more, for its
  // next turn.
  virtual ssize_t Receive(const iovec* pieces, int count) = 0;
  // The next Receive() may have something to tell, whatever the socket says.
  virtual bool HasMore() const = 0;
  // The bytes that the last Receive() has taken off the socket. They are its
  // work, however few came out of them.
  virtual std::size_t taken() const = 0;
  // The end that Receive() told came from the network, not from the peer's
  // session: the bytes that the peer sent before may be cut short.
  virtual bool cut_short() const = 0;

  // Sends as sendmsg(2); flags: 0, or MSG_MORE if more, or the end, is sent
  // next. The bytes that it doesn't take must be the beginning of the next
  // call.
  virtual ssize_t Send(const iovec* pieces, std::size_t count, int flags) = 0;
  // Tells the peer's session that nothing follows. 0: done; the caller ends the
  // socket's output next, for which the last bytes may wait. Also called by the
  // closer of the connection, if nothing waits to be sent.
  virtual ssize_t SendEnd() = 0;
  virtual bool end_sent() const = 0;

  // Why Handshake() or Receive() failed.
  virtual Status failure() const = 0;

  // Null: the peer has shown no certificate. Constant once the handshake is
  // done; lives as long as the transport.
  virtual const PeerIdentity* peer_identity() const = 0;

  // The protocol that both sides have agreed on (ALPN); empty: none. As
  // peer_identity().
  virtual std::string_view alpn() const { return {}; }
};

}  // namespace flare::io

#endif  // FLARE_IO_TRANSPORT_H_
