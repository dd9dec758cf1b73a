// Reflection by grpc.reflection.v1 and v1alpha: clients such as grpcurl list
// the services of a server, and fetch descriptions of their messages, so that
// they can call methods without .proto files.
//
//   flare::AddReflection(&server);  // Before Start().
//
// Callers can read the descriptions of the .proto files that define the
// server's services, of all files that these import, and of those that extend
// their messages. Other files of the program stay hidden.

#ifndef FLARE_RPC_SERVICES_REFLECTION_H_
#define FLARE_RPC_SERVICES_REFLECTION_H_

#include "flare/rpc/server.h"

namespace flare {

// Adds services of both versions to `server`, which must not have been started,
// once. They list the services that the server has when it starts. False, as
// AddService(): they were added before, and Start() will fail.
bool AddReflection(Server* server);

}  // namespace flare

#endif  // FLARE_RPC_SERVICES_REFLECTION_H_
