// Backtraces: capturing where code is, which is cheap and allowed in signal
// handlers, and turning that into text, which is neither.
//
//   PrepareBacktraces();                 // Once, before the first signal.
//   const Backtrace here = CurrentBacktrace();
//   LOG(WARNING) << "took the slow path\n" << here.ToString();
//
// Text comes from the program's symbol table and line tables, through
// libbacktrace, so functions need not be exported and static ones are named as
// well; a stripped program shows names of exported functions or bare addresses.
//
// Two ways to capture. CurrentBacktrace() unwinds by the tables that exceptions
// use, and so through anybody's code. WalkFramePointers() follows a copy of a
// stack that is not running; it needs code built with -fno-omit-frame-pointer,
// as ours is: frames of other code may be missing, or end the walk.

#ifndef FLARE_BASE_BACKTRACE_H_
#define FLARE_BASE_BACKTRACE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace flare {

// Return addresses, innermost first. Trivially copyable; 0.5 KiB.
class Backtrace {
 public:
  static constexpr std::size_t kMaxFrames = 64;

  bool empty() const noexcept { return size_ == 0; }
  std::size_t size() const noexcept { return size_; }
  // Each as a call leaves it on the stack: one past the instruction meant.
  std::span<const std::uintptr_t> frames() const noexcept {
    return {frames_, size_};
  }

  // False, and no change: there are kMaxFrames already. Signal-safe.
  bool Add(std::uintptr_t return_address) noexcept;

  // One line per frame, each ended by '\n':
  //   "    #2 0x5581a0 flare::fiber::Mutex::LockSlow(long) (sync/mutex.cc:30)"
  //   "    #3 0x8dbcd __read (unix/read.c:26) in libc.so.6"
  // The numbers are offsets in the file of the program or the library, as
  // addr2line takes them: they don't tell where that was loaded.
  //
  // Thread-safe; not signal-safe. The first call in a process reads the
  // program's debug information: up to a second, for which others wait, and
  // memory of about the size of its line tables, which is kept. Takes up to 16
  // KiB of stack.
  std::string ToString() const;

  friend bool operator==(const Backtrace& a, const Backtrace& b) noexcept;

 private:
  std::size_t size_ = 0;
  std::uintptr_t frames_[kMaxFrames];
};

// Does the allocations and loading of the first capture in advance. Afterwards
// CurrentBacktrace() and BacktraceFromSignal() are safe in signal handlers.
void PrepareBacktraces();

// The stack of the caller, itself included, less `skip` innermost frames.
// About 1 us per frame. Signal-safe after PrepareBacktraces().
[[gnu::noinline]] Backtrace CurrentBacktrace(int skip = 0) noexcept;

// The stack that a signal has interrupted; `context` is the handler's third
// argument. To be called from the handler, on whichever stack that runs.
[[gnu::noinline]] Backtrace BacktraceFromSignal(const void* context) noexcept;

// Where `address` would be in the stack that `bytes` is a copy of: its lowest
// byte was at `low`.
struct StackCopy {
  std::uintptr_t low = 0;
  std::span<const char> bytes;
};

// Follows saved frame pointers from `frame_pointer`, with `return_address` as
// the innermost frame, to the outermost frame or to an address that can't be a
// frame. Reads only the copy; whatever it holds, this ends and doesn't fault.
Backtrace WalkFramePointers(std::uintptr_t return_address,
                            std::uintptr_t frame_pointer,
                            const StackCopy& stack) noexcept;

// Both ends of a stack that may have more frames than a Backtrace takes, as one
// that a recursion without end has used up.
struct StackEnds {
  static constexpr std::size_t kOutermost = 16;

  Backtrace innermost;
  // Those that come after the innermost and `left_out` further ones, at most
  // kOutermost; the last one is the stack's first function.
  Backtrace outermost;
  std::size_t left_out = 0;
};

// Walks to both ends in the same way. Takes 1 KiB of stack, and time for each
// frame.
StackEnds WalkToBothEnds(std::uintptr_t return_address,
                         std::uintptr_t frame_pointer,
                         const StackCopy& stack) noexcept;

// The text of ToString(), with addresses as they are, or of a function's name
// and place, to a file descriptor, with names as the linker knows them (c++filt
// makes them readable). For handlers of fatal signals, after
// PrepareBacktraces(): neither allocates nor takes locks of the program, but
// the first use reads the program's debug information and takes up to 32 KiB of
// stack.
void WriteBacktrace(int fd, const Backtrace& backtrace) noexcept;
void WriteStackEnds(int fd, const StackEnds& ends) noexcept;
void WriteFunctionName(int fd, const void* function) noexcept;

// One frame as text.
struct Symbol {
  std::string function;  // Demangled; empty if unknown.
  std::string file;      // Empty if unknown.
  int line = 0;
};

// Returns the symbol of the instruction before `return_address`. As
// Backtrace::ToString().
Symbol Symbolize(std::uintptr_t return_address);

// Name of the function that starts at `function`, demangled; its file and
// offset as text if it has none. As Backtrace::ToString().
std::string FunctionName(const void* function);

// Copies up to `size` bytes of this process's own memory, which other threads
// may be writing, unmapping or protecting meanwhile: nothing here faults.
// Returns how many bytes from the beginning could be read. One system call;
// signal-safe. Invisible to ThreadSanitizer: for looking at others' data as a
// debugger does, when a torn value does no harm.
std::size_t ReadOwnMemory(const void* from, void* to,
                          std::size_t size) noexcept;

}  // namespace flare

#endif  // FLARE_BASE_BACKTRACE_H_
