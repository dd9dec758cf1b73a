#include "example/rpc/method_flags.h"

#include <gflags/gflags.h>

#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/string.h"

DEFINE_string(method, "",
              "The method to call: package.Service.Method or "
              "package.Service/Method.");
DEFINE_string(data, "",
              "The request as JSON, or @FILE that has it (@-: stdin). Empty: "
              "an empty message. For a method whose client streams: its "
              "messages, one behind the other.");
DEFINE_string(H, "",
              "Metadata to send, as \"name: value\"; may be given several "
              "times. Values of names that end in -bin are hexadecimal.");
DEFINE_string(proto, "",
              "The .proto files that define the service, separated by commas.");
DEFINE_string(proto_path, "",
              "Folders with imports of --proto, separated by commas. Empty: "
              "the working directory, and those of the files.");
DEFINE_string(descriptor_set, "",
              "In place of --proto: a file that `protoc --include_imports "
              "--descriptor_set_out` wrote.");

namespace example {
namespace {

flare::Status BadFlag(std::string text) { return {EINVAL, std::move(text)}; }

// gflags keeps the last value of a flag, but asks about each of them.
std::vector<std::string>* metadata_flags = nullptr;

bool CollectMetadata(const char*, const std::string& value) {
  if (value.empty()) return true;
  if (metadata_flags == nullptr) {
    metadata_flags = new std::vector<std::string>();  // For the process.
  }
  metadata_flags->push_back(value);
  return true;
}
DEFINE_validator(H, &CollectMetadata);

std::vector<std::string> SplitNames(std::string_view list) {
  std::vector<std::string> names;
  for (const std::string_view name : flare::Split(list, ',')) {
    names.emplace_back(name);
  }
  return names;
}

std::string_view Trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(' ');
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = static_cast<char>(c | 0x20);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// False: they aren't hexadecimal bytes.
bool DecodeHex(std::string_view digits, std::string* bytes) {
  if (digits.size() % 2 != 0) return false;
  for (std::size_t i = 0; i != digits.size(); i += 2) {
    const int high = HexDigit(digits[i]);
    const int low = HexDigit(digits[i + 1]);
    if (high < 0 || low < 0) return false;
    bytes->push_back(static_cast<char>(high * 16 + low));
  }
  return true;
}

flare::Status AddMetadata(std::string_view flag, flare::Metadata* metadata) {
  const std::string shown = "-H '" + std::string(flag) + "' ";
  const auto colon = flag.find(':');
  if (colon == flag.npos) {
    return BadFlag(shown + "has no colon; write 'name: value'");
  }
  const std::string_view name = Trimmed(flag.substr(0, colon));
  std::string value(Trimmed(flag.substr(colon + 1)));
  if (flare::IsBinaryMetadata(name)) {
    std::string bytes;
    if (!DecodeHex(value, &bytes)) {
      return BadFlag(shown + "needs a hexadecimal value, such as 01ff");
    }
    value = std::move(bytes);
  }
  if (const auto added = metadata->Add(name, value); !added.ok()) {
    return BadFlag(shown + "can't be sent: " + added.message());
  }
  return {};
}

}  // namespace

const std::string& MethodFlag() { return FLAGS_method; }
const std::string& DataFlag() { return FLAGS_data; }

flare::Expected<std::unique_ptr<MethodSource>, flare::Status>
SourceFromFlags() {
  if (!FLAGS_descriptor_set.empty()) {
    if (!FLAGS_proto.empty() || !FLAGS_proto_path.empty()) {
      return BadFlag("--descriptor_set and --proto exclude each other");
    }
    return MethodSource::FromDescriptorSet(FLAGS_descriptor_set);
  }
  if (FLAGS_proto.empty()) {
    return BadFlag(
        "nothing says what the service looks like; give --proto=x.proto or "
        "--descriptor_set");
  }
  return MethodSource::FromProtoFiles(SplitNames(FLAGS_proto),
                                      SplitNames(FLAGS_proto_path));
}

flare::Expected<flare::Metadata, flare::Status> MetadataFromFlags() {
  flare::Metadata metadata;
  if (metadata_flags == nullptr) return metadata;
  for (const std::string& flag : *metadata_flags) {
    if (auto added = AddMetadata(flag, &metadata); !added.ok()) return added;
  }
  return metadata;
}

std::string GivenMethodFlag() {
  for (const char* name :
       {"method", "data", "H", "proto", "proto_path", "descriptor_set"}) {
    if (!google::GetCommandLineFlagInfoOrDie(name).is_default) {
      return (name == std::string_view("H") ? "-" : "--") + std::string(name);
    }
  }
  return "";
}

}  // namespace example
