// One call under its server's limits: its place among those that run, and among
// the calls of its method, that of a stream, the rules of AdmissionOptions, and
// the memory that counts as its own.
//
//   if (!gate.IsOpen(waited_ns)) verdict = admission.Ask(...);
//   ...
//   if (!admission.Enter(method)) return Refuse();
//   ...
//   admission.Leave(&state, worker);   // before the reply is sent
//
// One thread at a time; nothing blocks.
#ifndef FLARE_RPC_SERVER_CALL_ADMISSION_H_
#define FLARE_RPC_SERVER_CALL_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/admission/admission_control.h"
#include "flare/rpc/server/call_connection.h"
#include "flare/rpc/server/call_gate.h"
#include "flare/rpc/server/method_table.h"
#include "flare/rpc/server/server_state.h"
#include "flare/rpc/server_protocol.h"

namespace flare::rpc {

class CallAdmission {
 public:
  CallAdmission() = default;
  CallAdmission(const CallAdmission&) = delete;
  CallAdmission& operator=(const CallAdmission&) = delete;

  // --- Places ---

  // A new call, which the server counts as running until Leave().
  void Prepare() {
    method_ = nullptr;
    place_ = Place::kTaken;
    begun_ = false;
  }
  // ... which it doesn't count.
  void Forgo() { place_ = Place::kNone; }
  bool has_place() const { return place_ != Place::kNone; }

  // Whether a worker that came to the call at `now_ns` may begin it, as it has
  // waited. Asks the gate, then the server's rules.
  CallGate::Verdict Ask(CallConnection* connection,
                        const InboundRequest& request, std::int64_t received_ns,
                        std::int64_t now_ns);

  // False: as many calls of `method` run as may. Until Leave().
  [[nodiscard]] bool Enter(const Method* method) {
    if (!method->TryEnter()) return false;
    method_ = method;
    return true;
  }
  // The method that was entered; null: none.
  const Method* method() const { return method_; }

  // CallConnection::EnterStream().
  [[nodiscard]] bool EnterStream(CallConnection* connection,
                                 std::string_view* why) {
    return has_stream_place_ = connection->EnterStream(why);
  }
  void LeaveStream(CallConnection* connection) {
    if (std::exchange(has_stream_place_, false)) connection->LeaveStream();
  }

  // The method, or what serves the request, is called next.
  void NoteBegun() { begun_ = true; }
  // The call is going to wait for its peer, as it may for long: from now on the
  // rules of admission don't count it. They have to know streams by their end.
  void StopMetering(ServerState* state) {
    if (place_ == Place::kMetered && !streams()) EndMetering(state);
  }

  // Gives back all places but that of a stream. Any number of times.
  void Leave(ServerState* state, std::size_t worker) {
    if (place_ != Place::kTaken) [[unlikely]]
      return LeaveMetered(state, worker);
    place_ = Place::kNone;
    if (method_ != nullptr) std::exchange(method_, nullptr)->Leave();
    state->CallFinished(worker);
    if (unpacked_bytes_ != 0) [[unlikely]] {
      state->unpacked()->Remove(std::exchange(unpacked_bytes_, 0));
    }
  }

  // --- Memory ---

  // The bytes of the request once it is decompressed. Until Leave().
  void CountUnpacked(ServerState* state, std::size_t bytes) {
    unpacked_bytes_ = bytes;
    state->unpacked()->Add(bytes);
  }

  // The call holds that much memory, of its request and of a reply that waits:
  // counted for its connection until this is called with 0.
  void Hold(CallConnection* connection, std::size_t bytes) {
    connection->CountHeld(std::exchange(held_bytes_, bytes), bytes);
  }
  std::size_t held_bytes() const { return held_bytes_; }
  // A reply that has to wait is more to hold.
  void HoldReply(CallConnection* connection, std::size_t bytes) {
    if (bytes > kMaxKeptBytes) Hold(connection, held_bytes_ + bytes);
  }

 private:
  // Under the limit of all calls.
  enum class Place : std::uint8_t {
    kNone,
    kTaken,    // Counted as running.
    kMetered,  // ... and its AdmissionControl must learn of the end.
  };

  bool AskRules(AdmissionControl* control, CallConnection* connection,
                const InboundRequest& request, const CallGate::Call& asked,
                const Method* method);
  // Called last: the other calls need no frame for it.
  [[gnu::noinline]] void LeaveMetered(ServerState* state, std::size_t worker);
  void EndMetering(ServerState* state);
  bool streams() const { return metered_ != nullptr && metered_->streaming(); }

  const Method* method_ = nullptr;
  std::size_t held_bytes_ = 0;
  std::size_t unpacked_bytes_ = 0;
  // While it is metered: its method, null if it has none, and when it was read
  // and begun.
  const Method* metered_ = nullptr;
  std::int64_t received_ns_ = 0;
  std::int64_t dispatched_ns_ = 0;
  Place place_ = Place::kNone;
  bool has_stream_place_ = false;
  bool begun_ = false;  // NoteBegun() was called.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_CALL_ADMISSION_H_
