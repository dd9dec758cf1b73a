#include "flare/rpc/start/flags.h"

#include <gflags/gflags.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "flare/base/cgroup.h"
#include "flare/base/endpoint.h"
#include "flare/base/string.h"
#include "flare/rpc/admission/method_limits.h"
#include "flare/rpc/admission_options.h"
#include "flare/rpc/builtin_pages.h"
#include "flare/rpc/changeable_flag.h"
#include "flare/rpc/http/http_cors.h"
#include "flare/rpc/start/flag_check.h"
#include "flare/rpc/start/runtime_flags.h"

// --- Process ---

DEFINE_bool(flare_abort_on_double_quit_signal, true,
            "Abort when a second SIGINT, SIGQUIT or SIGTERM arrives while the "
            "first is still being acted upon.");

DEFINE_bool(flare_raise_open_files_limit, true,
            "Raise the soft limit of open files (ulimit -n) to the hard one, "
            "or to 1048576 where that allows more. Set it to false in programs "
            "that call select(), which knows no descriptor from 1024 on, or "
            "that start such programs.");

// --- Server ---

DEFINE_int32(flare_rpc_server_max_ongoing_calls, 10000,
             "Calls that a server runs at a time; further ones are answered "
             "\"Server overloaded.\". Nine tenths of them may be streaming "
             "calls.");
DEFINE_int32(flare_rpc_server_max_ongoing_calls_per_connection, 4096,
             "Most calls of one connection that run at a time. Further calls "
             "stay unread until half of these are done.");
DEFINE_int32(flare_rpc_server_max_ongoing_streams_per_connection, 1024,
             "Streaming calls of one connection that run at a time; further "
             "ones are answered \"Server overloaded.\".");
DEFINE_int32(flare_rpc_server_max_ongoing_decompressed_bytes, 1073741824,
             "Bytes of decompressed requests in the calls that a server runs "
             "at a time; with as many, further compressed ones are answered "
             "\"Server overloaded.\".");
DEFINE_int32(flare_rpc_server_max_output_per_connection, 67108864,
             "Bytes of replies that wait for a peer to take them; each counts "
             "as some 80 bytes more. With more than half of that nothing is "
             "read from its connection, and calls wait before they answer, or "
             "before their requests are decompressed.");
DEFINE_int64(flare_rpc_server_max_buffered_bytes, 0,
             "Bytes that all connections of a server hold together: "
             "unfinished messages, requests of calls under way, replies that "
             "wait. From half of it on each has room for 64 KiB of replies. "
             "With more, calls of connections that hold 64 KiB are answered "
             "\"Server overloaded.\", and those that hold most are closed. 0: "
             "a quarter of the memory that the process may use.");
DEFINE_int32(flare_rpc_server_max_connections, 10000,
             "Connections of a server; further ones are closed at once.");
DEFINE_int32(flare_rpc_server_max_request_queueing_delay, -1,
             "Milliseconds a call may wait for a worker; one that waited "
             "longer is answered \"Server overloaded.\". Methods may have less "
             "in their .proto files (max_queueing_delay_ms). 0: no limit. -1: "
             "seven eighths of its caller's timeout, less if its method takes "
             "long; a second if the caller has told none; and, once calls have "
             "waited for longer, 5 ms or a little more until the queue is "
             "short.");
DEFINE_int32(flare_rpc_server_max_packet_size, 4194304,
             "Bytes of one message that a server accepts. A larger one fails; "
             "one over 64 MiB, or over HTTP one in chunks or with \"Expect: "
             "100-continue\", is the last on its connection, too.");
DEFINE_int32(flare_rpc_server_remove_idle_connection_interval, 15,
             "Seconds between two looks for connections that are idle, or take "
             "too long for a message. 0: none.");
DEFINE_int32(
    flare_rpc_server_connection_max_idle, 60,
    "Seconds without traffic after which a server closes a "
    "connection. 0: never, except for a connection that has never sent "
    "anything: it is closed after --flare_rpc_server_message_timeout.");
DEFINE_int32(
    flare_rpc_server_tcp_keep_alive, 60,
    "Seconds after which the kernel asks a silent client whether it is "
    "still there (TCP keep-alive), and again after each sixth of "
    "that. After three questions the connection has broken. 0: never.");
DEFINE_int32(flare_rpc_server_message_timeout, 60,
             "Seconds after its first byte, the first time after the "
             "connection was accepted, in which a message must arrive, or 64 "
             "KiB more of a larger one; else the server closes the "
             "connection, having answered earlier calls. A method that answers "
             "one message by a stream waits as long for it. 0: no limit.");
DEFINE_string(flare_rpc_server_protocol_buffers_max_ongoing_requests_per_method,
              "",
              "Limits of calls at a time for single methods: "
              "\"package.Service.Method:10,...\". If the .proto file has a "
              "limit, too (max_ongoing_requests), the smaller one holds.");
DEFINE_bool(flare_rpc_server_no_builtin_pages, false,
            "Leaves out the pages under /inspect and /metrics on the port of "
            "the service, for which every server speaks \"http\".");
DEFINE_string(flare_rpc_server_pages, "",
              "Readers of the pages under /inspect and /metrics on the port of "
              "the service: \"loopback\" (peers on the same host), "
              "\"everyone\", or \"none\". Empty: none where there is "
              "--flare_rpc_server_admin_address, else loopback.");
DEFINE_string(flare_rpc_server_admin_address, "",
              "Address of its own for these pages, for everyone who can "
              "connect to it: \"127.0.0.1:9100\", \"unix:/run/admin.sock\". A "
              "thread of its own answers there while all workers are stuck. "
              "Empty: none.");
DEFINE_bool(flare_rpc_server_admin_tls, false,
            "Speaks TLS on --flare_rpc_server_admin_address, with the "
            "certificates of the server, which must have some.");
DEFINE_string(flare_rpc_server_pages_credentials_file, "",
              "A file with the credentials of readers of these pages, on both "
              "ports: lines \"basic USER:PASSWORD\" or \"bearer TOKEN\". It is "
              "read again when it changes. Empty: none are needed.");
DEFINE_bool(flare_rpc_server_pages_change_flags, false,
            "Lets readers of the page /inspect/flags change flags that are "
            "declared changeable, on both ports (docs/debugging.md).");
DEFINE_bool(flare_rpc_server_pages_profiles, false,
            "Lets readers of the pages under /inspect/profile, and of "
            "/inspect/contention, take profiles of CPU, heap and waits for "
            "locks, on both ports (docs/debugging.md).");
DEFINE_int32(
    flare_rpc_protocol_buffers_status_code_for_overloaded, 11,
    "Status of calls beyond a limit, except over trpc and bolt, which have "
    "codes of their own. Clients of this library "
    "then try another server (SetMaxRetries) if it is 11 or, over baidu-std, "
    "2004; other codes above 1000 they take for a service's own.");
DEFINE_string(
    flare_rpc_server_adaptive_limit, "off",
    "A limit of a server's calls under way that adapts to the time "
    "they take; further ones are answered \"Server overloaded.\". The "
    "modes: off, count (which refuses none) or refuse.");
DEFINE_string(flare_rpc_server_adaptive_method_limits, "off",
              "An adaptive limit of each method's running calls: off, count "
              "or refuse.");
DEFINE_string(flare_rpc_server_queue_shedding, "off",
              "Refuse calls that have waited for a worker for twice "
              "--flare_rpc_server_queue_target_ms, from when all have waited "
              "for longer than that until most don't: off, count or refuse.");
DEFINE_int32(flare_rpc_server_queue_target_ms, 5,
             "Milliseconds that calls may wait for a worker all the time, for "
             "--flare_rpc_server_queue_shedding.");
DEFINE_int32(flare_rpc_server_queue_interval_ms, 100,
             "Milliseconds after which a queue that was longer than the target "
             "all the time is no burst. Longer than the target.");
DEFINE_string(flare_rpc_server_refuse_late, "off",
              "Refuse calls whose callers wait for less time than their method "
              "has usually taken lately: off, count or refuse.");
DEFINE_string(flare_rpc_server_priority_key, "",
              "Name of the entry of metadata, in lower case, that has a call's "
              "priority: critical, default, sheddable, or 0 to 9. The lowest "
              "are refused first. Empty: there are no priorities.");
DEFINE_int32(flare_rpc_server_drain_timeout_ms, 10000,
             "Milliseconds that running calls are given when a server stops.");
DEFINE_int32(flare_rpc_server_stop_linger_ms, 200,
             "Milliseconds for which a server that stops leaves connections in "
             "use open for one more request, whose reply tells the client of "
             "the end (Connection: close). At most half of "
             "--flare_rpc_server_drain_timeout_ms. 0: none.");
DEFINE_int32(flare_http_max_header_size, 8192,
             "Bytes of request line and header fields that a server accepts.");
DEFINE_int32(flare_http_compress_replies_from, 4096,
             "Bytes from which on the reply to a call over HTTP is compressed "
             "if the caller's Accept-Encoding allows gzip or deflate. 0: none "
             "is, unless its service asks for it.");
DEFINE_int32(flare_http_compress_handlers_from, 0,
             "Bytes from which on the reply of an HTTP handler is compressed "
             "if its Content-Type is that of a text and the client's "
             "Accept-Encoding allows zstd, gzip or deflate. 0: none is, unless "
             "its handler asks for it.");
DEFINE_string(flare_http_cors_origins, "",
              "Web pages that may make calls over HTTP, by their origins: "
              "\"https://example.com,http://localhost:8080\", or \"*\" for all "
              "pages. Empty: none may, and OPTIONS is refused as other methods "
              "are.");

// --- Client ---

DEFINE_int32(flare_rpc_client_default_rpc_timeout_ms, 2000,
             "Milliseconds a call may take unless its controller says "
             "otherwise.");
DEFINE_int32(flare_rpc_client_default_streaming_rpc_timeout_ms, 30000,
             "Milliseconds a streaming call may take, to the end of its last "
             "message, unless its controller says otherwise.");
DEFINE_bool(flare_rpc_propagate_deadline, true,
            "Calls that the method of a server makes take no longer than the "
            "rest of its own call's time, and are cancelled with it.");
DEFINE_int32(flare_rpc_retry_budget_percent, 20,
             "Retries and hedged calls by policy that there may be for each "
             "hundred calls.");
DEFINE_int32(flare_rpc_retry_budget_per_second, 10,
             "Retries and hedged calls by policy that there may be in any "
             "second, however few calls there are.");
DEFINE_int32(flare_rpc_client_connect_timeout_ms, 1000,
             "Milliseconds that establishing a connection may take. The calls "
             "that wait for it then fail.");
DEFINE_int32(flare_rpc_client_max_connections_per_server, 8,
             "Connections per server and protocol, shared by all scheduling "
             "groups (each has at least one).");
DEFINE_int32(flare_rpc_client_max_dedicated_connections_per_server, 4096,
             "Connections per server and protocol that carry one call, or one "
             "stream, at a time, shared by all scheduling groups (each has at "
             "least one). Further calls fail.");
DEFINE_int32(
    flare_rpc_client_connection_max_idle, 45,
    "Seconds without traffic after which a client closes a "
    "connection. Less than the server's, so that the client is first.");
DEFINE_int32(flare_rpc_client_remove_idle_connection_interval, 15,
             "Seconds between two looks for idle connections. 0: none.");
DEFINE_int32(flare_rpc_channel_max_packet_size, 4194304,
             "Bytes of one message that a client accepts. A larger one fails "
             "its call; one over 64 MiB ends its connection, too.");
DEFINE_int32(flare_rpc_max_decompressed_size, 0,
             "Bytes that a compressed body or attachment may have in truth, on "
             "both sides. A larger one fails its call. 0: as many as a message "
             "of that side (max_packet_size).");
DEFINE_int32(flare_name_resolver_update_interval_seconds, 3,
             "Seconds after which host names are resolved again.");
DEFINE_string(flare_rpc_client_zone, "",
              "The zone of this program. Its calls prefer servers that are in "
              "the same zone. Empty: zones don't matter.");

namespace flare::rpc {
namespace {

// The most that Linux takes.
constexpr int kMaxKeepAliveSeconds = 32767;

const FlagRange kRpcRanges[] = {
    {"flare_rpc_retry_budget_percent", &FLAGS_flare_rpc_retry_budget_percent, 0,
     kNoMaxFlag},
    {"flare_rpc_retry_budget_per_second",
     &FLAGS_flare_rpc_retry_budget_per_second, 0, kNoMaxFlag},
    {"flare_rpc_server_max_ongoing_calls",
     &FLAGS_flare_rpc_server_max_ongoing_calls, 1, kNoMaxFlag},
    {"flare_rpc_server_max_ongoing_calls_per_connection",
     &FLAGS_flare_rpc_server_max_ongoing_calls_per_connection, 1, kNoMaxFlag},
    {"flare_rpc_server_max_ongoing_streams_per_connection",
     &FLAGS_flare_rpc_server_max_ongoing_streams_per_connection, 1, kNoMaxFlag},
    {"flare_rpc_server_max_ongoing_decompressed_bytes",
     &FLAGS_flare_rpc_server_max_ongoing_decompressed_bytes, 1, kNoMaxFlag},
    {"flare_rpc_server_max_output_per_connection",
     &FLAGS_flare_rpc_server_max_output_per_connection, 1, kNoMaxFlag},
    {"flare_rpc_server_max_connections",
     &FLAGS_flare_rpc_server_max_connections, 1, kNoMaxFlag},
    {"flare_rpc_server_max_request_queueing_delay",
     &FLAGS_flare_rpc_server_max_request_queueing_delay, -1, kNoMaxFlag},
    {"flare_rpc_server_max_packet_size",
     &FLAGS_flare_rpc_server_max_packet_size, 64, kNoMaxFlag},
    {"flare_rpc_server_remove_idle_connection_interval",
     &FLAGS_flare_rpc_server_remove_idle_connection_interval, 0,
     kMaxFlagSeconds},
    {"flare_rpc_server_connection_max_idle",
     &FLAGS_flare_rpc_server_connection_max_idle, 0, kMaxFlagSeconds},
    {"flare_rpc_server_tcp_keep_alive", &FLAGS_flare_rpc_server_tcp_keep_alive,
     0, kMaxKeepAliveSeconds},
    {"flare_rpc_server_message_timeout",
     &FLAGS_flare_rpc_server_message_timeout, 0, kMaxFlagSeconds},
    {"flare_rpc_protocol_buffers_status_code_for_overloaded",
     &FLAGS_flare_rpc_protocol_buffers_status_code_for_overloaded, 1,
     kNoMaxFlag},
    {"flare_rpc_server_queue_target_ms",
     &FLAGS_flare_rpc_server_queue_target_ms, 1, 1000000},
    {"flare_rpc_server_queue_interval_ms",
     &FLAGS_flare_rpc_server_queue_interval_ms, 2, 1000000},
    {"flare_rpc_server_drain_timeout_ms",
     &FLAGS_flare_rpc_server_drain_timeout_ms, 0, kNoMaxFlag},
    {"flare_rpc_server_stop_linger_ms", &FLAGS_flare_rpc_server_stop_linger_ms,
     0, kNoMaxFlag},
    {"flare_http_max_header_size", &FLAGS_flare_http_max_header_size, 64,
     1 << 26},
    {"flare_http_compress_replies_from",
     &FLAGS_flare_http_compress_replies_from, 0, kNoMaxFlag},
    {"flare_http_compress_handlers_from",
     &FLAGS_flare_http_compress_handlers_from, 0, kNoMaxFlag},
    {"flare_rpc_client_default_rpc_timeout_ms",
     &FLAGS_flare_rpc_client_default_rpc_timeout_ms, 1, kNoMaxFlag},
    {"flare_rpc_client_default_streaming_rpc_timeout_ms",
     &FLAGS_flare_rpc_client_default_streaming_rpc_timeout_ms, 1, kNoMaxFlag},
    {"flare_rpc_client_connect_timeout_ms",
     &FLAGS_flare_rpc_client_connect_timeout_ms, 1, kNoMaxFlag},
    {"flare_rpc_client_max_connections_per_server",
     &FLAGS_flare_rpc_client_max_connections_per_server, 1, 65536},
    {"flare_rpc_client_max_dedicated_connections_per_server",
     &FLAGS_flare_rpc_client_max_dedicated_connections_per_server, 1,
     kNoMaxFlag},
    {"flare_rpc_client_connection_max_idle",
     &FLAGS_flare_rpc_client_connection_max_idle, 0, kMaxFlagSeconds},
    {"flare_rpc_client_remove_idle_connection_interval",
     &FLAGS_flare_rpc_client_remove_idle_connection_interval, 0,
     kMaxFlagSeconds},
    {"flare_rpc_channel_max_packet_size",
     &FLAGS_flare_rpc_channel_max_packet_size, 64, kNoMaxFlag},
    {"flare_rpc_max_decompressed_size", &FLAGS_flare_rpc_max_decompressed_size,
     0, kNoMaxFlag},
    {"flare_name_resolver_update_interval_seconds",
     &FLAGS_flare_name_resolver_update_interval_seconds, 1, kMaxFlagSeconds},
};

std::size_t MaxBufferedBytesFromFlags() {
  if (FLAGS_flare_rpc_server_max_buffered_bytes != 0) {
    return static_cast<std::size_t>(FLAGS_flare_rpc_server_max_buffered_bytes);
  }
  static const std::uint64_t memory = UsableMemory("");
  return static_cast<std::size_t>(memory / 4);
}

struct AdmissionFlag {
  const char* name;
  const std::string* value;
};
const AdmissionFlag kAdmissionFlags[] = {
    {"flare_rpc_server_adaptive_limit", &FLAGS_flare_rpc_server_adaptive_limit},
    {"flare_rpc_server_adaptive_method_limits",
     &FLAGS_flare_rpc_server_adaptive_method_limits},
    {"flare_rpc_server_queue_shedding", &FLAGS_flare_rpc_server_queue_shedding},
    {"flare_rpc_server_refuse_late", &FLAGS_flare_rpc_server_refuse_late},
};

AdmissionOptions AdmissionFromFlags() {
  using std::chrono::milliseconds;
  const auto mode = [](const std::string& text) {
    return ParseAdmissionMode(text).value_or(AdmissionOptions::Mode::kOff);
  };
  return {
      .limit = mode(FLAGS_flare_rpc_server_adaptive_limit),
      .method_limits = mode(FLAGS_flare_rpc_server_adaptive_method_limits),
      .queue = mode(FLAGS_flare_rpc_server_queue_shedding),
      .queue_target = milliseconds(FLAGS_flare_rpc_server_queue_target_ms),
      .queue_interval = milliseconds(FLAGS_flare_rpc_server_queue_interval_ms),
      .late = mode(FLAGS_flare_rpc_server_refuse_late),
      .priority_key = FLAGS_flare_rpc_server_priority_key};
}

flare::Status CheckAdmissionFlags() {
  for (const auto& [name, value] : kAdmissionFlags) {
    if (!ParseAdmissionMode(*value)) {
      return BadFlag(name, *value, "off, count or refuse");
    }
  }
  if (const std::string& key = FLAGS_flare_rpc_server_priority_key;
      key != ToLower(key)) {
    return BadFlag("flare_rpc_server_priority_key", key,
                   "the name of an entry of metadata, in lower case");
  }
  if (FLAGS_flare_rpc_server_queue_interval_ms <=
      FLAGS_flare_rpc_server_queue_target_ms) {
    return BadFlag("flare_rpc_server_queue_interval_ms",
                   std::to_string(FLAGS_flare_rpc_server_queue_interval_ms),
                   "more than --flare_rpc_server_queue_target_ms, which is " +
                       std::to_string(FLAGS_flare_rpc_server_queue_target_ms));
  }
  return flare::Status();
}

// Resolvers of running channels read it at each refresh; values of the
// others are copied when a server, a channel or the runtime starts.
const ChangeableFlag resolver_interval_flag(
    "flare_name_resolver_update_interval_seconds",
    &FLAGS_flare_name_resolver_update_interval_seconds, &ValidateFlags);

}  // namespace

ServerDefaults ServerDefaultsFromFlags() {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  return ServerDefaults{
      .max_ongoing_calls =
          static_cast<std::size_t>(FLAGS_flare_rpc_server_max_ongoing_calls),
      .max_ongoing_calls_per_connection = static_cast<std::size_t>(
          FLAGS_flare_rpc_server_max_ongoing_calls_per_connection),
      .max_ongoing_streams_per_connection = static_cast<std::size_t>(
          FLAGS_flare_rpc_server_max_ongoing_streams_per_connection),
      .max_ongoing_decompressed_bytes = static_cast<std::size_t>(
          FLAGS_flare_rpc_server_max_ongoing_decompressed_bytes),
      .max_output_per_connection = static_cast<std::size_t>(
          FLAGS_flare_rpc_server_max_output_per_connection),
      .max_buffered_bytes = MaxBufferedBytesFromFlags(),
      .max_connections =
          static_cast<std::size_t>(FLAGS_flare_rpc_server_max_connections),
      .max_request_queueing_delay =
          milliseconds(FLAGS_flare_rpc_server_max_request_queueing_delay),
      .max_packet_size =
          static_cast<std::size_t>(FLAGS_flare_rpc_server_max_packet_size),
      .max_decompressed_size = MaxDecompressedSizeFromFlags(),
      .max_http_header_size =
          static_cast<std::size_t>(FLAGS_flare_http_max_header_size),
      .compress_http_replies_from =
          static_cast<std::size_t>(FLAGS_flare_http_compress_replies_from),
      .compress_http_handlers_from =
          static_cast<std::size_t>(FLAGS_flare_http_compress_handlers_from),
      .http_cors_origins = FLAGS_flare_http_cors_origins,
      .remove_idle_connection_interval =
          seconds(FLAGS_flare_rpc_server_remove_idle_connection_interval),
      .connection_max_idle =
          seconds(FLAGS_flare_rpc_server_connection_max_idle),
      .tcp_keep_alive = seconds(FLAGS_flare_rpc_server_tcp_keep_alive),
      .message_timeout = seconds(FLAGS_flare_rpc_server_message_timeout),
      .drain_timeout = milliseconds(FLAGS_flare_rpc_server_drain_timeout_ms),
      .stop_linger = milliseconds(FLAGS_flare_rpc_server_stop_linger_ms),
      .max_ongoing_calls_per_method =
          FLAGS_flare_rpc_server_protocol_buffers_max_ongoing_requests_per_method,
      .status_code_for_overloaded =
          FLAGS_flare_rpc_protocol_buffers_status_code_for_overloaded,
      .no_builtin_pages = FLAGS_flare_rpc_server_no_builtin_pages,
      .builtin_pages = ParseBuiltinPages(FLAGS_flare_rpc_server_pages)
                           .value_or(BuiltinPages::kDefault),
      .admin_address = FLAGS_flare_rpc_server_admin_address,
      .admin_tls = FLAGS_flare_rpc_server_admin_tls,
      .pages_credentials_file = FLAGS_flare_rpc_server_pages_credentials_file,
      .pages_change_flags = FLAGS_flare_rpc_server_pages_change_flags,
      .pages_profiles = FLAGS_flare_rpc_server_pages_profiles,
      .admission = AdmissionFromFlags(),
  };
}

ClientDefaults ClientDefaultsFromFlags() {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  return ClientDefaults{
      .rpc_timeout =
          milliseconds(FLAGS_flare_rpc_client_default_rpc_timeout_ms),
      .stream_timeout =
          milliseconds(FLAGS_flare_rpc_client_default_streaming_rpc_timeout_ms),
      .inherits_context = FLAGS_flare_rpc_propagate_deadline,
      .connect_timeout =
          milliseconds(FLAGS_flare_rpc_client_connect_timeout_ms),
      .max_connections_per_server = static_cast<std::size_t>(
          FLAGS_flare_rpc_client_max_connections_per_server),
      .max_dedicated_connections_per_server = static_cast<std::size_t>(
          FLAGS_flare_rpc_client_max_dedicated_connections_per_server),
      .connection_max_idle =
          seconds(FLAGS_flare_rpc_client_connection_max_idle),
      .remove_idle_connection_interval =
          seconds(FLAGS_flare_rpc_client_remove_idle_connection_interval),
      .max_packet_size =
          static_cast<std::size_t>(FLAGS_flare_rpc_channel_max_packet_size),
      .max_decompressed_size = MaxDecompressedSizeFromFlags(),
      .name_resolver_update_interval =
          seconds(ReadFlag(FLAGS_flare_name_resolver_update_interval_seconds)),
      .zone = FLAGS_flare_rpc_client_zone,
  };
}

RetryBudgetDefaults RetryBudgetFromFlags() {
  return {.percent = FLAGS_flare_rpc_retry_budget_percent,
          .per_second = FLAGS_flare_rpc_retry_budget_per_second};
}

std::size_t MaxDecompressedSizeFromFlags() {
  return static_cast<std::size_t>(FLAGS_flare_rpc_max_decompressed_size);
}

flare::Status ValidateFlags() {
  if (flare::Status s = ValidateRuntimeFlags(); !s.ok()) return s;
  if (flare::Status s = CheckFlagRanges(kRpcRanges); !s.ok()) return s;
  if (flare::Status s = CheckAdmissionFlags(); !s.ok()) return s;
  if (FLAGS_flare_rpc_server_max_buffered_bytes < 0) {
    return BadFlag("flare_rpc_server_max_buffered_bytes",
                   std::to_string(FLAGS_flare_rpc_server_max_buffered_bytes),
                   "at least 0, which means a quarter of the memory");
  }
  const std::string& limits =
      FLAGS_flare_rpc_server_protocol_buffers_max_ongoing_requests_per_method;
  if (auto parsed = ParseMethodLimits(limits); !parsed) {
    return BadFlag(
        "flare_rpc_server_protocol_buffers_max_ongoing_requests_per_method",
        limits,
        "a list package.Service.Method:limit,...; " + parsed.error().message());
  }
  if (auto cors = HttpCors::FromText(FLAGS_flare_http_cors_origins); !cors) {
    return BadFlag("flare_http_cors_origins", FLAGS_flare_http_cors_origins,
                   "a list https://host,...; " + cors.error().message());
  }
  if (!ParseBuiltinPages(FLAGS_flare_rpc_server_pages)) {
    return BadFlag("flare_rpc_server_pages", FLAGS_flare_rpc_server_pages,
                   "loopback, everyone or none");
  }
  const std::string& admin = FLAGS_flare_rpc_server_admin_address;
  if (auto parsed = EndpointFromString(admin); !admin.empty() && !parsed) {
    return BadFlag(
        "flare_rpc_server_admin_address", admin,
        "an address with its port, or unix:/path; " + parsed.error().message());
  }
  return flare::Status();
}

}  // namespace flare::rpc
