#include "flare/base/function.h"

#include <array>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace flare {
namespace {

static_assert(sizeof(Function<void()>) == 64, "One cache line.");
static_assert(!std::is_copy_constructible_v<Function<void()>>);
static_assert(std::is_nothrow_move_constructible_v<Function<void()>>);
static_assert(std::is_nothrow_move_assignable_v<Function<void()>>);
static_assert(!std::is_constructible_v<Function<void(int)>, void (*)()>);
static_assert(!std::is_constructible_v<Function<int()>, void (*)()>);

// Counts its instances that were not moved from.
struct Tracker {
  explicit Tracker(int* alive) : alive(alive) { ++*alive; }
  Tracker(Tracker&& other) noexcept : alive(std::exchange(other.alive, {})) {}
  ~Tracker() {
    if (alive) --*alive;
  }
  int* alive;
};

TEST(Function, Empty) {
  Function<void()> f;
  EXPECT_FALSE(f);
  EXPECT_EQ(f, nullptr);
  Function<void()> g = nullptr;
  EXPECT_FALSE(g);
  Function<void()> moved = std::move(f);
  EXPECT_FALSE(moved);
  moved = nullptr;
  EXPECT_FALSE(moved);
}

int Twice(int x) { return 2 * x; }

// In a lambda that isn't mutable, for one.
TEST(Function, IsCalledThroughConst) {
  Function<int()> count = [n = 0]() mutable { return ++n; };
  const auto call = [count = std::move(count)] { return count(); };
  EXPECT_EQ(call(), 1);
  EXPECT_EQ(call(), 2);
  const Function<std::size_t()> large = [text = std::string(100, 'x'),
                                         more = std::array<char, 100>()] {
    return text.size() + more.size();
  };
  EXPECT_EQ(large(), 200u);
}

TEST(Function, FunctionPointer) {
  Function<int(int)> f = Twice;
  EXPECT_EQ(f(4), 8);
  f = &Twice;
  EXPECT_EQ(f(5), 10);
  int (*null)(int) = nullptr;
  f = null;
  EXPECT_FALSE(f);
}

TEST(Function, MemberPointers) {
  struct S {
    int Get() const { return value; }
    int value = 3;
  };
  S s;
  Function<int(const S&)> method = &S::Get;
  EXPECT_EQ(method(s), 3);
  Function<int(S*)> member = &S::value;
  EXPECT_EQ(member(&s), 3);
  int (S::*null)() const = nullptr;
  Function<int(const S&)> none = null;
  EXPECT_FALSE(none);
}

TEST(Function, MoveOnlyCaptureAndArguments) {
  Function<int(std::unique_ptr<int>)> f =
      [a = std::make_unique<int>(40)](std::unique_ptr<int> b) {
        return *a + *b;
      };
  EXPECT_EQ(f(std::make_unique<int>(2)), 42);
  auto g = std::move(f);
  EXPECT_FALSE(f);
  EXPECT_EQ(g(std::make_unique<int>(3)), 43);
}

TEST(Function, ReferencesPassThrough) {
  Function<int&(int&)> f = [](int& x) -> int& { return ++x; };
  int value = 1;
  f(value) = 10;
  EXPECT_EQ(value, 10);
  Function<void(std::string &&)> take = [](std::string&& s) {
    std::string taken = std::move(s);
    EXPECT_EQ(taken, "text");
  };
  std::string text = "text";
  take(std::move(text));
  EXPECT_TRUE(text.empty());
}

TEST(Function, KeepsState) {
  Function<int()> counter = [n = 0]() mutable { return ++n; };
  EXPECT_EQ(counter(), 1);
  EXPECT_EQ(counter(), 2);
  auto moved = std::move(counter);
  EXPECT_EQ(moved(), 3);
}

TEST(Function, VoidDiscardsTheResult) {
  int calls = 0;
  Function<void()> f = [&] { return ++calls; };
  f();
  EXPECT_EQ(calls, 1);
}

template <std::size_t kSize>
void ExpectDestroyedOnce() {
  int alive = 0;
  {
    std::array<char, kSize> ballast;
    ballast.fill('x');
    Function<char()> f = [t = Tracker(&alive), ballast] { return ballast[0]; };
    EXPECT_EQ(alive, 1);
    Function<char()> g = std::move(f);
    EXPECT_EQ(alive, 1);
    EXPECT_EQ(g(), 'x');
    f = std::move(g);
    EXPECT_EQ(f(), 'x');
    Function<char()>& self = f;
    f = std::move(self);
    EXPECT_EQ(f(), 'x');
    f = [] { return 'y'; };
    EXPECT_EQ(alive, 0);
    EXPECT_EQ(f(), 'y');
    g = [t = Tracker(&alive), ballast] { return ballast[1]; };
    EXPECT_EQ(alive, 1);
    std::vector<Function<char()>> many;
    many.push_back(std::move(g));
    for (int i = 0; i < 10; ++i) many.emplace_back([] { return 'z'; });
    EXPECT_EQ(many[0](), 'x');
    EXPECT_EQ(many[10](), 'z');
    EXPECT_EQ(alive, 1);
  }
  EXPECT_EQ(alive, 0);
}

TEST(Function, SmallIsDestroyedOnce) { ExpectDestroyedOnce<8>(); }
TEST(Function, JustInsideIsDestroyedOnce) {
  ExpectDestroyedOnce<Function<void()>::kInlineSize - sizeof(Tracker)>();
}
TEST(Function, LargeIsDestroyedOnce) { ExpectDestroyedOnce<200>(); }

TEST(Function, ThrowingMoveIsKeptOutside) {
  struct Throwing {
    Throwing() = default;
    Throwing(Throwing&&) noexcept(false) {}
    int operator()() { return 5; }
  };
  Function<int()> f = Throwing();
  Function<int()> g = std::move(f);
  EXPECT_EQ(g(), 5);
}

TEST(Function, OverAlignedIsKeptOutside) {
  struct alignas(64) Wide {
    bool operator()() {
      return reinterpret_cast<std::uintptr_t>(this) % 64 == 0;
    }
  };
  Function<bool()> f = Wide();
  EXPECT_TRUE(f());
  Function<bool()> g = std::move(f);
  EXPECT_TRUE(g());
}

TEST(Function, ExceptionsPassThrough) {
  Function<void()> f = [] { throw 7; };
  EXPECT_THROW(f(), int);
  EXPECT_TRUE(f);
}

TEST(Function, MayBeAssignedByItsOwnDestructor) {
  // The callable's destructor sees an empty Function.
  struct Looks {
    explicit Looks(Function<void()>* f, bool* empty) : f(f), empty(empty) {}
    Looks(Looks&& other) noexcept
        : f(std::exchange(other.f, nullptr)), empty(other.empty) {}
    ~Looks() {
      if (f) *empty = !*f;
    }
    void operator()() {}
    Function<void()>* f;
    bool* empty;
  };
  bool empty = false;
  Function<void()> f;
  f = Looks(&f, &empty);
  f = nullptr;
  EXPECT_TRUE(empty);
}

}  // namespace
}  // namespace flare
