// A recorder of calls by the flags of a server: --record and those that begin
// with its name.

#ifndef EXAMPLE_RPC_RECORDER_FLAGS_H_
#define EXAMPLE_RPC_RECORDER_FLAGS_H_

#include <memory>
#include <utility>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/recording/call_recorder.h"

namespace example {

// Records as long as it lives: in front of the server, in flare::Start().
class FlagRecorder {
 public:
  // Null: --record isn't given. Fails with a text that names a flag.
  static flare::Expected<std::unique_ptr<FlagRecorder>, flare::Status> Make();

  ~FlagRecorder();
  FlagRecorder(const FlagRecorder&) = delete;
  FlagRecorder& operator=(const FlagRecorder&) = delete;

 private:
  explicit FlagRecorder(std::unique_ptr<flare::CallRecorder> recorder);

  const std::unique_ptr<flare::CallRecorder> recorder_;
};

}  // namespace example

#endif  // EXAMPLE_RPC_RECORDER_FLAGS_H_
