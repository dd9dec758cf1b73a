// Messages of methods that are found at run time, from and to JSON.

#ifndef EXAMPLE_RPC_JSON_MESSAGES_H_
#define EXAMPLE_RPC_JSON_MESSAGES_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "example/rpc/method_source.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace example {

// The JSON values in `text`, one behind the other, with or without white space
// between them. They refer to `text`.
flare::Expected<std::vector<std::string_view>, flare::Status> SplitJson(
    std::string_view text);

// Fills `message`, an empty one. A name that it doesn't have is an error.
flare::Status ParseJson(std::string_view json,
                        google::protobuf::Message* message);

// One line, without its end.
flare::Expected<std::string, flare::Status> ToJson(
    const google::protobuf::Message& message);

using Messages = std::vector<std::unique_ptr<google::protobuf::Message>>;

// The requests of one call of `method` that `data` has: JSON, "@file" or "@-"
// (stdin). If its client doesn't stream, there is just one, an empty one if
// `data` has none.
flare::Expected<Messages, flare::Status> ReadRequests(
    const MethodSource& source,
    const google::protobuf::MethodDescriptor* method, const std::string& data);

}  // namespace example

#endif  // EXAMPLE_RPC_JSON_MESSAGES_H_
