#include "flare/base/backtrace.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "flare/base/sanitizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace flare {

// Outside the anonymous namespace: tests look for the names.
namespace backtrace_test {

constexpr int kAboveInner = __LINE__;
[[gnu::noinline]] Backtrace Inner() {
  Backtrace backtrace = CurrentBacktrace();
  asm volatile("");  // Prevents a tail call.
  return backtrace;
}

[[gnu::noinline]] Backtrace Outer() {
  Backtrace backtrace = Inner();
  asm volatile("");
  return backtrace;
}

[[gnu::noinline]] static Backtrace Skipping(int skip) {
  Backtrace backtrace = CurrentBacktrace(skip);
  asm volatile("");
  return backtrace;
}

[[gnu::noinline]] Backtrace Deep(int depth) {
  Backtrace backtrace = depth == 0 ? CurrentBacktrace() : Deep(depth - 1);
  asm volatile("");
  return backtrace;
}

}  // namespace backtrace_test

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The first one, so that the threads meet while the program's lines are read.
TEST(Backtrace, SymbolizesOnManyThreadsAtOnce) {
  const Backtrace backtrace = backtrace_test::Outer();
  std::vector<std::string> texts(4);
  std::vector<std::thread> threads;
  threads.reserve(texts.size());
  for (std::string& text : texts) {
    threads.emplace_back([&] {
      text = backtrace.ToString();
      for (int i = 0; i < 20; ++i) EXPECT_EQ(backtrace.ToString(), text);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(texts[0], HasSubstr("Outer"));
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
}

TEST(Backtrace, NamesCallersFromTheInsideOut) {
  const Backtrace backtrace = backtrace_test::Outer();
  ASSERT_GE(backtrace.size(), 3U);
  EXPECT_EQ(Symbolize(backtrace.frames()[0]).function,
            "flare::backtrace_test::Inner()");
  EXPECT_EQ(Symbolize(backtrace.frames()[1]).function,
            "flare::backtrace_test::Outer()");
  const std::string text = backtrace.ToString();
  EXPECT_LT(text.find("Inner"), text.find("Outer"));
  EXPECT_THAT(text, HasSubstr("#0 0x"));
  EXPECT_THAT(text, HasSubstr("main"));
}

TEST(Backtrace, NamesFileAndLine) {
  const Backtrace backtrace = backtrace_test::Inner();
  const Symbol symbol = Symbolize(backtrace.frames()[0]);
  EXPECT_EQ(symbol.file, "base/backtrace_test.cc");
  EXPECT_GT(symbol.line, backtrace_test::kAboveInner);
  EXPECT_LE(symbol.line, backtrace_test::kAboveInner + 5);
}

TEST(Backtrace, SkipsInnermostFrames) {
  const Backtrace whole = backtrace_test::Skipping(0);
  const Backtrace less = backtrace_test::Skipping(1);
  EXPECT_EQ(less.size(), whole.size() - 1);
  EXPECT_THAT(Symbolize(whole.frames()[0]).function,
              HasSubstr("Skipping(int)"));
  EXPECT_THAT(Symbolize(less.frames()[0]).function,
              Not(HasSubstr("Skipping(int)")));
  EXPECT_TRUE(backtrace_test::Skipping(100000).empty());
}

TEST(Backtrace, EndsAtItsRoom) {
  const Backtrace deep = backtrace_test::Deep(200);
  EXPECT_EQ(deep.size(), Backtrace::kMaxFrames);
  EXPECT_THAT(Symbolize(deep.frames().back()).function, HasSubstr("Deep(int)"));
  Backtrace full = deep;
  EXPECT_FALSE(full.Add(1));
  EXPECT_EQ(full, deep);
}

TEST(Backtrace, Compares) {
  Backtrace a;
  Backtrace b;
  EXPECT_EQ(a, b);
  a.Add(1);
  EXPECT_FALSE(a == b);
  b.Add(2);
  EXPECT_FALSE(a == b);
  b = a;
  EXPECT_EQ(a, b);
}

// Libraries and programs are loaded somewhere else each time.
TEST(Backtrace, TextHasOffsetsInFiles) {
  const Backtrace here = backtrace_test::Inner();
  Dl_info info;
  link_map* map = nullptr;
  ASSERT_NE(dladdr1(reinterpret_cast<void*>(here.frames()[0]), &info,
                    reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP),
            0);
  std::ostringstream first;
  first << "#0 0x" << std::hex << here.frames()[0] - map->l_addr << ' ';
  EXPECT_THAT(here.ToString(), HasSubstr(first.str()));
  Backtrace nowhere;
  nowhere.Add(reinterpret_cast<std::uintptr_t>(&nowhere));
  EXPECT_EQ(nowhere.ToString(), "    #0 0x? ?\n");
}

// In a child: by how many KiB the process grows when so many threads look up
// the first name at once.
long GrowthByFirstUse(int threads) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    const auto resident_kib = [] {
      long pages = 0, resident = 0;
      std::ifstream("/proc/self/statm") >> pages >> resident;
      return resident * 4;
    };
    const long before = resident_kib();
    std::barrier together(threads);
    std::vector<std::thread> all;
    for (int i = 0; i != threads; ++i) {
      all.emplace_back([&] {
        together.arrive_and_wait();
        FunctionName(reinterpret_cast<void*>(&backtrace_test::Outer));
      });
    }
    for (std::thread& thread : all) thread.join();
    const long growth = resident_kib() - before;
    _exit(write(ends[1], &growth, sizeof(growth)) == sizeof(growth) ? 0 : 1);
  }
  long growth = -1;
  if (read(ends[0], &growth, sizeof(growth)) != sizeof(growth)) growth = -1;
  waitpid(child, nullptr, 0);
  return growth;
}

// In a process in which nothing has been looked up.
TEST(BacktraceDeathTest, LineTablesAreReadOnce) {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
  GTEST_SKIP() << "sanitizers need memory for each thread";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const long one = GrowthByFirstUse(1);
        const long many = GrowthByFirstUse(16);
        std::fprintf(stderr, "%ld and %ld KiB\n", one, many);
        std::_Exit(one > 0 && many < 2 * one ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "KiB");
}

TEST(Backtrace, BadAddressesHaveNoName) {
  EXPECT_EQ(Symbolize(0x10).function, "");
  EXPECT_EQ(Symbolize(0).function, "");
  EXPECT_EQ(FunctionName(reinterpret_cast<void*>(0x10)), "0x10");
  EXPECT_EQ(Backtrace().ToString(), "");
  Backtrace bad;
  bad.Add(0x10);
  EXPECT_EQ(bad.ToString(), "    #0 0x10 ?\n");
}

TEST(Backtrace, NamesFunctions) {
  EXPECT_EQ(FunctionName(reinterpret_cast<void*>(&backtrace_test::Outer)),
            "flare::backtrace_test::Outer()");
  // A function of a shared library, without debug information.
  EXPECT_THAT(FunctionName(reinterpret_cast<void*>(&getppid)),
              HasSubstr("getppid"));
}

// --- From a signal handler ---

Backtrace from_signal;

[[gnu::noinline]] void RaiseHere() {
  raise(SIGURG);
  asm volatile("");
}

void WithHandler(int flags, void (*f)()) {
  PrepareBacktraces();
  from_signal = Backtrace();
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_sigaction = [](int, siginfo_t*, void* context) {
    from_signal = BacktraceFromSignal(context);
  };
  action.sa_flags = SA_SIGINFO | flags;
  ASSERT_EQ(sigaction(SIGURG, &action, &before), 0);
  f();
  ASSERT_EQ(sigaction(SIGURG, &before, nullptr), 0);
}

void ExpectRaiseHere() {
  ASSERT_FALSE(from_signal.empty());
  const std::string text = from_signal.ToString();
  // Through libc's code, which has no frame pointers, and without the handler.
  EXPECT_THAT(text, HasSubstr("RaiseHere"));
  EXPECT_THAT(text, Not(HasSubstr("BacktraceFromSignal(void")));
  EXPECT_THAT(text, Not(HasSubstr("WithHandler(int, void (*)())::")));
}

TEST(BacktraceFromSignal, ShowsWhatWasInterrupted) {
  WithHandler(0, &RaiseHere);
  ExpectRaiseHere();
}

TEST(BacktraceFromSignal, WorksOnAnAlternateStack) {
  std::vector<char> memory(65536);
  stack_t stack = {};
  stack_t before = {};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  ASSERT_EQ(sigaltstack(&stack, &before), 0);
  WithHandler(SA_ONSTACK, &RaiseHere);
  ASSERT_EQ(sigaltstack(&before, nullptr), 0);
  ExpectRaiseHere();
}

// --- Frame pointers ---

// A stack of `size` words at address 0x1000, to be written into.
struct FakeStack {
  static constexpr std::uintptr_t kLow = 0x1000;
  std::vector<std::uintptr_t> words;

  explicit FakeStack(std::size_t size) : words(size, 0) {}
  static std::uintptr_t At(std::size_t word) { return kLow + word * 8; }
  void Frame(std::size_t at, std::uintptr_t next, std::uintptr_t pc) {
    words[at] = next;
    words[at + 1] = pc;
  }
  StackCopy copy() const {
    return {kLow,
            {reinterpret_cast<const char*>(words.data()), words.size() * 8}};
  }
};

std::vector<std::uintptr_t> Walk(const FakeStack& stack,
                                 std::uintptr_t frame_pointer) {
  const Backtrace found = WalkFramePointers(7, frame_pointer, stack.copy());
  return {found.frames().begin(), found.frames().end()};
}

using Pcs = std::vector<std::uintptr_t>;

TEST(WalkFramePointers, FollowsTheChain) {
  FakeStack stack(16);
  stack.Frame(0, FakeStack::At(4), 100);
  stack.Frame(4, FakeStack::At(14), 200);
  stack.Frame(14, 0, 300);  // Ends with the copy.
  EXPECT_EQ(Walk(stack, FakeStack::At(0)), (Pcs{7, 100, 200, 300}));
}

TEST(WalkFramePointers, EndsAtWhatCannotBeAFrame) {
  FakeStack stack(16);
  stack.Frame(2, FakeStack::At(4), 100);
  for (const std::uintptr_t bad :
       {std::uintptr_t{0}, FakeStack::At(2) /* itself */,
        FakeStack::At(3) /* overlaps */, FakeStack::At(0) /* downwards */,
        FakeStack::At(4) + 4 /* unaligned */, FakeStack::At(15) /* half out */,
        FakeStack::At(16), FakeStack::At(1000), ~std::uintptr_t{7}}) {
    stack.words[2] = bad;
    EXPECT_EQ(Walk(stack, FakeStack::At(2)), (Pcs{7, 100})) << bad;
    EXPECT_EQ(Walk(stack, bad == FakeStack::At(2) ? 0 : bad).front(), 7U);
  }
  stack.Frame(2, FakeStack::At(4), 100);
  stack.Frame(4, FakeStack::At(8), 0);  // No return address.
  EXPECT_EQ(Walk(stack, FakeStack::At(2)), (Pcs{7, 100}));
}

TEST(WalkToBothEnds, KeepsTheOutermostFrames) {
  for (const std::size_t frames : {1, 63, 64, 79, 80, 200}) {
    FakeStack stack(2 * frames);
    for (std::size_t i = 0; i < frames; ++i) {
      stack.Frame(2 * i, FakeStack::At(2 * i + 2), 100 + i);
    }
    const StackEnds ends = WalkToBothEnds(99, FakeStack::At(0), stack.copy());
    // The `i`th of all frames is 99 + i.
    const std::size_t all = 1 + frames;
    ASSERT_EQ(ends.innermost.size(), std::min(all, Backtrace::kMaxFrames));
    EXPECT_EQ(ends.innermost.frames().front(), 99U);
    const std::size_t rest = all - ends.innermost.size();
    ASSERT_EQ(ends.outermost.size(), std::min(rest, StackEnds::kOutermost));
    EXPECT_EQ(ends.left_out, rest - ends.outermost.size());
    for (std::size_t i = 0; i < ends.outermost.size(); ++i) {
      EXPECT_EQ(ends.outermost.frames()[i],
                99 + all - ends.outermost.size() + i);
    }
  }
}

TEST(WalkFramePointers, TakesAnEmptyStack) {
  EXPECT_EQ(WalkFramePointers(7, 0x1000, StackCopy()).size(), 1U);
  EXPECT_EQ(WalkFramePointers(7, 0, StackCopy()).size(), 1U);
}

TEST(WalkFramePointers, SurvivesNoise) {
  std::mt19937_64 random(20261);
  for (int round = 0; round < 20000; ++round) {
    FakeStack stack(1 + random() % 32);
    for (std::uintptr_t& word : stack.words) {
      word = random() % 4 == 0 ? random() : FakeStack::kLow + random() % 40 * 4;
    }
    const Pcs found = Walk(stack, FakeStack::kLow + random() % 300);
    EXPECT_GE(found.size(), 1U);
    EXPECT_LE(found.size(), 1 + stack.words.size() / 2);
  }
}

// --- Reading memory ---

TEST(ReadOwnMemory, ReadsUpToWhatIsThere) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* const pages =
      static_cast<char*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  std::memset(pages, 'x', 2 * page);
  std::string copy(2 * page, '\0');
  EXPECT_EQ(ReadOwnMemory(pages, copy.data(), 2 * page), 2 * page);
  EXPECT_EQ(copy, std::string(2 * page, 'x'));

  ASSERT_EQ(mprotect(pages + page, page, PROT_NONE), 0);
  errno = 77;
  EXPECT_EQ(ReadOwnMemory(pages + page - 100, copy.data(), 200), 100U);
  EXPECT_EQ(ReadOwnMemory(pages + page, copy.data(), 8), 0U);
  ASSERT_EQ(errno, 77);
  ASSERT_EQ(munmap(pages, 2 * page), 0);
  EXPECT_EQ(ReadOwnMemory(pages, copy.data(), 8), 0U);
}

TEST(ReadOwnMemory, SurvivesMemoryThatComesAndGoes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* const pages =
      static_cast<char*>(mmap(nullptr, page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  std::atomic<bool> stop{false};
  std::thread flipper([&] {
    // relaxed: only to end.
    while (!stop.load(std::memory_order_relaxed)) {
      mprotect(pages, page, PROT_NONE);
      mprotect(pages, page, PROT_READ | PROT_WRITE);
    }
  });
  std::uint64_t word = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::size_t got = ReadOwnMemory(pages, &word, sizeof(word));
    EXPECT_TRUE(got == 0 || got == sizeof(word));
    EXPECT_EQ(word, 0U);
  }
  stop.store(true, std::memory_order_relaxed);  // relaxed: only to end.
  flipper.join();
  munmap(pages, page);
}

}  // namespace
}  // namespace flare
