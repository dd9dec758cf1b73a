// The method as which calls of a GenericStub go out, and as which a server
// counts those that its GenericService gets.
#ifndef FLARE_RPC_GENERIC_METHOD_H_
#define FLARE_RPC_GENERIC_METHOD_H_

#include <google/protobuf/descriptor.h>

namespace flare::rpc {

// "flare.rpc.Generic", whose one method, Call, has empty messages. Lives as
// long as the program. Any thread.
const google::protobuf::ServiceDescriptor* GenericServiceDescriptor();
const google::protobuf::MethodDescriptor* GenericMethod();

}  // namespace flare::rpc

#endif  // FLARE_RPC_GENERIC_METHOD_H_
