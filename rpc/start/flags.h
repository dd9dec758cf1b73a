// The command-line flags of the library. It reads them by the functions below
// and nowhere else, except those of the process (quit_signal.cc, init.cc).
//
// Flags only supply defaults: `Server::Options` start from them, and a channel
// and a controller may say otherwise in code (packet size, time-out). A new
// flag goes here, with its validation, and into one of the structs; one of the
// fiber runtime into runtime_flags.h.
//
// flare::Start() parses and validates them. A program that doesn't call it
// gets the built-in defaults, or whatever it parsed itself. The functions are
// thread-safe as long as nobody changes flags at the same time; none blocks.
#ifndef FLARE_RPC_START_FLAGS_H_
#define FLARE_RPC_START_FLAGS_H_

#include <gflags/gflags_declare.h>

#include <chrono>
#include <cstddef>
#include <string>

#include "flare/base/status.h"
#include "flare/rpc/admission_options.h"
#include "flare/rpc/builtin_pages.h"

// For tests and programs that set a flag in code before Start().
DECLARE_bool(flare_abort_on_double_quit_signal);
DECLARE_bool(flare_raise_open_files_limit);
DECLARE_int32(flare_rpc_client_default_rpc_timeout_ms);
DECLARE_int32(flare_rpc_client_default_streaming_rpc_timeout_ms);
DECLARE_bool(flare_rpc_propagate_deadline);
DECLARE_int32(flare_rpc_client_connect_timeout_ms);
DECLARE_int32(flare_rpc_client_max_connections_per_server);
DECLARE_int32(flare_rpc_client_max_dedicated_connections_per_server);
DECLARE_int32(flare_rpc_client_connection_max_idle);
DECLARE_int32(flare_rpc_client_remove_idle_connection_interval);
DECLARE_int32(flare_rpc_channel_max_packet_size);
DECLARE_int32(flare_rpc_max_decompressed_size);
DECLARE_int32(flare_name_resolver_update_interval_seconds);
DECLARE_string(flare_rpc_client_zone);

namespace flare::rpc {

// The defaults of `Server::Options`.
struct ServerDefaults {
  std::size_t max_ongoing_calls;
  std::size_t max_ongoing_calls_per_connection;
  std::size_t max_ongoing_streams_per_connection;
  std::size_t max_ongoing_decompressed_bytes;
  std::size_t max_output_per_connection;  // bytes
  std::size_t max_buffered_bytes;
  std::size_t max_connections;
  // 0: no limit; negative: call_gate.h
  std::chrono::nanoseconds max_request_queueing_delay;
  std::size_t max_packet_size;              // bytes
  std::size_t max_decompressed_size;        // bytes; 0: max_packet_size
  std::size_t max_http_header_size;         // bytes
  std::size_t compress_http_replies_from;   // bytes; 0: none
  std::size_t compress_http_handlers_from;  // bytes; 0: none
  std::string http_cors_origins;            // "https://example.com,..."
  std::chrono::seconds remove_idle_connection_interval;
  std::chrono::seconds connection_max_idle;
  std::chrono::seconds tcp_keep_alive;
  std::chrono::seconds message_timeout;
  std::chrono::milliseconds drain_timeout;
  std::chrono::milliseconds stop_linger;
  std::string max_ongoing_calls_per_method;  // "pkg.Service.Method:10,..."
  int status_code_for_overloaded;
  bool no_builtin_pages;
  BuiltinPages builtin_pages;
  std::string admin_address;
  bool admin_tls;
  std::string pages_credentials_file;
  bool pages_change_flags;
  bool pages_profiles;
  AdmissionOptions admission;
};
ServerDefaults ServerDefaultsFromFlags();

// The defaults for options of channels (rpc_channel_options.h).
struct ClientDefaults {
  std::chrono::milliseconds rpc_timeout;
  std::chrono::milliseconds stream_timeout;  // A streaming call's.
  bool inherits_context;
  std::chrono::milliseconds connect_timeout;
  // Per protocol and server, in the whole process: dealt out to the scheduling
  // groups, each of which has at least one.
  std::size_t max_connections_per_server;
  std::size_t max_dedicated_connections_per_server;
  std::chrono::seconds connection_max_idle;
  std::chrono::seconds remove_idle_connection_interval;
  std::size_t max_packet_size;        // bytes
  std::size_t max_decompressed_size;  // bytes; 0: max_packet_size
  std::chrono::seconds name_resolver_update_interval;
  std::string zone;
};
ClientDefaults ClientDefaultsFromFlags();

// The defaults of RetryBudget::Default().
struct RetryBudgetDefaults {
  int percent;  // A part of the calls.
  int per_second;
};
RetryBudgetDefaults RetryBudgetFromFlags();

// Bytes of a body or an attachment, of a request or a reply.
std::size_t MaxDecompressedSizeFromFlags();

// Checks all values, those of the runtime's flags, too, each on its own and
// with each other. The error names the flag, its value, and the right ones.
flare::Status ValidateFlags();

}  // namespace flare::rpc

#endif  // FLARE_RPC_START_FLAGS_H_
