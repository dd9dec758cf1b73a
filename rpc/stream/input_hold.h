// Pauses the reading of a connection while one of its streams is full, for
// protocols without credits.
//
//   // The reader, wherever it goes on:
//   if (hold.held()) return hold.Pause(stream);
//
//  [IH1] Hold() is the reader's, in Cut(). Release() is anybody's.
//  [IH2] The reader pauses the stream, then sets kPaused. The one that takes
//        that away resumes it, so that happens once: the last one to release,
//        or the reader itself, if there was none left to do so. While there is
//        kPaused there is no reader.
#ifndef FLARE_RPC_STREAM_INPUT_HOLD_H_
#define FLARE_RPC_STREAM_INPUT_HOLD_H_

#include <atomic>
#include <cstdint>

#include "flare/io/stream_connection.h"

namespace flare::rpc {

class InputHold {
 public:
  bool held() const {
    // relaxed: only the reader holds; a release is seen soon, or by Pause().
    return word_.load(std::memory_order_relaxed) != 0;
  }

  void Hold() {
    // relaxed: the reader's own.
    word_.fetch_add(1, std::memory_order_relaxed);
  }

  void Release(io::StreamConnection* stream) {
    // acq_rel: pairs with Pause [IH2].
    if (word_.fetch_sub(1, std::memory_order_acq_rel) == (kPaused | 1)) {
      Resume(stream);
    }
  }

  // By the reader, which mustn't read or cut anything afterwards.
  void Pause(io::StreamConnection* stream) {
    stream->PauseReading();
    // acq_rel: pairs with Release [IH2].
    if (word_.fetch_or(kPaused, std::memory_order_acq_rel) == 0) Resume(stream);
  }

 private:
  static constexpr std::uint32_t kPaused = std::uint32_t{1} << 31;

  void Resume(io::StreamConnection* stream) {
    std::uint32_t paused = kPaused;
    // acq_rel: one of those who come here resumes [IH2].
    if (word_.compare_exchange_strong(paused, 0, std::memory_order_acq_rel)) {
      stream->ResumeReading();
    }
  }

  std::atomic<std::uint32_t> word_{0};
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_STREAM_INPUT_HOLD_H_
