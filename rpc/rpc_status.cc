#include "flare/rpc/rpc_status.h"

namespace flare::rpc {

namespace {

struct Names {
  int code;
  std::string_view name;
  std::string_view trailer;
};

// The trailer names are those of the published framework, which has none for
// codes above STATUS_FROM_USER.
constexpr Names kNames[] = {
    {STATUS_SUCCESS, "STATUS_SUCCESS", "success"},
    {STATUS_CHANNEL_SHUTDOWN, "STATUS_CHANNEL_SHUTDOWN", "ChannelShutdown"},
    {STATUS_FAIL_TO_CONNECT, "STATUS_FAIL_TO_CONNECT", "FailToConnect"},
    {STATUS_TIMEOUT, "STATUS_TIMEOUT", "Timeout"},
    {STATUS_SERIALIZE_REQUEST, "STATUS_SERIALIZE_REQUEST",
     "SerializeRequestError"},
    {STATUS_PARSE_REQUEST, "STATUS_PARSE_REQUEST", "ParseRequestError"},
    {STATUS_SERIALIZE_RESPONSE, "STATUS_SERIALIZE_RESPONSE",
     "SerializeResponseError"},
    {STATUS_PARSE_RESPONSE, "STATUS_PARSE_RESPONSE", "ParseResponseError"},
    {STATUS_INVALID_METHOD_NAME, "STATUS_INVALID_METHOD_NAME",
     "InvalidMethodName"},
    {STATUS_SERVICE_NOT_FOUND, "STATUS_SERVICE_NOT_FOUND", "ServiceNotFound"},
    {STATUS_METHOD_NOT_FOUND, "STATUS_METHOD_NOT_FOUND", "MethodNotFound"},
    {STATUS_OVERLOADED, "STATUS_OVERLOADED", "ServerOverload"},
    {STATUS_INVALID_TRANSFER_MODE, "STATUS_INVALID_TRANSFER_MODE",
     "InvalidTransferMode"},
    {STATUS_FROM_USER_FEEDBACK, "STATUS_FROM_USER_FEEDBACK",
     "ErrorFromUserFeedback"},
    {STATUS_OUT_OF_SERVICE, "STATUS_OUT_OF_SERVICE", "OutOfService"},
    {STATUS_GET_ROUTE, "STATUS_GET_ROUTE", "ErrorGetRoute"},
    {STATUS_NO_PEER, "STATUS_NO_PEER", "GetRouteEmpty"},
    {STATUS_GET_ROUTE_ALL_DISABLED, "STATUS_GET_ROUTE_ALL_DISABLED",
     "GetRouteAllDisabled"},
    {STATUS_FAILED, "STATUS_FAILED", "Unknown"},
    {STATUS_FROM_USER, "STATUS_FROM_USER", "UserError"},
    {STATUS_NOT_SUPPORTED, "STATUS_NOT_SUPPORTED", "<Unknown>"},
    {STATUS_MALFORMED_DATA, "STATUS_MALFORMED_DATA", "<Unknown>"},
    {STATUS_INVALID_CHANNEL, "STATUS_INVALID_CHANNEL", "<Unknown>"},
    {STATUS_IO_ERROR, "STATUS_IO_ERROR", "<Unknown>"},
    {STATUS_RESERVED_MAX, "STATUS_RESERVED_MAX", "<Unknown>"},
};

const Names* Find(int code) {
  for (const Names& names : kNames) {
    if (names.code == code) return &names;
  }
  return nullptr;
}

}  // namespace

std::string_view StatusName(int code) {
  if (const Names* names = Find(code)) return names->name;
  return code > STATUS_RESERVED_MAX ? "STATUS_USER" : "STATUS_UNKNOWN";
}

std::string_view StatusTrailerName(int code) {
  const Names* names = Find(code);
  return names != nullptr ? names->trailer : "<Unknown>";
}

}  // namespace flare::rpc
