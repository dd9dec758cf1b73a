// Which method to call, and what is known of it, by flags that programs share:
// --method, --data, -H, --proto, --proto_path, --descriptor_set.

#ifndef EXAMPLE_RPC_METHOD_FLAGS_H_
#define EXAMPLE_RPC_METHOD_FLAGS_H_

#include <memory>
#include <string>

#include "example/rpc/method_source.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/metadata.h"

namespace example {

// --method; "": it isn't given.
const std::string& MethodFlag();
// --data.
const std::string& DataFlag();

// Makes what --proto or --descriptor_set name. The text of a failure says which
// flag to change. Blocks the thread while it reads files.
flare::Expected<std::unique_ptr<MethodSource>, flare::Status> SourceFromFlags();

// The entries of all -H flags.
flare::Expected<flare::Metadata, flare::Status> MetadataFromFlags();

// The first of the flags above that is given, as people write it; "": none is.
std::string GivenMethodFlag();

}  // namespace example

#endif  // EXAMPLE_RPC_METHOD_FLAGS_H_
