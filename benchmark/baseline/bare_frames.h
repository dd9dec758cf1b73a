// Our frames at the least cost: the end of a message, its request, and replies
// without protobuf. For epoll_limit, which has contiguous input.
//
// A body is not understood: a request's becomes the reply's with another field
// number in front (EchoRequest.body is 1, EchoResponse.body 2).
//
// Pure functions; nothing allocates (but appending to strings), blocks or
// keeps anything.

#ifndef BENCHMARK_BASELINE_BARE_FRAMES_H_
#define BENCHMARK_BASELINE_BARE_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baseline {

// Larger messages are bad ones.
inline constexpr std::size_t kMaxBareMessage = 64 << 20;

enum class Scan {
  kMessage,
  kNeedMore,
  kBad,  // neither flare nor HTTP/1.1, or malformed
};

// The message at the begin of the input.
struct BareMessage {
  enum class Kind : std::uint8_t { kFlare, kHttpCall, kHttp };

  Kind kind = Kind::kFlare;
  bool has_id = false;
  bool close = false;    // HTTP: the connection ends with the reply
  int status = 0;        // of a response; 0: a success
  std::uint64_t id = 0;  // correlation id, Rpc-SeqNo
  std::size_t head = 0;  // bytes before the body
  std::size_t size = 0;  // in all
  // flare: of `size`, the attachment at the end.
  std::size_t attachment = 0;
};

// On kNeedMore *need is the size that the input must have in all, or 0 if that
// isn't known. Otherwise it stays as it was.
Scan ScanRequest(std::string_view in, BareMessage* message, std::size_t* need);
Scan ScanResponse(std::string_view in, BareMessage* message, std::size_t* need);

// Appends the head of the reply to a call.
void AppendReplyHead(const BareMessage& request, std::string* out);

// Makes the body of an echo's reply of the request's, in place.
void TurnIntoReplyBody(char* body, std::size_t size);

// The whole answer to a plain request.
std::string PlainReply(std::string_view body);

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_BARE_FRAMES_H_
