// Invariants for any connection of HTTP/2, however its frames come. Shared by
// the randomised test and the fuzzer; a violation ends the process.
//
//   CheckHttp2Connection(script);
//
// The bytes are a script: which frames a client sends, whole and broken ones,
// heads with and without HPACK's table, in pieces of which size, and the acts
// of calls, handlers and the server meanwhile.
#ifndef FLARE_RPC_GRPC_HTTP2_FUZZING_H_
#define FLARE_RPC_GRPC_HTTP2_FUZZING_H_

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/http/http_own_request.h"
#include "flare/rpc/http2/http2_session.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_wire.h"
#include "flare/rpc/wire/protocol_fuzzing.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "glog/logging.h"

namespace flare::rpc::testing {

class Http2ConnectionCheck {
 public:
  explicit Http2ConnectionCheck(std::string_view script) : script_(script) {
    Limits limits = FuzzLimits();
    limits.max_skipped = 8192;
    static const auto* const set = new ServerProtocolSet(
        ServerProtocolSet::FromNames(
            {"grpc", "flare", "http+pb", "http+proto3-json", "http", "trpc"},
            limits)
            .value());
    protocol_ = set->New(0, &sink_);
    Feed(std::string(Http2Session::kPreface) + Frame(4, 0, 0, ""));
  }
  Http2ConnectionCheck(const Http2ConnectionCheck&) = delete;
  Http2ConnectionCheck& operator=(const Http2ConnectionCheck&) = delete;
  ~Http2ConnectionCheck() {
    protocol_->OnClosed(flare::Status(STATUS_IO_ERROR, "closed"));
    // Nobody waits for a connection that is closed.
    for (const auto& call : calls_) CHECK_EQ(call->asked, call->waiter.told);
    CheckSent();
    sink_.streams.clear();
    calls_.clear();
  }

  void Run() {
    while (!script_.empty() && open_) Step();
  }
  // Input has taken about as long as it has bytes, also in a slow build.
  bool InTime() const {
    constexpr std::int64_t kMostNs = 100'000'000;
    constexpr std::int64_t kMostNsOfByte = 10'000;
    return cut_ns_ <= kMostNs + kMostNsOfByte * static_cast<std::int64_t>(fed_);
  }

 private:
  struct Call {
    InboundRequest request;
    HttpTicket ticket;  // For a reply in pieces.
    CountingWaiter waiter;
    int asked = 0;  // How often it was to wait.
    bool begun = false;
    bool answered = false;
  };

  // Reads each message at once.
  struct Receiver final : StreamReceiver {
    void OnMessage(Buffer&& message, bool) override {
      if (wire != nullptr) {
        wire->SendCredit(message.size() + wire->message_cost());
      }
    }
    void OnCompressed(Buffer&&, CompressionAlgorithm, std::size_t) override {}
    void OnEnd(const flare::Status&) override {}
    void OnCredit(std::size_t) override {}
    void OnReset(const flare::Status& why) override { CHECK(!why.ok()); }
    void Drop() override {}
    void OnInputLost(const flare::Status&) override {}

    StreamWire* wire = nullptr;  // Null: the call has dropped it.
  };
  struct OpenedStream {
    OpenedStream(std::unique_ptr<StreamWire> its_wire,
                 RefPtr<Receiver> its_receiver)
        : wire(std::move(its_wire)), receiver(std::move(its_receiver)) {}
    OpenedStream(const OpenedStream&) = delete;
    OpenedStream& operator=(const OpenedStream&) = delete;
    ~OpenedStream() { receiver->wire = nullptr; }

    const std::unique_ptr<StreamWire> wire;
    const RefPtr<Receiver> receiver;
  };

  struct Sink final : RecordingSink {
    MethodKind KindOfMethod(std::string_view name,
                            bool /*short_service*/) override {
      if (name == "a.B.Unary") return MethodKind::kUnary;
      return name == "a.B.Stream" ? MethodKind::kStreaming
                                  : MethodKind::kUnknown;
    }
    RefPtr<StreamReceiver> OpenStream(
        const StreamOpening&, std::unique_ptr<StreamWire> wire) override {
      auto receiver = MakeRefCounted<Receiver>();
      receiver->wire = wire.get();
      static_cast<void>(wire->Begin(receiver));
      streams.push_back(
          std::make_unique<OpenedStream>(std::move(wire), receiver));
      return receiver;
    }
    void CountHeld(std::size_t before, std::size_t after) override {
      held += after - before;
    }

    std::vector<std::unique_ptr<OpenedStream>> streams;
    std::size_t held = 0;
  };

  unsigned Next() {
    if (script_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(script_[0]);
    script_.remove_prefix(1);
    return byte;
  }
  std::string Some() {
    const std::string_view some = script_.substr(0, Next() % 64);
    script_.remove_prefix(some.size());
    return std::string(some);
  }

  static std::string Frame(int type, int flags, std::uint32_t id,
                           std::string_view payload) {
    return BigEndian(payload.size(), 3) + static_cast<char>(type) +
           static_cast<char>(flags) + BigEndian(id, 4) + std::string(payload);
  }
  // HPACK (RFC 7541, 6): the field's place in the table, if it has one, a
  // literal that joins the table, or one that doesn't.
  std::string Field(std::string_view name, std::string_view value) {
    if (!indexes_) return std::string(1, '\0') + Literal(name, value);
    const auto known =
        std::find(table_.begin(), table_.end(), std::pair(name, value));
    if (known != table_.end()) return Indexed(known - table_.begin());
    table_.insert(table_.begin(), {name, value});
    return "\x40" + Literal(name, value);
  }
  static std::string Literal(std::string_view name, std::string_view value) {
    return static_cast<char>(name.size()) + std::string(name) +
           static_cast<char>(value.size()) + std::string(value);
  }
  static std::string Indexed(std::ptrdiff_t at) {
    constexpr int kFirst = 62;  // The first index of the dynamic table.
    return std::string(1, static_cast<char>(0x80 + kFirst + at));
  }
  // A field that a byte repeats.
  std::string Bomb() {
    static const auto* const value = new std::string(120, 'v');
    const std::string first = Field("large", *value);
    return first + std::string(Next() % 64, Field("large", *value).front());
  }
  // The head of a request: of gRPC, of a web page, a call of HTTP, or for a
  // handler.
  std::string Head() {
    constexpr std::string_view kPaths[] = {"/a.B/Unary", "/a.B/Stream",
                                           "/a.B/None", "/rpc/a.B.Unary",
                                           "/rpc/a.B.Stream"};
    constexpr std::string_view kTypes[] = {"application/grpc",
                                           "application/x-protobuf",
                                           "application/x-proto3-json",
                                           "application/connect+proto",
                                           "application/connect+json",
                                           "application/proto",
                                           "application/grpc-web",
                                           "application/grpc-web-text",
                                           "text/html"};
    const unsigned kind = Next();
    const unsigned type = Next();
    const bool get = kind % 6 == 5;
    const unsigned coding = Next();
    indexes_ = coding % 4 != 0;
    std::string block;
    if (coding % 32 == 1) {  // The table is emptied.
      block = "\x20\x3f\xe1\x1f";
      table_.clear();
    }
    block += Field(":method", get ? "GET" : "POST");
    block += Field(":scheme", "http");
    block += Field(":authority", "h");
    path_ = get ? "/page" : kPaths[kind % 6];
    block += Field(":path", path_);
    // One in three is gRPC's.
    if (!get) {
      block += Field("content-type",
                     type < 85 ? kTypes[0] : kTypes[type % std::size(kTypes)]);
    }
    if (type & 1) block += Field("connect-protocol-version", "1");
    if (kind & 32) block += Field("grpc-encoding", "gzip");
    if (kind & 64) block += Field("grpc-accept-encoding", "gzip");
    if (kind & 128) block += Field("content-length", "5000");
    if (coding % 16 == 2) block += Bomb();
    return block;
  }

  std::uint32_t NewStream() {
    last_stream_ += 2;
    return last_stream_ - 2;
  }
  // Mostly one that was opened.
  std::uint32_t AnyStream() { return Next() % (last_stream_ + 3); }

  void Step() {
    const unsigned what = Next();
    const int flags = static_cast<int>(Next());
    switch (what % 16) {
      case 0:
        return SendHead(NewStream(), flags & 1);
      case 1:
        return WholeRequest(static_cast<unsigned>(flags));
      case 2: {
        const std::string data = Body(static_cast<unsigned>(flags));
        return Feed(Frame(0, flags & 1, AnyStream(), data));
      }
      case 3:
        return Feed(Frame(3, 0, AnyStream(), BigEndian(Next() % 14, 4)));
      case 4:  // The initial window, and others.
        return Feed(Frame(
            4, 0, 0,
            BigEndian(flags % 7, 2) + BigEndian(Next() * Next() * Next(), 4)));
      case 5:
        return Feed(Frame(8, 0, AnyStream(), BigEndian(Next() * Next(), 4)));
      case 6:
        return Feed(Frame(6, flags & 1, 0, std::string(8, 'p')));
      case 7:
        table_known_ = false;
        return Feed(
            Frame(static_cast<int>(Next() % 12), flags, AnyStream(), Some()));
      case 8:
        table_known_ = false;
        return Feed(Some());
      case 9:
        table_known_ = false;
        return Feed(Frame(1, flags, NewStream(), Head() + Some()));
      case 10:
      case 11:
        return Answer();
      case 12:
        return Piece(static_cast<unsigned>(flags));
      case 13:
        return UseWire(static_cast<unsigned>(flags));
      case 14:
        if (flags < 8) static_cast<void>(protocol_->AnnounceEnd());
        return;
      default:
        if (flags >= 4) return;
        protocol_->EndInput();
        open_ = false;
        while (!calls_.empty() && answered_ != calls_.size()) Answer();
    }
  }

  // A message with its prefix, one in base64, one that is too large, or noise.
  std::string Body(unsigned how) {
    switch (how >> 1 & 7) {
      case 0:
      case 1:
      case 2: {
        const std::string data = Some();
        return std::string(1, static_cast<char>(how >> 4 & 1)) +
               BigEndian(data.size(), 4) + data;
      }
      case 3:
        return "AAAAAAJoaQ==";
      case 4:
        return std::string(5000, 'x');
      default:
        return Some();
    }
  }
  void SendHead(std::uint32_t id, int end) {
    const std::string head = Head();
    if (table_known_) paths_[id] = path_;
    Feed(Frame(1, 4 | end, id, head));
  }
  void WholeRequest(unsigned how) {
    const std::uint32_t id = NewStream();
    SendHead(id, 0);
    if (open_) Feed(Frame(0, 1, id, Body(how)));
  }

  void Feed(std::string_view bytes) {
    const std::size_t piece = std::max(1u, Next() % 32);
    fed_ += bytes.size();
    in_.Append(SlicedBuffer(bytes, piece));
    while (open_) {
      auto call = std::make_unique<Call>();
      std::size_t need = 0;
      std::string error;
      const std::int64_t begin_ns = CpuNs();
      const CutResult result =
          protocol_->Cut(in_, &call->request, &need, &error);
      cut_ns_ += CpuNs() - begin_ns;
      if (result == CutResult::kMessage) {
        if (protocol_->Parse(&call->request) == ParseResult::kReject) {
          CHECK_NE(call->request.reject_status, STATUS_SUCCESS);
        } else {
          CheckPath(call->request);
        }
        calls_.push_back(std::move(call));
      } else if (result == CutResult::kHandled && !in_.empty()) {
        continue;
      } else {
        CHECK_EQ(result == CutResult::kError, !error.empty());
        open_ = result != CutResult::kError;
        break;
      }
    }
    // Metadata that HPACK has made small count by their size.
    const MetadataLimits metadata = FuzzLimits().metadata;
    CHECK_LE(protocol_->KeptOfMessage(),
             fed_ * 4 + 1024 +
                 last_stream_ * (metadata.bytes + 32 * metadata.entries));
    CheckSent();
  }

  // Its head is that of its stream, whatever the table did for it.
  void CheckPath(InboundRequest& request) {
    const auto sent =
        paths_.find(static_cast<std::uint32_t>(TicketOf(&request).order));
    if (sent == paths_.end()) return;
    if (request.own != nullptr) {
      CHECK_EQ(HttpOf(request).request().uri(), sent->second);
      return;
    }
    // "/a.B/Unary" and "/rpc/a.B.Unary".
    const std::string_view method = request.head.method;
    CHECK(sent->second.ends_with(method.substr(method.rfind('.') + 1)))
        << method << " in place of " << sent->second;
  }

  // The next request that wasn't, in one piece.
  void Answer() {
    if (answered_ == calls_.size()) return;
    Call& call = *calls_[answered_++];
    const std::string body(Next() * Next(), 'x');
    if (call.request.reject_status != STATUS_SUCCESS) {
      protocol_->WriteRejection(call.request);
    } else if (call.request.own != nullptr) {
      if (call.begun) return End(&call);
      HttpResponse response;
      response.set_body(body);
      SenderOf(call)->WriteHttp(TicketOf(&call.request), std::move(response));
    } else if (call.request.stream == nullptr && !StreamReply(call.request)) {
      OutboundResponse response;
      response.status = static_cast<int>(Next() % 4);
      response.body = CreateBufferSlow(body);
      protocol_->Write(call.request.ticket, std::move(response));
    }
  }

  // The reply to a web page's call. False: the reply is a single message.
  bool StreamReply(const InboundRequest& request) {
    if (sink_.KindOfMethod(request.head.method, false) !=
            MethodKind::kStreaming ||
        !protocol_->WhyNoReplyStream(request.ticket).empty()) {
      return false;
    }
    CHECK(protocol_->AskToStream(request.ticket, nullptr) == ReplyTurn::kNow);
    sink_.OpenStream({}, protocol_->OpenReplyStream(request.ticket));
    return true;
  }

  static HttpReplySender* SenderOf(const Call& call) {
    return HttpOf(call.request).sender();
  }
  void End(Call* call) {
    if (!std::exchange(call->answered, true)) {
      SenderOf(*call)->EndHttp(call->ticket);
    }
  }

  // A piece of a reply, for the latest handler's request.
  void Piece(unsigned how) {
    for (std::size_t i = calls_.size(); i-- > answered_;) {
      Call& call = *calls_[i];
      if (call.request.own == nullptr || call.answered) continue;
      HttpReplySender* const sender = SenderOf(call);
      if (!std::exchange(call.begun, true)) {
        call.ticket = TicketOf(&call.request);
        static_cast<void>(sender->BeginHttp(
            HttpVersion::kHttp11, HttpResponse(), &call.ticket, &call.waiter));
      } else if (how % 8 == 0) {
        sender->AbortHttp(call.ticket);
      } else if (how % 8 == 1) {
        End(&call);
      } else if (call.asked == call.waiter.told) {
        // One that waits doesn't ask.
        if (sender->AskForRoom(call.ticket, &call.waiter) ==
            ReplyTurn::kLater) {
          ++call.asked;
        } else if (!call.ticket.head_only) {
          static_cast<void>(sender->WriteHttpPiece(
              call.ticket, CreateBufferSlow(std::string(how * 200, 'p'))));
        }
      }
      return;
    }
  }

  void UseWire(unsigned how) {
    if (sink_.streams.empty()) return;
    const std::size_t at = Next() % sink_.streams.size();
    StreamWire* const wire = sink_.streams[at]->wire.get();
    switch (how % 8) {
      case 0:
        static_cast<void>(wire->UseCompression(CompressionAlgorithm::kGzip));
        break;
      case 1:
        static_cast<void>(
            wire->SendCompressed(CreateBufferSlow("compressed"), false));
        break;
      case 2:
        wire->SendCredit(Next() * 16);
        break;
      case 3:
        static_cast<void>(wire->SendEnd(
            flare::Status(static_cast<int>(Next() % 3), "the end")));
        break;
      case 4:
        static_cast<void>(wire->TakeCredit());
        break;
      case 5: {
        Metadata metadata;
        static_cast<void>(metadata.Add("name", "value"));
        static_cast<void>(
            wire->AddMetadata(how < 128 ? StreamWire::MetadataPlace::kInitial
                                        : StreamWire::MetadataPlace::kTrailing,
                              metadata));
        break;
      }
      case 6:
        sink_.streams.erase(sink_.streams.begin() +
                            static_cast<std::ptrdiff_t>(at));
        break;
      default:
        static_cast<void>(wire->SendMessage(
            CreateBufferSlow(std::string(how * 100, 'm')), how > 200));
    }
  }

  // CPU time of this thread: others' work doesn't count.
  static std::int64_t CpuNs() {
    timespec now;
    CHECK_EQ(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
    return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
  }

  // Whole frames, none of them too long.
  void CheckSent() {
    sent_ += sink_.Take();
    std::size_t at = 0;
    while (sent_.size() - at >= Http2Session::kFrameHeaderSize) {
      const auto byte = [&](std::size_t i) {
        return static_cast<std::size_t>(
            static_cast<unsigned char>(sent_[at + i]));
      };
      const std::size_t size = byte(0) << 16 | byte(1) << 8 | byte(2);
      CHECK_LE(size, Http2Session::kMaxFrameSize);
      CHECK_LE(byte(3), 9u);
      if (sent_.size() - at - Http2Session::kFrameHeaderSize < size) break;
      at += Http2Session::kFrameHeaderSize + size;
    }
    sent_.erase(0, at);
    CHECK(sent_.empty()) << "a part of a frame";
  }

  std::string_view script_;
  Sink sink_;
  std::unique_ptr<ServerProtocol> protocol_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::size_t answered_ = 0;
  Buffer in_;
  std::string sent_;
  std::size_t fed_ = 0;
  std::int64_t cut_ns_ = 0;  // That reading them took.
  // The entries of HPACK's dynamic table, the latest entry first.
  std::vector<std::pair<std::string_view, std::string_view>> table_;
  bool table_known_ = true;  // Else the script has sent bytes of its own.
  bool indexes_ = false;     // The head that is made uses the table.
  std::string_view path_;    // The path of the head that was made last.
  std::map<std::uint32_t, std::string_view> paths_;  // Paths of streams.
  std::uint32_t last_stream_ = 1;
  bool open_ = true;
};

inline void CheckHttp2Connection(std::string_view script) {
  // A machine that has no memory, or whose own host is busy, may take the time
  // once: it counts as this thread's.
  constexpr int kTries = 3;
  for (int i = 0; i != kTries; ++i) {
    Http2ConnectionCheck check(script);
    check.Run();
    if (check.InTime()) return;
  }
  LOG(FATAL) << "the input took too long each time";
}

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_GRPC_HTTP2_FUZZING_H_
