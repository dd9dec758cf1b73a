// Addresses of servers, as people write them.
#ifndef FLARE_RPC_PIPELINE_SERVER_ADDRESS_H_
#define FLARE_RPC_PIPELINE_SERVER_ADDRESS_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace flare::rpc {

// Reads "cache.example.com", "10.0.0.1:6380" or "[::1]:6380" into `*address`,
// in lower case and with a port. Returns the fault; empty: there is none. Pure.
std::string_view ReadServerAddress(std::string_view text,
                                   std::uint16_t default_port,
                                   std::string* address);

}  // namespace flare::rpc

#endif  // FLARE_RPC_PIPELINE_SERVER_ADDRESS_H_
