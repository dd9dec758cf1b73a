// Whether bytes are HTTP: one port speaks many protocols.
#ifndef FLARE_RPC_PROTOCOL_HTTP_RECOGNITION_H_
#define FLARE_RPC_PROTOCOL_HTTP_RECOGNITION_H_

#include <cstddef>

#include "flare/base/buffer.h"
#include "flare/rpc/protocol.h"

namespace flare::rpc {

// kMessage if `in` begins with an HTTP request, perhaps incomplete; kUnsure if
// there are too few bytes to tell; else kNotMine. *empty_lines is the size of
// the empty lines in front of it, which aren't part of it and of which few are
// tolerated; also if there is nothing else yet.
CutResult RecogniseHttpRequest(const Buffer& in, std::size_t* empty_lines);

// Whether `in` begins with a request of the method HEAD.
bool BeginsWithHead(const Buffer& in);

}  // namespace flare::rpc

#endif  // FLARE_RPC_PROTOCOL_HTTP_RECOGNITION_H_
