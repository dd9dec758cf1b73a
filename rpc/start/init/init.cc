#include "flare/init.h"

#include <gflags/gflags.h>
#include <google/protobuf/stubs/common.h>
#if GOOGLE_PROTOBUF_VERSION < 4022000
#include <google/protobuf/stubs/logging.h>
#endif
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/function.h"
#include "flare/base/status.h"
#include "flare/base/unblocked_logging.h"
#include "flare/fiber/event.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/init/on_init.h"
#include "flare/init/override_flag.h"
#include "flare/io/fd.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/start/command_line.h"
#include "flare/rpc/start/flag_file.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/start/quit_signal.h"
#include "flare/rpc/start/runtime_flags.h"
#include "glog/logging.h"

namespace flare {
namespace {

struct Override {
  std::string flag;
  std::string value;
  bool force;
};
std::vector<Override>& Overrides() {
  static auto* const overrides = new std::vector<Override>();
  return *overrides;
}

struct InitCallback {
  int priority;
  Function<void()> start;
  Function<void()> end;
};
// They stay where they are when one of them registers another.
std::deque<InitCallback>& InitCallbacks() {
  static auto* const callbacks = new std::deque<InitCallback>();
  return *callbacks;
}

Status ApplyOverrides() {
  std::set<std::string> done;
  for (const Override& o : Overrides()) {
    if (!done.insert(o.flag).second) {
      return Status(EINVAL,
                    "--" + o.flag + " is overridden twice in the program.");
    }
    gflags::CommandLineFlagInfo info;
    if (!gflags::GetCommandLineFlagInfo(o.flag.c_str(), &info)) {
      return Status(EINVAL, "--" + o.flag +
                                ", which the program overrides, "
                                "doesn't exist in it.");
    }
    // A default only: a value from the command line stays.
    const auto mode =
        o.force ? gflags::SET_FLAGS_VALUE : gflags::SET_FLAG_IF_DEFAULT;
    if (gflags::SetCommandLineOptionWithMode(o.flag.c_str(), o.value.c_str(),
                                             mode)
            .empty()) {
      return Status(EINVAL, "--" + o.flag + " doesn't take \"" + o.value +
                                "\", the value the program gives it.");
    }
  }
  return Status();
}

// Says the cause on stderr, whether or not logs go there.
int Refuse(const char* program, const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", program, why.c_str());
  return 1;
}

// glog drops lines that it can't write, with words that name no folder.
void WarnOfLogFolder(const char* program) {
  if (FLAGS_logtostderr || FLAGS_log_dir.empty() ||
      access(FLAGS_log_dir.c_str(), W_OK | X_OK) == 0) {
    return;
  }
  const Status why =
      StatusFromErrno(errno, "write logs to --log_dir=" + FLAGS_log_dir);
  std::fprintf(stderr, "%s: can't %s; log lines below errors are lost\n",
               program, why.message().c_str());
}

#if GOOGLE_PROTOBUF_VERSION < 4022000
// protobuf's complaints, such as that a text isn't UTF-8: by itself it writes
// to stderr, a line for each message that somebody sends us.
void LogForProtobuf(google::protobuf::LogLevel level, const char* file,
                    int line, const std::string& text) {
  static rpc::LogThrottle throttle;
  // After a fatal one it ends the program, or throws.
  const bool fatal = level >= google::protobuf::LOGLEVEL_FATAL;
  const auto left_out = fatal ? 0 : throttle.Admit();
  if (!left_out) return;
  const auto severity =
      level == google::protobuf::LOGLEVEL_INFO      ? google::GLOG_INFO
      : level == google::protobuf::LOGLEVEL_WARNING ? google::GLOG_WARNING
                                                    : google::GLOG_ERROR;
  google::LogMessage(file, line, severity).stream()
      << "protobuf: " << text << rpc::LogThrottle::NoteOthers(*left_out);
}

// While it exists protobuf logs by LogForProtobuf().
class ProtobufLog {
 public:
  ProtobufLog() : before_(google::protobuf::SetLogHandler(LogForProtobuf)) {}
  ~ProtobufLog() { google::protobuf::SetLogHandler(before_); }
  ProtobufLog(const ProtobufLog&) = delete;
  ProtobufLog& operator=(const ProtobufLog&) = delete;

 private:
  google::protobuf::LogHandler* const before_;
};
#else
// From release 22 on protobuf logs by abseil, whose log is the program's
// business.
class ProtobufLog {};
#endif

// Runs `f` on a fiber and waits for it on this thread.
int RunOnFiber(Function<int()> f) {
  int result = 0;
  fiber::Event done;
  fiber::Spawn([&] {
    result = f();
    done.Set();
  });
  done.Wait();
  return result;
}

std::vector<InitCallback*> SortedInitCallbacks() {
  std::vector<InitCallback*> callbacks;
  for (InitCallback& callback : InitCallbacks()) callbacks.push_back(&callback);
  std::stable_sort(callbacks.begin(), callbacks.end(),
                   [](const InitCallback* a, const InitCallback* b) {
                     return a->priority < b->priority;
                   });
  return callbacks;
}

}  // namespace

init::FlagOverride::FlagOverride(const char* flag, std::string value,
                                 bool force) {
  Overrides().push_back({flag, std::move(value), force});
}

init::OnInit::OnInit(int priority, Function<void()> start,
                     Function<void()> end) {
  InitCallbacks().push_back({priority, std::move(start), std::move(end)});
}

int Start(int argc, char** argv, Function<int(int, char**)> cb) {
  const UnblockedLogging logging;  // Until the last line is written.
  const char* const program = argv[0];
  const auto passed_over = rpc::CheckFlagFiles(argc, argv);
  if (!passed_over) return Refuse(program, passed_over.error().message());
  rpc::ParseCommandLine(&argc, &argv);
  Status valid = ApplyOverrides();
  if (valid.ok()) valid = rpc::ValidateFlags();
  if (!valid.ok()) return Refuse(program, valid.message());
  auto options = rpc::RuntimeOptionsFromFlags();
  if (!options) return Refuse(program, options.error().message());

  WarnOfLogFolder(program);
  if (!google::IsGoogleLoggingInitialized()) google::InitGoogleLogging(program);
  for (const std::string& text : *passed_over) LOG(WARNING) << text;
  [[maybe_unused]] std::optional<ProtobufLog> protobuf_log{std::in_place};
  signal(SIGPIPE, SIG_IGN);
  if (FLAGS_flare_raise_open_files_limit) io::RaiseDescriptorLimit();
  const std::vector<InitCallback*> callbacks = SortedInitCallbacks();
  for (InitCallback* callback : callbacks) {
    if (callback->start) callback->start();
  }

  int result = 1;
  if (Status started = fiber::StartRuntime(*options); started.ok()) {
    std::optional<rpc::ClientSideEnd> end;
    result = RunOnFiber([&] {
      const int value = cb(argc, argv);
      end.emplace();
      rpc::ShutdownClientSide();
      return value;
    });
    rpc::EndQuitSignalWaits();
    fiber::TerminateRuntime();
  } else {
    Refuse(program, "can't start the fiber runtime: " + started.message());
  }

  for (auto it = callbacks.rbegin(); it != callbacks.rend(); ++it) {
    if ((*it)->end) (*it)->end();
  }
  rpc::ForgetQuitSignals();
  protobuf_log.reset();
  google::FlushLogFiles(google::INFO);
  return result;
}

void WaitForQuitSignal() { rpc::AwaitQuitSignal(); }

bool CheckForQuitSignal() { return rpc::HasQuitSignalCome(); }

}  // namespace flare
