// Shared by the tests of baidu-std: the documented bytes, and a way to make and
// to read others.
#ifndef FLARE_RPC_WIRE_BAIDU_STD_TESTING_H_
#define FLARE_RPC_WIRE_BAIDU_STD_TESTING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "flare/rpc/wire/baidu_std_meta.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

using std::string_literals::operator""s;

// The documented vectors.
inline const std::string kBaiduStdEchoRequest =
    "PRPC\0\0\0\x33\0\0\0\x2f\x0a\x29\x0a\x21"s +
    "example.protobuf_echo.EchoService" + "\x12\x04"s + "Echo" +
    "\x18\x00\x20\x01\x0a\x02hi"s;
inline const std::string kBaiduStdShortRequest =
    "PRPC\0\0\0\x26\0\0\0\x1f\x0a\x1b\x0a\x13"s + "example.EchoService" +
    "\x12\x04"s + "Echo" + "\x20\x01\x0a\x05hello"s;
inline const std::string kBaiduStdResponse =
    "PRPC\0\0\0\x0d\0\0\0\x06\x12\x02\x08\x00\x20\x01\x0a\x05hello"s;
// As brpc itself writes it.
inline const std::string kBaiduStdResponseWithZeros =
    "PRPC\0\0\0\x15\0\0\0\x0e\x12\x02\x08\x00\x18\x00\x20\x01"
    "\x50\x00\x58\x00\x62\x00\x0a\x05hello"s;

inline std::string BaiduStdFrameOf(std::string_view meta,
                                   std::string_view rest = "") {
  return "PRPC" + BigEndian(meta.size() + rest.size(), 4) +
         BigEndian(meta.size(), 4) + std::string(meta) + std::string(rest);
}

inline std::string BaiduStdBytes(const BaiduStdMeta& meta) {
  std::string bytes(BaiduStdMetaSize(meta), '\0');
  EncodeBaiduStdMeta(meta, bytes.data());
  return bytes;
}

inline BaiduStdMeta BaiduStdCall(std::uint64_t id = 7) {
  BaiduStdMeta meta;
  meta.correlation_id = id;
  meta.has_request = true;
  meta.service_name = "a.B";
  meta.method_name = "C";
  return meta;
}

// A frame that was sent, taken apart.
struct BaiduStdSent {
  explicit BaiduStdSent(std::string bytes_sent) : bytes(std::move(bytes_sent)) {
    EXPECT_GE(bytes.size(), 12u);
    EXPECT_EQ(bytes.substr(4, 4), BigEndian(bytes.size() - 12, 4));
    std::size_t meta_size = static_cast<std::uint8_t>(bytes[11]) +
                            256 * static_cast<std::uint8_t>(bytes[10]);
    EXPECT_EQ(DecodeBaiduStdMeta(std::string_view(bytes).substr(12, meta_size),
                                 &meta),
              "");
    rest = bytes.substr(12 + meta_size);
  }

  std::string bytes;
  BaiduStdMeta meta;
  std::string rest;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_WIRE_BAIDU_STD_TESTING_H_
