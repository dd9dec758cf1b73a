#include "flare/rpc/http/http_protocol.h"

#include <cstddef>

namespace flare::rpc {

std::string_view ContentTypeOf(PayloadFormat format) {
  switch (format) {
    case PayloadFormat::kProtobuf:
      return "application/x-protobuf";
    case PayloadFormat::kProtobufText:
      return "text/x-protobuf";
    case PayloadFormat::kProto3Json:
      return "application/x-proto3-json";
    case PayloadFormat::kVerboseJson:
      return "application/json";
    case PayloadFormat::kLenientJson:
      break;  // HTTP doesn't carry it.
  }
  return {};
}

bool IsJson(PayloadFormat format) {
  switch (format) {
    case PayloadFormat::kProtobuf:
    case PayloadFormat::kProtobufText:
      return false;
    case PayloadFormat::kProto3Json:
    case PayloadFormat::kLenientJson:
    case PayloadFormat::kVerboseJson:
      break;
  }
  return true;
}

std::string_view HttpProtocolNameOf(PayloadFormat format) {
  switch (format) {
    case PayloadFormat::kProtobuf:
      return "http+pb";
    case PayloadFormat::kProtobufText:
      return "http+pb-text";
    case PayloadFormat::kProto3Json:
      return "http+proto3-json";
    case PayloadFormat::kLenientJson:
    case PayloadFormat::kVerboseJson:
      break;  // HTTP doesn't carry it.
  }
  return {};
}

}  // namespace flare::rpc
