#include "flare/rpc/http/http_site.h"

#include <utility>

namespace flare::rpc {

flare::Status HttpSite::SetUp(std::string_view cors_origins,
                              const HttpMethodPaths::Methods& methods) {
  auto cors = HttpCors::FromText(cors_origins);
  if (!cors) {
    return flare::Status(cors.error().code(),
                         "http_cors_origins: " + cors.error().message());
  }
  cors_ = *std::move(cors);
  paths_.SetUp(methods, routes);
  return flare::Status();
}

HttpUses HttpSite::uses() const {
  HttpUses uses;
  uses.paths = &paths_;
  uses.cors = &cors_;
  uses.routes = &routes;
  return uses;
}

}  // namespace flare::rpc
