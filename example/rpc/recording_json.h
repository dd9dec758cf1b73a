// Recorded calls as JSON, for people and scripts. docs/record_replay.md
// describes it.

#ifndef EXAMPLE_RPC_RECORDING_JSON_H_
#define EXAMPLE_RPC_RECORDING_JSON_H_

#include <cstdint>
#include <string>

#include "example/rpc/method_source.h"
#include "flare/rpc/recording/recorded_call.h"

namespace example {

// "2026-12-01T00:15:00.123456Z".
std::string RecordedTimeText(std::int64_t unix_ns);

// An object on one line. Messages are hexadecimal if `source`, which may be
// null, doesn't know their method, or they aren't of its types.
std::string RecordingJson(const flare::RecordedCall& call,
                          const MethodSource* source);

}  // namespace example

#endif  // EXAMPLE_RPC_RECORDING_JSON_H_
