// Compresses the bodies of replies of HTTP handlers, as their requests allow
// (RFC 9110, 8.4.1 and 12.5.3), and sets the fields that say so.
//
//   CompressReply(request, /*from=*/1024, &response);
//
// Such a reply has a Content-Type that compresses well, and no field that
// speaks of its bytes as they are: Content-Encoding, Content-Range, a digest,
// or "Cache-Control: no-transform". It gets "Vary: Accept-Encoding", even if
// this client wants it as it is. A compressed one has a weak ETag, as two
// codings of a page are equal in meaning only, and no Accept-Ranges.
//
// Replies without their body follow those that have it. The body of a reply to
// HEAD is compressed, though it isn't sent, so that the fields are those of
// GET. Where it is empty, a Content-Length that speaks of a body of `from`
// bytes or more is removed, and the ETag is weak, as is that of a 304, if the
// client takes a coding. A 304 may leave out the Content-Type.
//
// Thread-safe. Nothing waits; compressing takes time in proportion to the body.
#ifndef FLARE_RPC_HTTP_HTTP_COMPRESSION_H_
#define FLARE_RPC_HTTP_HTTP_COMPRESSION_H_

#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "flare/base/compression.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

// The weights that Accept-Encoding gives to the codings which handlers' replies
// can have.
class HttpCodingWeights {
 public:
  // Reads one field; there may be several.
  void Add(std::string_view value);

  // Whether a client that finds no other coding wants none of the body as it
  // is: "identity;q=0", or "*;q=0" without "identity".
  bool refuses_identity() const;

  // The coding of the largest weight, the first of `preferred` among equals;
  // kNone if there is none, or if the client prefers the body as it is. kZstd
  // counts only by its name, not by "*".
  CompressionAlgorithm Choose(
      std::initializer_list<CompressionAlgorithm> preferred) const;

 private:
  // From 0 to 1000; nullopt: not named.
  using Weight = std::optional<unsigned>;

  Weight WeightOf(CompressionAlgorithm algorithm) const;

  Weight gzip_, deflate_, zstd_, identity_, any_;
};

// A whole reply. Compresses a body of `from` bytes or more (0: none), and a
// shorter one if the client refuses it as it is. A body that becomes no shorter
// stays.
void CompressReply(const HttpRequest& request, std::size_t from,
                   HttpResponse* response);

// A reply in pieces, before its head is sent: sets the fields, and returns the
// coding of the pieces, for a StreamCompressor; it is never kZstd,
// whose context is large. kNone: they go out as they are, as they do if `from`
// is 0.
CompressionAlgorithm ChooseForPieces(const HttpRequest& request,
                                     std::size_t from, HttpResponse* head);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_COMPRESSION_H_
