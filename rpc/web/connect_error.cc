#include "flare/rpc/web/connect_error.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "flare/base/string.h"
#include "flare/rpc/http/http_writer.h"
#include "flare/rpc/wire/json_scalars.h"
#include "flare/rpc/wire/metadata_fields.h"
#include "flare/rpc/wire/protobuf_fields.h"

namespace flare::rpc {

namespace {

// A google.protobuf.Any: {1: URL of its type, 2: bytes}. Connect names the type
// without the URL's host.
std::string ConnectDetailJson(std::string_view any) {
  std::string_view type;
  std::string_view value;
  fields::FieldReader reader(any);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    if (tag == fields::Tag(1, fields::kLengthDelimited)) {
      type = reader.Bytes();
    } else if (tag == fields::Tag(2, fields::kLengthDelimited)) {
      value = reader.Bytes();
    } else {
      reader.SkipField(tag);
    }
  }
  if (!reader.error().empty() || type.empty()) return {};
  std::string json = "{\"type\":";
  AppendJsonString(type.substr(type.rfind('/') + 1), &json);
  return json + ",\"value\":\"" + EncodeBase64(value, /*padded=*/false) + "\"}";
}

// A google.rpc.Status: its third field has the details.
std::string ConnectDetailsJson(std::string_view status) {
  std::string json;
  fields::FieldReader reader(status);
  std::uint32_t tag;
  while (reader.NextTag(&tag)) {
    if (tag != fields::Tag(3, fields::kLengthDelimited)) {
      reader.SkipField(tag);
      continue;
    }
    const std::string detail = ConnectDetailJson(reader.Bytes());
    if (detail.empty()) continue;
    json.append(json.empty() ? "" : ",").append(detail);
  }
  return reader.error().empty() ? json : std::string();
}

std::string ConnectDetailsOf(const Metadata* metadata) {
  if (metadata == nullptr) return {};
  for (const Metadata::Entry entry : *metadata) {
    if (entry.name == kGrpcStatusDetails) {
      return ConnectDetailsJson(entry.value);
    }
  }
  return {};
}

// {"name":["value","value"]}
std::string ConnectMetadataJson(const Metadata& metadata) {
  std::vector<std::string_view> names;
  std::string json;
  std::string scratch;
  for (const Metadata::Entry first : metadata) {
    if (first.name == kGrpcStatusDetails ||
        std::find(names.begin(), names.end(), first.name) != names.end()) {
      continue;
    }
    names.push_back(first.name);
    json.append(json.empty() ? "{" : ",");
    AppendJsonString(first.name, &json);
    std::string_view separator = ":[";
    for (const Metadata::Entry entry : metadata) {
      if (entry.name != first.name) continue;
      json.append(separator);
      AppendJsonString(MetadataText(entry, &scratch), &json);
      separator = ",";
    }
    json.append("]");
  }
  return json.empty() ? json : json + "}";
}

}  // namespace

std::string ConnectCodeName(GrpcCode code) {
  if (code == GrpcCode::kCancelled) return "canceled";
  std::string name(GrpcCodeName(code));
  for (char& c : name) c = ToLower(c);
  return name;
}

int ConnectHttpStatus(GrpcCode code) {
  switch (code) {
    case GrpcCode::kCancelled:
      return 499;
    case GrpcCode::kInvalidArgument:
    case GrpcCode::kFailedPrecondition:
    case GrpcCode::kOutOfRange:
      return 400;
    case GrpcCode::kDeadlineExceeded:
      return 504;
    case GrpcCode::kNotFound:
      return 404;
    case GrpcCode::kAlreadyExists:
    case GrpcCode::kAborted:
      return 409;
    case GrpcCode::kPermissionDenied:
      return 403;
    case GrpcCode::kResourceExhausted:
      return 429;
    case GrpcCode::kUnimplemented:
      return 501;
    case GrpcCode::kUnavailable:
      return 503;
    case GrpcCode::kUnauthenticated:
      return 401;
    case GrpcCode::kOk:
    case GrpcCode::kUnknown:
    case GrpcCode::kInternal:
    case GrpcCode::kDataLoss:
      break;
  }
  return 500;
}

std::string ConnectErrorJson(GrpcCode code, std::string_view text,
                             const Metadata* metadata) {
  std::string json = "{\"code\":\"" + ConnectCodeName(code) + "\"";
  if (!text.empty()) {
    json.append(",\"message\":");
    AppendJsonString(text, &json);
  }
  const std::string details = ConnectDetailsOf(metadata);
  if (!details.empty()) json.append(",\"details\":[" + details + "]");
  return json + "}";
}

std::string ConnectEndJson(GrpcCode code, std::string_view text,
                           const Metadata& metadata) {
  std::string json = "{";
  if (code != GrpcCode::kOk) {
    json.append("\"error\":" + ConnectErrorJson(code, text, &metadata));
  }
  const std::string rest = ConnectMetadataJson(metadata);
  if (!rest.empty()) {
    json.append(json.size() == 1 ? "" : ",").append("\"metadata\":" + rest);
  }
  return json + "}";
}

std::string EncodeBase64(std::string_view bytes, bool padded) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (; !bytes.empty();
       bytes.remove_prefix(std::min<std::size_t>(bytes.size(), 3))) {
    const auto digits = Base64Digits(bytes);
    text.append(digits.data(), digits.size());
  }
  if (!padded) {
    while (text.ends_with('=')) text.pop_back();
  }
  return text;
}

}  // namespace flare::rpc
