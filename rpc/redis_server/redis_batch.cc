#include "flare/rpc/redis_server/redis_batch.h"

#include <cstddef>
#include <utility>

#include "flare/base/object_pool.h"
#include "flare/base/string.h"
#include "flare/rpc/redis_server/redis_reply_writer.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

// Less of a connection isn't counted in the server's memory.
constexpr std::size_t kLittlePeer = 16 << 10;

}  // namespace

RedisBatch* RedisBatch::New(RedisLink* link) {
  RedisBatch* const batch = ObjectPool<RedisBatch>::Get();
  batch->link_ = link;
  return batch;
}

void RedisBatch::Recycle() {
  commands_.Clear();
  failure_.clear();
  if (words_.capacity() * sizeof(words_[0]) > kMaxKeptBytes) {
    words_ = {};
  } else {
    words_.clear();
  }
  ObjectPool<RedisBatch>::Put(this);
}

void RedisBatch::Serve(OwnRequestHost* host) {
  link_->peer.host_ = host;
  Buffer last;
  host->Run([&] { last = RunAll(host); });
  link_->peer.host_ = nullptr;
  host->LeaveLimits();
  Finish(std::move(last));
}

// Returns the last reply, unsent; it is empty if the connection is closed. The
// others are sent at once, as the next handler may block.
Buffer RedisBatch::RunAll(OwnRequestHost* host) {
  RedisPeer& peer = link_->peer;
  bool failed = false;
  Buffer last;
  for (std::size_t i = 0; i != commands_.size() && !peer.closing_; ++i) {
    if (!last.empty() && !link_->sink->WriteSoon(std::move(last))) {
      return Buffer();
    }
    host->WaitForRoom();
    RedisReply reply = RunOne(i, host);
    failed |= reply.is_error();
    BufferBuilder out;
    WriteRedisReply(std::move(reply), peer.resp3(), &out);
    last = out.DestructiveGet();
  }
  if (!failure_.empty() && !peer.closing_) {
    failed = true;
    last.Append("-ERR " + failure_ + "\r\n");
    peer.closing_ = true;
  }
  if (failed) host->CountFailure(STATUS_FAILED);
  return last;
}

RedisReply RedisBatch::RunOne(std::size_t n, OwnRequestHost* host) {
  commands_.Get(n, &words_);
  try {
    return link_->dispatcher.Run(flare::RedisRequest(words_, &link_->peer));
  } catch (...) {  // Fibers mustn't be suspended in here.
    host->LogException("the Redis handler of " +
                       OneLine(words_[0].substr(0, RedisService::kMaxName)));
  }
  return RedisReply::OfError("ERR The handler has failed.");
}

// Whether commands that the client has sent behind these count on them: without
// MULTI the rest of its transaction would run, after SELECT in the wrong
// database, and a later EXEC would run a part.
bool RedisBatch::ChangesConnection() {
  bool changes = link_->peer.queues_;
  for (std::size_t i = 0; i != commands_.size() && !changes; ++i) {
    commands_.Get(i, &words_);
    changes = RedisDispatcher::ChangesConnection(words_[0]);
  }
  return changes;
}

void RedisBatch::Refuse(std::string_view text, OwnRequestHost* /*host*/) {
  BufferBuilder out;
  for (std::size_t i = 0; i != commands_.size(); ++i) {
    out.Append("-ERR ", text, "\r\n");
  }
  if (!failure_.empty()) {
    out.Append("-ERR ", failure_, "\r\n");
    link_->peer.closing_ = true;
  }
  if (ChangesConnection()) link_->peer.closing_ = true;
  Finish(out.DestructiveGet());
}

// Counts the memory that the client has made its connection keep.
void RedisBatch::CountPeer() {
  const RedisPeer& peer = link_->peer;
  std::size_t bytes =
      peer.queued_bytes_ + peer.name_.size() + peer.user_.size();
  if (bytes < kLittlePeer) bytes = 0;
  if (bytes == link_->counted) return;
  link_->sink->CountHeld(std::exchange(link_->counted, bytes), bytes);
}

void RedisBatch::Finish(Buffer&& last) {
  RedisLink& link = *link_;
  CountPeer();
  link.ended = link.peer.closing_;
  if (!last.empty()) link.sink->Write(std::move(last));
  if (link.ended) link.sink->CloseAfterReplies();
  // release: pairs with the acquire in RedisServerProtocol::Cut [RS1].
  link.busy.store(false, std::memory_order_release);
  link.sink->ReleaseInput();
}

}  // namespace flare::rpc
