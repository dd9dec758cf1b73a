// The queue, between the callers of Add() and the fiber:
//
//  [RK1] Calls that are recorded hold places, of at most max_bytes together. A
//        call that finds no place isn't recorded, so that no call waits for the
//        disk, however slow that is. Close() closes the queue first: the
//        fiber's last look finds all calls that weren't dropped, and later
//        ones are counted as not written.
//  [RK2] The caller whose call makes the queue hold a megabyte, or half of
//        max_bytes if that is less, gives a unit to much_: before there are no
//        places left. The fiber takes all calls each time it wakes up, so that
//        a unit too many costs it a look.
//  [RK3] Without memory a call isn't recorded, and is counted. The fiber must
//        not throw: that would end the process.
#include "flare/rpc/recording/recording_queue.h"

#include <algorithm>
#include <cerrno>
#include <new>

#include "flare/base/string.h"
#include "flare/fiber/blocking_region.h"
#include "flare/rpc/recording/recording_format.h"
#include "glog/logging.h"

namespace flare {
namespace {

// Bytes that are written at once.
constexpr std::size_t kMuch = 1 << 20;

}  // namespace

// relaxed, here and below: counts that order nothing else.
RecordingQueue::Place::~Place() {
  if (queue_ == nullptr) return;
  queue_->taken_bytes_.fetch_sub(bytes_, std::memory_order_relaxed);
}

bool RecordingQueue::Place::Grow(std::size_t bytes) {
  if (!queue_->TakeBytes(bytes)) return false;
  bytes_ += bytes;
  return true;
}

RecordingQueue::RecordingQueue(Options options,
                               const RecordingCounters& counters)
    : options_(std::move(options)),
      counters_(counters),
      wake_bytes_(std::clamp<std::size_t>(options_.max_bytes / 2, 1, kMuch)),
      files_(options_.files) {}

RecordingQueue::~RecordingQueue() { Close(); }

Status RecordingQueue::Start() {
  if (Status ready = files_.Prepare(); !ready.ok()) return ready;
  fiber_ = Fiber([this] { Run(); });
  return {};
}

bool RecordingQueue::TakeBytes(std::size_t bytes) {
  const std::size_t before =
      taken_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  if (before + bytes <= options_.max_bytes) return true;  // [RK1]
  taken_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

RecordingQueue::Place RecordingQueue::Take(std::size_t bytes) {
  return TakeBytes(bytes) ? Place(this, bytes) : Place();
}

void RecordingQueue::Add(RecordedCall call, Place place) {
  bool much = false;
  {
    ScopedLock guard(lock_);
    if (closed_) return counters_.not_written->Add();  // [RK1]
    const std::size_t before = waiting_bytes_;
    const std::size_t after = before + place.bytes_;
    waiting_.push_back({std::move(call), std::move(place)});  // May throw.
    waiting_bytes_ = after;
    much = before < wake_bytes_ && after >= wake_bytes_;
  }
  if (much) much_.release();  // [RK2]
}

void RecordingQueue::Close() {
  if (!fiber_.joinable()) return;
  {
    ScopedLock guard(lock_);
    closed_ = true;
  }
  stop_.request_stop();
  fiber_.join();
}

void RecordingQueue::Run() {
  const std::stop_token stop = stop_.get_token();
  for (bool last = false; !last;) {
    static_cast<void>(much_.try_acquire_for(stop, options_.interval));
    last = stop.stop_requested();
    std::vector<Waiting> calls;
    {
      ScopedLock guard(lock_);
      calls.swap(waiting_);
      waiting_bytes_ = 0;
    }
    if (calls.empty()) continue;
    fiber::RunBlocking([&] { Write(std::move(calls)); });
  }
}

// Blocks the thread. Records go to the file together, as many as it has room
// for, up to a megabyte or so.
void RecordingQueue::Write(std::vector<Waiting> calls) {
  std::string together;
  std::size_t count = 0;
  for (Waiting& waiting : calls) {
    try {
      const std::string record = EncodeRecord(std::move(waiting.call));
      if (record.empty()) {
        counters_.not_written->Add();
        continue;
      }
      if (count != 0 && (together.size() >= kMuch ||
                         together.size() + record.size() > files_.room())) {
        WriteTogether(together, count);
        together.clear();
        count = 0;
      }
      together += record;
      ++count;
    } catch (const std::bad_alloc&) {  // [RK3]
      counters_.not_written->Add();
    }
  }
  if (count != 0) WriteTogether(together, count);
}

void RecordingQueue::WriteTogether(const std::string& records,
                                   std::size_t count) {
  const Status written = TryToWrite(records);
  if (written.ok()) {
    counters_.recorded->Add(count);
    counters_.bytes->Add(records.size());
    return;
  }
  counters_.not_written->Add(count);
  try {
    LogFailure(written, count);
  } catch (const std::bad_alloc&) {  // [RK3]
  }
}

Status RecordingQueue::TryToWrite(const std::string& records) {
  try {
    return files_.Write(records);
  } catch (const std::bad_alloc&) {  // [RK3]
    return Status(ENOMEM);
  }
}

void RecordingQueue::LogFailure(const Status& why, std::size_t count) {
  if (const auto left_out = failure_log_.Admit()) {
    LOG(WARNING) << CountOf(count, "call") << " can't be recorded: "
                 << (why.message().empty() ? "there is no memory"
                                           : OneLine(why.message()))
                 << rpc::LogThrottle::Note(*left_out);
  }
}

}  // namespace flare
