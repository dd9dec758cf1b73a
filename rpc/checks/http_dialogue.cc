// Checks by HTTP/1.1: a GET, and the status line of its response.
#include <cerrno>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "flare/rpc/checks/check_dialogue.h"
#include "flare/rpc/http/http_parser.h"
#include "flare/rpc/http/http_recognition.h"
#include "flare/rpc/http/http_text.h"

namespace flare::rpc {
namespace {

// More than any status line or head of an interim response needs.
constexpr std::size_t kMaxHead = 16 << 10;

class HttpDialogue final : public CheckDialogue {
 public:
  explicit HttpDialogue(const ServerCheck& check)
      : request_(check.first_bytes + "GET " + check.options.target +
                 " HTTP/1.1\r\nHost: " + HttpHostOf(check.host) +
                 "\r\nUser-Agent: flare-health-check\r\nAccept: */*\r\n"
                 "Connection: close\r\n\r\n"),
        wanted_(check.http_status) {}

  flare::Status Ask(StreamOutput*, BufferBuilder* out) override {
    out->Append(request_);
    return {};
  }

  std::optional<flare::Status> OnData(Buffer& in, std::size_t*) override {
    while (!outcome_ && LookAtHead(&in)) {
    }
    return outcome_;
  }

 private:
  void Fail(std::string why) {
    outcome_ = flare::Status(EPROTO, std::move(why));
  }

  // Takes an interim response off the input. True: there was one.
  bool LookAtHead(Buffer* in) {
    std::size_t size = 0;
    const HeadEnd end = FindHeadEnd(*in, kMaxHead, &scanned_, &size);
    const bool has_first_line = end == HeadEnd::kFound || scanned_ != 0;
    if (!MayBeHttpResponse(*in) ||
        (end != HeadEnd::kIncomplete && !has_first_line)) {
      Fail("the answer is no HTTP");
    } else if (has_first_line && !Decide(*in)) {
      if (end == HeadEnd::kFound) {
        in->Skip(size);
        scanned_ = 0;
        return true;
      }
      if (end != HeadEnd::kIncomplete) Fail("an interim response is no HTTP");
    }
    return false;
  }

  bool IsWanted(int status) const {
    return wanted_ != 0 ? status == wanted_ : status >= 200 && status <= 299;
  }

  // Judges the first line, which has come, and no field. False: the response
  // isn't final, so another one follows.
  bool Decide(const Buffer& in) {
    std::string line = FlattenSlow(in, kMaxHead);
    line.resize(line.find("\r\n"));
    HttpHead head;
    if (const auto fault = ParseResponseHead(line.append("\r\n\r\n"),
                                             /*max_fields=*/0, &head)) {
      Fail("the answer is no HTTP: " + std::string(fault.text));
    } else if (IsWanted(head.status)) {
      outcome_.emplace();
    } else {
      // 101 ends HTTP on this connection.
      if (head.status < 200 && head.status != 101) return false;
      Fail("status " + std::to_string(head.status) + " rather than " +
           (wanted_ != 0 ? std::to_string(wanted_) : "2xx"));
    }
    return true;
  }

  const std::string request_;
  const int wanted_;
  std::size_t scanned_ = 0;  // Bytes of the answer, for FindHeadEnd().
  std::optional<flare::Status> outcome_;
};

}  // namespace

std::unique_ptr<CheckDialogue> NewHttpDialogue(const ServerCheck& check) {
  return std::make_unique<HttpDialogue>(check);
}

}  // namespace flare::rpc
