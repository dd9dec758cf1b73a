// Answers every call with the body and the attachment that it was sent.
//
//   server --ip=0.0.0.0 --port=5567 --flare_concurrency_hint=4
//
// Speaks flare, baidu-std, trpc, bolt, HTTP with protobuf, JSON or text bodies,
// and plain HTTP (an index page and /echo), gRPC with health checks and
// reflection, all on one port. See docs/press.md for its counterpart, and for
// the effects of --work.

#include "flare/rpc/server.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "example/rpc/access_flags.h"
#include "example/rpc/echo_service.flare.pb.h"
#include "example/rpc/flag_errors.h"
#include "example/rpc/recorder_flags.h"
#include "example/rpc/serving.h"
#include "example/rpc/tls_server_flags.h"
#include "flare/base/clock.h"
#include "flare/base/endpoint.h"
#include "flare/base/random.h"
#include "flare/base/status.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/changeable_flag.h"
#include "flare/rpc/hand_over.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/interceptor.h"
#include "flare/rpc/metrics.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/services/etcd_registration.h"
#include "flare/rpc/services/health.h"
#include "flare/rpc/services/reflection.h"
#include "flare/rpc/socket_activation.h"
#include "glog/logging.h"

DEFINE_string(ip, "127.0.0.1", "Address to listen on.");
DEFINE_int32(port, 5567, "Port to listen on; 0: one that is free.");
DEFINE_string(hand_over, "",
              "Path of a Unix socket: takes over from the server that was "
              "started with the same path, if there is one, and hands over to "
              "the next one (docs/hand_over.md). Empty: neither.");
DEFINE_string(
    socket_name, "",
    "Name of the sockets to use of those that a service manager gives "
    "to this process (LISTEN_FDS); empty: all. They go before --ip "
    "and --port (docs/hand_over.md).");
DEFINE_string(register, "",
              "Where in etcd clients look for this server, as in "
              "etcd://10.0.0.1:2379/services/echo/, or over TLS "
              "tls+etcd://... (docs/discovery.md). Empty: nowhere.");
DEFINE_string(register_as, "",
              "The address to register there, by which clients know "
              "this server, as in 10.0.0.5:5567;weight=3. Empty: the one that "
              "it listens on.");
DEFINE_int32(fail_with, 0,
             "If not 0, every call fails with this code. Codes up to 1000 "
             "belong to the framework.");

DEFINE_int32(fail_percent, 100,
             "With --fail_with: so many percent of the calls fail, by chance.");

FLARE_CHANGEABLE_FLAG(fail_with);
FLARE_CHANGEABLE_FLAG(fail_percent);

DEFINE_bool(tell_identity, false,
            "Answer with the caller's identity by its certificate, not with "
            "the body.");

DEFINE_int32(interceptors, 0,
             "How many interceptors that do nothing wrap each call.");

DEFINE_string(work, "none",
              "The work of each call: none, sleep_thread, sleep_fiber, spin.");
DEFINE_int32(work_us, 50, "How many microseconds of it.");
DEFINE_string(work_dist, "fixed",
              "Always so many (fixed), or that on average (poisson).");

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(logbufsecs, 0);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");

namespace example::protobuf_echo {
namespace {

RequestCounter requests;

std::string Tell(const flare::PeerIdentity* peer) {
  if (peer == nullptr) return "nobody";
  return (peer->verified ? "verified " : "unverified ") + peer->subject + ' ' +
         peer->spiffe_id;
}

bool FailsByChance() {
  return flare::MixBits(flare::ReadTsc()) % 100 <
         static_cast<std::uint64_t>(
             std::max(0, flare::ReadFlag(FLAGS_fail_percent)));
}

class EchoServiceImpl : public SyncEchoService {
 public:
  explicit EchoServiceImpl(const WorkSource& work) : work_(work) {}

  void Echo(const EchoRequest& request, EchoResponse* response,
            flare::RpcServerController* controller) override {
    requests.Add();
    const int code = flare::ReadFlag(FLAGS_fail_with);
    if (code != 0 && FailsByChance()) [[unlikely]] {
      return controller->SetFailed(code, "Failed with configured error.");
    }
    if (const auto worked = WorkOn(request, work_); !worked.ok()) {
      return controller->SetFailed(worked.message());
    }
    response->set_body(request.body());
    if (FLAGS_tell_identity) [[unlikely]] {
      response->set_body(Tell(controller->peer_identity()));
    }
    if (const auto& attachment = controller->GetRequestAttachment();
        !attachment.Empty()) {
      controller->SetResponseAttachment(attachment);
    }
  }

 private:
  const WorkSource work_;
};

class IdleInterceptor : public flare::ServerInterceptor {
  void Intercept(flare::InterceptedCall&, flare::ServerNext& next) override {
    next.Run();
  }
};

constexpr auto kIndexPage = R"(<!DOCTYPE html>
<title>flare echo server</title>
<h1>flare echo server</h1>
<p>Service <code>example.protobuf_echo.EchoService</code>, method
<code>Echo</code>. Try
<pre>
curl -H 'Content-Type: application/x-proto3-json' -d '{"body": "hello"}' \
  http://ADDRESS/rpc/example.protobuf_echo.EchoService.Echo
curl -d hello http://ADDRESS/echo
</pre>
)";

void AddPages(flare::Server* server) {
  // On /metrics, beside the library's counters.
  const auto pages = flare::metrics::NewCounterFamily(
      "echo_pages_total", "Plain HTTP requests, by their page.", {"page"});
  CHECK(pages) << pages.error();
  flare::metrics::Counter* const index = pages->With("/");
  flare::metrics::Counter* const echo = pages->With("/echo");
  server->AddHttpHandler(
      "/", flare::NewHttpGetHandler([index](const flare::HttpRequest&,
                                            flare::HttpResponse* response,
                                            flare::HttpServerContext*) {
        requests.Add();
        index->Add();
        response->headers()->Set("Content-Type", "text/html; charset=utf-8");
        response->set_body(kIndexPage);
      }));
  server->AddHttpHandler(
      "/echo",
      flare::NewHttpPostHandler([echo](const flare::HttpRequest& request,
                                       flare::HttpResponse* response,
                                       flare::HttpServerContext*) {
        requests.Add();
        echo->Add();
        response->set_body(*request.noncontiguous_body());
      }));
}

// On the sockets of the service manager, those of the server before this one,
// or the address. Fails if it can't be known which; else Start() does.
flare::Status Listen(const flare::Endpoint& address, flare::Server* server,
                     std::unique_ptr<flare::HandOver>* hand_over) {
  auto sockets = flare::TakeActivatedSockets(FLAGS_socket_name);
  if (!sockets) return sockets.error();
  if (!sockets->empty()) {
    if (!FLAGS_hand_over.empty()) {
      return flare::Status(
          EINVAL,
          "--hand_over is of no use, as the service manager keeps "
          "the sockets; leave it out");
    }
    server->AdoptSockets(*std::move(sockets));
    server->LeaveSockets();  // They outlive this process.
    return flare::Status();
  }
  if (FLAGS_hand_over.empty()) {
    server->ListenOn(address);
    return flare::Status();
  }
  auto begun = flare::HandOver::Begin(FLAGS_hand_over, address);
  if (!begun) return begun.error();
  (*begun)->ListenOn(server);
  *hand_over = *std::move(begun);
  return flare::Status();
}

// By --register, with an address that can be registered: afterwards it would be
// too late, as the server before this one has gone. Null: there is none.
flare::Expected<std::shared_ptr<flare::EtcdRegistration>, flare::Status>
Registration() {
  if (FLAGS_register.empty()) {
    return std::shared_ptr<flare::EtcdRegistration>();
  }
  auto made = flare::EtcdRegistration::Create(FLAGS_register);
  if (!made) {
    return flare::Status(EINVAL, "Bad --register: " + made.error().message());
  }
  // The port isn't known yet if any free one will do.
  const flare::Status checked = flare::EtcdRegistration::CheckAddress(
      FLAGS_register_as.empty()
          ? ParseListenAddress(FLAGS_ip, std::max(FLAGS_port, 1))->ToString()
          : FLAGS_register_as);
  if (!checked.ok()) {
    return flare::Status(EINVAL, "Bad --register_as: " + checked.message());
  }
  return made;
}

int Entry(int argc, char** argv) {
  if (!HasOnlyFlags(argc, argv)) return kBadFlags;
  const auto address = ParseListenAddress(FLAGS_ip, FLAGS_port);
  if (!address) {
    LOG(ERROR) << "Bad --ip or --port: " << address.error().message();
    return kBadFlags;
  }
  const auto work = MakeWorkSource(FLAGS_work, FLAGS_work_us, FLAGS_work_dist);
  if (!work) {
    LOG(ERROR) << work.error().message();
    return kBadFlags;
  }
  auto tls = TlsFromServerFlags();
  if (!tls) {
    LOG(ERROR) << tls.error().message();
    return kBadFlags;
  }
  auto access = AccessFromFlags();
  if (!access) {
    LOG(ERROR) << access.error().message();
    return kBadFlags;
  }
  const auto recorder = FlagRecorder::Make();  // Ends behind the server.
  if (!recorder) {
    LOG(ERROR) << recorder.error().message();
    return kBadFlags;
  }
  flare::Server::Options options;
  options.tls = *std::move(tls);
  flare::Server server(std::move(options));
  server.AddProtocols({"flare", "http+pb", "http+proto3-json", "http+pb-text",
                       "http", "baidu-std", "trpc", "bolt", "grpc"});
  server.AddService(std::make_unique<EchoServiceImpl>(*work));
  flare::AddHealthService(&server);
  flare::AddReflection(&server);
  if (*access != nullptr) server.AddInterceptor(*access);
  for (int i = 0; i < FLAGS_interceptors; ++i) {
    server.AddInterceptor(std::make_shared<IdleInterceptor>());
  }
  AddPages(&server);
  auto registration = Registration();
  if (!registration) {
    LOG(ERROR) << registration.error().message();
    return kBadFlags;
  }
  // Stop() takes the server out of etcd.
  if (*registration != nullptr) server.AddListener(*registration);
  std::unique_ptr<flare::HandOver> hand_over;
  if (flare::Status listens = Listen(*address, &server, &hand_over);
      !listens.ok()) {
    LOG(ERROR) << listens.message();
    return 1;
  }
  return ServeUntilQuitSignal(&server, requests, std::move(hand_over), [&] {
    if (*registration == nullptr) return flare::Status();
    return (*registration)
        ->Start(FLAGS_register_as.empty() ? server.endpoint().ToString()
                                          : FLAGS_register_as);
  });
}

}  // namespace
}  // namespace example::protobuf_echo

int main(int argc, char** argv) {
  return example::StartProgram(argc, argv, "echoes; see docs/press.md",
                               example::protobuf_echo::Entry);
}
