#include "flare/rpc/protocol/payload.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/common.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>

#include <string>
#include <string_view>
#include <utility>

#include "flare/base/expected.h"
#include "flare/base/zero_copy_stream.h"

namespace flare::rpc {

namespace {

namespace pb = google::protobuf;

// Text nested deeper than this is refused: protobuf's text parser recurses,
// taking almost 2 KiB of stack per level and by default without a limit, and a
// fiber has 128 KiB. (The parsers of the other formats stop at 100 or fewer
// levels, for which they need far less.)
constexpr int kMaxTextNesting = 32;

// Larger messages are serialised at once: what takes long is to be done before
// a call gives back its place under the server's limits.
constexpr std::size_t kReferredAtMost = 4096;

flare::Status Malformed(const pb::Message& message, std::string_view what) {
  return flare::Status(
      STATUS_MALFORMED_DATA,
      "can't read a " + message.GetTypeName() + ": " + std::string(what));
}

flare::Status CheckRequired(const pb::Message& message) {
  if (message.IsInitialized()) return flare::Status();
  return Malformed(message, "missing " + message.InitializationErrorString());
}

// The first complaint of the text parser, instead of a log line for each.
class FirstError : public pb::io::ErrorCollector {
 public:
#if GOOGLE_PROTOBUF_VERSION < 4022000
  void AddError(int line, int column, const std::string& what) override {
#else
  void RecordError(int line, int column, std::string_view what) override {
#endif
    if (!text_.empty()) return;
    text_ = std::to_string(line + 1) + ":" + std::to_string(column + 1) + ": ";
    text_ += what;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// A copy of a view: protobuf's own, before release 22, or std::string_view.
template <class View>
std::string TextOf(const View& view) {
  return std::string(view.data(), view.size());
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
  FirstError errors;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.SetRecursionLimit(kMaxTextNesting);
  parser.AllowPartialMessage(true);
  BufferInputStream stream(&payload);
  if (!parser.Parse(&stream, message)) {
    return Malformed(*message, errors.text());
  }
  return CheckRequired(*message);
}

[[gnu::noinline]] flare::Status ParseJson(const Buffer& payload,
                                          bool ignore_unknown_fields,
                                          pb::Message* message) {
  message->Clear();
  pb::util::JsonParseOptions options;
  // A message without fields may stand for any (rpc_proxy): its bytes would be
  // lost with a success.
  options.ignore_unknown_fields =
      ignore_unknown_fields && message->GetDescriptor()->field_count() != 0;
  auto status =
      pb::util::JsonStringToMessage(FlattenSlow(payload), message, options);
  if (!status.ok()) return Malformed(*message, TextOf(status.message()));
  return CheckRequired(*message);
}

// Not inlined, as the formats of few calls: their frames would be part of those
// of all others, on the stacks of fibers.
[[gnu::cold, gnu::noinline]] flare::Status CannotSerialize(
    const pb::Message& message, const std::string& why) {
  return flare::Status(STATUS_SERIALIZE_RESPONSE,
                       "can't write a " + message.GetTypeName() + ": " + why);
}

[[gnu::cold, gnu::noinline]] flare::Status LacksFields(
    const pb::Message& message) {
  return CannotSerialize(message,
                         "missing " + message.InitializationErrorString());
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
  std::string text;
  pb::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.PrintToString(message, &text);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  *body = CreateBufferSlow(text);
  return flare::Status();
}

[[gnu::noinline]] flare::Status SerializeJson(const pb::Message& message,
                                              bool as_trpc,
                                              OutboundBody* body) {
  pb::util::JsonPrintOptions options;
  options.preserve_proto_field_names = as_trpc;
  options.always_print_enums_as_ints = as_trpc;
#if GOOGLE_PROTOBUF_VERSION < 5026000
  options.always_print_primitive_fields = as_trpc;
#else
  options.always_print_fields_with_no_presence = as_trpc;
#endif
  std::string text;
  auto status = pb::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) {
    return CannotSerialize(message, TextOf(status.message()));
  }
  *body = CreateBufferSlow(text);
  return flare::Status();
}

// Puts what (de)compression gave in the place of what it was given.
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
    case PayloadFormat::kTrpcJson:
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
      return SerializeJson(message, /*as_trpc=*/false, body);
    case PayloadFormat::kTrpcJson:
      return SerializeJson(message, /*as_trpc=*/true, body);
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
