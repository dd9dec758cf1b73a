// Records a sample of the calls that the servers of a program serve, into files
// that press sends again (press --replay) and RecordingReader reads.
//
//   auto recorder = flare::CallRecorder::Install(
//       {.folder = "/var/tmp/fares", .fraction = 0.01});
//   if (!recorder) return Fail(recorder.error().message());
//   ...                            // Start servers.
//
// Unary calls of all protocols, with their messages, attachments and metadata.
// Streaming calls are left out and counted; requests for HTTP handlers are left
// out. Recordings hold what callers have sent: treat them as secrets.
//
// In the library //rpc:recording (flare::recording). docs/record_replay.md has
// more.
#ifndef FLARE_RPC_RECORDING_CALL_RECORDER_H_
#define FLARE_RPC_RECORDING_CALL_RECORDER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/extension.h"

namespace flare {

class RecordingQueue;

struct CallRecorderOptions {
  // Where the files are made; the last part of the path is made if need be. For
  // this recorder alone: it removes the oldest files in there, those of earlier
  // runs, too. Must be this user's, and nobody else may write there.
  std::string folder = "";
  // The share of the calls that are drawn, by chance: from 0 to 1. The limits
  // below hold for drawn calls: if they drop some, fewer are recorded.
  double fraction = 1;
  // Calls of methods ("package.Service.Method") that begin so. Empty: all.
  std::vector<std::string> methods = {};
  // Those that aren't recorded.
  std::vector<std::string> excluded = {"grpc.health.v1.Health.",
                                       "grpc.reflection."};
  // Whether the replies of calls that succeed are recorded, too.
  bool replies = false;
  // Entries of the metadata whose values are left out, by their names; upper
  // and lower case are the same.
  std::vector<std::string> secret_metadata = {
      "authorization", "cookie", "proxy-authorization", "x-api-key"};

  std::size_t bytes_per_file = 64 << 20;
  // The oldest ones are removed. At least 1.
  std::size_t max_files = 16;

  // Calls and bytes beyond that in a second are dropped, and counted. 0: no
  // limit.
  double max_calls_per_second = 1000;
  double max_bytes_per_second = 16 << 20;
  // Memory of the calls that are served and recorded, or wait to be written.
  // More are dropped, and counted.
  std::size_t max_queue_bytes = 32 << 20;
  // Between writes of less than a megabyte, or half of max_queue_bytes if that
  // is less.
  std::chrono::nanoseconds write_interval = std::chrono::seconds(1);
};

class CallRecorder {
 public:
  struct Statistics {
    std::uint64_t recorded = 0;        // In a file.
    std::uint64_t recorded_bytes = 0;  // Their bytes in files.
    std::uint64_t over_limit = 0;      // Beyond calls or bytes in a second.
    std::uint64_t queue_full = 0;      // For want of memory: a slow disk.
    std::uint64_t not_written = 0;     // For the disk is full, and the like.
    std::uint64_t streaming = 0;       // Calls that stream, all of them.
  };

  // In flare::Start(). Fails with a text if an option makes no sense, if files
  // can't be made in the folder, or if there is another one. Blocks the thread
  // for a moment.
  static Expected<std::unique_ptr<CallRecorder>, Status> Install(
      CallRecorderOptions options);

  // As Close(). Destroy it behind servers, in flare::Start().
  ~CallRecorder();
  CallRecorder(const CallRecorder&) = delete;
  CallRecorder& operator=(const CallRecorder&) = delete;

  // Writes the calls that wait, which blocks the fiber, and ends the recording:
  // then statistics() is final. Servers that exist record no more; a call that
  // they serve now counts as not written when it ends. For one fiber; no effect
  // a second time.
  void Close();

  // From now on that share of the calls is drawn; 0: none. No effect after
  // Close(). Any thread; nothing blocks. False: it isn't from 0 to 1, and
  // nothing has changed.
  bool SetFraction(double fraction);

  // Any thread.
  Statistics statistics() const;

 private:
  struct Turn;  // The only one's.
  class Interceptor;

  CallRecorder(std::unique_ptr<Turn> turn,
               std::shared_ptr<Interceptor> interceptor);

  const std::unique_ptr<Turn> turn_;  // Ends behind the rest.
  const std::shared_ptr<Interceptor> interceptor_;
  const InstalledExtension extension_;
};

}  // namespace flare

#endif  // FLARE_RPC_RECORDING_CALL_RECORDER_H_
