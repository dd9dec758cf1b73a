// The calls that press makes to one target: a number of callers, each with one
// call under way at a time, which send the next one as soon as the last one
// has ended (or is due, at a fixed rate).

#ifndef EXAMPLE_RPC_LOAD_GENERATOR_H_
#define EXAMPLE_RPC_LOAD_GENERATOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "example/rpc/call.h"
#include "example/rpc/call_sequence.h"
#include "example/rpc/caller.h"
#include "example/rpc/load_options.h"
#include "example/rpc/schedule.h"
#include "flare/base/status.h"
#include "flare/fiber/fiber.h"

namespace example {

// Open(), Start(), Stop() and WaitUntilFinished() are for one fiber.
class LoadGenerator {
 public:
  // The recorder must outlive this.
  LoadGenerator(const LoadOptions& options, LoadRecorder* recorder);
  // After WaitUntilFinished() was true, or without Start(): no calls may be
  // under way.
  ~LoadGenerator();

  // Makes the callers, caller i in scheduling group i % groups; a million of
  // them take a while. Errors as of OpenTarget().
  flare::Status Open();

  // Starts the callers. Doesn't block: more than a hundred of them are started
  // bit by bit within the next second, so that the server doesn't see them all
  // as one burst; at a fixed rate those that the calls due by then need are
  // started sooner. When all calls have been claimed, no more are. After
  // `warm_up` calls count towards LoadOptions::requests from EndWarmUp() on
  // only.
  void Start(bool warm_up = false);

  // LoadOptions::requests begins to count, besides the calls under way. Once,
  // after Start(true).
  void EndWarmUp();

  // The window is over: at a fixed rate calls that are due by now are still
  // sent, if there were no callers for them; without one there are no new
  // calls.
  void End();

  // No new calls; those under way go on to their end.
  void Stop();

  // Calls that were due by End() and weren't sent, at a fixed rate. After
  // WaitUntilFinished() or when callers are given up.
  std::uint64_t unsent() const { return schedule_.unsent(); }

  // Blocks the fiber until all callers have ended: after Stop(), or when all
  // calls of LoadOptions::requests have been made. False: the deadline (of
  // NowNs()) passed first.
  bool WaitUntilFinished(std::int64_t deadline_ns) {
    return running_.WaitUntilAllEnded(deadline_ns);
  }

  // When the last caller ended, a time of NowNs(); nothing: it hasn't.
  std::optional<std::int64_t> ended_ns() const { return running_.ended_ns(); }

  // Callers that haven't ended.
  std::size_t running() const { return running_.left(); }

 private:
  void RampUp();
  std::size_t CallersNeeded() const;

  const LoadOptions options_;
  LoadRecorder* const recorder_;
  std::unique_ptr<Target> target_;
  Schedule schedule_;
  std::vector<std::unique_ptr<Caller>> callers_;
  CallerCount running_;
  flare::Fiber ramp_up_;
};

}  // namespace example

#endif  // EXAMPLE_RPC_LOAD_GENERATOR_H_
