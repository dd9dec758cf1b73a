// Requests that are sent together, and why they have no replies: what goes
// through a PipelineConnection (pipeline_connection.h), which has the rules of
// access. Derived types have the replies.
#ifndef FLARE_RPC_PIPELINE_PIPELINE_EXCHANGE_H_
#define FLARE_RPC_PIPELINE_PIPELINE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/fiber/event.h"

namespace flare::rpc {

// Codes of errors that all clients over such connections have, by the numbers
// of their own enumerations. From PIPELINE_TIMEOUT on the request was sent.
enum PipelineErrorCode : int {
  // For counters, of requests that have replies.
  PIPELINE_ERROR_REPLY = -1,
  PIPELINE_OK = 0,

  PIPELINE_FAIL_TO_CONNECT = 3,
  PIPELINE_REFUSED = 4,
  PIPELINE_OVERLOADED = 5,
  PIPELINE_SHUTDOWN = 6,
  PIPELINE_TIMEOUT_UNSENT = 7,
  PIPELINE_CANCELLED_UNSENT = 8,

  PIPELINE_TIMEOUT = 101,
  PIPELINE_CANCELLED = 102,
  PIPELINE_CONNECTION_LOST = 103,
  PIPELINE_MALFORMED_REPLY = 104,
};

struct PipelineExchange : RefCounted<PipelineExchange> {
  // `replies`: at least one.
  PipelineExchange(Buffer requests, std::size_t replies)
      : bytes(std::move(requests)), size(bytes.size()), expected(replies) {}
  virtual ~PipelineExchange() = default;

  PipelineExchange* next = nullptr;
  Buffer bytes;  // Until they are sent.
  const std::size_t size;
  const std::size_t expected;
  std::size_t received = 0;
  std::int64_t sent_ns = 0;
  bool sent = false;
  bool abandoned = false;

  flare::Status failure;
  fiber::Event done;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_PIPELINE_PIPELINE_EXCHANGE_H_
