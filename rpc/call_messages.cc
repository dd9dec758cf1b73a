#include "flare/rpc/call_messages.h"

#include <utility>

#include "flare/base/string.h"

namespace flare::rpc {

void CallMessages::Acquire(const Method& method) {
  current_ = Find(method);
  if (current_ == nullptr) current_ = Make(method);
}

CallMessages::Pair* CallMessages::Find(const Method& method) {
  for (Pair& pair : pairs_) {
    if (pair.request_prototype == method.request_prototype &&
        pair.response_prototype == method.response_prototype) {
      return &pair;
    }
  }
  return nullptr;
}

CallMessages::Pair* CallMessages::Make(const Method& method) {
  Pair* const pair = &pairs_[next_++ % pairs_.size()];
  pair->request.reset(method.request_prototype->New());
  pair->response.reset(method.response_prototype->New());
  pair->request_prototype =
      method.keeps_messages ? method.request_prototype : nullptr;
  pair->response_prototype =
      method.keeps_messages ? method.response_prototype : nullptr;
  return pair;
}

void CallMessages::Release(std::size_t request_bytes,
                           std::size_t response_bytes) {
  Pair* const pair = std::exchange(current_, nullptr);
  if (pair == nullptr) return;
  if (pair->request_prototype == nullptr || request_bytes > kMaxKeptBytes ||
      response_bytes > kMaxKeptBytes) {
    *pair = Pair();
    return;
  }
  pair->response->Clear();
}

}  // namespace flare::rpc
