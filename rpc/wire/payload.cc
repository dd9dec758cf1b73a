#include "flare/rpc/wire/payload.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/zero_copy_stream.h"
#include "flare/rpc/wire/json_reader.h"
#include "flare/rpc/wire/json_writer.h"
#include "flare/rpc/wire/text_payload.h"
#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {

namespace {

namespace pb = google::protobuf;

// Explanations quote the input, of which one word may have megabytes.
constexpr std::size_t kMaxExplanation = 512;

// Larger messages are serialised at once: long work should be done before a
// call gives back its place under the server's limits.
constexpr std::size_t kReferredAtMost = 4096;

flare::Status Malformed(const pb::Message& message, std::string_view what) {
  return flare::Status(STATUS_MALFORMED_DATA,
                       "can't read a " + std::string(message.GetTypeName()) +
                           ": " + std::string(CutUtf8(what, kMaxExplanation)));
}

// The first required field that `message` lacks. Protobuf's own list of all has
// the path of each, which is out of proportion to the message.
std::string MissingField(const pb::Message& message) {
  std::string path;
  const pb::Message* at = &message;
  const auto descend = [&](const pb::Message& child, std::string_view name,
                           int index) {
    if (child.IsInitialized()) return false;
    path += name;
    if (index >= 0) path += "[" + std::to_string(index) + "]";
    path += '.';
    at = &child;
    return true;
  };
  const auto descend_into = [&](const pb::FieldDescriptor* field) {
    const pb::Message& parent = *at;
    const pb::Reflection* const reflection = parent.GetReflection();
    if (field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) return false;
    if (!field->is_repeated()) {
      return descend(reflection->GetMessage(parent, field), field->name(), -1);
    }
    for (int i = 0; i != reflection->FieldSize(parent, field); ++i) {
      const auto& child = reflection->GetRepeatedMessage(parent, field, i);
      if (descend(child, field->name(), i)) return true;
    }
    return false;
  };
  while (true) {
    for (int i = 0; i != at->GetDescriptor()->field_count(); ++i) {
      const pb::FieldDescriptor* const field = at->GetDescriptor()->field(i);
      if (field->is_required() && !at->GetReflection()->HasField(*at, field)) {
        return path + std::string(field->name());
      }
    }
    std::vector<const pb::FieldDescriptor*> fields;
    at->GetReflection()->ListFields(*at, &fields);
    if (std::none_of(fields.begin(), fields.end(), descend_into)) return path;
  }
}

flare::Status CheckRequired(const pb::Message& message) {
  if (message.IsInitialized()) return flare::Status();
  return Malformed(message, "missing " + MissingField(message));
}

flare::Status ParseBinary(const Buffer& payload, pb::Message* message) {
  bool ok;
  if (std::string_view first = payload.FirstContiguous();
      first.size() == payload.size()) {
    // The usual, short message lies in one piece.
    ok = message->ParsePartialFromArray(first.data(),
                                        static_cast<int>(first.size()));
  } else {
    BufferInputStream stream(&payload);
    ok = message->ParsePartialFromZeroCopyStream(&stream);
  }
  if (!ok) return Malformed(*message, "malformed protobuf");
  return CheckRequired(*message);
}

[[gnu::noinline]] flare::Status ParseText(const Buffer& payload,
                                          pb::Message* message) {
  std::string why;
  if (!ReadText(payload, message, &why)) return Malformed(*message, why);
  return CheckRequired(*message);
}

[[gnu::noinline]] flare::Status ParseJson(const Buffer& payload,
                                          bool ignore_unknown_fields,
                                          pb::Message* message) {
  message->Clear();
  // A message without fields may stand for any (rpc_proxy): its bytes would be
  // lost with a success.
  const bool ignore_unknown =
      ignore_unknown_fields && message->GetDescriptor()->field_count() != 0;
  std::string why;
  if (!ReadJson(FlattenSlow(payload), ignore_unknown, message, &why)) {
    return Malformed(*message, why);
  }
  return CheckRequired(*message);
}

// Kept out of line, as the formats of few calls: their frames would be part of
// those of all others, on the stacks of fibers.
[[gnu::cold, gnu::noinline]] flare::Status CannotSerialize(
    const pb::Message& message, const std::string& why) {
  return flare::Status(STATUS_SERIALIZE_RESPONSE,
                       "can't write a " + std::string(message.GetTypeName()) +
                           ": " + std::string(CutUtf8(why, kMaxExplanation)));
}

[[gnu::cold, gnu::noinline]] flare::Status LacksFields(
    const pb::Message& message) {
  return CannotSerialize(message, "missing " + MissingField(message));
}

flare::Status SerializeBinary(const pb::Message& message, OutboundBody* body) {
  const std::size_t size = message.ByteSizeLong();
  if (size > 0x7fffffff) {
    return CannotSerialize(message, "it exceeds 2 GiB");
  }
  *body = OutboundBody(message, size);
  if (size > kReferredAtMost) *body = std::move(*body).ToBuffer();
  return flare::Status();
}

[[gnu::noinline]] flare::Status SerializeText(const pb::Message& message,
                                              OutboundBody* body) {
  std::string why;
  Buffer text;
  if (!WriteText(message, &text, &why)) return CannotSerialize(message, why);
  *body = std::move(text);
  return flare::Status();
}

[[gnu::noinline]] flare::Status SerializeJson(const pb::Message& message,
                                              JsonStyle style,
                                              OutboundBody* body) {
  std::string why;
  Buffer json;
  if (!WriteJson(style, message, &json, &why)) {
    return CannotSerialize(message, why);
  }
  *body = std::move(json);
  return flare::Status();
}

// Replaces the input of (de)compression by its output.
flare::Status Replace(Expected<Buffer, flare::Status> result, int code,
                      std::string_view failure, Buffer* bytes) {
  if (!result) {
    return flare::Status(
        code, std::string(failure) + ": " + result.error().message());
  }
  *bytes = *std::move(result);
  return flare::Status();
}

}  // namespace

flare::Status ParsePayload(PayloadFormat format, const Buffer& payload,
                           pb::Message* message) {
  switch (format) {
    case PayloadFormat::kProtobuf:
      return ParseBinary(payload, message);
    case PayloadFormat::kProtobufText:
      return ParseText(payload, message);
    case PayloadFormat::kProto3Json:
      return ParseJson(payload, /*ignore_unknown_fields=*/false, message);
    case PayloadFormat::kLenientJson:
    case PayloadFormat::kVerboseJson:
      return ParseJson(payload, /*ignore_unknown_fields=*/true, message);
  }
  return Malformed(*message, "unknown payload format");
}

flare::Status SerializePayload(PayloadFormat format, const pb::Message& message,
                               OutboundBody* body) {
  if (!message.IsInitialized()) return LacksFields(message);
  switch (format) {
    case PayloadFormat::kProtobuf:
      return SerializeBinary(message, body);
    case PayloadFormat::kProtobufText:
      return SerializeText(message, body);
    case PayloadFormat::kProto3Json:
    case PayloadFormat::kLenientJson:
      return SerializeJson(message, JsonStyle::kProto3, body);
    case PayloadFormat::kVerboseJson:
      return SerializeJson(message, JsonStyle::kTrpc, body);
  }
  return CannotSerialize(message, "unknown payload format");
}

flare::Status CompressInPlace(CompressionAlgorithm algorithm, int code,
                              std::string_view failure, Buffer* bytes) {
  if (bytes->empty()) return flare::Status();
  return Replace(Compress(algorithm, *bytes), code, failure, bytes);
}

flare::Status DecompressInPlace(CompressionAlgorithm algorithm,
                                std::size_t max_size, std::string_view failure,
                                Buffer* bytes) {
  if (bytes->empty()) return flare::Status();
  return Replace(Decompress(algorithm, *bytes, max_size), STATUS_MALFORMED_DATA,
                 failure, bytes);
}

}  // namespace flare::rpc
