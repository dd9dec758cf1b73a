// Takes recorded calls from the fibers that serve them to a file, by a fiber of
// its own: no call waits for the disk.
#ifndef FLARE_RPC_RECORDING_RECORDING_QUEUE_H_
#define FLARE_RPC_RECORDING_RECORDING_QUEUE_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/spinlock.h"
#include "flare/base/thread_annotations.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/semaphore.h"
#include "flare/rpc/log_throttle.h"
#include "flare/rpc/recording/recorded_call.h"
#include "flare/rpc/recording/recording_counters.h"
#include "flare/rpc/recording/recording_files.h"

namespace flare {

class RecordingQueue {
 public:
  struct Options {
    RecordingFiles::Options files;
    std::size_t max_bytes = 0;             // All places together.
    std::chrono::nanoseconds interval{0};  // Between writes of little.
  };
  // Memory for a call, from the beginning of its recording until it is written
  // or given up. Move-only.
  class Place {
   public:
    Place() = default;  // None.
    Place(Place&& other) noexcept
        : queue_(std::exchange(other.queue_, nullptr)), bytes_(other.bytes_) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(queue_, other.queue_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Place();

    explicit operator bool() const { return queue_ != nullptr; }
    // False: there is no room for that many bytes more.
    [[nodiscard]] bool Grow(std::size_t bytes);

   private:
    friend class RecordingQueue;
    Place(RecordingQueue* queue, std::size_t bytes)
        : queue_(queue), bytes_(bytes) {}

    RecordingQueue* queue_ = nullptr;
    std::size_t bytes_ = 0;
  };

  // In a running runtime.
  RecordingQueue(Options options, const RecordingCounters& counters);
  // After Close(), and behind all places.
  ~RecordingQueue();
  RecordingQueue(const RecordingQueue&) = delete;
  RecordingQueue& operator=(const RecordingQueue&) = delete;

  // Before all else. As RecordingFiles::Prepare(): blocks the thread.
  Status Start();

  // Takes memory for a call; an empty place: there is none. Any thread; nothing
  // blocks.
  Place Take(std::size_t bytes);
  // Has `call` written. After Close() it is dropped, and counted. Throws
  // std::bad_alloc, and then it isn't counted. Any thread; doesn't block.
  void Add(RecordedCall call, Place place);

  // Writes the calls that wait, and ends the fiber, for which the caller, one
  // fiber or thread, blocks. No effect a second time.
  void Close();

 private:
  struct Waiting {
    RecordedCall call;
    Place place;
  };

  bool TakeBytes(std::size_t bytes);
  void Run();
  void Write(std::vector<Waiting> calls);
  void WriteTogether(const std::string& records, std::size_t count);
  Status TryToWrite(const std::string& records);
  void LogFailure(const Status& why, std::size_t count);

  const Options options_;
  const RecordingCounters& counters_;
  const std::size_t wake_bytes_;  // [RK2]
  RecordingFiles files_;          // The fiber's, after Start().
  rpc::LogThrottle failure_log_{60'000'000'000};
  std::atomic<std::size_t> taken_bytes_{0};
  Spinlock lock_;
  std::vector<Waiting> waiting_ FLARE_GUARDED_BY(lock_);
  std::size_t waiting_bytes_ FLARE_GUARDED_BY(lock_) = 0;
  bool closed_ FLARE_GUARDED_BY(lock_) = false;
  fiber::Semaphore much_{0};  // [RK2]
  std::stop_source stop_;
  Fiber fiber_;
};

}  // namespace flare

#endif  // FLARE_RPC_RECORDING_RECORDING_QUEUE_H_
