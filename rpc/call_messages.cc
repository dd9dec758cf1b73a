#include "flare/rpc/call_messages.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "flare/base/string.h"

namespace flare::rpc {
namespace {

// Of kTotalAllowance, what pairs have.
std::atomic<std::size_t> allowed{0};

// A new pair takes one part in so many of the allowance that is left.
constexpr std::size_t kShare = 8;

// Beyond this many bytes that pass, making new messages costs next to nothing
// for each.
constexpr std::size_t kManyBytes = 64 << 10;

// The share of a new pair, which is smaller the more the others have. 0: too
// little is left, the pair has kLeastAllowance.
std::uint32_t TakeAllowance(std::size_t memory_per_byte) {
  // relaxed, all: a count on its own, which pairs that are made at the same
  // time may overdraw a little.
  const std::size_t others = allowed.load(std::memory_order_relaxed);
  const std::size_t left =
      CallMessages::kTotalAllowance -
      std::min<std::size_t>(others, CallMessages::kTotalAllowance);
  const auto mine = static_cast<std::uint32_t>(
      std::min({left / kShare, std::size_t{CallMessages::kMostAllowance},
                kManyBytes * memory_per_byte}));
  if (mine <= CallMessages::kLeastAllowance) return 0;
  allowed.fetch_add(mine, std::memory_order_relaxed);
  return mine;
}

}  // namespace

CallMessages::~CallMessages() {
  for (Pair& pair : pairs_) Drop(&pair);
}

std::size_t CallMessages::allowed_in_total() {
  // relaxed: see TakeAllowance().
  return allowed.load(std::memory_order_relaxed);
}

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
  Drop(pair);
  pair->request.reset(method.request_prototype->New());
  pair->response.reset(method.response_prototype->New());
  if (!method.keeps_messages) return pair;
  pair->request_prototype = method.request_prototype;
  pair->response_prototype = method.response_prototype;
  pair->allowance = TakeAllowance(method.memory_per_byte);
  pair->bytes_left = static_cast<std::uint32_t>(
      std::max(pair->allowance, kLeastAllowance) / method.memory_per_byte);
  return pair;
}

void CallMessages::Drop(Pair* pair) {
  if (pair->allowance != 0) {
    // relaxed: see TakeAllowance().
    allowed.fetch_sub(pair->allowance, std::memory_order_relaxed);
  }
  *pair = Pair();
}

void CallMessages::Release(std::size_t request_bytes,
                           std::size_t response_bytes) {
  Pair* const pair = std::exchange(current_, nullptr);
  if (pair == nullptr) return;
  if (pair->request_prototype == nullptr || request_bytes > kMaxKeptBytes ||
      response_bytes > kMaxKeptBytes ||
      request_bytes + response_bytes > pair->bytes_left) {
    return Drop(pair);
  }
  pair->bytes_left -=
      static_cast<std::uint32_t>(request_bytes + response_bytes);
  pair->response->Clear();
}

}  // namespace flare::rpc
