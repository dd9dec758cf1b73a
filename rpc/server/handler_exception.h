// Exceptions that leave handlers of a server's users: they are logged, and
// their call or request fails.
#ifndef FLARE_RPC_SERVER_HANDLER_EXCEPTION_H_
#define FLARE_RPC_SERVER_HANDLER_EXCEPTION_H_

#include <string>

namespace flare::rpc {

// In a `catch (...)`: logs that the exception has left `handler` ("method
// a.B.C"), at most one per second, without control characters and invalid
// UTF-8, and returns its description, as in "std::runtime_error: no such
// picture". The end of a thread (pthread_exit, pthread_cancel) is caught there,
// too, and goes on: then this doesn't return.
std::string TakeHandlerException(const std::string& handler);

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_HANDLER_EXCEPTION_H_
