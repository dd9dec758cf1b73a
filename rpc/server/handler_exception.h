// Exceptions that leave handlers of a server's users: they are logged, and what
// they were thrown for fails.
#ifndef FLARE_RPC_SERVER_HANDLER_EXCEPTION_H_
#define FLARE_RPC_SERVER_HANDLER_EXCEPTION_H_

#include <string>

namespace flare::rpc {

// In a `catch (...)`: logs that the exception has left `handler` ("method
// a.B.C"), at most one per second, without control characters and what isn't
// UTF-8, and returns what it was, as in
// "std::runtime_error: no such picture". What ends a thread (pthread_exit,
// pthread_cancel) comes by there, too, and is let go on: this doesn't return.
std::string TakeHandlerException(const std::string& handler);

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_HANDLER_EXCEPTION_H_
