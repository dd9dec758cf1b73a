// The way of a handler to another protocol (HttpBodyWriter::upgrade()).
//
//   auto link = upgrade->Prepare();
//   if (!link) return Refuse(link.error());
//   auto session = MakeSession(*link);            // An HttpTunnelReceiver.
//   Status switched = upgrade->Switch(fields, session);
//   ...                                           // Until the handler returns.
#ifndef FLARE_RPC_HTTP_HTTP_UPGRADE_H_
#define FLARE_RPC_HTTP_HTTP_UPGRADE_H_

#include "flare/base/expected.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/http/http_tunnel.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/stream_wire.h"

namespace flare {

namespace io {
class StreamConnection;
}  // namespace io

namespace rpc {

// For the handler of one request, on its fiber, while it runs.
class HttpUpgrade {
 public:
  // The connection, for output and the hold of input. `output` is there until
  // the handler returns.
  struct Link {
    io::StreamConnection* connection;
    StreamOutput* output;
  };

  // Switch() must follow, unless it throws. Takes the place of a streaming
  // call, which is given back when the handler returns. Fails, upon which the
  // handler is to answer, with STATUS_NOT_SUPPORTED (the request doesn't ask
  // for it, or came over HTTP/2), STATUS_OVERLOADED, STATUS_OUT_OF_SERVICE (the
  // server stops) or STATUS_MALFORMED_DATA (the client hasn't waited for the
  // answer).
  virtual Expected<Link, flare::Status> Prepare() = 0;
  // Answers 101 with `fields`; from then on `receiver` gets the input, and the
  // response isn't looked at. Blocks while earlier replies are sent. Fails if
  // the connection is closed.
  virtual flare::Status Switch(const HttpHeaders& fields,
                               RefPtr<HttpTunnelReceiver> receiver) = 0;

 protected:
  ~HttpUpgrade() = default;
};

}  // namespace rpc
}  // namespace flare

#endif  // FLARE_RPC_HTTP_HTTP_UPGRADE_H_
