#include "flare/rpc/grpc/grpc_mapping.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/percent.h"
#include "flare/base/string.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/wire/framing.h"

namespace flare::rpc {

namespace {

struct GrpcEncoding {
  std::string_view name;
  CompressionAlgorithm algorithm;
};
constexpr std::array<GrpcEncoding, 5> kGrpcEncodings{{
    {"identity", CompressionAlgorithm::kNone},
    {"gzip", CompressionAlgorithm::kGzip},
    {"deflate", CompressionAlgorithm::kZlib},
    {"zstd", CompressionAlgorithm::kZstd},
    {"snappy", CompressionAlgorithm::kSnappy},
}};

constexpr std::uint64_t GrpcEncodingBit(CompressionAlgorithm algorithm) {
  return std::uint64_t{1} << static_cast<int>(algorithm);
}

constexpr std::size_t kMaxTimeoutDigits = 8;
constexpr std::uint64_t kMaxTimeoutNumber = 99'999'999;

struct TimeoutUnit {
  char letter;
  std::int64_t ns;
};
constexpr std::array<TimeoutUnit, 6> kTimeoutUnits{{
    {'n', 1},
    {'u', 1'000},
    {'m', 1'000'000},
    {'S', 1'000'000'000},
    {'M', 60'000'000'000},
    {'H', 3'600'000'000'000},
}};

bool IsPlainInMessage(char c) { return c >= ' ' && c <= '~' && c != '%'; }

bool IsGrpcControlByte(char c) {
  return static_cast<unsigned char>(c) < ' ' || c == 0x7f;
}

}  // namespace

// --- names of methods ------------------------------------------------------

bool GrpcPathOf(std::string_view method, std::string* path) {
  const MethodName name(method);
  path->clear();
  // Bytes that a path has no room for are no part of a method's name.
  if (!name.ok() || !IsHttpPathText(method) ||
      method.find('/') != std::string_view::npos) {
    return false;
  }
  path->reserve(method.size() + 1);
  path->append("/").append(name.service).append("/").append(name.method);
  return true;
}

bool MethodOfGrpcPath(std::string_view path, std::string* method) {
  method->clear();
  const std::size_t slash = path.rfind('/');
  if (path.empty() || path[0] != '/' || slash == 0 ||
      slash + 1 == path.size()) {
    return false;
  }
  method->reserve(path.size());
  method->append(path.substr(1, slash - 1))
      .append(".")
      .append(path.substr(slash + 1));
  return true;
}

// --- the type of content ---------------------------------------------------

bool IsGrpcContentType(std::string_view type) {
  return type.size() >= kGrpcContentType.size() &&
         IEquals(type.substr(0, kGrpcContentType.size()), kGrpcContentType) &&
         (type.size() == kGrpcContentType.size() ||
          std::string_view("+; ").find(type[kGrpcContentType.size()]) !=
              std::string_view::npos);
}

std::optional<PayloadFormat> ParseGrpcContentType(std::string_view type) {
  if (type == kGrpcContentType) [[likely]]
    return PayloadFormat::kProtobuf;
  if (!IsGrpcContentType(type)) return std::nullopt;
  type.remove_prefix(kGrpcContentType.size());
  type = Trim(type.substr(0, type.find(';')));
  if (type.empty() || IEquals(type, "+proto")) return PayloadFormat::kProtobuf;
  if (IEquals(type, "+json")) return PayloadFormat::kProto3Json;
  return std::nullopt;
}

std::string_view GrpcContentTypeOf(PayloadFormat format) {
  return format == PayloadFormat::kProto3Json ? "application/grpc+json"
                                              : kGrpcContentType;
}

// --- grpc-timeout ----------------------------------------------------------

std::string GrpcTimeout(std::uint32_t ms) {
  const std::int64_t ns = std::int64_t{ms} * kNsPerMs;
  for (const TimeoutUnit& unit : kTimeoutUnits) {
    if (unit.letter < 'a' || unit.letter == 'm') {
      const auto number = static_cast<std::uint64_t>(
          ns / unit.ns + (ns % unit.ns != 0 ? 1 : 0));
      if (number <= kMaxTimeoutNumber) {
        return std::to_string(number) + unit.letter;
      }
    }
  }
  return std::to_string(kMaxTimeoutNumber) + 'H';
}

std::optional<std::int64_t> ParseGrpcTimeout(std::string_view text) {
  if (text.size() < 2 || text.size() > kMaxTimeoutDigits + 1) {
    return std::nullopt;
  }
  const auto number = TryParse<std::uint32_t>(text.substr(0, text.size() - 1));
  if (!number) return std::nullopt;
  for (const TimeoutUnit& unit : kTimeoutUnits) {
    if (unit.letter != text.back()) continue;
    constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
    return *number > kMax / unit.ns ? kMax : *number * unit.ns;
  }
  return std::nullopt;
}

// --- grpc-message ----------------------------------------------------------

std::string EncodeGrpcMessage(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(text.size());
  for (std::size_t i = 0; i != text.size(); ++i) {
    const char c = text[i];
    const bool at_edge = i == 0 || i + 1 == text.size();
    if (IsPlainInMessage(c) && !(c == ' ' && at_edge)) {
      encoded += c;
      continue;
    }
    const auto byte = static_cast<unsigned char>(c);
    encoded += '%';
    encoded += kDigits[byte >> 4];
    encoded += kDigits[byte & 15];
  }
  return encoded;
}

std::string DecodeGrpcMessage(std::string_view text) {
  return UnescapePercentLeniently(text);
}

// --- grpc-status -----------------------------------------------------------

int StatusOfGrpcFields(std::string_view grpc_status, std::string_view exact) {
  const auto number = TryParse<int>(grpc_status);
  if (!number) return STATUS_FAILED;
  const auto code = static_cast<GrpcCode>(*number);
  if (!exact.empty()) {
    const auto status = TryParse<int>(exact);
    if (status && *status != STATUS_SUCCESS &&
        GrpcFromStatus(*status) == code) {
      return *status;
    }
  }
  return StatusFromGrpc(code);
}

// --- compression -----------------------------------------------------------

std::optional<CompressionAlgorithm> ParseGrpcEncoding(std::string_view name) {
  for (const GrpcEncoding& encoding : kGrpcEncodings) {
    if (encoding.name == name) return encoding.algorithm;
  }
  return std::nullopt;
}

std::string_view GrpcEncodingOf(CompressionAlgorithm algorithm) {
  for (const GrpcEncoding& encoding : kGrpcEncodings) {
    if (encoding.algorithm == algorithm) return encoding.name;
  }
  return {};
}

std::uint64_t ParseGrpcAcceptEncoding(std::string_view list) {
  std::uint64_t accepted = GrpcEncodingBit(CompressionAlgorithm::kNone);
  ForEachListMember(list, [&accepted](std::string_view name) {
    if (const auto algorithm = ParseGrpcEncoding(name)) {
      accepted |= GrpcEncodingBit(*algorithm);
    }
  });
  return accepted;
}

std::uint64_t GrpcCompressions() {
  return ParseGrpcAcceptEncoding(kGrpcAcceptEncoding);
}

// --- messages --------------------------------------------------------------

bool AppendGrpcMessage(OutboundBody&& body, bool compressed,
                       BufferBuilder* out) {
  const std::size_t size = body.size();
  if (size > std::numeric_limits<std::uint32_t>::max()) return false;
  char* const prefix = out->Reserve(kGrpcPrefixSize);
  prefix[0] = compressed ? 1 : 0;
  PutBigEndian32(size, prefix + 1);
  std::move(body).AppendTo(out);
  return true;
}

std::optional<Buffer> MakeGrpcMessage(OutboundBody&& body, bool compressed) {
  BufferBuilder out;
  if (!AppendGrpcMessage(std::move(body), compressed, &out)) {
    return std::nullopt;
  }
  return out.DestructiveGet();
}

GrpcMessageCutter::Result GrpcMessageCutter::Next(GrpcMessage* message,
                                                  flare::Status* error) {
  if (in_.size() < kGrpcPrefixSize) return Result::kNeedMore;
  char scratch[kGrpcPrefixSize];
  const std::string_view prefix = in_.Peek(kGrpcPrefixSize, scratch);
  const auto flag = static_cast<unsigned char>(prefix[0]);
  const std::size_t size = ReadBigEndian32(prefix.data() + 1);
  if (flag > 1) {
    *error = flare::Status(STATUS_MALFORMED_DATA,
                           "grpc: a message whose first byte is " +
                               std::to_string(flag) + ", neither 0 nor 1");
    return Result::kError;
  }
  if (size > max_size_) {
    *error = flare::Status(
        StatusFromGrpc(GrpcCode::kResourceExhausted),
        "grpc: " + SizeLimitText("message", size, max_size_, by_));
    return Result::kTooLarge;
  }
  if (in_.size() - kGrpcPrefixSize < size) return Result::kNeedMore;
  message->compressed = flag == 1;
  in_.Skip(kGrpcPrefixSize);
  message->body = in_.Cut(size);
  return Result::kMessage;
}

std::size_t GrpcMessageCutter::missing() const {
  if (in_.empty()) return 0;
  if (in_.size() < kGrpcPrefixSize) return kGrpcPrefixSize - in_.size();
  char scratch[kGrpcPrefixSize];
  const std::size_t all =
      kGrpcPrefixSize +
      ReadBigEndian32(in_.Peek(kGrpcPrefixSize, scratch).data() + 1);
  return all - std::min(all, in_.size());
}

flare::Status CheckGrpcCompression(
    const GrpcMessage& message, std::optional<CompressionAlgorithm> encoding) {
  if (!message.compressed || (encoding && IsCompressed(*encoding))) return {};
  return flare::Status(
      StatusFromGrpc(encoding ? GrpcCode::kInternal : GrpcCode::kUnimplemented),
      encoding ? "grpc: a compressed message on a stream whose grpc-encoding "
                 "is identity"
               : "grpc: a message that is compressed by an unknown "
                 "grpc-encoding");
}

// --- metadata --------------------------------------------------------------

bool IsGrpcField(std::string_view name) {
  return name.empty() || name[0] == ':' || name == "user-agent" ||
         IsReservedMetadata(name);
}

std::string_view GrpcFieldValue(Metadata::Entry entry, std::string* scratch) {
  const std::string_view text = MetadataText(entry, scratch);
  if (std::none_of(text.begin(), text.end(), IsGrpcControlByte)) [[likely]]
    return Trim(text);
  scratch->assign(text);
  std::replace_if(scratch->begin(), scratch->end(), IsGrpcControlByte, ' ');
  return Trim(*scratch);
}

void GrpcMetadataReader::Add(std::string_view name, std::string_view value) {
  if (IsGrpcField(name)) return;
  if (!IsBinaryMetadataName(name)) return AddValue(name, value);
  ForEachListMember(value,
                    [&](std::string_view member) { AddValue(name, member); });
}

void GrpcMetadataReader::AddValue(std::string_view name,
                                  std::string_view value) {
  count_.Add(name, MetadataValueSize(name, value));
  // Too much isn't kept, but counted.
  if (count_.entries > limits_.entries || count_.bytes > limits_.bytes) return;
  if (taken_ == nullptr) taken_ = std::make_unique<Metadata>();
  AddMetadataText(name, value, taken_.get());
}

std::string GrpcMetadataReader::Take(std::unique_ptr<Metadata>* metadata) {
  const MetadataCount count = std::exchange(count_, {});
  const std::unique_ptr<Metadata> taken = std::move(taken_);
  if (std::string why = CheckMetadata(count, limits_); !why.empty()) return why;
  if (taken == nullptr || taken->empty()) return {};
  if (*metadata == nullptr) *metadata = std::make_unique<Metadata>();
  **metadata = std::move(*taken);
  return {};
}

}  // namespace flare::rpc
