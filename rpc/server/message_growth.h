// How much memory messages of a type can take for the bytes that are parsed
// into them.
#ifndef FLARE_RPC_SERVER_MESSAGE_GROWTH_H_
#define FLARE_RPC_SERVER_MESSAGE_GROWTH_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstddef>

namespace flare::rpc {

// An upper bound, in bytes of memory per byte on the wire, of the growth of a
// message of this type that is used for one request after another. A cleared
// message keeps its elements, and each request adds those that it has more. So
// this is small for a type without repeated fields and submessages, and large
// for repeated submessages, of which two bytes make one. `type` must be
// generated code's, not made at run time. Takes time: for start-up. Any thread.
std::size_t MemoryPerByte(const google::protobuf::Descriptor* type);

// Such a bound for one request that is parsed into a new message, where texts
// of unknown fields come on top. Any type. Takes time: for start-up. Any
// thread.
std::size_t MemoryPerParsedByte(const google::protobuf::Descriptor* type);

// Whether MeasureCleared() tells all that messages of this type keep: those
// without submessages, maps, and extensions. A submessage's list of unknown
// fields keeps its memory where nobody sees it. Any thread.
bool IsMeasurable(const google::protobuf::Descriptor* type);

// Clears a message of a measurable type; returns the bytes that it keeps
// nevertheless. Takes time in proportion to the elements that it keeps.
std::size_t MeasureCleared(google::protobuf::Message* message);

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_MESSAGE_GROWTH_H_
