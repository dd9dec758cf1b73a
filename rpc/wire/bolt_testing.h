// Shared by the tests of Bolt: the documented bytes, and a way to make others.
#ifndef FLARE_RPC_WIRE_BOLT_TESTING_H_
#define FLARE_RPC_WIRE_BOLT_TESTING_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/rpc/wire/protocol_testing.h"

namespace flare::rpc::testing {

inline std::string FromHex(std::string_view hex) {
  std::string digits;
  for (char c : hex) {
    if (c != ' ') digits.push_back(c);
  }
  std::string bytes;
  for (std::size_t i = 0; i + 1 < digits.size(); i += 2) {
    bytes.push_back(
        static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

inline const std::string kBoltRequestVector = FromHex(
    "01 01 0001 01 00000001 01 00000bb8 002c 0026 00000005"
    "636f6d2e616c697061792e736f66612e7270632e636f72652e726571756573742e536f6661"
    "52657175657374"
    "00000007 73657276696365 0000000d 746573742e4563686f3a312e30"
    "00000001 6b 00000001 76"
    "68656c6c6f");
inline const std::string kBoltResponseVector =
    FromHex("01 00 0002 01 00000001 01 0000 0000 0000 00000005 68656c6c6f");
inline const std::string kBoltHeartbeatVector =
    FromHex("01 01 0000 01 00000007 01 ffffffff 0000 0000 00000000");

inline constexpr std::string_view kSofaRequest =
    "com.alipay.sofa.rpc.core.request.SofaRequest";
inline constexpr std::string_view kSofaResponse =
    "com.alipay.sofa.rpc.core.response.SofaResponse";

using BoltPairs = std::vector<std::pair<std::string, std::string>>;

inline std::string BoltHeaders(const BoltPairs& pairs) {
  std::string bytes;
  for (const auto& [key, value] : pairs) {
    bytes += BigEndian(key.size(), 4) + key;
    bytes += BigEndian(value.size(), 4) + value;
  }
  return bytes;
}

struct BoltRequestParts {
  std::uint8_t type = 1;
  std::uint16_t command = 1;
  std::uint32_t id = 7;
  std::uint8_t codec = 11;
  std::int32_t timeout_ms = 3000;
  std::string class_name{kSofaRequest};
  std::string headers = BoltHeaders({{"sofa_head_target_service", "a.B:1.0"},
                                     {"sofa_head_method_name", "C"}});
  std::string content;

  std::string Bytes() const {
    return BigEndian(1, 1) + BigEndian(type, 1) + BigEndian(command, 2) +
           BigEndian(1, 1) + BigEndian(id, 4) + BigEndian(codec, 1) +
           BigEndian(static_cast<std::uint32_t>(timeout_ms), 4) +
           BigEndian(class_name.size(), 2) + BigEndian(headers.size(), 2) +
           BigEndian(content.size(), 4) + class_name + headers + content;
  }
};

struct BoltResponseParts {
  std::uint8_t type = 0;
  std::uint16_t command = 2;
  std::uint32_t id = 7;
  std::uint8_t codec = 11;
  std::uint16_t status = 0;
  std::string class_name{kSofaResponse};
  std::string headers;
  std::string content;

  std::string Bytes() const {
    return BigEndian(1, 1) + BigEndian(type, 1) + BigEndian(command, 2) +
           BigEndian(1, 1) + BigEndian(id, 4) + BigEndian(codec, 1) +
           BigEndian(status, 2) + BigEndian(class_name.size(), 2) +
           BigEndian(headers.size(), 2) + BigEndian(content.size(), 4) +
           class_name + headers + content;
  }
};

// How we answer a call that failed.
inline std::string BoltErrorReply(std::uint16_t bolt_status, int status,
                                  const std::string& text, std::uint32_t id = 7,
                                  std::uint8_t codec = 11) {
  BoltResponseParts parts;
  parts.id = id;
  parts.codec = codec;
  parts.status = bolt_status;
  parts.headers = BoltHeaders(
      {{"Rpc-Error-Code", std::to_string(status)}, {"Rpc-Error-Reason", text}});
  return parts.Bytes();
}

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_WIRE_BOLT_TESTING_H_
