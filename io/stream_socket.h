// The socket of a stream connection, as the connection's parts know it.
#ifndef FLARE_IO_STREAM_SOCKET_H_
#define FLARE_IO_STREAM_SOCKET_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "flare/base/endpoint.h"
#include "flare/base/status.h"
#include "flare/io/descriptor.h"
#include "flare/io/fd.h"
#include "flare/io/transport.h"

namespace flare::io {

class StreamSocket : public Descriptor {
 public:
  // Null: bytes are those of the socket itself.
  Transport* transport() const noexcept { return transport_.get(); }
  // The scheduling group whose poller watches the socket.
  std::size_t group() const noexcept { return group_; }
  // The peer.
  const Endpoint& remote_endpoint() const noexcept { return remote_; }

  // Closes the connection; the first `why` wins. Any thread; doesn't block.
  virtual void Close(Status why) = 0;

 protected:
  StreamSocket(UniqueFd fd, std::size_t group, Endpoint remote,
               std::unique_ptr<Transport> transport)
      : Descriptor(std::move(fd)),
        group_(group),
        remote_(std::move(remote)),
        transport_(std::move(transport)) {}

 private:
  const std::size_t group_;
  const Endpoint remote_;
  const std::unique_ptr<Transport> transport_;
};

}  // namespace flare::io

#endif  // FLARE_IO_STREAM_SOCKET_H_
