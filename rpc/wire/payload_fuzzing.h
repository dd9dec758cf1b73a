// Invariants for any bytes that are read as a message in any format, and then
// written in any format. Shared by the randomised tests and the fuzzer; a
// violation ends the process.
#ifndef FLARE_RPC_WIRE_PAYLOAD_FUZZING_H_
#define FLARE_RPC_WIRE_PAYLOAD_FUZZING_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/rpc/wire/payload.h"
#include "flare/rpc/wire/payload_bounds.h"
#include "flare/rpc/wire/payload_testing.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "glog/logging.h"
#include "rpc/wire/any_messages.pb.h"
#include "rpc/wire/old_messages.pb.h"

namespace flare::rpc::testing {

inline constexpr PayloadFormat kAllFormats[] = {
    PayloadFormat::kProtobuf, PayloadFormat::kProtobufText,
    PayloadFormat::kProto3Json, PayloadFormat::kLenientJson,
    PayloadFormat::kVerboseJson};

// Whatever `message` holds, it is written within bounds, in a form that is
// read again, or not at all.
inline void CheckWritten(const google::protobuf::Message& message) {
  for (PayloadFormat format : kAllFormats) {
    OutboundBody body;
    const flare::Status status = SerializePayload(format, message, &body);
    if (!status.ok()) {
      CHECK(!status.message().empty() && status.message().size() < 1000);
      CHECK_EQ(status.code(), STATUS_SERIALIZE_RESPONSE);
      CHECK(format != PayloadFormat::kProtobuf);
      continue;
    }
    CHECK_LE(body.size(), MaxConvertedSize(message.ByteSizeLong()));
    const Buffer bytes = std::move(body).ToBuffer();
    std::unique_ptr<google::protobuf::Message> read(message.New());
    const flare::Status parsed = ParsePayload(format, bytes, read.get());
    CHECK(parsed.ok()) << parsed << " in " << FlattenSlow(bytes);
  }
}

template <class Message>
void CheckPayloadAs(std::string_view bytes) {
  for (PayloadFormat format : kAllFormats) {
    Message message;
    const flare::Status status =
        ParsePayload(format, SlicedBuffer(bytes, 64), &message);
    if (status.ok()) {
      CheckWritten(message);
    } else {
      CHECK_EQ(status.code(), STATUS_MALFORMED_DATA);
      CHECK(!status.message().empty() && status.message().size() < 1000);
    }
  }
}

inline void CheckPayload(std::string_view bytes) {
  CheckPayloadAs<AllTypes>(bytes);
  CheckPayloadAs<OldTypes>(bytes);
}

// Valid input to start from: all well-known types, in all formats.
inline std::vector<std::string> PayloadSeeds() {
  const std::string json =
      "{\"any\":{\"@type\":\"type.googleapis.com/google.protobuf.Any\","
      "\"value\":{\"@type\":\"type.googleapis.com/"
      "flare.rpc.testing.AllTypes\",\"small\":5}},\"anyList\":[{},"
      "{\"@type\":\"type.googleapis.com/google.protobuf.Duration\","
      "\"value\":\"1s\"}],\"anyMap\":{\"k\":{\"value\":[1],\"@type\":"
      "\"type.googleapis.com/google.protobuf.Value\"}},"
      "\"struct\":{\"a\":[1,{\"b\":null}],\"c\":\"x\"},\"value\":[[],{}],"
      "\"list\":[true,\"s\"],\"values\":[null,1.5e3],\"lists\":[[1],[]],"
      "\"valueMap\":{\"-7\":{\"x\":1}},\"mask\":\"userName,a(b,c)\","
      "\"duration\":\"-1.5s\",\"timestamp\":\"2023-11-14T22:13:20.12Z\","
      "\"boolWrapper\":true,\"int64Wrapper\":\"7\",\"floatWrapper\":0.1,"
      "\"doubleWrapper\":\"NaN\",\"stringWrapper\":\"w\","
      "\"bytesWrapper\":\"AP8=\",\"wrapperMap\":{\"w\":\"x\"},\"empty\":{},"
      "\"nested\":{\"flag\":true},\"nestedMap\":{\"m\":{\"large\":\"9\"}},"
      "\"text\":\"\\u00e4<\\\"\",\"raw\":\"AA==\",\"kind\":\"OPEN_KIND_SOME\","
      "\"numbers\":[1,-2],\"ratios\":[\"Infinity\",0.5],\"maybe\":0,"
      "\"flagMap\":{\"true\":\"t\"},\"chosenNull\":null}";
  const std::string text =
      "any { [type.googleapis.com/google.protobuf.Any] { "
      "[type.googleapis.com/flare.rpc.testing.AllTypes] { small: 5 } } } "
      "nested < flag: true > nested_map { key: 'm' value { large: 9 } } "
      "numbers: [1, -2] text: \"\\303\\244\" # comment\n ratio: inf kind: 7 "
      "struct { fields { key: 'a' value { number_value: 1 } } }";
  const std::string old_text =
      "kind: CLOSED_KIND_SOME Group { number: 1 inner { text: '\\377' } } "
      "[flare.rpc.testing.extension_number]: 5 gone { x: [[1], {}] } "
      "set { [flare.rpc.testing.OldSetItem] { number: 1 } } "
      "needs { first: 1 second: 2 } any { type_url: 'x' value: '\\001' }";
  std::vector<std::string> seeds = {
      json,
      text,
      old_text,
      "",
      "{}",
      // The fuzzer's findings.
      "{\"wrapperMap\":{\"w\":\"x\"},\"wrapperMap\":{\"w\":\"y\"}}",
  };
  AllTypes all;
  CHECK(ParsePayload(PayloadFormat::kProto3Json, SlicedBuffer(json, 64), &all)
            .ok());
  seeds.push_back(all.SerializeAsString());
  OldTypes old;
  const auto read = ParsePayload(PayloadFormat::kProtobufText,
                                 SlicedBuffer(old_text, 64), &old);
  CHECK(read.ok()) << read;
  seeds.push_back(old.SerializeAsString());
  seeds.push_back(BytesField(
      1, NestedAny(40, "flare.rpc.testing.AllTypes", all.SerializeAsString())));
  // A packed field whose varint has no end, in an Any.
  seeds.push_back(
      BytesField(1, AnyBytes("flare.rpc.testing.AllTypes",
                             BytesField(44, std::string(20, '\xff')))));
  return seeds;
}

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_WIRE_PAYLOAD_FUZZING_H_
