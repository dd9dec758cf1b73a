// The spans that a process shows on its page: the last ones, and the slowest
// ones of each method.
//
// Thread-safe. Locks a thread mutex for a moment.
#ifndef FLARE_RPC_TRACING_RECENT_SPANS_H_
#define FLARE_RPC_TRACING_RECENT_SPANS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/tracing/span_exporter.h"

namespace flare {

class RecentSpans {
 public:
  // Slowest spans of a method; methods beyond the limit have none, and neither
  // have parts of methods.
  static constexpr std::size_t kSlowest = 8;
  static constexpr std::size_t kMaxMethods = 256;
  // A slow span makes room for any other after so long.
  static constexpr std::int64_t kSlowestNs = 600'000'000'000;

  // `capacity`: of last ones, at least 1.
  explicit RecentSpans(std::size_t capacity);

  void Add(std::shared_ptr<const SpanData> span);

  // All, each once, the one that ended last first.
  SpanBatch Read() const;

 private:
  void AddSlow(const std::string& key, std::shared_ptr<const SpanData> span)
      FLARE_REQUIRES(lock_);

  const std::size_t capacity_;
  mutable ThreadMutex lock_;
  SpanBatch last_ FLARE_GUARDED_BY(lock_);  // A ring, once it is full.
  std::size_t oldest_ FLARE_GUARDED_BY(lock_) = 0;
  // By kind and name; at most kSlowest of each.
  std::map<std::string, SpanBatch, std::less<>> slowest_
      FLARE_GUARDED_BY(lock_);
};

}  // namespace flare

#endif  // FLARE_RPC_TRACING_RECENT_SPANS_H_
