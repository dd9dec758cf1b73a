// The protocol part of a check: its question and its reading of the answer,
// without IO.

#ifndef FLARE_RPC_CHECKS_CHECK_DIALOGUE_H_
#define FLARE_RPC_CHECKS_CHECK_DIALOGUE_H_

#include <cstddef>
#include <memory>
#include <optional>

#include "flare/base/buffer.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/checks/server_check.h"
#include "flare/rpc/stream_wire.h"

namespace flare::rpc {

// Belongs to one connection, whose callbacks call it. Nothing blocks.
class CheckDialogue {
 public:
  virtual ~CheckDialogue() = default;

  // Appends the question to *out, or sends it by `output`, which lives as long
  // as the dialogue.
  virtual flare::Status Ask(StreamOutput* output, BufferBuilder* out) = 0;
  // `in` has all input that wasn't taken off it yet. Returns the outcome once
  // there is one; after that only OnClosed() is called. May set *need as
  // io::StreamHandler::OnData() does.
  virtual std::optional<flare::Status> OnData(Buffer& in,
                                              std::size_t* need) = 0;
  // Called at most once, if Ask() was called.
  virtual void OnClosed(const flare::Status& /*why*/) {}
};

// kHttp.
std::unique_ptr<CheckDialogue> NewHttpDialogue(const ServerCheck& check);
// kGrpc and kCall. Fails if there is no such protocol.
Expected<std::unique_ptr<CheckDialogue>, flare::Status> NewCallDialogue(
    const ServerCheck& check);

}  // namespace flare::rpc

#endif  // FLARE_RPC_CHECKS_CHECK_DIALOGUE_H_
