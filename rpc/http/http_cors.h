// Which web pages may make calls by HTTP: CORS, as browsers heed it. A page of
// another origin asks by OPTIONS first, and reads a reply only if that names
// its origin. Constant once made: thread-safe; nothing blocks.
#ifndef FLARE_RPC_HTTP_HTTP_CORS_H_
#define FLARE_RPC_HTTP_HTTP_CORS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

class HttpCors {
 public:
  static constexpr std::size_t kMaxOrigins = 254;

  // "https://example.com,http://localhost:8080", or "*" for all origins. Fails
  // with a text if a piece is no origin, or there are more than kMaxOrigins.
  static Expected<HttpCors, flare::Status> FromText(std::string_view text);

  // Whether any page may call; without, OPTIONS is a method like others.
  bool enabled() const { return !fields_.empty(); }

  // The place of an origin among those that may call, from 1 on; 0: it may not.
  std::uint8_t Find(std::string_view origin) const;

  // The lines in a reply that let pages of that place read it.
  std::string_view FieldsFor(std::uint8_t place) const {
    return fields_[place - 1u];
  }

  // Answers a browser's question by OPTIONS before the call itself.
  void AnswerPreflight(const HttpRequest& request,
                       HttpResponse* response) const;

 private:
  bool any_ = false;
  std::vector<std::string> origins_;
  std::vector<std::string> fields_;  // As many; one if any_.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_CORS_H_
