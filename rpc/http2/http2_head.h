// Whether the fields of a block make a request, a response, or trailers, by the
// rules of HTTP/2 (RFC 9113, sections 8.1 to 8.3). Their contents are for
// others to judge.
//
//   Http2HeadCheck check;
//   check.Begin(Http2HeadCheck::Kind::kRequest);
//   for (field : block) if (!check.Add(field)) ...  // Malformed.
//   if (!check.End()) ...
//
// Not thread-safe; nothing allocates or blocks.
#ifndef FLARE_RPC_HTTP2_HTTP2_HEAD_H_
#define FLARE_RPC_HTTP2_HTTP2_HEAD_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "flare/rpc/http2/hpack.h"

namespace flare::rpc {

// Whether a field concerns a connection of HTTP/1, and is none of HTTP/2's (RFC
// 9113, 8.2.2). `name` is in lower case.
bool IsConnectionField(std::string_view name);

class Http2HeadCheck {
 public:
  enum class Kind : std::uint8_t { kRequest, kResponse, kTrailers };

  void Begin(Kind kind) { *this = Http2HeadCheck(kind); }
  // False: the block is malformed.
  [[nodiscard]] bool Add(const HpackField& field);
  // All have come. False: some are missing.
  [[nodiscard]] bool End() const;

  Http2HeadCheck() = default;

  Kind kind() const { return kind_; }
  // A response's status; 0 before it has come.
  int status() const { return status_; }
  // It is followed by another head.
  bool interim() const {
    return kind_ == Kind::kResponse && status_ / 100 == 1;
  }
  std::optional<std::uint64_t> content_length() const {
    return content_length_;
  }

 private:
  // The fields that have come, as bits.
  enum Seen : std::uint8_t {
    kMethod = 1,
    kScheme = 2,
    kPath = 4,
    kAuthority = 8,
    kStatus = 16,
    kHost = 32,
    kRegular = 64,
  };

  explicit Http2HeadCheck(Kind kind) : kind_(kind) {}

  bool AddPseudo(std::string_view name, std::string_view value);
  bool AddRegular(std::string_view name, std::string_view value);
  bool AddStatus(std::string_view value);
  bool AddContentLength(std::string_view value);
  bool AddOnce(Seen what) {
    if ((seen_ & what) != 0) return false;
    seen_ = static_cast<std::uint8_t>(seen_ | what);
    return true;
  }

  Kind kind_ = Kind::kRequest;
  std::uint8_t seen_ = 0;
  bool connect_ = false;       // :method is CONNECT,
  bool options_ = false;       // or OPTIONS.
  bool whole_server_ = false;  // :path is "*".
  int status_ = 0;
  std::optional<std::uint64_t> content_length_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP2_HTTP2_HEAD_H_
