#include "flare/rpc/http/http_site.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <utility>

namespace flare::rpc {

flare::Status HttpSite::SetUp(std::string_view cors_origins,
                              std::size_t compress_from,
                              const HttpMethodPaths::Methods& methods) {
  auto cors = HttpCors::FromText(cors_origins);
  if (!cors) {
    return flare::Status(cors.error().code(),
                         "http_cors_origins: " + cors.error().message());
  }
  cors_ = *std::move(cors);
  compress_from_ = compress_from;
  paths_.SetUp(methods, routes);
  streams_ = std::any_of(methods.begin(), methods.end(), [](auto* method) {
    return method->client_streaming() || method->server_streaming();
  });
  return flare::Status();
}

HttpUses HttpSite::uses() const {
  HttpUses uses;
  uses.paths = &paths_;
  uses.cors = &cors_;
  uses.routes = &routes;
  uses.streams = streams_;
  uses.compress_from = compress_from_;
  return uses;
}

}  // namespace flare::rpc
