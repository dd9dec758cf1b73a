// Extensions: parts of a program that take part in all of its servers, channels
// and HTTP clients. Their interceptors wrap all calls and requests, and a page
// of theirs is among those under /inspect. tracing/tracing.h is one.
//
//   const flare::InstalledExtension audit(
//       {.server_interceptor = std::make_shared<Audit>()});
//   ...                            // Servers are started, channels opened.
//
// Each server, as it starts, each channel, as it is opened, and each
// HttpClient, as it is made, takes the extensions that are installed then, and
// keeps their interceptors. A program without extensions pays nothing for them.
#ifndef FLARE_RPC_EXTENSION_H_
#define FLARE_RPC_EXTENSION_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "flare/rpc/http_message.h"
#include "flare/rpc/interceptor.h"

namespace flare {

struct Extension {
  struct Page {
    std::string path;  // "/inspect/traces"
    std::string what;  // For the list of pages.
    // Fills in the type and the body of a reply to GET. Called on many fibers,
    // and on the thread of the admin port: mustn't wait for fibers.
    std::function<void(const HttpRequest&, HttpResponse*)> write;
  };

  // Outside of all interceptors that a server or a channel has itself. Null:
  // none.
  std::shared_ptr<ServerInterceptor> server_interceptor = nullptr;
  std::shared_ptr<ClientInterceptor> client_interceptor = nullptr;
  std::shared_ptr<HttpClientInterceptor> http_client_interceptor = nullptr;
  std::optional<Page> page = {};
};

// Installs an extension for as long as it lives. Any thread; nothing blocks.
class InstalledExtension {
 public:
  explicit InstalledExtension(Extension extension);
  ~InstalledExtension();
  InstalledExtension(const InstalledExtension&) = delete;
  InstalledExtension& operator=(const InstalledExtension&) = delete;

 private:
  const std::shared_ptr<const Extension> extension_;
};

// Those that are installed now, in the order in which they were. Any thread.
std::vector<std::shared_ptr<const Extension>> InstalledExtensions();

}  // namespace flare

#endif  // FLARE_RPC_EXTENSION_H_
