// Servers by DNS, asked through the C library's resolver.

#ifndef FLARE_RPC_NAMING_DNS_QUERY_H_
#define FLARE_RPC_NAMING_DNS_QUERY_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/name_resolution.h"

namespace flare::rpc {

// The question, and the server to ask.
struct DnsQuestion {
  // An IPv4 address. None: those in /etc/resolv.conf.
  std::optional<Endpoint> name_server;
  std::string name;
  // None: the ports are in the name's SRV records.
  std::optional<std::uint16_t> port;
};

// Reads "echo.example.com:5567" (addresses) or "_echo._tcp.example.com" (SRV
// records), each maybe behind the name server's address, as in
// "10.0.0.53:8600/echo.example.com:5567". Fails with a text that says the
// fault. Doesn't block.
Expected<DnsQuestion, flare::Status> ReadDnsQuestion(std::string_view text);

struct DnsAnswer {
  std::vector<Peer> peers;
  // For so long they are good, by all records that led to them.
  std::chrono::seconds time_to_live{0};
};

// All addresses, IPv4 and IPv6; with SRV records those of the targets that are
// to be used first, 64 at most, with their weights. At least one. Blocks the
// thread for as long as name servers take; no query begins after `limit`, and
// the last one takes half a minute if they don't answer. Needs more stack than
// a fiber has. Errors: no such name, no answer; the text has both.
Expected<DnsAnswer, flare::Status> AskDns(
    const DnsQuestion& question,
    std::chrono::nanoseconds limit = std::chrono::seconds(30));

}  // namespace flare::rpc

#endif  // FLARE_RPC_NAMING_DNS_QUERY_H_
