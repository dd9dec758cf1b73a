#include "flare/rpc/protocol/http_protocol.h"

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
  }
  return {};
}

std::string_view HttpProtocolNameOf(PayloadFormat format) {
  switch (format) {
    case PayloadFormat::kProtobuf:
      return "http+pb";
    case PayloadFormat::kProtobufText:
      return "http+pb-text";
    case PayloadFormat::kProto3Json:
      return "http+proto3-json";
  }
  return {};
}

std::string HttpHostOf(std::string_view server) {
  if (server.starts_with("unix:")) return "localhost";
  std::string host(server);
  if (const std::size_t zone = host.find('%');
      host.starts_with('[') && zone != host.npos) {
    host.erase(zone, host.find(']', zone) - zone);
  }
  return host;
}

}  // namespace flare::rpc
