// Shared by the tests of wire formats: a sink that records, Buffers cut into
// pieces, and a replacement for a server connection.
#ifndef FLARE_RPC_WIRE_PROTOCOL_TESTING_H_
#define FLARE_RPC_WIRE_PROTOCOL_TESTING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/buffer.h"
#include "flare/rpc/http/http_own_request.h"
#include "flare/rpc/http/http_ticket.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"
#include "flare/rpc/wire/baidu_std_protocol.h"
#include "flare/rpc/wire/bolt_protocol.h"
#include "flare/rpc/wire/flare_protocol.h"
#include "flare/rpc/wire/trpc_protocol.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

// The last `size` bytes of a number, the most significant one first.
inline std::string BigEndian(std::uint64_t value, int size) {
  std::string bytes;
  while (size-- != 0) bytes.push_back(static_cast<char>(value >> (8 * size)));
  return bytes;
}

// A Buffer with these bytes, in slices of at most `piece` bytes, each of them
// an allocation of its own size so that a sanitizer sees every overrun.
inline Buffer SlicedBuffer(std::string_view bytes, std::size_t piece) {
  Buffer buffer;
  while (!bytes.empty()) {
    std::string_view part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    char* copy = new char[part.size()];
    std::copy(part.begin(), part.end(), copy);
    buffer.Append(
        MakeReferencingBuffer(copy, part.size(), [copy] { delete[] copy; }));
  }
  return buffer;
}

// Records a protocol's output.
class RecordingSink : public ReplySink {
 public:
  bool Write(Buffer&& bytes) override {
    std::scoped_lock lock(mutex_);
    // Output after closing would be lost.
    if (closed_ || aborted_) return false;
    sent_ += FlattenSlow(bytes);
    ++writes_;
    return true;
  }
  void CloseAfterReplies() override {
    std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  void Abort(const flare::Status& why) override {
    std::scoped_lock lock(mutex_);
    aborted_ = true;
    abort_reason_ = why.message();
  }

  void SetMuchHeld(bool much) override { much_held_ = much; }

  // Everything sent since the last call.
  std::string Take() {
    std::scoped_lock lock(mutex_);
    return std::exchange(sent_, {});
  }
  bool closed() const { return closed_; }
  bool aborted() const { return aborted_; }
  const std::string& abort_reason() const { return abort_reason_; }
  int writes() const { return writes_; }
  bool much_held() const { return much_held_; }

 private:
  std::mutex mutex_;
  std::string sent_;
  bool closed_ = false;
  bool aborted_ = false;
  std::string abort_reason_;
  int writes_ = 0;
  std::atomic<bool> much_held_ = false;
};

// Counts how often it is told.
class CountingWaiter final : public ReplyTurnWaiter {
 public:
  void OnTurn() override { ++told; }
  int told = 0;
};

// The record that `protocol` keeps of a request: the id by which its caller
// knows the reply (a stream's, for a frame of trpc's streams), and whether
// there is one.
struct TicketFacts {
  std::uint64_t id = 0;
  bool one_way = false;
};
inline TicketFacts FactsOf(std::string_view protocol,
                           const ReplyTicket& ticket) {
  if (protocol == "flare") return {ticket.As<FlareTicket>().correlation_id};
  if (protocol == "http") return {ticket.As<HttpTicket>().correlation_id};
  if (protocol == "baidu-std") {
    return {ticket.As<BaiduStdTicket>().correlation_id};
  }
  if (protocol == "bolt") {
    const auto& bolt = ticket.As<BoltTicket>();
    return {bolt.id, bolt.one_way};
  }
  EXPECT_EQ(protocol, "trpc");
  const auto& trpc = ticket.As<TrpcTicket>();
  return {trpc.is_stream ? trpc.stream_id : trpc.request_id, trpc.one_way};
}

// Feeds bytes to a protocol as a server connection does, keeps the requests
// and answers them when told to.
class ServerDriver {
 public:
  struct Received {
    InboundRequest request;
    ParseResult result = ParseResult::kOk;
  };

  // `make` is called with the sink and returns the protocol.
  template <class Make>
  explicit ServerDriver(Make&& make, std::unique_ptr<RecordingSink> sink =
                                         std::make_unique<RecordingSink>())
      : sink_(std::move(sink)), protocol_(make(sink_.get())) {}

  // Adds bytes, in pieces, and cuts complete messages. Returns the result of
  // the last Cut.
  CutResult Feed(std::string_view bytes,
                 std::size_t piece = std::string::npos) {
    in_.Append(SlicedBuffer(bytes, piece));
    return CutAll();
  }

  // One byte at a time, as from a very slow peer.
  CutResult Trickle(std::string_view bytes) {
    CutResult last = CutResult::kNeedMore;
    for (char c : bytes) last = Feed(std::string_view(&c, 1));
    return last;
  }

  std::size_t count() const { return received_.size(); }
  Received& operator[](std::size_t i) { return *received_[i]; }
  InboundRequest& request(std::size_t i = 0) { return received_[i]->request; }
  ParseResult result(std::size_t i = 0) const { return received_[i]->result; }
  TicketFacts facts(std::size_t i = 0) const {
    return FactsOf(protocol_->name(), received_[i]->request.ticket);
  }

  // Answers request i: rejections as such, calls and handlers with `body`.
  void Answer(std::size_t i, std::string_view body = "") {
    InboundRequest& request = received_[i]->request;
    switch (received_[i]->result) {
      case ParseResult::kClose:
        sink_->Abort(flare::Status(STATUS_IO_ERROR, request.reject_reason));
        return;
      case ParseResult::kReject:
        protocol_->WriteRejection(request);
        return;
      case ParseResult::kOk:
        break;
    }
    if (request.own != nullptr) {
      HttpResponse response;
      response.headers()->Set("Date", "today");
      response.set_body(body);
      Reply(i, std::move(response));
    } else {
      OutboundResponse response;
      response.body = CreateBufferSlow(body);
      protocol_->Write(request.ticket, std::move(response));
    }
  }
  // As a handler of HTTP.
  void Reply(std::size_t i, HttpResponse&& response) {
    InboundRequest& request = received_[i]->request;
    HttpOf(request).sender()->WriteHttp(TicketOf(&request),
                                        std::move(response));
  }
  void AnswerAll(std::string_view body = "") {
    for (; answered_ != received_.size(); ++answered_) Answer(answered_, body);
  }

  RecordingSink& sink() { return *sink_; }
  ServerProtocol& protocol() { return *protocol_; }
  Buffer& in() { return in_; }
  const std::string& error() const { return error_; }
  std::size_t need() const { return need_; }

 private:
  CutResult CutAll() {
    while (true) {
      auto next = std::make_unique<Received>();
      CutResult result = protocol_->Cut(in_, &next->request, &need_, &error_);
      if (result == CutResult::kHandled && !in_.empty()) continue;
      if (result != CutResult::kMessage) return result;
      next->result = protocol_->Parse(&next->request);
      received_.push_back(std::move(next));
      if (in_.empty()) return CutResult::kMessage;
    }
  }

  const std::unique_ptr<RecordingSink> sink_;
  std::unique_ptr<ServerProtocol> protocol_;
  Buffer in_;
  std::vector<std::unique_ptr<Received>> received_;
  std::size_t answered_ = 0;
  std::size_t need_ = 0;
  std::string error_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_WIRE_PROTOCOL_TESTING_H_
