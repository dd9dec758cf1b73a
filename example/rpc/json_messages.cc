#include "example/rpc/json_messages.h"

#include <cerrno>
#include <cstddef>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/read_file.h"
#include "flare/rpc/wire/json_reader.h"
#include "flare/rpc/wire/json_scanner.h"
#include "flare/rpc/wire/json_writer.h"

namespace example {
namespace {

// The limit of lists and objects, in messages of any type: reading these has a
// limit of its own.
constexpr int kMaxNesting = 1000;

constexpr std::size_t kMaxDataBytes = 256 << 20;

flare::Status BadJson(std::string text) { return {EINVAL, std::move(text)}; }

}  // namespace

flare::Expected<std::vector<std::string_view>, flare::Status> SplitJson(
    std::string_view text) {
  flare::rpc::JsonScanner json(text);
  if (!json.IsUtf8()) return BadJson("is not UTF-8");
  std::vector<std::string_view> values;
  while (!json.AtEnd()) {
    const std::size_t begin = json.position();
    if (!json.SkipValue(kMaxNesting)) return BadJson(json.error());
    values.push_back(text.substr(begin, json.position() - begin));
  }
  return values;
}

flare::Status ParseJson(std::string_view json,
                        google::protobuf::Message* message) {
  std::string why;
  if (flare::rpc::ReadJson(json, /*ignore_unknown=*/false, message, &why)) {
    return {};
  }
  return BadJson("is no " + message->GetDescriptor()->full_name() + ": " + why);
}

flare::Expected<std::string, flare::Status> ToJson(
    const google::protobuf::Message& message) {
  flare::Buffer json;
  std::string why;
  if (!flare::rpc::WriteJson(flare::rpc::JsonStyle::kProto3, message, &json,
                             &why)) {
    return BadJson("the reply has no form in JSON: " + why);
  }
  return flare::FlattenSlow(json);
}

flare::Expected<Messages, flare::Status> ReadRequests(
    const MethodSource& source,
    const google::protobuf::MethodDescriptor* method, const std::string& data) {
  std::string text = data;
  if (data.starts_with('@')) {
    const std::string path = data.substr(1);
    auto read =
        flare::ReadFile(path == "-" ? "/dev/stdin" : path, kMaxDataBytes);
    if (!read) return read.error();
    text = *std::move(read);
  }
  const auto values = SplitJson(text);
  if (!values) return BadJson("--data isn't JSON: " + values.error().message());
  Messages messages;
  for (const std::string_view value : *values) {
    messages.push_back(source.NewMessage(method->input_type()));
    if (auto read = ParseJson(value, messages.back().get()); !read.ok()) {
      return BadJson("--data " + read.message());
    }
  }
  if (method->client_streaming()) return messages;
  if (messages.size() > 1) {
    return BadJson("--data has " + std::to_string(messages.size()) +
                   " messages, but " + method->full_name() +
                   " takes one request");
  }
  if (messages.empty()) {
    messages.push_back(source.NewMessage(method->input_type()));
  }
  return messages;
}

}  // namespace example
