// The server's side of a protocol of your own: lines of text, which a terminal
// can speak. The last word of a line is the number of bytes behind it, the
// body. protocol.cc has the client's side, and uses both.
//
//   call 7 example.protobuf_echo.EchoService.Echo 6
//   reply 7 0 6
#ifndef EXAMPLE_SHORT_LINE_PROTOCOL_H_
#define EXAMPLE_SHORT_LINE_PROTOCOL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/string.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/server_protocol.h"

namespace rpc = flare::rpc;

// Takes a line of four words and its body off the input, or sets *need or
// *error.
inline rpc::CutResult CutMessage(std::size_t max_body, flare::Buffer& in,
                                 std::string* line, flare::Buffer* body,
                                 std::size_t* need, std::string* error) {
  constexpr std::size_t kMaxLine = 512;
  std::string copy;
  const std::string_view start =
      rpc::ContiguousPrefix(in, std::min(in.size(), kMaxLine), &copy);
  const std::size_t end = start.find('\n');
  if (end == start.npos && start.size() < kMaxLine) {
    *need = 0;  // The length of the line isn't known yet.
    return rpc::CutResult::kNeedMore;
  }
  const auto words = flare::Split(start.substr(0, end), ' ');
  const auto size =
      words.size() == 4 ? flare::TryParse<std::size_t>(words[3]) : std::nullopt;
  if (end == start.npos || !size || *size > max_body) {
    *error = "a malformed line, or too large a body";
    return rpc::CutResult::kError;
  }
  *need = end + 1 + *size;
  if (in.size() < *need) return rpc::CutResult::kNeedMore;
  line->assign(start.substr(0, end));
  in.Skip(end + 1);
  *body = in.Cut(*size);
  return rpc::CutResult::kMessage;
}

class LineServer : public rpc::ServerProtocol {
 public:
  LineServer(const rpc::Limits& limits, rpc::ReplySink* sink)
      : ServerProtocol(sink), max_body_(limits.max_packet_size) {}

  std::string_view name() const override { return "line"; }
  rpc::ProtocolTraits traits() const override { return {}; }
  // Called by the connection's reader, and first of all to find out whether a
  // new connection speaks this protocol.
  rpc::CutResult Cut(flare::Buffer& in, rpc::InboundRequest* request,
                     std::size_t* need, std::string* error) override {
    constexpr std::string_view kWord = "call ";
    std::string copy;
    const auto start =
        rpc::ContiguousPrefix(in, std::min(in.size(), kWord.size()), &copy);
    if (!kWord.starts_with(start)) return rpc::CutResult::kNotMine;
    if (start != kWord) return rpc::CutResult::kUnsure;
    const auto result = CutMessage(max_body_, in, &request->scratch,
                                   &request->body, need, error);
    // Counts in the server's memory for requests.
    if (result == rpc::CutResult::kMessage) request->wire_size = *need;
    return result;
  }
  // Called by the call's own task.
  rpc::ParseResult Parse(rpc::InboundRequest* request) const override {
    const auto words = flare::Split(request->scratch, ' ');
    const auto id = flare::TryParse<std::uint64_t>(words[1]);
    if (!id) return rpc::ParseResult::kClose;
    request->ticket.Emplace<std::uint64_t>(*id);  // For Write().
    request->head.method = words[2];              // Points into scratch.
    return rpc::ParseResult::kOk;
  }
  void Write(const rpc::ReplyTicket& ticket,
             rpc::OutboundResponse&& response) override {
    flare::Buffer body = std::move(response.body).ToBuffer();
    if (response.status != 0) {
      body = flare::CreateBufferSlow(response.description);
    }
    flare::BufferBuilder out;
    out.Append("reply ", std::to_string(ticket.As<std::uint64_t>()), " ",
               std::to_string(response.status), " ",
               std::to_string(body.size()), "\n");
    out.Append(std::move(body));
    sink()->Write(out.DestructiveGet());
  }

 private:
  const std::size_t max_body_;
};

#endif  // EXAMPLE_SHORT_LINE_PROTOCOL_H_
