// Flags of press for recorded calls: --replay and those that go with it.

#ifndef EXAMPLE_RPC_REPLAY_FLAGS_H_
#define EXAMPLE_RPC_REPLAY_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "example/rpc/load_options.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/recording/recorded_call.h"

namespace example {

// --replay is given.
bool HasReplayFlag();
// The first flag that goes with it and is given, as people write it; "": none.
std::string GivenReplayFlag();
// --print is given: calls are printed, and none is sent.
bool HasPrintFlag();

// The calls that the flags choose. Blocks the thread.
flare::Expected<std::vector<flare::RecordedCall>, flare::Status>
RecordedCallsFromFlags();

// Fills in, of each target, its part of the calls, their times and their
// number. `requests` and `qps` are those of all targets; without --timeout
// calls have their recorded ones. May ask the first target for descriptions,
// which blocks the fiber.
flare::Status ReadReplay(std::vector<flare::RecordedCall> calls,
                         bool timeout_is_given,
                         std::vector<LoadOptions>* targets);

// Writes a line of JSON for each call to stdout. Messages are JSON where
// --proto, --descriptor_set, --reflection_addr or `server_addr`, if it isn't
// empty, tell how, and hexadecimal elsewhere.
flare::Status PrintRecordedCalls(const std::vector<flare::RecordedCall>& calls,
                                 const std::string& server_addr);

}  // namespace example

#endif  // EXAMPLE_RPC_REPLAY_FLAGS_H_
