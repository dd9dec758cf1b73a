// Credentials of readers of the pages under /inspect and /metrics, from a file
// that is read again when it changes (docs/security.md):
//
//   # one in each line
//   basic prometheus:a-long-password
//   bearer a-long-token
#ifndef FLARE_RPC_ADMIN_PAGE_CREDENTIALS_H_
#define FLARE_RPC_ADMIN_PAGE_CREDENTIALS_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/spinlock.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/io/reload_gate.h"
#include "flare/io/secrets.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/log_throttle.h"

namespace flare::rpc {

// Thread-safe.
class PageCredentials : public std::enable_shared_from_this<PageCredentials> {
 public:
  // Reads the file, which blocks the thread. Fails if it can't be read, has a
  // line of another form, or has no credentials: "FILE:3: ...".
  static Expected<std::shared_ptr<PageCredentials>, flare::Status> Create(
      std::string file,
      std::chrono::nanoseconds reload_interval = std::chrono::seconds(1));

  // Whether the value of a field Authorization is one of the credentials.
  // Checks the file for changes, at most once per interval. While the file has
  // a mistake, or hangs, the earlier credentials stay valid. Blocks the fiber
  // (or thread) as ReloadGate does.
  bool Allow(std::string_view authorization);

  // The value of a field WWW-Authenticate: the schemes that the file has.
  std::string challenge() const FLARE_EXCLUDES(lock_);

  // Wraps `page` so that requests without valid credentials get 401.
  static HttpHandlerPtr Guard(HttpHandlerPtr page,
                              std::shared_ptr<PageCredentials> credentials);

 private:
  struct Known {
    std::vector<io::SecretDigest> digests;
    std::string challenge;
  };
  class Page;

  PageCredentials(std::string file, std::chrono::nanoseconds reload_interval);

  static Expected<std::shared_ptr<const Known>, flare::Status> Read(
      const std::string& file);
  // Blocks the thread.
  void CheckFile() FLARE_EXCLUDES(lock_);
  std::shared_ptr<const Known> known() const FLARE_EXCLUDES(lock_);

  const std::string file_;
  io::ReloadGate reload_gate_;
  // For CheckFile().
  std::string version_;  // The one that was read last.
  bool complained_ = false;
  mutable Spinlock lock_;
  std::shared_ptr<const Known> known_ FLARE_GUARDED_BY(lock_);
  LogThrottle log_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMIN_PAGE_CREDENTIALS_H_
