// The options of a server (server.h), by which its connections and calls go. A
// plain value.
//
//   flare::Server server({.max_concurrent_requests = 1000});
#ifndef FLARE_RPC_SERVER_OPTIONS_H_
#define FLARE_RPC_SERVER_OPTIONS_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "flare/base/endpoint.h"
#include "flare/io/tls_options.h"
#include "flare/rpc/admission_options.h"
#include "flare/rpc/builtin_pages.h"
#include "flare/rpc/start/flags.h"

namespace flare {

// The defaults are those of the flags (--flare_rpc_server_...). Options of
// the published framework come in its order, for designated initialisers.
struct ServerOptions {
  // For log lines; the address if empty.
  std::string service_name = "";
  // As BuiltinPages::kNone (below), whatever that says.
  bool no_builtin_pages = rpc::ServerDefaultsFromFlags().no_builtin_pages;
  // Bytes of one message, header and attachment included. A longer one is
  // answered with an error, or closes its connection where it can't be. One
  // over 64 MiB, too, is the last on its connection; over HTTP also one in
  // chunks, or with "Expect: 100-continue".
  std::size_t maximum_packet_size =
      rpc::ServerDefaultsFromFlags().max_packet_size;
  // Bytes of a compressed body, or of a compressed attachment, after
  // decompression. A larger one is answered with an error. 0: as many as
  // maximum_packet_size.
  std::size_t max_decompressed_size =
      rpc::ServerDefaultsFromFlags().max_decompressed_size;
  // Bytes of a message's meta, the part that describes the call in binary
  // protocols; more closes the connection. (Bolt has limits of its own: its
  // class name and its header map have less than 64 KiB each.)
  std::size_t max_meta_size = 64 << 10;
  // Bytes of an HTTP request's line and header fields together, and how many
  // fields there may be. More is answered 431 (414 if the line alone is too
  // long), and closes the connection.
  std::size_t max_http_header_size =
      rpc::ServerDefaultsFromFlags().max_http_header_size;
  std::size_t max_http_header_fields = 100;
  // Bytes from which on the reply to a call over HTTP is compressed if its
  // caller's Accept-Encoding allows gzip or deflate. 0: none is, unless its
  // service asks for it.
  std::size_t compress_http_replies_from =
      rpc::ServerDefaultsFromFlags().compress_http_replies_from;
  // Bytes from which on the reply of an HTTP handler is compressed if its
  // Content-Type is that of a text and its client's Accept-Encoding allows
  // zstd, gzip or deflate; bodies in pieces (HttpBodyWriter) whatever their
  // size. 0: none is, unless its handler asks for it
  // (HttpServerContext::compress_from). Replies with a secret beside text that
  // a stranger chose should stay as they are (docs/http_compression.md).
  std::size_t compress_http_handlers_from =
      rpc::ServerDefaultsFromFlags().compress_http_handlers_from;
  // Web pages that may make calls over HTTP, by their origins:
  // "https://example.com,http://localhost:8080", or "*" for all pages. For
  // these OPTIONS is answered, and replies say that they may be read (CORS).
  // One that can't be an origin makes Start() fail.
  std::string http_cors_origins =
      rpc::ServerDefaultsFromFlags().http_cors_origins;
  // Replies that a peer doesn't take, in bytes. With more than half of that
  // waiting nothing is read from its connection, and calls that run on fibers
  // wait before they answer, or before their requests are decompressed; if
  // the peer takes nothing for `output_timeout` meanwhile, the connection is
  // closed. Plain threads don't wait: with replies from them it can be more.
  std::size_t max_output_per_connection =
      rpc::ServerDefaultsFromFlags().max_output_per_connection;
  // Bytes that all connections hold together: unfinished messages, requests
  // of calls under way, as messages, too, and replies that peers don't take
  // or that wait for earlier ones. Less than 64 KiB of a connection, and
  // messages of up to 8 KiB, aren't counted. From half of it on a connection
  // has room for 64 KiB of replies only (see above). Beyond it calls of
  // connections that hold 64 KiB or more are answered "Server overloaded.",
  // and those that hold most are closed, above all if they have made no
  // progress for a second.
  std::size_t max_buffered_bytes =
      rpc::ServerDefaultsFromFlags().max_buffered_bytes;
  // More calls than this at a time are answered "Server overloaded.", and so
  // are streaming calls beyond nine tenths of it.
  std::size_t max_concurrent_requests =
      rpc::ServerDefaultsFromFlags().max_ongoing_calls;
  // While running calls hold this many bytes of decompressed requests,
  // further compressed ones are answered "Server overloaded.", and streams
  // that read a compressed message fail so. A stream counts with its latest
  // message. Each worker may decompress one more at the same moment.
  std::size_t max_concurrent_decompressed_bytes =
      rpc::ServerDefaultsFromFlags().max_ongoing_decompressed_bytes;
  // While this many calls of one connection are running, no more are read
  // from it until half of them are done: it can't use up the server's limit
  // alone, if that is higher. At least 1.
  std::size_t max_concurrent_requests_per_connection =
      rpc::ServerDefaultsFromFlags().max_ongoing_calls_per_connection;
  // More streaming calls of one connection than this at a time are answered
  // "Server overloaded.": it can't use up the places for streaming calls (nine
  // tenths of max_concurrent_requests) alone, if these are more. At least 1, at
  // most 65,535.
  std::size_t max_concurrent_streams_per_connection =
      rpc::ServerDefaultsFromFlags().max_ongoing_streams_per_connection;
  // More connections than this are closed at once.
  std::size_t max_concurrent_connections =
      rpc::ServerDefaultsFromFlags().max_connections;
  // Calls and HTTP requests that waited longer than this for a worker are
  // answered "Server overloaded.". 0: no limit. (The caller's own timeout
  // always is one, and so is a method's max_queueing_delay_ms,
  // rpc_options.proto.) Negative, the default: seven eighths of the caller's
  // timeout, or less where the method takes long; a second, or more, where
  // the caller has told none. Once calls have waited for longer, 5 ms or a
  // little more, until the queue is short (rpc/server/call_gate.h). Methods
  // with a max_queueing_delay_ms are exempt.
  std::chrono::nanoseconds max_request_queueing_delay =
      rpc::ServerDefaultsFromFlags().max_request_queueing_delay;
  // "package.Service.Method:10,...": limits for single methods, besides
  // those of their .proto files (max_ongoing_requests, rpc_options.proto);
  // the smaller one holds. A method that this server doesn't have is passed
  // over, as the flag is for all servers of a program; one that the program
  // doesn't have, a typo, leaves a warning in the log, and no limit.
  std::string max_concurrent_requests_per_method =
      rpc::ServerDefaultsFromFlags().max_ongoing_calls_per_method;
  // The status of calls that are refused because of a limit; not 0. Without
  // effect on those over trpc and bolt, which have codes of their own. Codes
  // above 1000 are a service's own for clients of this library, after which
  // they don't try another server (except 2004 over baidu-std).
  int status_code_for_overloaded =
      rpc::ServerDefaultsFromFlags().status_code_for_overloaded;
  // Connections without traffic and without a running call for this long are
  // closed; looked for at this interval. 0: never.
  std::chrono::nanoseconds connection_max_idle =
      rpc::ServerDefaultsFromFlags().connection_max_idle;
  std::chrono::nanoseconds remove_idle_connection_interval =
      rpc::ServerDefaultsFromFlags().remove_idle_connection_interval;
  // TCP: the kernel asks a client that was silent for so long whether it is
  // still there, and again after each sixth of it (from a second on). After
  // three questions the connection has broken, and its calls and streams
  // have, too. To 32,767 s; 0: never, unless the sockets that were given to
  // listen on are set so.
  std::chrono::seconds tcp_keep_alive =
      rpc::ServerDefaultsFromFlags().tcp_keep_alive;
  // A message must have arrived so long after its first byte, the first one
  // so long after the connection was accepted; or 64 KiB more of a larger
  // one, again and again. Else the calls that came before are answered, and
  // the connection is closed. Time in which the server doesn't read because
  // of a limit above doesn't count; time in which the whole process is
  // stopped does. Looked for at the same interval. 0: never. Also how long a
  // method that answers one message by a stream waits for all of that message;
  // then the call fails with STATUS_TIMEOUT, and its connection goes on.
  std::chrono::nanoseconds message_timeout =
      rpc::ServerDefaultsFromFlags().message_timeout;
  // How long a peer may take no replies while a call waits for room to answer
  // (a millisecond to a day). After that its connection is cut. Over HTTP/2
  // this also limits how long an HTTP handler that writes its reply in pieces
  // waits for the stream's window; then only the stream is reset.
  std::chrono::nanoseconds output_timeout = std::chrono::seconds(10);
  // How long a streaming method's write may wait while its client grants no
  // window at all; then the call fails, and only its stream ends. A client
  // that reads slowly may grant none before it has read half of its window.
  // The time runs on while the server doesn't read the connection: another
  // stream holds its input, or as many calls run as it may have. 0: as long as
  // the call lives.
  std::chrono::nanoseconds stalled_stream_timeout = std::chrono::minutes(5);
  // How long after Stop() calls may begin, running ones go on, and replies be
  // sent. Where calls hold all workers for longer, connections have another
  // second (no more than this) for replies and refusals.
  std::chrono::nanoseconds drain_timeout =
      rpc::ServerDefaultsFromFlags().drain_timeout;
  // How long Stop() leaves a connection open for the next request, if only a
  // reply can tell the client of the end, and a request has come within the
  // last second or is coming. At most half of the drain timeout. 0: requests
  // that are on their way then go unanswered.
  std::chrono::nanoseconds stop_linger =
      rpc::ServerDefaultsFromFlags().stop_linger;
  // The set of scheduling groups that serves (--flare_scheduling_group_sets):
  // connections, and the calls that come by them, stay in its groups. Empty:
  // all groups. One that doesn't exist makes Start() fail.
  std::string scheduling_groups = "";
  // Called with the peer's address for each connection, on any worker;
  // those for which it returns false are closed. Must neither block nor throw
  // (which ends the process).
  std::function<bool(const Endpoint&)> conn_filter = nullptr;
  // A peer that ends its input, as one does that is killed, is taken for
  // gone: its calls are told to stop (docs/cancellation.md). Replies that are
  // made all the same are sent. False: only at the end of the whole
  // connection.
  bool cancel_calls_at_end_of_input = true;
  // Speaks TLS, and nothing else, on its port (docs/security.md). Files that
  // can't be used make Start() fail.
  std::optional<TlsServerOptions> tls = std::nullopt;
  // Says which clients are answered on this port by the pages under /inspect
  // and /metrics (inspect_pages.h), for which every server speaks "http".
  BuiltinPages builtin_pages = rpc::ServerDefaultsFromFlags().builtin_pages;
  // An address of their own for these pages: "127.0.0.1:9100", port 0 for one
  // that is free, "unix:/path". Without `pages_credentials_file` everyone who
  // can connect is answered there. A thread of its own does it, without
  // interceptors, while all workers are stuck, too. Empty: none. One that is
  // malformed or in use makes Start() fail: servers of one process need
  // different ones.
  std::string admin_address = rpc::ServerDefaultsFromFlags().admin_address;
  // Speaks TLS on admin_address, by `tls`; without `tls` Start() fails.
  bool admin_tls = rpc::ServerDefaultsFromFlags().admin_tls;
  // A file with the credentials of readers of these pages, on both ports
  // (docs/security.md). Empty: none are needed. A file that can't be read or
  // has a mistake makes Start() fail; later the earlier credentials stay
  // valid.
  std::string pages_credentials_file =
      rpc::ServerDefaultsFromFlags().pages_credentials_file;
  // Readers of the page /inspect/flags may change flags that are declared
  // changeable (changeable_flag.h), on both ports.
  bool pages_change_flags = rpc::ServerDefaultsFromFlags().pages_change_flags;
  // Readers of these pages may take profiles, for which the process is slower,
  // and which tell where it has its code.
  bool pages_profiles = rpc::ServerDefaultsFromFlags().pages_profiles;
  // Rules that refuse calls before queues get long, all off by default
  // (docs/admission.md).
  AdmissionOptions admission = rpc::ServerDefaultsFromFlags().admission;
};

namespace rpc {

struct Limits;

// For Server. The options, with sizes that protocols can keep.
ServerOptions WithinLimits(ServerOptions options);
// For Server. The limits that its protocols keep.
Limits LimitsOf(const ServerOptions& options);

}  // namespace rpc
}  // namespace flare

#endif  // FLARE_RPC_SERVER_OPTIONS_H_
