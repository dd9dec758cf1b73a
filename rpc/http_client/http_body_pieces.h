// The pieces of a request's body, from a source that is held to its size.
//
//   HttpBodyPieces pieces(options.body_source);
//   bool last = false;
//   while (!last) {
//     auto piece = pieces.Next(&last);
//     if (!piece) return piece.error();
//     Send(*std::move(piece));
//   }
//
// Used by one task at a time.
#ifndef FLARE_RPC_HTTP_CLIENT_HTTP_BODY_PIECES_H_
#define FLARE_RPC_HTTP_CLIENT_HTTP_BODY_PIECES_H_

#include <cstdint>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/http_client_options.h"

namespace flare::rpc {

class HttpBodyPieces {
 public:
  // `source` must outlive it.
  explicit HttpBodyPieces(const HttpBodySource& source) : source_(source) {}

  // The next piece, which may be empty if it is the `last`. Fails with
  // ERROR_CANCELLED if the source does, and with ERROR_INVALID_REQUEST if that
  // makes other than its size. May block, or throw, as the source does.
  Expected<Buffer, flare::Status> Next(bool* last) {
    Buffer piece;
    if (source_.size != made_) {
      auto next = source_.next();
      if (!next) {
        return flare::Status(ERROR_CANCELLED,
                             "body_source: " + next.error().message());
      }
      piece = *std::move(next);
    }
    made_ += piece.size();
    *last = piece.empty() || source_.size == made_;
    if (source_.size &&
        (made_ > *source_.size || (*last && made_ != source_.size))) {
      return flare::Status(ERROR_INVALID_REQUEST,
                           "body_source has made other than its size, " +
                               std::to_string(*source_.size) +
                               " bytes: " + (*last ? "" : "at least ") +
                               std::to_string(made_));
    }
    return piece;
  }

 private:
  const HttpBodySource& source_;
  std::uint64_t made_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_CLIENT_HTTP_BODY_PIECES_H_
