// Which sanitizer this is compiled under: FLARE_ASAN for AddressSanitizer,
// FLARE_TSAN for ThreadSanitizer, or neither. gcc and clang say it differently.

#ifndef FLARE_BASE_SANITIZER_H_
#define FLARE_BASE_SANITIZER_H_

#if defined(__SANITIZE_ADDRESS__)
#define FLARE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FLARE_ASAN 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define FLARE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define FLARE_TSAN 1
#endif
#endif

#endif  // FLARE_BASE_SANITIZER_H_
