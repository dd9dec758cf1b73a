// The cost of reading the head of an HTTP request: parsed, compared with the
// last one (http_head_memo.h), and parsed because the last one was another
// (docs/decisions/0034-heads-that-come-again.md).

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "benchmark/benchmark.h"
#include "flare/rpc/http/http_head_memo.h"
#include "flare/rpc/http/http_parser.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kLimit = 8192;
constexpr std::size_t kMaxFields = 100;

// Two heads of the same sender, for different things.
using Heads = std::array<std::string, 2>;

std::string CallTo(const std::string& method) {
  return "POST /rpc/example.protobuf_echo.EchoService." + method +
         " HTTP/1.1\r\nHost: 127.0.0.1:5567\r\nRpc-SeqNo: 1234567\r\n"
         "Rpc-Timeout: 1000\r\nContent-Type: application/x-protobuf\r\n"
         "Content-Length: 12\r\n\r\n";
}

std::string BrowserGet(const std::string& path) {
  return "GET " + path +
         " HTTP/1.1\r\nHost: www.example.com\r\nConnection: keep-alive\r\n"
         "sec-ch-ua: \"Chromium\";v=\"120\", \"Not A Brand\";v=\"99\"\r\n"
         "sec-ch-ua-mobile: ?0\r\nsec-ch-ua-platform: \"Linux\"\r\n"
         "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 "
         "(KHTML, like Gecko) Chrome/120.0.0.0 Safari/537.36\r\n"
         "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,"
         "image/avif,image/webp,*/*;q=0.8\r\nSec-Fetch-Site: same-origin\r\n"
         "Sec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"
         "Accept-Encoding: gzip, deflate, br\r\n"
         "Accept-Language: en-GB,en;q=0.9\r\n"
         "Cookie: session=0123456789abcdef0123456789abcdef; theme=dark\r\n\r\n";
}

Heads CallHeads() { return {CallTo("Echo"), CallTo("Other")}; }
Heads BrowserHeads() { return {BrowserGet("/"), BrowserGet("/other")}; }

void Parse(benchmark::State& state, const Heads& heads) {
  for (auto _ : state) {
    HttpHead head;
    const auto size = PeekRequestHead(heads[0], kLimit, kMaxFields, &head);
    CHECK(size.has_value());
    benchmark::DoNotOptimize(head);
  }
}
BENCHMARK_CAPTURE(Parse, call, CallHeads());
BENCHMARK_CAPTURE(Parse, browser, BrowserHeads());

// `kinds`: how many of them come in turns.
void ReadByMemo(benchmark::State& state, const Heads& heads,
                std::size_t kinds) {
  HttpHeadMemo memo(PeekRequestHead);
  std::size_t next = 0;
  for (auto _ : state) {
    std::optional<HttpHead> parsed;
    const auto found = memo.Peek(heads[next], kLimit, kMaxFields, &parsed);
    CHECK(found);
    benchmark::DoNotOptimize(*found.head);
    next = (next + 1) % kinds;
  }
}
void TheSameAgain(benchmark::State& state, const Heads& heads) {
  ReadByMemo(state, heads, 1);
}
void TwoInTurns(benchmark::State& state, const Heads& heads) {
  ReadByMemo(state, heads, 2);
}
BENCHMARK_CAPTURE(TheSameAgain, call, CallHeads());
BENCHMARK_CAPTURE(TheSameAgain, browser, BrowserHeads());
BENCHMARK_CAPTURE(TwoInTurns, call, CallHeads());
BENCHMARK_CAPTURE(TwoInTurns, browser, BrowserHeads());

}  // namespace
}  // namespace flare::rpc
