// The sockets that a service manager has opened for this process: systemd's
// socket activation, and others that speak its protocol (LISTEN_FDS).
//
//   auto sockets = flare::TakeActivatedSockets("echo");
//   if (!sockets) return Complain(sockets.error());
//   if (sockets->empty()) {
//     server.ListenOn(address);
//   } else {
//     server.AdoptSockets(*std::move(sockets));
//     server.LeaveSockets();  // They outlive the process.
//   }
//
// docs/hand_over.md has a unit for systemd.
#ifndef FLARE_RPC_SOCKET_ACTIVATION_H_
#define FLARE_RPC_SOCKET_ACTIVATION_H_

#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"

namespace flare {

// Those of that name (FileDescriptorName= in a unit), or all if it is empty.
// Empty if the process wasn't started for sockets (LISTEN_PID is another one's,
// or missing), or they were taken before. They are closed when this process
// starts another program. Errors: none has that name, LISTEN_FDS is no number,
// or a descriptor isn't open. Any thread; doesn't block. Reads the environment:
// not while another thread changes that.
Expected<std::vector<io::UniqueFd>, Status> TakeActivatedSockets(
    std::string_view name = {});

}  // namespace flare

#endif  // FLARE_RPC_SOCKET_ACTIVATION_H_
