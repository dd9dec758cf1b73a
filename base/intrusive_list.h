// Lists whose links live in the elements: adding and removing never allocates
// and never fails. Elements are not owned: take one out before you free it.
// Not thread-safe.
//
//   struct Waiter : IntrusiveListNode<> { ... };
//   IntrusiveList<Waiter> waiters;     // doubly linked: remove from anywhere
//   waiters.PushBack(&w);
//   waiters.Remove(&w);
//
//   struct Message { Message* next = nullptr; ... };
//   IntrusiveQueue<Message, &Message::next> queue;  // singly linked, first in
//   queue.PushBack(m);                              // first out
//
// An element of two lists at once derives from two nodes with different tags:
// struct Call : IntrusiveListNode<ByTime>, ... and IntrusiveList<Call, ByTime>.

#ifndef FLARE_BASE_INTRUSIVE_LIST_H_
#define FLARE_BASE_INTRUSIVE_LIST_H_

#include <cassert>
#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>

namespace flare {

template <class Tag = void>
class IntrusiveListNode {
 public:
  IntrusiveListNode() = default;
  // Links belong to the place in memory: a copied element is in no list.
  IntrusiveListNode(const IntrusiveListNode&) noexcept {}
  // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): nothing is assigned.
  IntrusiveListNode& operator=(const IntrusiveListNode&) noexcept {
    return *this;
  }
  ~IntrusiveListNode() { assert(!linked()); }

  bool linked() const noexcept { return next_ != nullptr; }

 private:
  template <class, class>
  friend class IntrusiveList;

  IntrusiveListNode* prev_ = nullptr;
  IntrusiveListNode* next_ = nullptr;
};

// Doubly linked. All operations O(1) but size(), Clear() and the iteration.
template <class T, class Tag = void>
class IntrusiveList {
  using Node = IntrusiveListNode<Tag>;

 public:
  template <class Value>
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = Value*;
    using reference = Value&;

    Iterator() = default;
    reference operator*() const { return *static_cast<T*>(node_); }
    pointer operator->() const { return static_cast<T*>(node_); }
    Iterator& operator++() {
      node_ = node_->next_;
      return *this;
    }
    Iterator operator++(int) { return std::exchange(*this, std::next(*this)); }
    bool operator==(const Iterator&) const = default;

   private:
    friend class IntrusiveList;
    explicit Iterator(Node* node) : node_(node) {}
    Node* node_ = nullptr;
  };
  using iterator = Iterator<T>;
  using const_iterator = Iterator<const T>;

  IntrusiveList() noexcept { head_.prev_ = head_.next_ = &head_; }
  IntrusiveList(IntrusiveList&& other) noexcept : IntrusiveList() {
    TakeAll(&other);
  }
  IntrusiveList& operator=(IntrusiveList&& other) noexcept {
    if (this != &other) {
      Clear();
      TakeAll(&other);
    }
    return *this;
  }
  // The elements, if any, are unlinked.
  ~IntrusiveList() {
    Clear();
    head_.prev_ = head_.next_ = nullptr;
  }

  bool empty() const noexcept { return head_.next_ == &head_; }
  // Counts: O(n).
  std::size_t size() const noexcept {
    return static_cast<std::size_t>(std::distance(begin(), end()));
  }

  // nullptr if empty.
  T* Front() const noexcept { return empty() ? nullptr : ToT(head_.next_); }

  // `element` must be in no list of this tag.
  void PushBack(T* element) noexcept {
    Node* const node = element;
    assert(!node->linked());
    node->prev_ = head_.prev_;
    node->next_ = &head_;
    head_.prev_->next_ = node;
    head_.prev_ = node;
  }

  // `element` must be in this list.
  void Remove(T* element) noexcept {
    Node* const node = element;
    assert(node->linked());
    node->prev_->next_ = node->next_;
    node->next_->prev_ = node->prev_;
    node->prev_ = node->next_ = nullptr;
  }

  // Removes and returns it; nullptr if empty.
  T* PopFront() noexcept {
    T* const element = Front();
    if (element != nullptr) Remove(element);
    return element;
  }

  // Moves all of `other`, in order, behind this list's last element.
  void TakeAll(IntrusiveList* other) noexcept {
    if (other == this || other->empty()) return;
    Node* const first = other->head_.next_;
    Node* const last = other->head_.prev_;
    first->prev_ = head_.prev_;
    head_.prev_->next_ = first;
    last->next_ = &head_;
    head_.prev_ = last;
    other->head_.prev_ = other->head_.next_ = &other->head_;
  }

  // Unlinks all elements.
  void Clear() noexcept {
    while (PopFront() != nullptr) {
    }
  }

  iterator begin() noexcept { return iterator(head_.next_); }
  iterator end() noexcept { return iterator(&head_); }
  const_iterator begin() const noexcept { return const_iterator(head_.next_); }
  const_iterator end() const noexcept {
    return const_iterator(const_cast<Node*>(&head_));
  }

 private:
  static T* ToT(Node* node) noexcept { return static_cast<T*>(node); }

  Node head_;  // Before the first and behind the last element.
};

// Singly linked, first in, first out; `next` is the element's link, nullptr
// while it is in no queue.
template <class T, T* T::*next>
class IntrusiveQueue {
 public:
  IntrusiveQueue() = default;
  IntrusiveQueue(IntrusiveQueue&& other) noexcept
      : head_(std::exchange(other.head_, nullptr)),
        tail_(std::exchange(other.tail_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  IntrusiveQueue& operator=(IntrusiveQueue&& other) noexcept {
    if (this != &other) {
      head_ = std::exchange(other.head_, nullptr);
      tail_ = std::exchange(other.tail_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }

  bool empty() const noexcept { return head_ == nullptr; }
  std::size_t size() const noexcept { return size_; }
  T* Front() const noexcept { return head_; }

  void PushBack(T* element) noexcept {
    element->*next = nullptr;
    (tail_ == nullptr ? head_ : tail_->*next) = element;
    tail_ = element;
    ++size_;
  }

  // The oldest, with a null link; nullptr if empty.
  T* PopFront() noexcept {
    T* const element = head_;
    if (element == nullptr) return nullptr;
    head_ = std::exchange(element->*next, nullptr);
    if (head_ == nullptr) tail_ = nullptr;
    --size_;
    return element;
  }

  // Moves all of `other`, in order, behind this queue's last element.
  void TakeAll(IntrusiveQueue* other) noexcept {
    if (other == this || other->empty()) return;
    (tail_ == nullptr ? head_ : tail_->*next) = other->head_;
    tail_ = other->tail_;
    size_ += other->size_;
    other->head_ = other->tail_ = nullptr;
    other->size_ = 0;
  }

 private:
  T* head_ = nullptr;
  T* tail_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace flare

#endif  // FLARE_BASE_INTRUSIVE_LIST_H_
