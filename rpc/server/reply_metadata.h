// The metadata of a call's reply: beside its message, and behind it.
#ifndef FLARE_RPC_SERVER_REPLY_METADATA_H_
#define FLARE_RPC_SERVER_REPLY_METADATA_H_

#include "flare/rpc/metadata.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

// Where there is one place for both: moves `trailing` to the end of `metadata`.
// Entries beyond the limits are dropped, with a line in the log.
void JoinTrailers(Metadata* metadata, Metadata* trailing);

// Puts both into a response, where the protocol has places for them; `failed`:
// it is that of a call that has failed. Drops `metadata`, with a line in the
// log, where it has none.
void AddMetadata(const ServerProtocol& protocol, const ReplyTicket& ticket,
                 bool failed, Metadata* metadata, Metadata* trailing,
                 OutboundResponse* response);

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_REPLY_METADATA_H_
