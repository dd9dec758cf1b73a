#include "flare/rpc/memcached/memcached_connection.h"

#include <algorithm>

namespace flare::rpc {

bool MemcachedExchange::Expects(MemcachedAnswer::Code code) const {
  using Code = MemcachedAnswer::Code;
  if (kinds.empty()) {
    return code != Code::kValue && code != Code::kMiss;
  }
  if (code == Code::kError) return true;
  switch (kinds[received]) {
    case MemcachedCommand::Kind::kGet:
      return code == Code::kValue || code == Code::kMiss;
    case MemcachedCommand::Kind::kTouch:
      return code == Code::kDone || code == Code::kMiss;
    case MemcachedCommand::Kind::kStore:
      return code == Code::kDone || code == Code::kNotStored ||
             code == Code::kExists || code == Code::kNotFound;
    case MemcachedCommand::Kind::kDelete:
      return code == Code::kDone || code == Code::kNotFound ||
             code == Code::kExists;
    case MemcachedCommand::Kind::kCount:
      return code == Code::kValue || code == Code::kNotFound ||
             code == Code::kNotStored;
  }
  return false;
}

RefPtr<MemcachedConnection> MemcachedConnection::Make(
    const Endpoint& peer, std::unique_ptr<io::Transport> transport,
    const MemcachedClientOptions& options, std::weak_ptr<Owner> owner) {
  RefPtr<MemcachedConnection> made(
      adopt_ref, new MemcachedConnection(peer, std::move(transport), options,
                                         std::move(owner)));
  made->HoldItself();
  return made;
}

MemcachedConnection::MemcachedConnection(
    const Endpoint& peer, std::unique_ptr<io::Transport> transport,
    const MemcachedClientOptions& options, std::weak_ptr<Owner> owner)
    : PipelineConnection(
          peer, std::move(transport),
          {.max_outstanding = options.max_outstanding,
           .max_outstanding_bytes = options.max_outstanding_bytes,
           .max_silence = options.max_silence},
          Role::kShared, std::move(owner)),
      reader_(options.max_value_size) {}

bool MemcachedConnection::OnData(Buffer& in, std::size_t* need,
                                 std::string* error) {
  MemcachedAnswer answer;
  for (;;) {
    switch (reader_.Read(&in, &answer)) {
      case MemcachedReader::Result::kAnswer:
        if (!TakeAnswer(std::move(answer), error)) return false;
        break;
      case MemcachedReader::Result::kNeedMore:
        *need = std::min(reader_.expected(), kMaxRead);
        return true;
      case MemcachedReader::Result::kFailed:
        *error = reader_.failure();
        NoteMalformed(*error);
        return false;
    }
  }
}

bool MemcachedConnection::TakeAnswer(MemcachedAnswer answer,
                                     std::string* error) {
  RefPtr<PipelineExchange> complete;
  bool expected = true;
  {
    ScopedLock guard(lock_);
    auto* const first = static_cast<MemcachedExchange*>(AwaitsReply());
    if (first == nullptr) {
      *error = "it has sent what no command asked for";
      // "SERVER_ERROR maximum connections reached"
      if (!answer.error.empty()) *error += ": " + answer.error;
      return false;
    }
    expected = first->Expects(answer.code);
    if (expected) {
      if (!first->abandoned) first->answers.push_back(std::move(answer));
      complete = CountReply();
    }
  }
  if (complete != nullptr) complete->done.Set();
  if (expected) return true;
  *error = answer.code == MemcachedAnswer::Code::kUnknownCommand
               ? "the command is unknown to it: " + answer.error
               : "it answers another command";
  NoteMalformed(*error);
  return false;
}

}  // namespace flare::rpc
