// `head_` is the whole state:
//
//   nullptr        nothing queued, nobody has the flusher's role
//   Busy()         nothing queued, somebody has the role
//   a node         queued nodes, newest first, the oldest one's `next` being
//                  nullptr; somebody has the role
//   End()          closed
//
//  [OL1] The thread that changes nullptr to a node gets the role; the one that
//        changes Busy() to nullptr, in Release, gives it up. Nobody else
//        changes from or to nullptr, except Close.
//  [OL2] Only the flusher takes nodes, all at once; so a node that is in the
//        list has no other reader, and there is no ABA: Push links to whatever
//        the head is at that moment.
//  [OL3] Close takes the nodes and the right to push. A role that was taken
//        then stays taken: its holder learns of the end by TakeAll or Release.
//        A role that was free stays free for ever.
//  [OL4] Close and closed() are seq_cst, for a flusher that goes to sleep
//        elsewhere: it publishes that, then asks closed(); the closer looks,
//        after Close, whether it sleeps.
//  [OL5] A flusher that can't send any more closes the list, and its role ends
//        with that. It doesn't wait for somebody else's Close: that one may be
//        waiting for room, and only the flusher takes the nodes that are pushed
//        meanwhile. A Close that comes later counts on a flusher, as in [OL3].
//
// Orders: every successful change is release as well as acquire: a node's
// contents go from Push to TakeAll or Close [OL2], one flusher's changes go
// through Release and Push to the next one [OL1].
#include "flare/io/output_list.h"

#include <utility>

#include "flare/base/object_pool.h"
#include "glog/logging.h"

namespace flare::io {

static_assert(sizeof(OutputNode) == kCacheLine);

OutputNode* OutputNode::Make(Buffer&& data, bool last) {
  OutputNode* const node = ObjectPool<OutputNode>::Get();
  node->data = std::move(data);
  node->last = last;
  return node;
}

void OutputNode::Free(OutputNode* node) noexcept {
  node->data.Clear();
  ObjectPool<OutputNode>::Put(node);
}

std::size_t OutputNode::FreeAll(OutputNode* first) noexcept {
  std::size_t bytes = 0;
  while (first != nullptr) {
    OutputNode* const next = first->next;
    if (!first->last) bytes += first->data.size() + kWriteCharge;
    Free(first);
    first = next;
  }
  return bytes;
}

OutputList::OutputList(bool held) : head_(held ? Busy() : nullptr) {}

OutputList::~OutputList() {
  // relaxed: nobody else can be here any more.
  OutputNode* const head = head_.load(std::memory_order_relaxed);
  if (head != Busy() && head != End()) OutputNode::FreeAll(head);
}

OutputList::PushResult OutputList::Push(OutputNode* node) noexcept {
  // relaxed: validated by the exchange.
  OutputNode* head = head_.load(std::memory_order_relaxed);
  do {
    if (head == End()) return PushResult::kClosed;
    node->next = head == Busy() ? nullptr : head;
    // acq_rel: release pairs with the acquire in TakeAll and Close [OL2];
    // acquire pairs with the release in Release [OL1].
  } while (!head_.compare_exchange_weak(head, node, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  return head == nullptr ? PushResult::kBecomeFlusher : PushResult::kQueued;
}

OutputList::Taken OutputList::TakeAll() noexcept {
  // relaxed: validated by the exchange, or nothing was read through it.
  OutputNode* head = head_.load(std::memory_order_relaxed);
  do {
    DCHECK(head != nullptr) << "not the flusher";
    if (head == Busy()) return {nullptr, 0, false};
    if (head == End()) return {nullptr, 0, true};
    // acquire: pairs with the release in Push [OL2].
  } while (!head_.compare_exchange_weak(head, Busy(), std::memory_order_acquire,
                                        std::memory_order_relaxed));
  OutputNode* oldest_first = nullptr;
  std::size_t count = 0;
  while (head != nullptr) {
    OutputNode* const next = head->next;
    head->next = oldest_first;
    oldest_first = head;
    head = next;
    ++count;
  }
  return {oldest_first, count, false};
}

OutputList::ReleaseResult OutputList::Release() noexcept {
  OutputNode* expected = Busy();
  // release: pairs with the acquire in Push [OL1] and Close. relaxed: failing
  // means to go on, and TakeAll acquires.
  if (head_.compare_exchange_strong(expected, nullptr,
                                    std::memory_order_release,
                                    std::memory_order_relaxed)) {
    return ReleaseResult::kReleased;
  }
  return expected == End() ? ReleaseResult::kClosed : ReleaseResult::kNotEmpty;
}

OutputList::Closed OutputList::Close() noexcept {
  // seq_cst: pairs with closed() [OL4]; acquire, therein, with the release in
  // Push [OL2] and Release [OL1]; release with the loads of the flusher [OL3].
  OutputNode* const head = head_.exchange(End(), std::memory_order_seq_cst);
  if (head == nullptr) return {nullptr, false};
  if (head == Busy() || head == End()) return {nullptr, true};  // [OL5]
  return {head, true};
}

}  // namespace flare::io
