// A server's parts for HTTP beside its services: handlers, the paths of calls,
// and the web pages that may make calls.
//
// Set up by one thread before the server starts; thread-safe afterwards.
// Nothing blocks.
#ifndef FLARE_RPC_HTTP_HTTP_SITE_H_
#define FLARE_RPC_HTTP_HTTP_SITE_H_

#include <cstddef>
#include <string_view>

#include "flare/base/status.h"
#include "flare/rpc/http/http_cors.h"
#include "flare/rpc/http/http_method_paths.h"
#include "flare/rpc/http/http_protocol.h"
#include "flare/rpc/http/http_routes.h"

namespace flare::rpc {

class HttpSite {
 public:
  HttpRoutes routes;

  // When `routes` has all handlers. Fails if a piece of `cors_origins`
  // (HttpCors) is no origin. `compress_from`: of replies of handlers.
  flare::Status SetUp(std::string_view cors_origins, std::size_t compress_from,
                      const HttpMethodPaths::Methods& methods);

  // For the protocols, which must not outlive this object. After SetUp().
  HttpUses uses() const;

 private:
  HttpMethodPaths paths_;
  HttpCors cors_;
  bool streams_ = false;  // Some method streams.
  std::size_t compress_from_ = 0;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_SITE_H_
