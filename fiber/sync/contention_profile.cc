#include "flare/fiber/contention_profile.h"

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/fiber/scheduler/thread_stack.h"

namespace flare::fiber {
namespace {

// "1.234 s", "0.012 ms".
std::string LengthText(std::int64_t ns, std::int64_t unit_ns,
                       const char* unit) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.3f %s",
                static_cast<double>(ns) / static_cast<double>(unit_ns), unit);
  return text;
}

std::string SecondsText(std::int64_t ns) {
  return LengthText(ns, kNsPerSecond, "s");
}

void WritePlace(const ContentionPlace& place, std::int64_t total_ns,
                std::ostream& out) {
  char share[16];
  std::snprintf(share, sizeof(share), "%.1f%%",
                total_ns == 0 ? 0
                              : 100 * static_cast<double>(place.wait_ns) /
                                    static_cast<double>(total_ns));
  out << '\n'
      << CountOf(place.waits, "wait") << ", " << SecondsText(place.wait_ns)
      << " (" << share << ')';
  if (place.longest_ns != 0) {
    out << ", longest " << LengthText(place.longest_ns, 1'000'000, "ms");
  }
  if (place.waiting != 0) out << ", " << place.waiting << " not over";
  out << ": " << place.what << '\n' << place.where.ToString();
}

}  // namespace

std::string ContentionReport::ToPprof() const {
  std::ostringstream text;
  text << "--- contention:\ncycles/second = " << kNsPerSecond
       << "\nsampling period = 1\nms since reset = " << duration_ns / 1'000'000
       << "\ndiscarded samples = " << lost << '\n';
  for (const ContentionPlace& place : places) {
    text << place.wait_ns << ' ' << place.waits << " @" << std::hex;
    for (const std::uintptr_t frame : place.where.frames()) {
      text << " 0x" << frame;
    }
    text << std::dec << '\n';
  }
  text << "--- Memory map: ---\n" << std::ifstream("/proc/self/maps").rdbuf();
  return std::move(text).str();
}

std::string ContentionReport::ToText(std::size_t max_places) const {
  std::uint64_t waits = lost;
  std::int64_t total_ns = 0;
  for (const ContentionPlace& place : places) {
    waits += place.waits;
    total_ns += place.wait_ns;
  }
  std::ostringstream text;
  text << SecondsText(duration_ns) << ": " << CountOf(waits, "wait")
       << " for locks, " << SecondsText(total_ns) << " in all";
  if (samples < waits) {
    text << ", estimated from " << CountOf(samples, "sample");
  }
  text << '\n';
  RunOnThreadStack([&] {
    for (std::size_t i = 0; i != std::min(max_places, places.size()); ++i) {
      WritePlace(places[i], total_ns, text);
    }
  });
  if (places.size() > max_places) {
    text << '\n'
         << CountOf(places.size() - max_places, "further place")
         << " with shorter waits\n";
  }
  if (lost != 0) text << '\n' << lost << " at places beyond these\n";
  return std::move(text).str();
}

Expected<std::unique_ptr<ContentionProfile>, Status>
ContentionProfile::Start() {
  // First, as nothing may throw once it records.
  std::unique_ptr<ContentionProfile> profile(new ContentionProfile);
  if (!LockWait::StartRecording()) {
    return Status(EBUSY,
                  "there is a contention profile in the making: wait for it");
  }
  profile->running_ = true;
  profile->since_ns_ = NowNs();
  return profile;
}

ContentionProfile::~ContentionProfile() {
  if (running_) LockWait::DropRecording();
}

ContentionReport ContentionProfile::Finish() {
  running_ = false;  // Also if there is no memory for the report.
  LockWait::Recorded recorded = LockWait::StopRecording();
  ContentionReport report{.places = std::move(recorded.places),
                          .duration_ns = NowNs() - since_ns_,
                          .samples = recorded.samples,
                          .lost = recorded.lost};
  std::sort(report.places.begin(), report.places.end(),
            [](const ContentionPlace& a, const ContentionPlace& b) {
              return a.wait_ns > b.wait_ns;
            });
  return report;
}

}  // namespace flare::fiber
