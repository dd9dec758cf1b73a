// Holds the state that connections with TLS share: certificates, keys, roots,
// sessions.
//
//   auto context = TlsServerContext::Create(options);
//   if (!context) return context.error();
//   auto c = StreamConnection::Accepted(fd, group, handler, stream_options,
//                                       peer, (*context)->NewTransport());
//
// Thread-safe. Files are looked at when a connection is made, at most once in
// TlsServerOptions::reload_interval, and read if they have changed. While that
// hangs, as on a network mount whose server is gone, connections go on with the
// files read before (reload_gate.h).
#ifndef FLARE_IO_TLS_CONTEXT_H_
#define FLARE_IO_TLS_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/io/handshakes.h"
#include "flare/io/reload_gate.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"

struct ssl_session_st;

namespace flare::io {

// Files, and the versions of them that were read.
class TlsFiles {
 public:
  explicit TlsFiles(std::vector<std::string> paths);

  // Those of now: to be asked for before the files are read, and noted behind
  // that, so that none is missed. Blocks the thread.
  std::vector<std::string> Versions() const;
  bool WereRead(const std::vector<std::string>& versions) const {
    return versions == read_;
  }
  void NoteRead(std::vector<std::string> versions) {
    read_ = std::move(versions);
  }

 private:
  std::vector<std::string> paths_;
  std::vector<std::string> read_;
};

// The content of a set of files; replaced as a whole.
struct TlsServerKeys;
struct TlsClientKeys;

class TlsServerContext : public std::enable_shared_from_this<TlsServerContext> {
 public:
  // Makes a context. Fails with EINVAL and a text that names the file and its
  // fault.
  static Expected<std::shared_ptr<TlsServerContext>, Status> Create(
      const TlsServerOptions& options);
  ~TlsServerContext();

  // For an accepted connection. If there are max_handshakes already, the oldest
  // one makes way. Null: it can't, or there is no memory. Blocks the fiber for
  // no longer than a look at the files.
  std::unique_ptr<Transport> NewTransport();

  // Looks at the files now. Blocks the thread.
  void CheckFiles();

  // Handshakes that go on.
  std::size_t handshakes() const {
    // relaxed: a count on its own.
    return handshake_count_->load(std::memory_order_relaxed);
  }
  const TlsServerOptions& options() const { return options_; }

 private:
  explicit TlsServerContext(const TlsServerOptions& options);
  std::shared_ptr<const TlsServerKeys> Current();
  bool CountHandshake();

  const TlsServerOptions options_;
  const std::shared_ptr<std::atomic<std::size_t>> handshake_count_;
  const std::shared_ptr<Handshakes> handshakes_;
  ReloadGate reload_gate_;
  ThreadMutex load_mutex_;  // Held while files are read.
  TlsFiles files_ FLARE_GUARDED_BY(load_mutex_);
  std::string complaint_ FLARE_GUARDED_BY(load_mutex_);
  ThreadMutex mutex_;
  std::shared_ptr<const TlsServerKeys> keys_ FLARE_GUARDED_BY(mutex_);
};

class TlsClientContext : public std::enable_shared_from_this<TlsClientContext> {
 public:
  // Returns the one for `options` that offers these names of protocols (ALPN),
  // the best one first: it is shared by all callers that ask for the same, as
  // long as one of them has it. Empty names are none.
  static Expected<std::shared_ptr<TlsClientContext>, Status> Get(
      const TlsClientOptions& options, const std::vector<std::string>& alpn);
  ~TlsClientContext();

  // For a connection to `host` (a name, or an address, with or without a port).
  // Null: there is no memory, or the name is none. `session_key` tells servers
  // apart whose sessions can be resumed. Blocks as the server's does.
  std::unique_ptr<Transport> NewTransport(const std::string& host,
                                          const std::string& session_key);

  void CheckFiles();

  // For sessions: the next connection to that server resumes it. Takes
  // `session`. Drops it if `keys` were replaced: other roots verified it.
  void Remember(const std::string& session_key, const void* keys,
                ssl_session_st* session);

 private:
  TlsClientContext(const TlsClientOptions& options,
                   const std::vector<std::string>& alpn);
  std::shared_ptr<const TlsClientKeys> Current();

  const TlsClientOptions options_;
  const std::string alpn_;  // As it is sent.
  ReloadGate reload_gate_;
  ThreadMutex load_mutex_;
  TlsFiles files_ FLARE_GUARDED_BY(load_mutex_);
  std::string complaint_ FLARE_GUARDED_BY(load_mutex_);
  ThreadMutex mutex_;
  std::shared_ptr<const TlsClientKeys> keys_ FLARE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, ssl_session_st*> sessions_
      FLARE_GUARDED_BY(mutex_);
};

}  // namespace flare::io

#endif  // FLARE_IO_TLS_CONTEXT_H_
