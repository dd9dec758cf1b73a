// Shared by the tests of text and JSON.
#ifndef FLARE_RPC_WIRE_PAYLOAD_TESTING_H_
#define FLARE_RPC_WIRE_PAYLOAD_TESTING_H_

#include <pthread.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "flare/base/sanitizer.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

// Runs `f` on a thread whose stack is smaller than a fiber's.
template <class F>
void OnASmallStack(F&& f) {
#if defined(FLARE_ASAN) || defined(FLARE_TSAN)
  // Frames are several times as large there.
  f();
#else
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 96 << 10), 0);
  pthread_t thread;
  auto run = [](void* f) -> void* {
    (*static_cast<F*>(f))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &f), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
#endif
}

inline std::string Repeated(std::string_view text, int times) {
  std::string result;
  for (int i = 0; i != times; ++i) result += text;
  return result;
}

// A field of protobuf's binary format that holds bytes.
inline std::string BytesField(int number, std::string_view bytes) {
  std::string field;
  for (std::size_t n :
       {static_cast<std::size_t>(number << 3 | 2), bytes.size()}) {
    for (; n >= 0x80; n >>= 7) field.push_back(static_cast<char>(n | 0x80));
    field.push_back(static_cast<char>(n));
  }
  return field.append(bytes);
}

// The bytes of an Any.
inline std::string AnyBytes(std::string_view type, std::string_view value) {
  return BytesField(1, "type.googleapis.com/" + std::string(type)) +
         BytesField(2, value);
}

// `message` within `depth` Any values, the outermost one as bytes.
inline std::string NestedAny(int depth, std::string_view type,
                             std::string_view message) {
  std::string any = AnyBytes(type, message);
  while (--depth > 0) any = AnyBytes("google.protobuf.Any", any);
  return any;
}

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_WIRE_PAYLOAD_TESTING_H_
