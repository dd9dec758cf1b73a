#include "flare/rpc/http/http_routes.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "flare/base/string.h"

namespace flare::rpc {
namespace {

// Answers for paths that nobody has.
class Nothing : public HttpHandler {
  void HandleRequest(const HttpRequest& request, HttpResponse* response,
                     HttpServerContext*) override {
    FillHttpError(HttpStatus::NotFound,
                  "There is nothing at " + std::string(request.path()) + ".",
                  response);
  }
};

}  // namespace

HttpRoutes::HttpRoutes()
    : server_itself_(NewHttpOptionsHandler(
          [](const HttpRequest&, HttpResponse* response, HttpServerContext*) {
            response->headers()->Set("Allow", HttpMethodSet::All().ToString());
          })) {}

flare::Status HttpRoutes::AddTo(Handlers* handlers, std::string path,
                                HttpHandlerPtr handler) {
  if (handler == nullptr) {
    return flare::Status(EINVAL, "HTTP path \"" + path +
                                     "\" has a handler that is no object "
                                     "(nullptr)");
  }
  if (!path.starts_with('/')) {
    return flare::Status(
        EINVAL, "HTTP path \"" + path + "\" doesn't begin with a slash");
  }
  if (path.find_first_of("?#") != path.npos) {
    return flare::Status(EINVAL,
                         "HTTP path \"" + path +
                             "\" has a '?' or a '#', which ends the path of a "
                             "request: no request would come to it");
  }
  const auto unusual = std::find_if(path.begin(), path.end(), [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '\x7f';
  });
  if (unusual != path.end()) {
    return flare::Status(EINVAL, "HTTP path \"" + OneLine(path) +
                                     "\" has a blank or a control character: "
                                     "no request would come to it; write %20 "
                                     "for a blank");
  }
  Route route{.handler = std::move(handler)};
  if (!handlers->emplace(path, std::move(route)).second) {
    return flare::Status(EEXIST,
                         "HTTP path \"" + path + "\" has a handler already");
  }
  return flare::Status();
}

flare::Status HttpRoutes::AddPath(std::string path, HttpHandlerPtr handler) {
  return AddTo(&paths_, std::move(path), std::move(handler));
}

flare::Status HttpRoutes::AddExemptPath(std::string path,
                                        HttpHandlerPtr handler) {
  flare::Status added = AddPath(path, std::move(handler));
  if (added.ok()) exempt_.insert(std::move(path));
  return added;
}

flare::Status HttpRoutes::AddPrefix(std::string prefix,
                                    HttpHandlerPtr handler) {
  return AddTo(&prefixes_, std::move(prefix), std::move(handler));
}

void HttpRoutes::Count(std::shared_ptr<HttpCounterSet> counters) {
  counters_ = std::move(counters);
  for (auto& [path, route] : paths_) {
    if (!IsExempt(path)) route.counters = counters_->Of(path);
  }
  for (auto& [prefix, route] : prefixes_) {
    route.counters = counters_->Of(prefix + '*');
  }
  if (default_ != nullptr) default_counters_ = counters_->Of("(default)");
  none_counters_ = counters_->Of("(none)");
}

void HttpRoutes::Wrap(
    const std::function<HttpHandlerPtr(HttpHandlerPtr)>& wrap) {
  for (Handlers* handlers : {&paths_, &prefixes_}) {
    for (auto& [path, route] : *handlers) {
      route.handler = wrap(std::move(route.handler));
    }
  }
  if (default_ != nullptr) default_ = wrap(std::move(default_));
  nothing_ = wrap(std::make_unique<Nothing>());
  exempt_.clear();
}

void HttpRoutes::Clear() {
  paths_.clear();
  exempt_.clear();
  prefixes_.clear();
  default_.reset();
  nothing_.reset();
}

void HttpRoutes::SetDefault(HttpHandlerPtr handler) {
  default_ = std::move(handler);
}

HttpRoutes::Found HttpRoutes::Look(std::string_view path) const {
  const auto found = [](const Route& route) {
    return Found{route.handler.get(), route.counters};
  };
  if (const auto exact = paths_.find(path); exact != paths_.end()) {
    return found(exact->second);
  }
  // A prefix of `path` sorts at or before it, the longest one last; any route
  // between is cut down to its common prefix with `path`.
  std::string_view rest = path;
  while (!rest.empty()) {
    auto next = prefixes_.upper_bound(rest);
    if (next == prefixes_.begin()) break;
    const auto& [prefix, route] = *--next;
    if (rest.starts_with(prefix)) return found(route);
    const auto differs =
        std::mismatch(rest.begin(), rest.end(), prefix.begin(), prefix.end());
    rest =
        rest.substr(0, static_cast<std::size_t>(differs.first - rest.begin()));
  }
  if (default_ != nullptr) return {default_.get(), default_counters_};
  return {path == "*" ? server_itself_.get() : nullptr, none_counters_};
}

HttpRoutes::Found HttpRoutes::FindCounted(std::string_view path) const {
  Found found = Look(path);
  if (found.handler == nullptr) found.handler = nothing_.get();
  return found;
}

}  // namespace flare::rpc
