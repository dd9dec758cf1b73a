#include "flare/base/backtrace.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "flare/base/sanitizer.h"

// GCC's libbacktrace. Its header lies in a folder of GCC's own, where other
// compilers don't look.
extern "C" {
struct backtrace_state;
using BacktraceErrorCallback = void (*)(void* data, const char* message,
                                        int error);
using BacktraceFullCallback = int (*)(void* data, std::uintptr_t pc,
                                      const char* file, int line,
                                      const char* function);
using BacktraceSymbolCallback = void (*)(void* data, std::uintptr_t pc,
                                         const char* name, std::uintptr_t value,
                                         std::uintptr_t size);
backtrace_state* backtrace_create_state(const char* file, int threaded,
                                        BacktraceErrorCallback error,
                                        void* data);
int backtrace_pcinfo(backtrace_state* state, std::uintptr_t pc,
                     BacktraceFullCallback callback,
                     BacktraceErrorCallback error, void* data);
int backtrace_syminfo(backtrace_state* state, std::uintptr_t pc,
                      BacktraceSymbolCallback callback,
                      BacktraceErrorCallback error, void* data);
}

namespace flare {
namespace {

// Missing information shows in the text; there is nobody to report it to.
void IgnoreError(void*, const char*, int) {}

backtrace_state* State() {
  static backtrace_state* const state =
      backtrace_create_state(nullptr, /*threaded=*/1, &IgnoreError, nullptr);
  return state;
}

std::string Demangle(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return demangled != nullptr ? demangled.get() : name;
}

struct Found {
  const char* function = nullptr;
  const char* file = nullptr;
  int line = 0;
};

// Called for inlined functions from the inside out, last for the one that has
// the code, which is the one kept. The line is the innermost one's.
int OnLine(void* data, std::uintptr_t, const char* file, int line,
           const char* function) {
  auto* const found = static_cast<Found*>(data);
  if (function != nullptr) found->function = function;
  if (found->file == nullptr && file != nullptr) {
    found->file = file;
    found->line = line;
  }
  return 0;
}

void OnSymbol(void* data, std::uintptr_t, const char* name, std::uintptr_t,
              std::uintptr_t) {
  if (name != nullptr) static_cast<Found*>(data)->function = name;
}

// Its last folder and the name: "/a/b/sync/mutex.cc" is "sync/mutex.cc".
const char* ShortPath(const char* path) {
  const char* slash = std::strrchr(path, '/');
  while (slash != nullptr && slash > path) {
    if (*--slash == '/') return slash + 1;
  }
  return path;
}

// libbacktrace maps its own memory and takes no locks: threads that come first
// together would each read the line tables, of up to hundreds of megabytes, for
// themselves, and keep them. (Nor does ThreadSanitizer see how it orders what
// it has read.) A signal handler may have interrupted the holder, so waiting
// ends.
class OneAtATime {
 public:
  explicit OneAtATime(std::chrono::milliseconds patience) noexcept {
    for (auto i = patience.count(); i >= 0 && !held_; --i) {
      // acquire: pairs with the release in the destructor.
      held_ = !busy_.test_and_set(std::memory_order_acquire);
      if (!held_) usleep(1000);
    }
  }
  ~OneAtATime() {
    // release: pairs with the acquire above.
    if (held_) busy_.clear(std::memory_order_release);
  }
  OneAtATime(const OneAtATime&) = delete;
  OneAtATime& operator=(const OneAtATime&) = delete;

 private:
  inline static std::atomic_flag busy_;
  bool held_ = false;
};

// In handlers of fatal signals, and elsewhere, where reading all there is may
// take a while on a busy machine.
constexpr std::chrono::seconds kPatienceInHandlers(5);
constexpr std::chrono::minutes kPatience(5);

Found Find(std::uintptr_t pc, std::chrono::milliseconds patience) noexcept {
  const OneAtATime turn(patience);
  Found found;
  if (backtrace_state* const state = State()) {
    backtrace_pcinfo(state, pc, &OnLine, &IgnoreError, &found);
    // Rather the symbol's name: debug information leaves the namespaces of
    // static functions out.
    backtrace_syminfo(state, pc, &OnSymbol, &IgnoreError, &found);
  }
  return found;
}

void WriteAll(int fd, const char* text) noexcept {
  for (std::size_t left = std::strlen(text); left > 0;) {
    const ssize_t written = write(fd, text, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // There is no other place to say so.
    text += written;
    left -= static_cast<std::size_t>(written);
  }
}

void WriteLocation(int fd, std::uintptr_t pc) noexcept {
  const Found found = Find(pc, kPatienceInHandlers);
  WriteAll(fd, found.function == nullptr ? "?" : found.function);
  if (found.file == nullptr) return;
  char line[16];
  std::snprintf(line, sizeof(line), ":%d)", found.line);
  WriteAll(fd, " (");
  WriteAll(fd, ShortPath(found.file));
  WriteAll(fd, line);
}

std::string Hex(std::uintptr_t value) {
  char text[2 + 2 * sizeof(value) + 1];
  std::snprintf(text, sizeof(text), "0x%zx", value);
  return text;
}

// Where an address is, without telling where the program or the library was
// loaded.
struct Place {
  std::string offset;  // In its file, for addr2line -e.
  std::string module;  // The library's file; empty for the program itself.
};

Place PlaceOf(std::uintptr_t address) {
  // Below it there is no memory, so that such a value says nothing.
  constexpr std::uintptr_t kNoAddress = 65536;
  Dl_info info;
  link_map* map = nullptr;
  if (dladdr1(reinterpret_cast<void*>(address), &info,
              reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0 ||
      map == nullptr) {
    return {address < kNoAddress ? Hex(address) : "0x?", ""};
  }
  const std::string_view path = map->l_name;
  return {Hex(address - map->l_addr),
          std::string(path.substr(path.rfind('/') + 1))};
}

std::string ToText(const Place& place) {
  return place.module.empty() ? place.offset
                              : place.module + '+' + place.offset;
}

struct Capture {
  Backtrace* backtrace;
  int skip;
  std::uintptr_t from;  // Frames before this one are left out; 0: none.
};

_Unwind_Reason_Code OnFrame(_Unwind_Context* context, void* argument) {
  auto* const capture = static_cast<Capture*>(argument);
  int before_instruction = 0;
  const std::uintptr_t pc = _Unwind_GetIPInfo(context, &before_instruction);
  if (pc == 0) return _URC_END_OF_STACK;
  if (capture->from != 0) {
    if (pc != capture->from) return _URC_NO_REASON;
    capture->from = 0;
  }
  if (capture->skip > 0) {
    --capture->skip;
    return _URC_NO_REASON;
  }
  // The instruction that a signal has interrupted is at `pc`, not before it.
  const std::uintptr_t address = pc + (before_instruction != 0 ? 1 : 0);
  return capture->backtrace->Add(address) ? _URC_NO_REASON : _URC_END_OF_STACK;
}

std::uintptr_t InterruptedAt(const void* context) {
  const mcontext_t& machine =
      static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<std::uintptr_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return static_cast<std::uintptr_t>(machine.pc);
#else
#error "flare runs on x86-64 and AArch64 only"
#endif
}

}  // namespace

bool Backtrace::Add(std::uintptr_t return_address) noexcept {
  if (size_ == kMaxFrames) return false;
  frames_[size_++] = return_address;
  return true;
}

std::string Backtrace::ToString() const {
  std::string text;
  for (std::size_t i = 0; i < size_; ++i) {
    const Symbol symbol = Symbolize(frames_[i]);
    const Place place = PlaceOf(frames_[i]);
    text += "    #" + std::to_string(i) + ' ' + place.offset + ' ' +
            (symbol.function.empty() ? "?" : symbol.function);
    if (!symbol.file.empty()) {
      text += " (" + symbol.file + ':' + std::to_string(symbol.line) + ')';
    }
    if (!place.module.empty()) text += " in " + place.module;
    text += '\n';
  }
  return text;
}

bool operator==(const Backtrace& a, const Backtrace& b) noexcept {
  return std::equal(a.frames_, a.frames_ + a.size_, b.frames_,
                    b.frames_ + b.size_);
}

void PrepareBacktraces() {
  // The unwinder sets itself up at its first use.
  CurrentBacktrace();
  State();
}

Backtrace CurrentBacktrace(int skip) noexcept {
  Backtrace backtrace;
  // The innermost frame is this function.
  Capture capture = {&backtrace, skip + 1, 0};
  _Unwind_Backtrace(&OnFrame, &capture);
  return backtrace;
}

Backtrace BacktraceFromSignal(const void* context) noexcept {
  Backtrace backtrace;
  Capture capture = {&backtrace, 0, InterruptedAt(context)};
  _Unwind_Backtrace(&OnFrame, &capture);
  // At least where it was, if there is no way from the handler to there.
  if (backtrace.empty()) backtrace.Add(InterruptedAt(context) + 1);
  return backtrace;
}

namespace {

// Calls `add(return_address)` for each frame, until it returns false.
template <class Add>
void WalkFrames(std::uintptr_t return_address, std::uintptr_t frame_pointer,
                const StackCopy& stack, Add add) noexcept {
  // On both instruction sets: the caller's frame pointer, the return address.
  struct Frame {
    std::uintptr_t next;
    std::uintptr_t return_address;
  };
  if (!add(return_address)) return;
  std::uintptr_t at = frame_pointer;
  std::uintptr_t least = stack.low;
  while (at % sizeof(std::uintptr_t) == 0 && at >= least &&
         at - stack.low < stack.bytes.size() &&
         stack.bytes.size() - (at - stack.low) >= sizeof(Frame)) {
    Frame frame;
    std::memcpy(&frame, stack.bytes.data() + (at - stack.low), sizeof(frame));
    if (frame.return_address == 0 || !add(frame.return_address)) return;
    least = at + sizeof(Frame);  // Callers lie higher: so this ends.
    at = frame.next;
  }
}

}  // namespace

Backtrace WalkFramePointers(std::uintptr_t return_address,
                            std::uintptr_t frame_pointer,
                            const StackCopy& stack) noexcept {
  Backtrace backtrace;
  WalkFrames(return_address, frame_pointer, stack,
             [&](std::uintptr_t frame) { return backtrace.Add(frame); });
  return backtrace;
}

StackEnds WalkToBothEnds(std::uintptr_t return_address,
                         std::uintptr_t frame_pointer,
                         const StackCopy& stack) noexcept {
  StackEnds ends;
  std::uintptr_t ring[StackEnds::kOutermost];  // The latest frames.
  std::size_t rest = 0;  // Frames that `innermost` has no room for.
  WalkFrames(return_address, frame_pointer, stack, [&](std::uintptr_t frame) {
    if (!ends.innermost.Add(frame)) {
      ring[rest++ % StackEnds::kOutermost] = frame;
    }
    return true;
  });
  const std::size_t kept = std::min(rest, StackEnds::kOutermost);
  ends.left_out = rest - kept;
  for (std::size_t i = ends.left_out; i < rest; ++i) {
    ends.outermost.Add(ring[i % StackEnds::kOutermost]);
  }
  return ends;
}

Symbol Symbolize(std::uintptr_t return_address) {
  const std::uintptr_t pc = return_address - 1;
  Found found = Find(pc, kPatience);
  // Libraries that were loaded later are unknown to it.
  Dl_info info;
  if (found.function == nullptr &&
      dladdr(reinterpret_cast<void*>(pc), &info) != 0) {
    found.function = info.dli_sname;
  }
  Symbol symbol;
  if (found.function != nullptr) symbol.function = Demangle(found.function);
  if (found.file != nullptr) {
    symbol.file = ShortPath(found.file);
    symbol.line = found.line;
  }
  return symbol;
}

std::string FunctionName(const void* function) {
  const auto address = reinterpret_cast<std::uintptr_t>(function);
  Symbol symbol = Symbolize(address + 1);
  return symbol.function.empty() ? ToText(PlaceOf(address))
                                 : std::move(symbol.function);
}

namespace {

void WriteFrames(int fd, const Backtrace& backtrace,
                 std::size_t number) noexcept {
  for (const std::uintptr_t frame : backtrace.frames()) {
    char text[64];
    std::snprintf(text, sizeof(text), "    #%zu 0x%zx ", number++, frame);
    WriteAll(fd, text);
    WriteLocation(fd, frame - 1);
    WriteAll(fd, "\n");
  }
}

}  // namespace

void WriteBacktrace(int fd, const Backtrace& backtrace) noexcept {
  WriteFrames(fd, backtrace, 0);
}

void WriteStackEnds(int fd, const StackEnds& ends) noexcept {
  WriteFrames(fd, ends.innermost, 0);
  if (ends.left_out != 0) {
    char text[64];
    std::snprintf(text, sizeof(text), "    ... %zu frames are left out ...\n",
                  ends.left_out);
    WriteAll(fd, text);
  }
  WriteFrames(fd, ends.outermost, ends.innermost.size() + ends.left_out);
}

void WriteFunctionName(int fd, const void* function) noexcept {
  WriteLocation(fd, reinterpret_cast<std::uintptr_t>(function));
}

std::size_t ReadOwnMemory(const void* from, void* to,
                          std::size_t size) noexcept {
  const int saved_errno = errno;
  const iovec local = {to, size};
  const iovec remote = {const_cast<void*>(from), size};
  ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
  if (got < 0 && (errno == ENOSYS || errno == EPERM)) {
    // Some sandboxes forbid that call.
    const int fd = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
      got = pread(fd, to, size, reinterpret_cast<off_t>(from));
      close(fd);
    }
  }
  errno = saved_errno;
  return got < 0 ? 0 : static_cast<std::size_t>(got);
}

}  // namespace flare
