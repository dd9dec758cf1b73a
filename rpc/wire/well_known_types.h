// The messages that protobuf's JSON writes in forms of their own, and the types
// of the values in google.protobuf.Any.
#ifndef FLARE_RPC_WIRE_WELL_KNOWN_TYPES_H_
#define FLARE_RPC_WIRE_WELL_KNOWN_TYPES_H_

#include <memory>
#include <string>

namespace google::protobuf {
class Descriptor;
class DynamicMessageFactory;
class Message;
}  // namespace google::protobuf

namespace flare::rpc {

// Messages in JSON nest as deeply as in protobuf's binary format, read and
// written. A level is a message in a message, an entry of a map included; a
// list or an object in google.protobuf.Value takes the two or three levels of
// the messages that hold it, and the value of an Any takes one.
inline constexpr int kMaxJsonNesting = 100;

enum class WellKnownType {
  kNone,  // An object with the message's fields.
  kAny,
  kStruct,
  kValue,
  kListValue,
  kFieldMask,
  kDuration,
  kTimestamp,
  kWrapper,  // Int32Value and the like.
};

// kNone, too, for a type of such a name that lacks the fields: a program's
// .proto files need not be protobuf's own.
WellKnownType WellKnownTypeOf(const google::protobuf::Descriptor* type);

// Makes messages for the values of Any. Not thread-safe; must outlive its
// messages.
class AnyValueFactory {
 public:
  AnyValueFactory();
  ~AnyValueFactory();
  AnyValueFactory(const AnyValueFactory&) = delete;
  AnyValueFactory& operator=(const AnyValueFactory&) = delete;

  // An empty message of the type that `type_url` names among those that the
  // type of `any` came with; null if there is none.
  std::unique_ptr<google::protobuf::Message> New(
      const google::protobuf::Message& any, const std::string& type_url);

 private:
  // For types that aren't compiled in, as those of rpc_proxy.
  std::unique_ptr<google::protobuf::DynamicMessageFactory> dynamic_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_WELL_KNOWN_TYPES_H_
