// A streaming call through the interceptors of a channel (interceptor.h).
#ifndef FLARE_RPC_CLIENT_INTERCEPTED_STREAM_H_
#define FLARE_RPC_CLIENT_INTERCEPTED_STREAM_H_

#include <memory>

#include "flare/base/ref_ptr.h"
#include "flare/rpc/client/intercepted_call.h"
#include "flare/rpc/client/stream_opener.h"
#include "flare/rpc/stream/call_stream.h"

namespace flare::rpc {

// As StreamOpener::Open(). The interceptors run on a fiber of their own, which
// goes on until the call has ended. Returns when the call has begun, or the
// interceptors have returned without that.
RefPtr<CallStream> OpenInterceptedStream(
    const std::shared_ptr<const ClientInterceptors>& interceptors,
    const StreamOpener::Arguments& arguments);

}  // namespace flare::rpc

#endif  // FLARE_RPC_CLIENT_INTERCEPTED_STREAM_H_
