// A streaming call's two ends within one process: each wire's output is the
// other one's input, without bytes of a protocol and without a connection.
//
//   LocalPipe pipe = MakeLocalPipe();
//   server->Start(std::move(pipe.server), nullptr);  // CallStreams
//   client->Start(std::move(pipe.client), nullptr);
//
// Messages wait for their reader as over a protocol with credits. An end that
// is dropped before the call's end breaks the call at the other one.
#ifndef FLARE_RPC_MOCK_LOCAL_PIPE_H_
#define FLARE_RPC_MOCK_LOCAL_PIPE_H_

#include <memory>

#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

struct LocalPipe {
  std::unique_ptr<StreamWire> server;  // Begins first.
  std::unique_ptr<StreamWire> client;
};

// Needs a running fiber runtime, whose fibers bring the messages.
LocalPipe MakeLocalPipe();

}  // namespace flare::rpc

#endif  // FLARE_RPC_MOCK_LOCAL_PIPE_H_
