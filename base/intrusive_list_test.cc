#include "flare/base/intrusive_list.h"

#include <algorithm>
#include <deque>
#include <list>
#include <memory>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

struct ByAge {};

struct Item : IntrusiveListNode<>, IntrusiveListNode<ByAge> {
  explicit Item(int n = 0) : number(n) {}
  int number;
  Item* next = nullptr;
};

using List = IntrusiveList<Item>;
using AgeList = IntrusiveList<Item, ByAge>;
using Queue = IntrusiveQueue<Item, &Item::next>;

template <class L>
std::vector<int> Numbers(const L& list) {
  std::vector<int> numbers;
  for (const Item& item : list) numbers.push_back(item.number);
  return numbers;
}

using Expect = std::vector<int>;

TEST(IntrusiveList, EmptyListHasNothing) {
  List list;
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.size(), 0u);
  EXPECT_EQ(list.Front(), nullptr);
  EXPECT_EQ(list.PopFront(), nullptr);
  EXPECT_EQ(list.begin(), list.end());
}

TEST(IntrusiveList, FirstInFirstOut) {
  Item a(1), b(2), c(3);
  List list;
  for (Item* item : {&a, &b, &c}) list.PushBack(item);
  EXPECT_EQ(Numbers(list), (Expect{1, 2, 3}));
  EXPECT_EQ(list.Front(), &a);
  EXPECT_EQ(list.PopFront(), &a);
  EXPECT_EQ(list.PopFront(), &b);
  EXPECT_EQ(list.PopFront(), &c);
  EXPECT_TRUE(list.empty());
  EXPECT_FALSE(static_cast<IntrusiveListNode<>&>(b).linked());
}

TEST(IntrusiveList, RemovesFromAnywhere) {
  Item a(1), b(2), c(3);
  List list;
  for (Item* item : {&a, &b, &c}) list.PushBack(item);
  list.Remove(&b);
  EXPECT_EQ(Numbers(list), (Expect{1, 3}));
  list.PushBack(&b);
  list.Remove(&a);
  EXPECT_EQ(Numbers(list), (Expect{3, 2}));
  list.Remove(&b);
  EXPECT_EQ(Numbers(list), (Expect{3}));
}

TEST(IntrusiveList, OneElementMayBeInTwoLists) {
  Item a(1), b(2);
  List list;
  AgeList ages;
  list.PushBack(&a);
  list.PushBack(&b);
  ages.PushBack(&b);
  ages.PushBack(&a);
  list.Remove(&a);
  EXPECT_EQ(Numbers(list), (Expect{2}));
  EXPECT_EQ(Numbers(ages), (Expect{2, 1}));
}

TEST(IntrusiveList, TakeAllAndMovesKeepTheOrder) {
  Item a(1), b(2), c(3), d(4);
  List first, second;
  first.PushBack(&a);
  second.PushBack(&b);
  second.PushBack(&c);
  first.TakeAll(&second);
  EXPECT_TRUE(second.empty());
  EXPECT_EQ(Numbers(first), (Expect{1, 2, 3}));
  first.TakeAll(&second);  // Empty: nothing changes.
  first.TakeAll(&first);   // Itself: nothing changes.
  List third(std::move(first));
  EXPECT_EQ(Numbers(third), (Expect{1, 2, 3}));
  List fourth;
  fourth.PushBack(&d);
  fourth = std::move(third);
  EXPECT_EQ(Numbers(fourth), (Expect{1, 2, 3}));
  EXPECT_FALSE(static_cast<IntrusiveListNode<>&>(d).linked());
}

TEST(IntrusiveList, DestructionUnlinks) {
  Item a(1);
  {
    List list;
    list.PushBack(&a);
    EXPECT_TRUE(static_cast<IntrusiveListNode<>&>(a).linked());
  }
  EXPECT_FALSE(static_cast<IntrusiveListNode<>&>(a).linked());
}

TEST(IntrusiveList, CopiedElementIsInNoList) {
  Item a(1);
  List list;
  list.PushBack(&a);
  Item copy(a);
  EXPECT_FALSE(static_cast<IntrusiveListNode<>&>(copy).linked());
  Item assigned;
  assigned = a;
  EXPECT_FALSE(static_cast<IntrusiveListNode<>&>(assigned).linked());
  EXPECT_EQ(list.size(), 1u);
}

TEST(IntrusiveList, IteratesOverConstListsToo) {
  Item a(1), b(2), c(3);
  List list;
  for (Item* item : {&a, &b, &c}) list.PushBack(item);
  for (auto it = list.begin(); it != list.end(); ++it) it->number *= 10;
  auto it = list.begin();
  EXPECT_EQ((it++)->number, 10);
  EXPECT_EQ(it->number, 20);
  const List& constant = list;
  EXPECT_EQ(std::count_if(constant.begin(), constant.end(),
                          [](const Item& i) { return i.number > 10; }),
            2);
}

TEST(IntrusiveList, BehavesLikeStdListUnderRandomOperations) {
  std::mt19937 random(20240601);
  std::vector<std::unique_ptr<Item>> items;
  for (int i = 0; i < 50; ++i) items.push_back(std::make_unique<Item>(i));
  List list;
  std::list<int> model;
  for (int step = 0; step < 20000; ++step) {
    Item* const item = items[random() % items.size()].get();
    const bool linked = static_cast<IntrusiveListNode<>*>(item)->linked();
    switch (random() % 4) {
      case 0:
      case 1:
        if (!linked) list.PushBack(item), model.push_back(item->number);
        break;
      case 2:
        if (linked) list.Remove(item), model.remove(item->number);
        break;
      default:
        if (!model.empty()) {
          ASSERT_EQ(list.PopFront()->number, model.front());
          model.pop_front();
        }
    }
    ASSERT_EQ(list.empty(), model.empty());
    if (step % 100 == 0) {
      ASSERT_EQ(Numbers(list), Expect(model.begin(), model.end()));
      ASSERT_EQ(list.size(), model.size());
    }
  }
}

#ifndef NDEBUG
TEST(IntrusiveListDeathTest, MisuseIsCaughtInDebugBuilds) {
  Item a(1);
  List list;
  EXPECT_DEATH(list.Remove(&a), "linked");
  list.PushBack(&a);
  EXPECT_DEATH(list.PushBack(&a), "linked");
}
#endif

TEST(IntrusiveQueue, FirstInFirstOut) {
  Item a(1), b(2);
  Queue queue;
  EXPECT_EQ(queue.PopFront(), nullptr);
  queue.PushBack(&a);
  queue.PushBack(&b);
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.Front(), &a);
  EXPECT_EQ(queue.PopFront(), &a);
  EXPECT_EQ(a.next, nullptr);
  EXPECT_EQ(queue.PopFront(), &b);
  EXPECT_EQ(queue.PopFront(), nullptr);
  EXPECT_TRUE(queue.empty());
}

TEST(IntrusiveQueue, StaleLinksDoNotMatter) {
  Item a(1), b(2);
  a.next = &b;  // Left over from elsewhere.
  Queue queue;
  queue.PushBack(&a);
  EXPECT_EQ(queue.PopFront(), &a);
  EXPECT_EQ(queue.PopFront(), nullptr);
}

TEST(IntrusiveQueue, TakeAllAndMoves) {
  Item a(1), b(2), c(3);
  Queue first, second;
  second.PushBack(&a);
  first.TakeAll(&second);
  second.PushBack(&b);
  second.PushBack(&c);
  first.TakeAll(&second);
  first.TakeAll(&second);
  first.TakeAll(&first);
  EXPECT_TRUE(second.empty());
  Queue third(std::move(first));
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(first.size(), 0u);
  first = std::move(third);
  EXPECT_EQ(first.size(), 3u);
  for (Item* item : {&a, &b, &c}) EXPECT_EQ(first.PopFront(), item);
}

TEST(IntrusiveQueue, BehavesLikeStdDequeUnderRandomOperations) {
  std::mt19937 random(7);
  std::vector<Item> items(64);
  std::vector<Item*> unused;
  for (Item& item : items) unused.push_back(&item);
  Queue queue;
  std::deque<Item*> model;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0 && !unused.empty()) {
      Item* const item = unused.back();
      unused.pop_back();
      queue.PushBack(item);
      model.push_back(item);
    } else if (!model.empty()) {
      Item* const item = queue.PopFront();
      ASSERT_EQ(item, model.front());
      model.pop_front();
      unused.push_back(item);
    }
    ASSERT_EQ(queue.size(), model.size());
    ASSERT_EQ(queue.Front(), model.empty() ? nullptr : model.front());
  }
}

}  // namespace
}  // namespace flare
