// Invariants for any bytes that come from the network. Shared by the randomised
// tests and the fuzzers; a violation ends the process.
#ifndef FLARE_RPC_WIRE_PROTOCOL_FUZZING_H_
#define FLARE_RPC_WIRE_PROTOCOL_FUZZING_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/base/compression.h"
#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/rpc/client_protocol.h"
#include "flare/rpc/outbound_body.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/wire/bolt_testing.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "glog/logging.h"

namespace flare::rpc::testing {

inline Limits FuzzLimits() {
  Limits limits;
  limits.max_packet_size = 4096;
  limits.max_head_size = 1024;
  limits.max_head_fields = 20;
  limits.max_pipeline = 8;
  limits.max_reorder_bytes = 1 << 20;
  limits.metadata = {.entries = 3, .bytes = 64};
  return limits;
}

// Those whose servers and clients are fed; "http" has no client of its own.
inline std::vector<std::string> FuzzedProtocols() {
  return {"flare", "http+pb", "http", "baidu-std", "bolt", "trpc"};
}
inline std::vector<std::string> FuzzedSchemes() {
  return {"flare", "http+pb", "baidu-std", "bolt", "trpc"};
}

// The result of reading some bytes, for comparing ways to read them.
struct Reading {
  // Per message: its kind and contents, or that it was refused.
  std::vector<std::string> messages;
  // How it ended: "open", "closed" (by the protocol or by kError).
  std::string end = "open";

  bool operator==(const Reading&) const = default;
};

// Within the limits, or it would have been refused; a reply over trpc may have
// twice as much, as it repeats the request's.
inline std::string Describe(const Metadata* metadata) {
  std::string text;
  if (metadata == nullptr) return text;
  CHECK(!metadata->empty());
  CHECK_LE(metadata->size(), 2 * FuzzLimits().metadata.entries);
  CHECK_LE(metadata->byte_size(), 2 * FuzzLimits().metadata.bytes);
  for (const Metadata::Entry entry : *metadata) {
    CHECK(!entry.name.empty());
    text.append("\n").append(entry.name).append("=").append(entry.value);
  }
  return text;
}

inline std::string Describe(const InboundRequest& request, ParseResult result,
                            std::uint64_t id) {
  if (result == ParseResult::kClose) return "close";
  if (result == ParseResult::kReject) return "refused";
  if (request.own != nullptr) {
    HttpRequest& http = HttpOf(request).request();
    std::string text(ToStringView(http.method()));
    text += " " + http.uri();
    for (std::size_t i = 0; i != http.headers()->size(); ++i) {
      auto [name, value] = (*http.headers())[i];
      text.append("\n").append(name).append(": ").append(value);
    }
    return text + "\n" + *http.body();
  }
  return "call " + std::string(request.head.method) + " " + std::to_string(id) +
         " " + std::to_string(request.head.timeout_ms) + "\n" +
         FlattenSlow(request.body) + "\n" + FlattenSlow(request.attachment) +
         Describe(request.metadata.get());
}

// A server that has streams, and notes the input of each. Clear() before the
// protocol goes.
class StreamingSink final : public RecordingSink {
 public:
  MethodKind KindOfMethod(std::string_view name, bool) override {
    return name == "a.B.Run" ? MethodKind::kStreaming : MethodKind::kUnknown;
  }
  RefPtr<StreamReceiver> OpenStream(const StreamOpening&,
                                    std::unique_ptr<StreamWire> wire) override {
    auto stream = MakeRefCounted<Stream>();
    if (!wire->Begin(stream)) return nullptr;
    stream->wire = std::move(wire);
    streams_.push_back(stream);
    return stream;
  }

  // Answers on a stream that was opened here.
  static void Answer(StreamReceiver* receiver) {
    StreamWire& wire = *static_cast<Stream*>(receiver)->wire;
    wire.Accept();
    wire.SendCredit(1000);
    static_cast<void>(
        wire.SendMessage(OutboundBody(CreateBufferSlow("answer")), false));
    static_cast<void>(wire.SendEnd(flare::Status()));
  }
  void Describe(std::vector<std::string>* streams) const {
    for (const auto& stream : streams_) streams->push_back(stream->text);
  }
  void Clear() {
    for (const auto& stream : streams_) stream->wire.reset();
  }

 private:
  struct Stream final : StreamReceiver {
    void OnMessage(Buffer&& message, bool last) override {
      CHECK_LE(message.size(), FuzzLimits().max_packet_size);
      text += (last ? "\nlast " : "\nmessage ") + FlattenSlow(message);
    }
    void OnCompressed(Buffer&& message, CompressionAlgorithm,
                      std::size_t) override {
      text += "\ncompressed " + FlattenSlow(message);
    }
    void OnPart(Buffer&& part) override {
      text += "\npart " + FlattenSlow(part);
    }
    void OnEnd(const flare::Status& status) override {
      CHECK(status.ok());  // A client has none.
      text += "\nend";
    }
    void OnCredit(std::size_t bytes) override {
      text += "\ncredit " + std::to_string(bytes);
    }
    void OnWindow(std::size_t bytes) override {
      text += "\nwindow " + std::to_string(bytes);
    }
    void OnReset(const flare::Status& why) override {
      CHECK(!why.ok());
      text += "\nreset " + why.message();
    }
    void Drop() override {}
    void OnInputLost(const flare::Status&) override {}

    std::string text = "stream";
    std::unique_ptr<StreamWire> wire;
  };

  std::vector<RefPtr<Stream>> streams_;
};

// Feeds `bytes` in pieces to protocol `index` of the set and answers
// everything, the last request first.
inline Reading ReadAsServer(const ServerProtocolSet& set, std::size_t index,
                            std::string_view bytes, std::size_t piece) {
  auto owned_sink = std::make_unique<StreamingSink>();
  StreamingSink& sink = *owned_sink;
  ServerDriver driver([&](auto* to) { return set.New(index, to); },
                      std::move(owned_sink));
  Reading reading;
  std::string_view rest = bytes;
  while (!rest.empty() && reading.end == "open") {
    std::string_view part = rest.substr(0, piece);
    rest.remove_prefix(part.size());
    CutResult result = driver.Feed(part, 1 + piece / 2);
    if (result == CutResult::kError) CHECK(!driver.error().empty());
    if (result == CutResult::kError || result == CutResult::kNotMine) {
      reading.end = "closed";
    }
  }
  // Nothing is kept that the limits don't allow.
  CHECK_LE(driver.in().size(), std::max<std::size_t>(bytes.size(), 1));
  bool answers = false;
  for (std::size_t i = driver.count(); i-- != 0;) {
    if (StreamReceiver* const stream = driver.request(i).stream.Get();
        stream != nullptr && driver.result(i) == ParseResult::kOk) {
      StreamingSink::Answer(stream);
      continue;
    }
    driver.Answer(i, "answer");
    answers |= !driver.facts(i).one_way;
    // Every request that can be answered is: nothing else may abort.
    if (driver.sink().aborted()) {
      CHECK(driver.result(i) == ParseResult::kClose);
      break;
    }
  }
  if (!driver.sink().aborted() && answers) {
    CHECK(!driver.sink().Take().empty());
  }
  for (std::size_t i = 0; i != driver.count(); ++i) {
    reading.messages.push_back(
        Describe(driver.request(i), driver.result(i), driver.facts(i).id));
    if (driver.result(i) != ParseResult::kOk) {
      CHECK_NE(driver.request(i).reject_status, STATUS_SUCCESS);
      CHECK(!driver.request(i).reject_reason.empty());
    }
  }
  sink.Describe(&reading.messages);
  sink.Clear();
  if (driver.sink().closed()) reading.end = "closed";
  return reading;
}

// No crash, and the same outcome however the bytes are cut into pieces.
inline void CheckServerBytes(std::string_view bytes) {
  static const auto* set = new ServerProtocolSet(
      ServerProtocolSet::FromNames(FuzzedProtocols(), FuzzLimits()).value());
  for (std::size_t i = 0; i != set->size(); ++i) {
    Reading whole = ReadAsServer(*set, i, bytes, bytes.size() + 1);
    for (std::size_t piece : {1, 2, 7, 64}) {
      Reading cut = ReadAsServer(*set, i, bytes, piece);
      CHECK(whole.messages == cut.messages && whole.end == cut.end)
          << "pieces of " << piece << " bytes: " << whole.messages.size()
          << " messages, " << whole.end << "; " << cut.messages.size()
          << " messages, " << cut.end;
    }
  }
}

inline Reading ReadAsClient(const std::string& scheme, std::string_view bytes,
                            std::size_t piece) {
  auto protocol =
      std::move(NewClientProtocol(scheme, FuzzLimits(), "host")).value();
  Reading reading;
  Buffer in;
  while (!bytes.empty() && reading.end == "open") {
    std::string_view part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    in.Append(SlicedBuffer(part, 1 + piece / 2));
    while (reading.end == "open") {
      InboundResponse response;
      std::size_t need = 0;
      std::string error;
      CutResult cut = protocol->Cut(in, &response, &need, &error);
      CHECK(cut != CutResult::kUnsure && cut != CutResult::kNotMine);
      if (cut == CutResult::kHandled) continue;
      if (cut == CutResult::kNeedMore) break;
      if (cut == CutResult::kError) {
        CHECK(!error.empty());
        reading.end = "closed";
        break;
      }
      ParseResult parsed = protocol->Parse(&response);
      if (parsed != ParseResult::kOk) CHECK(!response.description.empty());
      reading.messages.push_back(std::to_string(static_cast<int>(parsed)) +
                                 " " + std::to_string(response.correlation_id) +
                                 " " + std::to_string(response.status) + " " +
                                 std::string(response.description) + "\n" +
                                 FlattenSlow(response.body) + "\n" +
                                 FlattenSlow(response.attachment) +
                                 Describe(response.metadata.get()));
    }
  }
  return reading;
}

inline void CheckClientBytes(std::string_view bytes) {
  static const auto* schemes = new std::vector(FuzzedSchemes());
  for (const std::string& scheme : *schemes) {
    Reading whole = ReadAsClient(scheme, bytes, bytes.size() + 1);
    for (std::size_t piece : {1, 2, 7, 64}) {
      Reading cut = ReadAsClient(scheme, bytes, piece);
      CHECK(whole == cut) << scheme << " in pieces of " << piece << " bytes";
    }
  }
}

// Requests with metadata, of each protocol, and the replies to them.
inline void AddMetadataSeeds(std::vector<std::string>* seeds) {
  Metadata metadata;
  CHECK(metadata.Add("k", "v").ok());
  CHECK(metadata.Add("b-bin", std::string("\0\xff", 2)).ok());
  for (const std::string& scheme : FuzzedSchemes()) {
    OutboundRequest request;
    request.correlation_id = 7;
    request.method = "a.B.C";
    request.metadata = &metadata;
    BufferBuilder out;
    CHECK(std::move(NewClientProtocol(scheme, FuzzLimits(), "host"))
              .value()
              ->Write(std::move(request), &out)
              .ok());
    seeds->push_back(FlattenSlow(out.DestructiveGet()));
    ServerDriver driver([&](ReplySink* sink) {
      return ServerProtocolSet::FromNames({scheme}, FuzzLimits())->New(0, sink);
    });
    driver.Feed(seeds->back());
    OutboundResponse response;
    response.metadata = &metadata;
    driver.protocol().Write(driver.request().ticket, std::move(response));
    seeds->push_back(driver.sink().Take());
  }
}

// Valid input to start from.
inline std::vector<std::string> SeedBytes() {
  auto bytes = [](std::string_view text) { return std::string(text); };
  using namespace std::string_view_literals;
  std::string meta = bytes("\x08\x01\x2a\x0c\x12\x05"sv) + "a.B.C" +
                     bytes("\x20\x05\x30\x3e\x38\x01"sv);
  meta[3] = static_cast<char>(meta.size() - 6);
  std::string request = bytes("CPRF"sv);
  for (std::size_t size : {meta.size(), std::size_t{2}, std::size_t{3}}) {
    for (int i = 0; i != 4; ++i) {
      request.push_back(static_cast<char>(size >> (8 * i)));
    }
  }
  request += meta + "bbaaa";
  BoltRequestParts one_way;
  one_way.type = 2;
  one_way.content = "content";
  std::vector<std::string> seeds{
      request,
      request + request,
      bytes("CPRF\x08\0\0\0\x04\0\0\0\0\0\0\0"
            "\x08\x01\x32\x02\x08\0\x38\x01\x12\x02hi"sv),
      bytes("CPRF\x0b\0\0\0\0\0\0\0\0\0\0\0"
            "\x08\x07\x32\x05\x08\x0a\x12\x01x\x38\x01"sv),
      "GET /a?b HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n\r\n",
      "POST /rpc/a.B.C HTTP/1.1\r\nRpc-SeqNo: 7\r\nRpc-Timeout: 20\r\n"
      "Content-Type: application/x-protobuf\r\nContent-Length: 4\r\n\r\nbody",
      "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3;e=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: u\r\n\r\nGET / HTTP/1.0\r\n"
      "\r\n",
      "PUT /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
      "Connection: keep-alive\r\nContent-Length: 2\r\n\r\nab\r\n"
      "HEAD / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
      bytes("POST /rpc/a.B.C HTTP/1.1\r\nContent-Type: application/grpc-web\r\n"
            "grpc-timeout: 20m\r\ngrpc-encoding: gzip\r\n"
            "Content-Length: 7\r\n\r\n\0\0\0\0\2hi"sv),
      "POST /rpc/a.B.C HTTP/1.1\r\nRpc-SeqNo: 7\r\n"
      "Content-Type: application/grpc-web-text\r\n"
      "Content-Length: 12\r\n\r\nAAAAAAJoaQ==",
      "POST /rpc/a.B.C HTTP/1.1\r\nContent-Type: application/proto\r\n"
      "Connect-Protocol-Version: 1\r\nConnect-Timeout-Ms: 20\r\n"
      "Content-Length: 4\r\n\r\nbody",
      "HTTP/1.1 200 OK\r\nRpc-SeqNo: 7\r\nContent-Length: 4\r\n\r\nbody",
      "HTTP/1.1 500 Internal Server Error\r\nRpc-SeqNo: 7\r\n"
      "Rpc-Error-Code: 99\r\nRpc-Error-Reason: why\r\nContent-Length: 0\r\n"
      "\r\n",
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nRpc-SeqNo: 9\r\n"
      "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
      bytes("\x09\x30\0\0\0\0\0\x2d\0\x18\0\0\0\0\0\0\x18\x01\x20\x05\x3a\x08"
            "/a.B/Run\x4a\x06\x0a\x01k\x12\x01v\x60\x03"
            "bbaaa"sv),
      bytes("\x09\x30\0\0\0\0\0\x1e\0\x0e\0\0\0\0\0\0\x10\x01\x18\x02\x3a\x08"
            "/a.B/Run"sv),
      bytes("\x09\x30\x01\x01\0\0\0\x13\0\0\0\0\0\x05\0\0xyz"sv),
      bytes("\x09\x30\0\0\0\0\0\x19\0\x02\0\0\0\0\0\0\x18\x01\x0a\x05hello"sv),
      bytes(
          "\x09\x30\0\0\0\0\0\x18\0\x08\0\0\0\0\0\0\x18\x07\x20\x0c\x32\x02no"sv),
      bytes("PRPC\0\0\0\x19\0\0\0\x14\x0a\x0a\x0a\x03"
            "a.B\x12\x03Run\x18\0\x20\x01\x28\x03\x50\x02"
            "bbaaa"sv),
      bytes(
          "PRPC\0\0\0\x1a\0\0\0\x19\x0a\x0a\x0a\x03"
          "a.B\x12\x03Run\x20\x01\x42\x09\x08\x07\x10\x01\x18\x01\xc0\x3e\x40x"
          "STRM\0\0\0\x09\0\0\0\x08\x08\x01\x10\x07\x18\x03\x20\0x"
          "STRM\0\0\0\x09\0\0\0\x08\x08\x01\x10\x07\x18\x03\x20\x01x"
          "STRM\0\0\0\x09\0\0\0\x08\x08\x01\x10\x07\x18\x03\x20\0y"
          "STRM\0\0\0\x0a\0\0\0\x0a\x08\x01\x10\x07\x18\x04\x2a\x02\x08\x05"
          "STRM\0\0\0\x09\0\0\0\x09\x08\x01\x10\x07\x18\x02\xc0\x3e\x01"sv),
      bytes("PRPC\0\0\0\x0d\0\0\0\x06\x12\x02\x08\0\x20\x01\x0a\x05hello"sv),
      bytes("PRPC\0\0\0\x0a\0\0\0\x0a\x12\x06\x08\x0a\x12\x02no\x20\x07"sv),
      one_way.Bytes() + kBoltHeartbeatVector + BoltRequestParts().Bytes(),
      kBoltRequestVector,
      BoltResponseParts().Bytes() + kBoltResponseVector,
      BoltErrorReply(2, 99, "why"),
  };
  AddMetadataSeeds(&seeds);
  return seeds;
}

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_WIRE_PROTOCOL_FUZZING_H_
