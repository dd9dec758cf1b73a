#include "flare/rpc/redis_server/redis_server_protocol.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "flare/rpc/redis_server/redis_batch.h"
#include "flare/rpc/redis_server/redis_command_reader.h"

namespace flare::rpc {
namespace {

// A batch has no more of them: further commands wait, so that their connection
// doesn't hold a worker for long.
constexpr std::size_t kMaxBatchCommands = 256;
constexpr std::size_t kMaxBatchBytes = 64 << 10;

// A line that begins a connection.
constexpr std::size_t kMaxFirstLine = 512;

// Whether the first bytes of a connection are a client's of Redis: kMessage if
// so. Other protocols were asked before.
CutResult Recognise(const Buffer& in) {
  char bytes[kMaxFirstLine];
  std::string_view text(bytes, in.CopyTo(bytes, sizeof(bytes)));
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty()) return CutResult::kUnsure;
  if (text[0] == '*') {
    if (text.size() == 1) return CutResult::kUnsure;
    return is_digit(text[1]) ? CutResult::kMessage : CutResult::kNotMine;
  }
  const std::size_t end = text.find('\n');
  std::string_view line = text.substr(0, end);
  if (end != text.npos && line.ends_with('\r')) line.remove_suffix(1);
  const char lower = static_cast<char>(text[0] | 0x20);
  if (lower < 'a' || lower > 'z') return CutResult::kNotMine;
  for (const char c : line) {
    // A CR may yet be followed by LF.
    const bool last = &c == &line.back();
    const bool visible = c >= ' ' && c < 0x7f;
    if (!visible && c != '\t' && !(c == '\r' && last)) {
      return CutResult::kNotMine;
    }
  }
  if (end == text.npos) {
    return text.size() == sizeof(bytes) ? CutResult::kNotMine
                                        : CutResult::kUnsure;
  }
  return line.find(" HTTP/") == line.npos ? CutResult::kMessage
                                          : CutResult::kNotMine;
}

class RedisServerProtocol final : public ServerProtocol {
 public:
  RedisServerProtocol(const RedisService* service, const Limits& limits,
                      ReplySink* sink)
      : ServerProtocol(sink),
        service_(service),
        max_size_(limits.max_packet_size),
        reader_(limits.max_packet_size) {}
  ~RedisServerProtocol() override {
    if (batch_ != nullptr) batch_->Recycle();
  }

  std::string_view name() const override { return "redis"; }
  ProtocolTraits traits() const override { return {.multiplexed = false}; }

  CutResult Cut(Buffer& in, InboundRequest* request, std::size_t* need,
                std::string* error) override;
  ParseResult Parse(InboundRequest* /*request*/) const override {
    return ParseResult::kOk;
  }
  // Batches answer for themselves.
  void Write(const ReplyTicket& /*ticket*/,
             OutboundResponse&& /*response*/) override {}
  bool WithinMessage() const override { return reader_.within(); }
  std::size_t KeptOfMessage() const override {
    return reader_.kept() +
           (batch_ == nullptr ? 0 : batch_->commands().memory());
  }

 private:
  RedisCommandReader::Result Read(Buffer* in);
  CutResult HandOver(InboundRequest* request);

  const RedisService* const service_;
  const std::size_t max_size_;
  RedisCommandReader reader_;
  std::unique_ptr<RedisLink> link_;  // From the first bytes on.
  RedisBatch* batch_ = nullptr;      // The reader's; null: none has begun.
  bool failed_ = false;              // The input is malformed.
};

CutResult RedisServerProtocol::Cut(Buffer& in, InboundRequest* request,
                                   std::size_t* need, std::string* /*error*/) {
  *need = 0;
  if (link_ == nullptr) {
    const CutResult result = Recognise(in);
    if (result != CutResult::kMessage) return result;
    // relaxed: a number, no more.
    static std::atomic<std::uint64_t> last_id{0};
    link_ = std::make_unique<RedisLink>(
        service_, max_size_, sink(),
        last_id.fetch_add(1, std::memory_order_relaxed) + 1);
  }
  // acquire: pairs with the release in RedisBatch::Finish [RS1].
  if (link_->busy.load(std::memory_order_acquire)) return CutResult::kHandled;
  if (failed_ || link_->ended) {
    in.Clear();
    return CutResult::kNeedMore;
  }
  if (batch_ == nullptr) batch_ = RedisBatch::New(link_.get());
  failed_ = Read(&in) == RedisCommandReader::Result::kFailed;
  if (failed_) batch_->SetFailure(reader_.failure());
  if (batch_->commands().size() != 0 || failed_) return HandOver(request);
  if (batch_->commands().empty()) std::exchange(batch_, nullptr)->Recycle();
  return CutResult::kNeedMore;
}

// As many commands as a batch may have.
RedisCommandReader::Result RedisServerProtocol::Read(Buffer* in) {
  RedisCommands& commands = batch_->commands();
  for (;;) {
    const RedisCommandReader::Result result = reader_.Read(in, &commands);
    if (result != RedisCommandReader::Result::kCommand || in->empty() ||
        commands.size() == kMaxBatchCommands ||
        commands.memory() >= kMaxBatchBytes) {
      return result;
    }
  }
}

CutResult RedisServerProtocol::HandOver(InboundRequest* request) {
  RedisBatch* const batch = std::exchange(batch_, nullptr);
  request->own = OwnRequestPtr(batch);
  if (!failed_ && reader_.within()) {
    batch_ = RedisBatch::New(link_.get());
    batch->commands().MoveRest(&batch_->commands());
  }
  request->wire_size = batch->commands().memory();
  // relaxed: the reader's own until the batch is served [RS1].
  link_->busy.store(true, std::memory_order_relaxed);
  sink()->HoldInput();
  return CutResult::kMessage;
}

}  // namespace

std::unique_ptr<ServerProtocol> NewRedisServerProtocol(
    const RedisService* service, const Limits& limits, ReplySink* sink) {
  return std::make_unique<RedisServerProtocol>(service, limits, sink);
}

}  // namespace flare::rpc
