// An echo server that does no more than it must: a loop per thread that reads,
// finds our frames and writes, without protobuf and dispatch. It shows the
// kernel's limit for a server with these messages. docs/baselines.md
//
//   epoll_limit_server --port=5567 --threads=2 --body_size=1024

#include <gflags/gflags.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "benchmark/baseline/bare_frames.h"
#include "benchmark/baseline/bare_stream.h"
#include "benchmark/baseline/program.h"
#include "benchmark/baseline/serving.h"

DEFINE_int32(body_size, 64, "Bytes in the answer to plain HTTP requests.");

namespace baseline {
namespace {

class BareConnection final : public BareStream {
 public:
  // The arguments must outlive this.
  BareConnection(flare::io::UniqueFd fd, std::string_view plain_reply,
                 example::RequestCounter* requests)
      : BareStream(std::move(fd)),
        plain_reply_(plain_reply),
        requests_(requests) {}

 private:
  std::size_t OnInput(char* data, std::size_t size,
                      std::size_t* need) override {
    const std::string_view in(data, size);
    std::size_t at = 0;
    bool close = false;
    while (at != size && !close) {
      BareMessage message;
      const Scan result = ScanRequest(in.substr(at), &message, need);
      if (result == Scan::kBad) return kBadInput;
      if (result == Scan::kNeedMore) break;
      requests_->Add();
      Answer(message, data + at);
      at += message.size;
      close = message.close;
    }
    if (close) CloseAfterSending();
    return at;
  }

  void Answer(const BareMessage& request, char* data) {
    if (request.kind == BareMessage::Kind::kHttp) {
      output()->Append(plain_reply_);
      return;
    }
    AppendReplyHead(request, output()->text());
    const std::size_t rest = request.size - request.head;
    TurnIntoReplyBody(data + request.head, rest - request.attachment);
    output()->Append({data + request.head, rest});
  }

  const std::string_view plain_reply_;
  example::RequestCounter* const requests_;
};

int Main() {
  const auto address = ListenAddressFromFlags();
  if (!address) return RefuseFlags(address.error().message());
  const auto threads = ThreadsFromFlags();
  if (!threads) return RefuseFlags(threads.error().message());
  if (FLAGS_body_size < 0) {
    return RefuseFlags("--body_size must not be negative.");
  }
  const std::string plain_reply =
      PlainReply(std::string(static_cast<std::size_t>(FLAGS_body_size), 'a'));
  example::RequestCounter requests;
  LoopServer server("epoll_limit_server", *threads);
  return server.Run(
      *address,
      [&](flare::io::UniqueFd fd, std::size_t) {
        return std::make_unique<BareConnection>(std::move(fd), plain_reply,
                                                &requests);
      },
      requests);
}

}  // namespace
}  // namespace baseline

int main(int argc, char** argv) {
  baseline::BeginProgram(argc, argv,
                         "answers at the least cost; see docs/baselines.md");
  return baseline::Main();
}
