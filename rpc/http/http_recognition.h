// Whether bytes are HTTP: one port speaks many protocols.
#ifndef FLARE_RPC_HTTP_HTTP_RECOGNITION_H_
#define FLARE_RPC_HTTP_HTTP_RECOGNITION_H_

#include <cstddef>

#include "flare/base/buffer.h"
#include "flare/rpc/protocol.h"

namespace flare::rpc {

// kMessage if `in` begins with an HTTP request, perhaps incomplete; kUnsure if
// there are too few bytes to tell, and kNeedMore if there is none; else
// kNotMine. Passes over empty lines in front of it: some clients end a body
// with one that isn't counted.
//
// `spoken`: requests came before on this connection. Otherwise this may be
// another protocol's message, so that few empty lines are tolerated in front,
// and an unknown method in a line only that is neither long nor odd.
CutResult FindHttpRequest(Buffer& in, bool spoken);

// Whether a response may begin so. Other input is told by its first bytes, not
// by the end of a head that never comes: an SSH server, say, greets and waits.
bool MayBeHttpResponse(const Buffer& in);

// Whether `in` begins as all connections of HTTP/2 do.
bool BeginsWithHttp2(const Buffer& in);

// Whether `in` begins with a request of the method HEAD.
bool BeginsWithHead(const Buffer& in);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_RECOGNITION_H_
