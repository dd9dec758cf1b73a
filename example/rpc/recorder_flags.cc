#include "example/rpc/recorder_flags.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "flare/base/string.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/changeable_flag.h"
#include "glog/logging.h"

DEFINE_string(record, "",
              "A folder to which calls are recorded, for press --replay "
              "(docs/record_replay.md). For this server alone. Empty: none "
              "are.");
DEFINE_double(record_fraction, 1,
              "The share of the calls that are drawn to be recorded.");
DEFINE_string(record_methods, "",
              "Record only calls of methods whose full names begin so: a list, "
              "separated by commas.");
DEFINE_bool(record_replies, false, "Record replies of successes, too.");
DEFINE_double(record_qps, 1000,
              "Record so many calls a second at most; 0: no limit.");
DEFINE_uint64(record_file_bytes, 64 << 20,
              "The size of a file after which the next one begins.");
DEFINE_int32(record_files, 16, "Files that are kept; older ones are removed.");

namespace example {
namespace {

struct RunningRecorder {
  flare::ThreadMutex lock;
  flare::CallRecorder* recorder FLARE_GUARDED_BY(lock) = nullptr;
};
RunningRecorder running_recorder;

flare::Status SetRecordedFraction() {
  flare::ScopedLock guard(running_recorder.lock);
  if (running_recorder.recorder != nullptr) {
    running_recorder.recorder->SetFraction(
        flare::ReadFlag(FLAGS_record_fraction));
  }
  return {};
}

bool IsFraction(const char*, double value) { return value >= 0 && value <= 1; }
DEFINE_validator(record_fraction, &IsFraction);
const flare::ChangeableFlag fraction_flag("record_fraction",
                                          &FLAGS_record_fraction,
                                          &SetRecordedFraction);

}  // namespace

flare::Expected<std::unique_ptr<FlagRecorder>, flare::Status>
FlagRecorder::Make() {
  if (FLAGS_record.empty()) return std::unique_ptr<FlagRecorder>();
  flare::CallRecorderOptions options;
  options.folder = FLAGS_record;
  options.fraction = flare::ReadFlag(FLAGS_record_fraction);
  for (const std::string_view method :
       flare::Split(FLAGS_record_methods, ',')) {
    options.methods.emplace_back(method);
  }
  options.replies = FLAGS_record_replies;
  options.max_calls_per_second = FLAGS_record_qps;
  options.bytes_per_file = FLAGS_record_file_bytes;
  options.max_files = static_cast<std::size_t>(std::max(FLAGS_record_files, 0));
  auto recorder = flare::CallRecorder::Install(std::move(options));
  if (!recorder) {
    return flare::Status(
        recorder.error().code(),
        "--record=" + FLAGS_record + ": " + recorder.error().message());
  }
  return std::unique_ptr<FlagRecorder>(new FlagRecorder(*std::move(recorder)));
}

FlagRecorder::FlagRecorder(std::unique_ptr<flare::CallRecorder> recorder)
    : recorder_(std::move(recorder)) {
  flare::ScopedLock guard(running_recorder.lock);
  running_recorder.recorder = recorder_.get();
}

FlagRecorder::~FlagRecorder() {
  {
    flare::ScopedLock guard(running_recorder.lock);
    running_recorder.recorder = nullptr;
  }
  recorder_->Close();  // Counts the last write.
  const flare::CallRecorder::Statistics counts = recorder_->statistics();
  LOG(INFO) << "Recording to " << FLAGS_record
            << " ends; recorded calls: " << counts.recorded
            << "; dropped calls: " << counts.over_limit
            << " beyond the limits, " << counts.queue_full + counts.not_written
            << " that couldn't be written. Streams, which aren't recorded: "
            << counts.streaming << '.';
}

}  // namespace example
