#include "flare/rpc/server/reply_metadata.h"

#include <cstddef>
#include <string>

#include "flare/base/string.h"
#include "flare/rpc/log_throttle.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

void NoteDroppedMetadata(std::size_t entries, const std::string& why) {
  static LogThrottle throttle;
  if (const auto left_out = throttle.Admit()) {
    LOG(WARNING) << "a response is sent without its metadata, "
                 << CountOf(entries, "value") << ": " << why
                 << LogThrottle::Note(*left_out);
  }
}

}  // namespace

void JoinTrailers(Metadata* metadata, Metadata* trailing) {
  if (trailing->empty()) return;
  std::size_t dropped = 0;
  for (const auto [name, value] : *trailing) {
    if (!metadata->Add(name, value).ok()) ++dropped;
  }
  trailing->Clear();
  if (dropped != 0) {
    NoteDroppedMetadata(dropped, "with its trailers it exceeds the limits");
  }
}

void AddMetadata(const ServerProtocol& protocol, const ReplyTicket& ticket,
                 bool failed, Metadata* metadata, Metadata* trailing,
                 OutboundResponse* response) {
  if (!trailing->empty()) {
    // The caller's limits are those of both together.
    if (protocol.HasTrailers(ticket) && !failed &&
        metadata->size() + trailing->size() <= Metadata::kMaxEntries &&
        metadata->byte_size() + trailing->byte_size() <= Metadata::kMaxBytes) {
      response->trailers = trailing;
    } else {
      JoinTrailers(metadata, trailing);
    }
  }
  if (metadata->empty()) return;
  if (protocol.traits().metadata) {
    response->metadata = metadata;
  } else {
    NoteDroppedMetadata(metadata->size(),
                        std::string(protocol.name()) + " doesn't carry any");
  }
}

}  // namespace flare::rpc
