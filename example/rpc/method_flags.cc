#include "example/rpc/method_flags.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>
#include <vector>

#include "example/rpc/reflection_client.h"
#include "example/rpc/tls_client_flags.h"
#include "flare/base/string.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_status.h"

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
DEFINE_string(
    reflection_addr, "",
    "Without --proto and --descriptor_set: the server to ask for "
    "descriptions, by grpc.reflection, over flare, baidu-std, trpc or "
    "grpc. "
    "Empty: the one of --server_addr.");

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

flare::Status CheckSourceFlags() {
  const int sources = (FLAGS_descriptor_set.empty() ? 0 : 1) +
                      (FLAGS_proto.empty() ? 0 : 1) +
                      (FLAGS_reflection_addr.empty() ? 0 : 1);
  if (sources > 1) {
    return BadFlag(
        "--proto, --descriptor_set and --reflection_addr exclude each other");
  }
  if (FLAGS_proto.empty() && !FLAGS_proto_path.empty()) {
    return BadFlag("--proto_path goes with --proto only");
  }
  return {};
}

MethodSource::Made SourceFromFiles() {
  if (!FLAGS_descriptor_set.empty()) {
    return MethodSource::FromDescriptorSet(FLAGS_descriptor_set);
  }
  return MethodSource::FromProtoFiles(SplitNames(FLAGS_proto),
                                      SplitNames(FLAGS_proto_path));
}

// A conversation with the server that the flags name.
class Reflection {
 public:
  flare::Status Open(const DescribingServer& server) {
    const std::string& address = FLAGS_reflection_addr.empty()
                                     ? server.server_addr
                                     : FLAGS_reflection_addr;
    if (address.empty()) {
      return BadFlag(
          "nothing says what the service looks like; give --proto=x.proto, "
          "--descriptor_set, or the --server_addr of a server with "
          "reflection");
    }
    if (!channel_.Open(address, {.tls = TlsFromClientFlags(address)})) {
      return BadFlag("bad address " + address + ": " +
                     channel_.status().message());
    }
    auto metadata = MetadataFromFlags();
    if (!metadata) return metadata.error();
    if (!metadata->empty()) *controller_.MutableMetadata() = *metadata;
    SetTimeout(server.timeout, &controller_);
    return {};
  }

  ReflectionClient* client() { return &client_; }

  // `why` there is no description of `name`.
  flare::Status Explain(const flare::Status& why, const std::string& name) {
    if (why.code() != flare::rpc::STATUS_FROM_USER) return why;
    std::string text = "the server doesn't know " + name;
    if (const auto services = client_.ListServices()) {
      text += "; its services are: ";
      for (const std::string& service : *services) {
        text += (&service == &services->front() ? "" : ", ") + service;
      }
    }
    return BadFlag(std::move(text));
  }

 private:
  flare::RpcChannel channel_;
  flare::RpcClientController controller_;
  ReflectionClient client_{&channel_, &controller_};
};

}  // namespace

void SetTimeout(std::chrono::milliseconds timeout,
                flare::RpcClientController* controller) {
  if (timeout.count() == 0) {
    controller->SetTimeout(std::chrono::steady_clock::time_point::max());
  } else {
    controller->SetTimeout(timeout);
  }
}

const std::string& MethodFlag() { return FLAGS_method; }
const std::string& DataFlag() { return FLAGS_data; }

flare::Expected<std::unique_ptr<MethodSource>, flare::Status> SourceFromFlags(
    const DescribingServer& server, const std::string& symbol) {
  if (auto checked = CheckSourceFlags(); !checked.ok()) return checked;
  if (!FLAGS_descriptor_set.empty() || !FLAGS_proto.empty()) {
    auto made = SourceFromFiles();
    // An errno of a file mustn't be taken for a code of a call.
    return made ? std::move(made) : BadFlag(made.error().message());
  }
  Reflection reflection;
  if (auto opened = reflection.Open(server); !opened.ok()) return opened;
  std::string name = symbol;
  std::ranges::replace(name, '/', '.');
  if (name.starts_with('.')) name.erase(0, 1);
  auto set = reflection.client()->Fetch(name);
  if (!set && set.error().code() == flare::rpc::STATUS_FROM_USER) {
    // Some servers don't know methods by their names, or it is a wrong name of
    // a service that exists, which then tells its methods.
    set = reflection.client()->Fetch(name.substr(0, name.rfind('.')));
  }
  if (!set) return reflection.Explain(set.error(), name);
  return MethodSource::FromDescriptions(*set, "what the server describes");
}

flare::Expected<std::vector<std::string>, flare::Status> ServicesFromFlags(
    const DescribingServer& server) {
  if (!FLAGS_descriptor_set.empty() || !FLAGS_proto.empty()) {
    const auto source = SourceFromFlags(server, "");
    if (!source) return source.error();
    return (*source)->Services();
  }
  if (auto checked = CheckSourceFlags(); !checked.ok()) return checked;
  Reflection reflection;
  if (auto opened = reflection.Open(server); !opened.ok()) return opened;
  return reflection.client()->ListServices();
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
  for (const char* name : {"method", "data", "H", "proto", "proto_path",
                           "descriptor_set", "reflection_addr"}) {
    if (!google::GetCommandLineFlagInfoOrDie(name).is_default) {
      return (name == std::string_view("H") ? "-" : "--") + std::string(name);
    }
  }
  return "";
}

}  // namespace example
