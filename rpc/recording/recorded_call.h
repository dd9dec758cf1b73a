// A call that a server has served, as recordings keep it (call_recorder.h,
// recording_reader.h). A plain value.
#ifndef FLARE_RPC_RECORDING_RECORDED_CALL_H_
#define FLARE_RPC_RECORDING_RECORDED_CALL_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace flare {

struct RecordedCall {
  struct Entry {
    std::string name;
    std::string value;
  };
  struct Reply {
    std::string message;  // Binary protobuf, or raw bytes of the method.
    std::string attachment;
  };

  std::int64_t received_unix_ns = 0;  // Read off the socket.
  std::string method;                 // "package.Service.Method"
  std::string request;                // Binary protobuf, over any protocol.
  std::string attachment;
  std::vector<Entry> metadata;
  std::vector<std::string> left_out;  // Names of entries that are secret.
  std::int64_t timeout_ns = 0;        // From then on; 0: the caller set none.
  std::string peer;                   // "10.0.0.1:4711"
  double fraction = 1;                // The share drawn then, before limits.
  int status = 0;                     // As of RpcServerController.
  std::string error;                  // The text of a failure.
  std::int64_t latency_ns = 0;
  // Only if the call succeeded, and replies were recorded.
  std::optional<Reply> reply;

  // The memory that it holds, about.
  std::size_t ByteSize() const;
};

}  // namespace flare

#endif  // FLARE_RPC_RECORDING_RECORDED_CALL_H_
