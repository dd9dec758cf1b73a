#include "flare/rpc/wire/bolt_frame.h"

#include <algorithm>
#include <utility>

#include "flare/base/string.h"
#include "flare/rpc/wire/metadata_fields.h"

namespace flare::rpc {

namespace {

constexpr char kVersion1 = 1;
constexpr char kVersion2 = 2;
constexpr std::uint32_t kNull = 0xffffffff;

// `bytes` begins with fixed_size() bytes of a frame, whose first two were
// checked.
BoltFrame Decode(std::string_view bytes) {
  const char* at = bytes.data();
  BoltFrame frame;
  if (at[0] == kVersion2) [[unlikely]] {
    frame.protocol_version = static_cast<std::uint8_t>(at[1]);
    frame.has_crc = at[1] == 2 && (at[11] & 1) != 0;
    ++at;
  }
  frame.type = static_cast<std::uint8_t>(at[1]);
  frame.command = ReadBigEndian16(at + 2);
  // at[4] is the version of the command, which says nothing in v1.
  frame.id = ReadBigEndian32(at + 5);
  frame.codec = static_cast<std::uint8_t>(at[9]);
  if (frame.version2()) ++at;  // The switch.
  if (frame.type == kBoltTypeResponse) {
    frame.status = ReadBigEndian16(at + 10);
    at += 12;
  } else {
    frame.timeout_ms = static_cast<std::int32_t>(ReadBigEndian32(at + 10));
    at += 14;
  }
  frame.class_size = ReadBigEndian16(at);
  frame.headers_size = ReadBigEndian16(at + 2);
  frame.content_size = ReadBigEndian32(at + 4);
  return frame;
}

}  // namespace

std::string BoltHeartbeatReply(const BoltFrame& frame) {
  std::string reply(kBoltResponseSize, '\0');
  reply[0] = kVersion1;
  reply[4] = 1;  // The version of the command; type, status and sizes are 0.
  PutBigEndian32(frame.id, reply.data() + 5);
  reply[9] = static_cast<char>(frame.codec);
  return reply;
}

std::string BoltGoAway() {
  std::string notice(kBoltRequestSize, '\0');
  notice[0] = kVersion1;
  notice[1] = kBoltTypeOneWay;
  PutBigEndian16(kBoltGoAway, notice.data() + 2);
  notice[4] = 1;  // The version of the command; id and sizes are 0.
  notice[9] = static_cast<char>(kBoltCodecProtobuf);
  PutBigEndian32(0xffffffff, notice.data() + 10);  // No timeout.
  return notice;
}

CutResult BoltFrame::Read(std::string_view whole, std::size_t* need,
                          std::string* error) {
  std::string_view bytes = whole;
  if (bytes.empty()) return CutResult::kUnsure;
  if (bytes[0] == kVersion2) {
    if (bytes.size() == 1) return CutResult::kUnsure;
    if (bytes[1] != 1 && bytes[1] != 2) return CutResult::kNotMine;
    protocol_version = static_cast<std::uint8_t>(bytes[1]);
    bytes.remove_prefix(1);
  } else if (bytes[0] != kVersion1) {
    return CutResult::kNotMine;
  }
  *need = kBoltResponseSize;  // The smallest frame.
  if (bytes.size() == 1) return CutResult::kNeedMore;
  type = static_cast<std::uint8_t>(bytes[1]);
  if (type > kBoltTypeOneWay) {
    *error = "unknown type " + std::to_string(type);
    return CutResult::kError;
  }
  *need = fixed_size();
  if (whole.size() < *need) return CutResult::kNeedMore;
  *this = Decode(whole);
  return CutResult::kMessage;
}

BoltFrame DecodeBoltFrame(const Buffer& wire) {
  char scratch[BoltFrame::kHeaderSize];
  return Decode(wire.Peek(std::min(wire.size(), sizeof(scratch)), scratch));
}

// --------------------------------------------------------------------------

bool BoltHeaderReader::Next() {
  while (!rest_.empty()) {
    const auto key = Take();
    if (malformed_) return false;
    if (!key) continue;
    const auto value = Take();
    if (malformed_) return false;
    if (!value) continue;
    key_ = *key;
    value_ = *value;
    return true;
  }
  return false;
}

// The next string; nullopt for null, and if malformed.
std::optional<std::string_view> BoltHeaderReader::Take() {
  if (rest_.size() < 4) {
    malformed_ = true;
    return std::nullopt;
  }
  const std::uint32_t size = ReadBigEndian32(rest_.data());
  rest_.remove_prefix(4);
  if (size == kNull) return std::nullopt;
  if (size > rest_.size()) {
    malformed_ = true;
    return std::nullopt;
  }
  const std::string_view text = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return text;
}

char* PutBoltHeader(std::string_view key, std::string_view value, char* out,
                    std::size_t open) {
  out = PutBigEndian32(key.size(), out);
  out += key.copy(out, key.size());
  out = PutBigEndian32(value.size() + open, out);
  return out + value.copy(out, value.size());
}

// --------------------------------------------------------------------------

bool IsBoltKey(std::string_view key) {
  constexpr std::string_view kSofa = "sofa_head_";
  constexpr std::string_view kOurs = "rpc-error-";
  return key == kBoltService || key == kBoltJavaCaller ||
         IEquals(key, kBoltTakesGoAway) ||
         IEquals(key.substr(0, kSofa.size()), kSofa) ||
         IEquals(key.substr(0, kOurs.size()), kOurs);
}

std::string BoltMetadata(const Metadata* metadata) {
  std::string pairs;
  if (metadata == nullptr) return pairs;
  std::string scratch;
  for (const Metadata::Entry entry : *metadata) {
    if (IsBoltKey(entry.name)) continue;
    const std::string_view text = MetadataText(entry, &scratch);
    const std::size_t at = pairs.size();
    pairs.resize(at + BoltHeaderSize(entry.name.size(), text.size()));
    PutBoltHeader(entry.name, text, pairs.data() + at);
  }
  return pairs;
}

std::string ReadBoltMetadata(std::string_view headers,
                             const MetadataLimits& limits,
                             std::unique_ptr<Metadata>* metadata) {
  MetadataCount count;
  for (BoltHeaderReader reader(headers); reader.Next();) {
    if (IsBoltKey(reader.key())) continue;
    count.Add(reader.key(), MetadataValueSize(reader.key(), reader.value()));
  }
  if (count.entries == 0) return {};
  if (std::string why = CheckMetadata(count, limits); !why.empty()) return why;
  auto taken = std::make_unique<Metadata>();
  taken->Reserve(count.entries, count.bytes);
  for (BoltHeaderReader reader(headers); reader.Next();) {
    if (IsBoltKey(reader.key())) continue;
    AddMetadataText(reader.key(), reader.value(), taken.get());
  }
  if (!taken->empty()) *metadata = std::move(taken);
  return {};
}

// --------------------------------------------------------------------------

std::uint16_t BoltStatusFor(int status) {
  switch (status) {
    case STATUS_SUCCESS:
      return 0;
    case STATUS_OVERLOADED:
      return 4;
    case STATUS_FAIL_TO_CONNECT:
    case STATUS_IO_ERROR:
      return 5;
    case STATUS_INVALID_METHOD_NAME:
    case STATUS_SERVICE_NOT_FOUND:
    case STATUS_METHOD_NOT_FOUND:
    case STATUS_NO_PEER:
      return 6;
    case STATUS_TIMEOUT:
      return 7;
    case STATUS_SERIALIZE_REQUEST:
      return 8;
    case STATUS_NOT_SUPPORTED:
      return 9;
    case STATUS_CHANNEL_SHUTDOWN:
    case STATUS_OUT_OF_SERVICE:
      return 16;
    case STATUS_SERIALIZE_RESPONSE:
      return 17;
    case STATUS_PARSE_REQUEST:
    case STATUS_MALFORMED_DATA:
      return 18;
    default:
      return 2;  // Whatever the service failed with.
  }
}

int StatusFromBolt(std::uint16_t bolt_status) {
  switch (bolt_status) {
    case 0:
      return STATUS_SUCCESS;
    case 4:
      return STATUS_OVERLOADED;
    case 5:
      return STATUS_IO_ERROR;
    case 6:
      return STATUS_NO_PEER;
    case 7:
      return STATUS_TIMEOUT;
    case 8:
      return STATUS_SERIALIZE_REQUEST;
    case 9:
      return STATUS_NOT_SUPPORTED;
    case 16:
      return STATUS_CHANNEL_SHUTDOWN;
    case 17:
      return STATUS_SERIALIZE_RESPONSE;
    case 18:
      return STATUS_PARSE_REQUEST;
    default:
      return STATUS_FAILED;
  }
}

std::string_view BoltStatusText(std::uint16_t bolt_status) {
  switch (bolt_status) {
    case 0:
      return "success";
    case 1:
      return "error";
    case 2:
      return "server exception";
    case 4:
      return "thread pool busy";
    case 5:
      return "communication error";
    case 6:
      return "no processor, or no healthy upstream";
    case 7:
      return "timeout";
    case 8:
      return "client send error";
    case 9:
      return "codec exception";
    case 16:
      return "connection closed";
    case 17:
      return "server serialize exception";
    case 18:
      return "server deserialize exception";
    default:
      return "unknown";
  }
}

}  // namespace flare::rpc
