#include "flare/rpc/server/call_messages.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/server/message_growth.h"

namespace flare::rpc {
namespace {

// The pairs' part of kTotalAllowance.
std::atomic<std::size_t> allowed{0};

// A new pair takes one part in so many of the allowance that is left.
constexpr std::size_t kShare = 8;

// Beyond this many bytes that pass, making new messages costs next to nothing
// for each.
constexpr std::size_t kManyBytes = 64 << 10;

constexpr std::size_t kKib = 1024;

// The share of a new pair in KiB, which is smaller the more the others have.
// 0: too little is left, the pair has kLeastAllowance.
std::uint16_t TakeAllowance(std::size_t memory_per_byte) {
  // relaxed, all: a count on its own, which pairs that are made at the same
  // time may overdraw a little.
  const std::size_t others = allowed.load(std::memory_order_relaxed);
  const std::size_t left =
      CallMessages::kTotalAllowance -
      std::min<std::size_t>(others, CallMessages::kTotalAllowance);
  const std::size_t mine =
      std::min({left / kShare, std::size_t{CallMessages::kMostAllowance},
                kManyBytes * memory_per_byte}) /
      kKib;
  if (mine * kKib <= CallMessages::kLeastAllowance) return 0;
  allowed.fetch_add(mine * kKib, std::memory_order_relaxed);
  return static_cast<std::uint16_t>(mine);
}

}  // namespace

CallMessages::~CallMessages() {
  for (Pair& pair : pairs_) Drop(&pair);
}

std::size_t CallMessages::Pair::allowance() const {
  return std::max<std::size_t>(allowance_kib * kKib, kLeastAllowance);
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
  pair->allowance_kib = TakeAllowance(method.memory_per_byte);
  pair->bytes_left =
      static_cast<std::uint32_t>(pair->allowance() / method.memory_per_byte);
  if (method.measurable && method.memory_per_byte <= UINT16_MAX) {
    pair->memory_per_byte = static_cast<std::uint16_t>(method.memory_per_byte);
  }
  return pair;
}

// Drops a pair that has used up its allowance, unless it turns out to keep less
// than half of it: then many calls share the cost of looking.
[[gnu::cold, gnu::noinline]] void CallMessages::DropOrRenew(Pair* pair) {
  if (pair->memory_per_byte == 0) return Drop(pair);
  const std::size_t kept = MeasureCleared(pair->request.get()) +
                           MeasureCleared(pair->response.get());
  const std::size_t allowance = pair->allowance();
  if (kept > allowance / 2) return Drop(pair);
  pair->bytes_left =
      static_cast<std::uint32_t>((allowance - kept) / pair->memory_per_byte);
}

void CallMessages::Drop(Pair* pair) {
  if (pair->allowance_kib != 0) {
    // relaxed: see TakeAllowance().
    allowed.fetch_sub(pair->allowance_kib * kKib, std::memory_order_relaxed);
  }
  *pair = Pair();
}

void CallMessages::Release(std::size_t request_bytes,
                           std::size_t response_bytes) {
  Pair* const pair = std::exchange(current_, nullptr);
  if (pair == nullptr) return;
  if (pair->request_prototype == nullptr || request_bytes > kMaxKeptBytes ||
      response_bytes > kMaxKeptBytes) [[unlikely]] {
    return Drop(pair);
  }
  const std::size_t bytes = request_bytes + response_bytes;
  if (bytes > pair->bytes_left) [[unlikely]]
    return DropOrRenew(pair);
  pair->bytes_left -= static_cast<std::uint32_t>(bytes);
  pair->response->Clear();
}

}  // namespace flare::rpc
