#include "example/rpc/recording_json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "example/rpc/json_messages.h"
#include "flare/base/string.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/recording/recording_format.h"

namespace example {
namespace {

using flare::JsonString;

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    const auto digits = flare::HexOf(static_cast<unsigned char>(byte));
    text.append(digits.data(), digits.size());
  }
  return text;
}

// {"key": value, ...} on one line.
class JsonLine {
 public:
  // `value` is JSON.
  void Add(std::string_view key, const std::string& value) {
    text_ += text_.empty() ? "{\"" : ", \"";
    text_.append(key).append("\": ").append(value);
  }
  std::string Finish() const { return text_.empty() ? "{}" : text_ + '}'; }

 private:
  std::string text_;
};

void AddMessage(const std::string& key, const std::string& bytes,
                const google::protobuf::Descriptor* type,
                const MethodSource* source, JsonLine* line) {
  if (type != nullptr) {
    const auto message = source->NewMessage(type);
    if (message->ParsePartialFromString(bytes)) {
      if (const auto json = ToJson(*message)) return line->Add(key, *json);
    }
  }
  line->Add(key + "_hex", JsonString(Hex(bytes)));
}

// Names may come several times, so it is a list of pairs. Values of bytes are
// hexadecimal, as -H takes them.
std::string MetadataJson(const flare::RecordedCall& call) {
  std::string list;
  for (const auto& [name, value] : call.metadata) {
    list += (list.empty() ? "[" : ", [") + JsonString(name) + ", " +
            JsonString(flare::IsBinaryMetadata(name) ? Hex(value) : value) +
            ']';
  }
  return '[' + list + ']';
}

}  // namespace

std::string RecordedTimeText(std::int64_t unix_ns) {
  return flare::FormatUtc("%Y-%m-%dT%H:%M:%S",
                          std::chrono::microseconds(unix_ns / 1000));
}

std::string RecordingJson(const flare::RecordedCall& call,
                          const MethodSource* source) {
  const google::protobuf::Descriptor* request = nullptr;
  const google::protobuf::Descriptor* reply = nullptr;
  if (source != nullptr) {
    if (const auto method = source->FindMethod(call.method)) {
      request = (*method)->input_type();
      reply = (*method)->output_type();
    }
  }
  JsonLine line;
  line.Add("time", JsonString(RecordedTimeText(call.received_unix_ns)));
  line.Add("method", JsonString(call.method));
  line.Add("peer", JsonString(call.peer));
  line.Add("status", std::to_string(call.status));
  if (call.status != 0) line.Add("error", JsonString(call.error));
  line.Add("latency_us", std::to_string(call.latency_ns / 1000));
  if (call.timeout_ns != 0) {
    line.Add("timeout_us", std::to_string(call.timeout_ns / 1000));
  }
  if (!call.metadata.empty()) line.Add("metadata", MetadataJson(call));
  if (!call.left_out.empty()) {
    std::vector<std::string> names;
    for (const std::string& name : call.left_out) {
      names.push_back(JsonString(name));
    }
    line.Add("left_out", '[' + flare::Join(names, ", ") + ']');
  }
  AddMessage("request", call.request, request, source, &line);
  if (!call.attachment.empty()) {
    line.Add("attachment_hex", JsonString(Hex(call.attachment)));
  }
  if (call.reply) {
    AddMessage("reply", call.reply->message, reply, source, &line);
    if (!call.reply->attachment.empty()) {
      line.Add("reply_attachment_hex", JsonString(Hex(call.reply->attachment)));
    }
  }
  return line.Finish();
}

}  // namespace example
