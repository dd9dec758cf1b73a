// Recorded calls as JSON, for people and scripts. docs/record_replay.md
// describes it.

#ifndef EXAMPLE_RPC_RECORDING_JSON_H_
#define EXAMPLE_RPC_RECORDING_JSON_H_

#include <string>

#include "example/rpc/method_source.h"
#include "flare/rpc/recording/recorded_call.h"

namespace example {

// An object on one line. Messages are hexadecimal if `source`, which may be
// null, doesn't know their method, or they aren't of its types.
std::string RecordingJson(const flare::RecordedCall& call,
                          const MethodSource* source);

}  // namespace example

#endif  // EXAMPLE_RPC_RECORDING_JSON_H_
