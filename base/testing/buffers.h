// Code that tests of buffers share.

#ifndef FLARE_BASE_TESTING_BUFFERS_H_
#define FLARE_BASE_TESTING_BUFFERS_H_

#include <algorithm>
#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <thread>

#include "flare/base/buffer.h"

namespace flare::buffer_testing {

// Runs `f()` where there is no hot block yet, so that addresses and sizes are
// predictable.
template <class F>
void OnFreshThread(F f) {
  std::thread(f).join();
}

// `text`, which must stay, in slices of that many bytes, which don't merge.
inline Buffer Sliced(std::string_view text, std::size_t slice) {
  Buffer buffer;
  for (; !text.empty(); text.remove_prefix(std::min(slice, text.size()))) {
    buffer.Append(
        MakeReferencingBuffer(text.data(), std::min(slice, text.size())));
  }
  return buffer;
}

// Random small letters.
inline std::string Letters(std::size_t size, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  return text;
}

}  // namespace flare::buffer_testing

#endif  // FLARE_BASE_TESTING_BUFFERS_H_
