#include "flare/rpc/admin/profile_pages.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/cpu_profile.h"
#include "flare/base/heap_profile.h"
#include "flare/base/string.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/contention_profile.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/this_fiber.h"
#include "flare/rpc/admin/page_text.h"
#include "flare/rpc/http_message.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// The value in "seconds=VALUE"; 0: it is none that may be.
int SecondsOf(const HttpRequest& request, int by_default) {
  for (const auto& [name, value] : ParseQuery(request.query())) {
    if (name != "seconds") continue;
    const int seconds = TryParse<int>(value).value_or(0);
    return seconds <= kMaxProfileSeconds ? std::max(seconds, 0) : 0;
  }
  return by_default;
}

// False: the reader has left, or the server stops.
bool SleepUnlessStopped(int seconds, const std::stop_token& stopping) {
  auto* const context = fiber::ExecutionContext::Current();
  std::stop_source end;
  const auto stop = [&end] { end.request_stop(); };
  const std::stop_callback by_server(stopping, stop);
  const std::stop_callback by_reader(
      context == nullptr ? std::stop_token() : context->stop_token(), stop);
  return this_fiber::SleepFor(end.get_token(), std::chrono::seconds(seconds));
}

void SendProfile(const char* file, std::string profile,
                 HttpResponse* response) {
  HttpHeaders& fields = *response->headers();
  fields.Set("Content-Type", "application/octet-stream");
  fields.Set("Content-Disposition",
             std::string("attachment; filename=\"") + file + "\"");
  fields.Set("Cache-Control", "no-store");
  response->set_body(std::move(profile));
}

// Begins a profile, and returns it after as many seconds as the request says.
// Null: it has answered with an error.
template <class Profile>
std::unique_ptr<Profile> TakeProfile(const HttpRequest& request,
                                     int default_seconds,
                                     const std::stop_token& stopping,
                                     HttpResponse* response) {
  const int seconds = SecondsOf(request, default_seconds);
  if (seconds == 0) {
    FillHttpError(
        HttpStatus::BadRequest,
        "seconds must be from 1 to " + std::to_string(kMaxProfileSeconds) + ".",
        response);
    return nullptr;
  }
  auto profile = Profile::Start();
  if (!profile) {
    FillHttpError(HttpStatus::ServiceUnavailable, profile.error().message(),
                  response);
    return nullptr;
  }
  if (!SleepUnlessStopped(seconds, stopping)) {
    FillHttpError(HttpStatus::ServiceUnavailable,
                  "The profile has ended early, as the server stops.",
                  response);
    return nullptr;
  }
  return *std::move(profile);
}

void ServeCpuProfile(const HttpRequest& request, HttpResponse* response,
                     const std::stop_token& stopping) {
  const auto profile = TakeProfile<CpuProfile>(request, 30, stopping, response);
  if (profile == nullptr) return;
  std::string text =
      fiber::RunBlocking([&profile] { return profile->Finish(); });
  if (const auto lost = profile->lost(); lost != 0) {
    LOG(WARNING) << "A CPU profile has lost " << CountOf(lost, "backtrace")
                 << ": ask for fewer seconds.";
  }
  SendProfile("cpu.prof", std::move(text), response);
}

void ServeContentionProfile(const HttpRequest& request, HttpResponse* response,
                            const std::stop_token& stopping) {
  const auto profile =
      TakeProfile<fiber::ContentionProfile>(request, 30, stopping, response);
  if (profile == nullptr) return;
  std::string text =
      fiber::RunBlocking([&profile] { return profile->Finish().ToPprof(); });
  SendProfile("contention.prof", std::move(text), response);
}

void ServeContention(const HttpRequest& request, HttpResponse* response,
                     const std::stop_token& stopping) {
  constexpr std::size_t kMaxPlaces = 50;
  const auto profile =
      TakeProfile<fiber::ContentionProfile>(request, 10, stopping, response);
  if (profile == nullptr) return;
  std::string text = fiber::RunBlocking(
      [&profile] { return profile->Finish().ToText(kMaxPlaces); });
  HttpHeaders& fields = *response->headers();
  fields.Set("Content-Type", "text/plain; charset=utf-8");
  fields.Set("Cache-Control", "no-store");
  response->set_body(std::move(text));
}

void ServeHeapProfile(HttpResponse* response) {
  auto profile = fiber::RunBlocking([] { return TakeHeapProfile(); });
  if (!profile) {
    return FillHttpError(HttpStatus::NotImplemented, profile.error().message(),
                         response);
  }
  SendProfile("heap.prof", *std::move(profile), response);
}

template <class Serve>
HttpHandlerPtr NewProfilePage(const ProfileRules& rules, Serve serve) {
  return NewHttpGetHandler([rules, serve](const HttpRequest& request,
                                          HttpResponse* response,
                                          HttpServerContext*) {
    if (request.method() == HttpMethod::Head) return;  // Takes no profile.
    if (rules.allowed) return serve(request, response, rules.stopping);
    FillHttpError(HttpStatus::Forbidden,
                  "This server takes no profiles: it isn't started with "
                  "--flare_rpc_server_pages_profiles "
                  "(Server::Options::pages_profiles).",
                  response);
  });
}

}  // namespace

HttpHandlerPtr NewCpuProfilePage(const ProfileRules& rules) {
  return NewProfilePage(rules, ServeCpuProfile);
}

HttpHandlerPtr NewContentionProfilePage(const ProfileRules& rules) {
  return NewProfilePage(rules, ServeContentionProfile);
}

HttpHandlerPtr NewContentionPage(const ProfileRules& rules) {
  return NewProfilePage(rules, ServeContention);
}

HttpHandlerPtr NewHeapProfilePage(const ProfileRules& rules) {
  return NewProfilePage(
      rules, [](const HttpRequest&, HttpResponse* response,
                const std::stop_token&) { ServeHeapProfile(response); });
}

}  // namespace flare::rpc
