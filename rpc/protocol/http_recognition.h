// Whether bytes are HTTP: one port speaks many protocols.
#ifndef FLARE_RPC_PROTOCOL_HTTP_RECOGNITION_H_
#define FLARE_RPC_PROTOCOL_HTTP_RECOGNITION_H_

#include <cstddef>

#include "flare/base/buffer.h"
#include "flare/rpc/protocol.h"

namespace flare::rpc {

// kMessage if `in` begins with an HTTP request, perhaps incomplete; kUnsure if
// there are too few bytes to tell, and kNeedMore if there is none; else
// kNotMine. Passes over empty lines in front of it: some clients end a body
// with one that isn't counted.
//
// `spoken_limit`: 0 for the first message of a connection, which may be another
// protocol's, and in front of which few empty lines are tolerated. Behind
// requests, how long a request line may be: if it is longer it is HTTP, too,
// and to be refused.
CutResult FindHttpRequest(Buffer& in, std::size_t spoken_limit);

// Whether a response may begin so. What can't is told by its first bytes, not
// by the end of a head that never comes: an SSH server, say, greets and waits.
bool MayBeHttpResponse(const Buffer& in);

// Whether `in` begins with a request of the method HEAD.
bool BeginsWithHead(const Buffer& in);

}  // namespace flare::rpc

#endif  // FLARE_RPC_PROTOCOL_HTTP_RECOGNITION_H_
