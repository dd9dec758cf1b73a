// Which handler answers a path. Filled in before the server starts, by one
// thread; afterwards thread-safe. Nothing blocks.
#ifndef FLARE_RPC_HTTP_HTTP_ROUTES_H_
#define FLARE_RPC_HTTP_HTTP_ROUTES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "flare/base/status.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

// Counts the requests for one handler. Thread-safe; doesn't block.
class HttpRequestCounters {
 public:
  // Counts a reply with this status, about to be sent `ns` after its request
  // has come.
  virtual void End(HttpStatus status, std::int64_t ns) = 0;

 protected:
  ~HttpRequestCounters() = default;
};

class HttpCounterSet {
 public:
  virtual ~HttpCounterSet() = default;

  // Finds or makes the counters of that name, which live as long as this. One
  // thread, before the server starts.
  virtual HttpRequestCounters* Of(std::string name) = 0;
};

class HttpRoutes {
 public:
  HttpRoutes();

  // Fail if the path doesn't begin with '/', has a '?', '#', blank or control
  // character, or was added before.
  flare::Status AddPath(std::string path, HttpHandlerPtr handler);
  // One that is answered whatever the limits of calls say.
  flare::Status AddExemptPath(std::string path, HttpHandlerPtr handler);
  flare::Status AddPrefix(std::string prefix, HttpHandlerPtr handler);
  void SetDefault(HttpHandlerPtr handler);

  // Has the requests for each handler that isn't exempt counted from now on,
  // and keeps `counters`. Names are the path, "/prefix*", "(default)", or
  // "(none)" for paths without a handler.
  void Count(std::shared_ptr<HttpCounterSet> counters);

  // Replaces each handler, and the one that answers 404. Call it once, as the
  // last step. No path is exempt from then on: exempt paths are served where
  // nothing may block, which only our own handlers promise.
  void Wrap(const std::function<HttpHandlerPtr(HttpHandlerPtr)>& wrap);

  // Destroys the handlers.
  void Clear();

  // Whether there is no handler.
  bool empty() const {
    return paths_.empty() && prefixes_.empty() && default_ == nullptr;
  }

  // The handler of exactly this path, else of its longest prefix, else the
  // default one, else null. "*" (as in "OPTIONS *") isn't a path but the server
  // itself: without a default handler our own answers for it.
  HttpHandler* Find(std::string_view path) const { return Look(path).handler; }

  // The handler of a path, and the counters of its requests (null: not
  // counted). For paths without a handler it is nothing().
  struct Found {
    HttpHandler* handler;
    HttpRequestCounters* counters;
  };
  Found FindCounted(std::string_view path) const;

  // The handler for paths without one; null unless Wrap() was called.
  HttpHandler* nothing() const { return nothing_.get(); }

  // Whether it was added by AddExemptPath().
  bool IsExempt(std::string_view path) const { return exempt_.contains(path); }

 private:
  struct Route {
    HttpHandlerPtr handler;
    HttpRequestCounters* counters = nullptr;
  };
  using Handlers = std::map<std::string, Route, std::less<>>;

  static flare::Status AddTo(Handlers* handlers, std::string path,
                             HttpHandlerPtr handler);
  Found Look(std::string_view path) const;

  Handlers paths_;
  std::set<std::string, std::less<>> exempt_;
  Handlers prefixes_;
  const std::unique_ptr<HttpHandler> server_itself_;
  HttpHandlerPtr default_;
  std::shared_ptr<HttpCounterSet> counters_;
  HttpRequestCounters* default_counters_ = nullptr;
  HttpRequestCounters* none_counters_ = nullptr;
  HttpHandlerPtr nothing_;  // For paths that have none; null: not wrapped.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_ROUTES_H_
