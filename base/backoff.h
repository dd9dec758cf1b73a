// How often to repeat tries that may be in vain: after each failure a number of
// occasions pass without a try, 1 at first, then 5, 21, ... up to 1,023. Each
// success halves the cost of the next failure, so that tries that mostly pay
// are made often, and tries that never do once in a thousand times.
//
// Not thread-safe. Nothing blocks.

#ifndef FLARE_BASE_BACKOFF_H_
#define FLARE_BASE_BACKOFF_H_

#include <algorithm>

namespace flare {

class Backoff {
 public:
  static constexpr int kMost = 1023;  // Occasions that pass after a failure.

  // The first `first` occasions pass without a try.
  explicit Backoff(int first = 0) : left_(first) {}

  // At each occasion: whether to try. If so, say how it went.
  bool ShouldTry() {
    if (left_ == 0) return true;
    --left_;
    return false;
  }
  void Succeeded() { last_ /= 2; }
  void Failed() { left_ = last_ = std::min(4 * last_ + 1, kMost); }

 private:
  int left_;      // Occasions to come without a try.
  int last_ = 0;  // After the last failure, halved by each success since.
};

}  // namespace flare

#endif  // FLARE_BASE_BACKOFF_H_
