// Protocols by name.
//
//   auto protocols = rpc::ServerProtocolSet::FromNames({"flare", "http+pb"});
//   if (!protocols) { ...unknown name, protocols.error() lists the known... }
//   // For each connection, one object per protocol of the set:
//   for (std::size_t i = 0; i != protocols->size(); ++i) {
//     mine.push_back(protocols->New(i, sink));
//   }
//
// Known from the start: "flare", "http+pb", "http+pb-text",
// "http+proto3-json", "baidu-std", "bolt", "trpc", "grpc", and "http" on the
// server side. Others are added with RegisterServerProtocol /
// RegisterClientProtocol before the servers are set up, and the channels
// opened, that name them.
//
// All functions are thread-safe and don't block on anything but a short lock;
// New of a set takes no lock.
#ifndef FLARE_RPC_PROTOCOL_REGISTRY_H_
#define FLARE_RPC_PROTOCOL_REGISTRY_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// Called for each connection of a server, by several workers at a time. Must be
// thread-safe, and must not block or return null.
using ServerProtocolFactory =
    std::function<std::unique_ptr<ServerProtocol>(const Limits&, ReplySink*)>;

// Called for each connection of a client, by the call for which it is made:
// must be thread-safe, and must not block or return null. `host` is the server
// as a channel's URI names it ("10.0.0.1:5567"), which an HTTP request has in
// its Host field. It is empty where a channel is opened, which asks for name(),
// format() and traits() alone, and refuses a protocol that isn't `multiplexed`.
using ClientProtocolFactory = std::function<std::unique_ptr<ClientProtocol>(
    const Limits&, std::string_view host)>;

// Which of them can carry attachments, for messages.
inline constexpr std::string_view kCarriersOfAttachments =
    "flare, baidu-std and trpc";
// Those over which a call may do without a reply.
inline constexpr std::string_view kCarriersOfOneWayCalls = "trpc and bolt";

// False if the name is taken.
bool RegisterServerProtocol(std::string name, ServerProtocolFactory factory);
bool RegisterClientProtocol(std::string name, ClientProtocolFactory factory);

// The protocols of one server, in the order they were added. The HTTP names
// become one entry, at the place of the first of them, because they share the
// order of replies on a connection. "grpc" comes before it, since HTTP/1 would
// refuse the first bytes of a connection of HTTP/2.
class ServerProtocolSet {
 public:
  // Fails with STATUS_NOT_SUPPORTED and a text that lists the known names. A
  // name given twice counts once. The names decide the flags of `http`; its
  // pointers are used as they are.
  static Expected<ServerProtocolSet, flare::Status> FromNames(
      const std::vector<std::string>& names, const Limits& limits = {},
      const HttpUses& http = {});

  // Adds one without a name, behind the others.
  void Add(ServerProtocolFactory factory) {
    factories_.push_back(std::move(factory));
  }

  std::size_t size() const { return factories_.size(); }
  // `sink` must outlive the object returned.
  std::unique_ptr<ServerProtocol> New(std::size_t index,
                                      ReplySink* sink) const {
    return factories_[index](limits_, sink);
  }
  const Limits& limits() const { return limits_; }

 private:
  Limits limits_;
  std::vector<ServerProtocolFactory> factories_;
};

// For the scheme of a channel's URI; "http" is an alias of "http+pb". Fails
// as FromNames does.
Expected<std::unique_ptr<ClientProtocol>, flare::Status> NewClientProtocol(
    std::string_view scheme, const Limits& limits, std::string_view host);

// Whether NewClientProtocol would succeed.
bool IsClientProtocol(std::string_view scheme);

}  // namespace flare::rpc

#endif  // FLARE_RPC_PROTOCOL_REGISTRY_H_
