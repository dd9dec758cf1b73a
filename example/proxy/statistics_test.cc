#include "example/proxy/statistics.h"

#include <string>

#include "gtest/gtest.h"

namespace example::proxy {
namespace {

Snapshot SomeSnapshot() {
  Snapshot s;
  s.uptime_s = 12.5;
  s.generation = 3;
  s.reloads_refused = 1;
  s.last_reload_error = "proxy.yaml:3: lb: \"x\" is not known";
  s.listening = {"127.0.0.1:80", "unix:/run/p"};
  s.sessions = {.accepted = 100,
                .active = 7,
                .refused = 2,
                .connect_failures = 5,
                .retries = 4,
                .unserved = 1,
                .idle = 3,
                .aborted = 6,
                .bytes_to_upstream = 20'000'000,
                .bytes_to_client = 35'000'000};
  s.sessions_per_group = {3, 4};
  s.upstreams.resize(2);
  s.upstreams[0].name = "a:1";
  s.upstreams[0].address = "10.0.0.1:1";
  s.upstreams[0].connections.active = 7;
  s.upstreams[0].health.checks = 9;
  s.upstreams[1].name = "unix:/run/\"b\"";
  s.upstreams[1].address = "unix:/run/\"b\"";
  s.upstreams[1].connections.healthy = false;
  s.upstreams[1].health.failures = 8;
  s.upstreams[1].health.last_error = "Connection refused";
  return s;
}

TEST(StatisticsTest, LineIsAboutTheTimeBetween) {
  Snapshot before;
  before.sessions.accepted = 40;
  before.sessions.bytes_to_upstream = 10'000'000;
  before.sessions.bytes_to_client = 10'000'000;
  EXPECT_EQ(StatisticsLine(before, SomeSnapshot(), 10),
            "7 sessions; in 10.0 s: 60 accepted, 2 refused, 1 unserved, 3 "
            "idle, 6 aborted, 5 connect failures; 1.0 MB/s to upstreams, 2.5 "
            "MB/s to clients; 1 of 2 upstreams up.");
}

TEST(StatisticsTest, Text) {
  EXPECT_EQ(StatisticsText(SomeSnapshot()),
            R"(uptime_s 12.500
draining 0
generation 3
reloads_refused 1
last_reload_error proxy.yaml:3: lb: "x" is not known
access_log_dropped 0
log_lines_lost 0
listening 127.0.0.1:80
listening unix:/run/p
active 7
accepted 100
refused 2
unserved 1
idle 3
aborted 6
connect_failures 5
retries 4
bytes_to_upstream 20000000
bytes_to_client 35000000
sessions_per_group 3 4

)"
            "upstream       state      active  connections  failures  "
            "bytes_to_upstream  bytes_to_client  checks  check_failures  "
            "last_check_error\n"
            "a:1            up         7       0            0         "
            "0                  0                9       0               \n"
            "unix:/run/\"b\"  unhealthy  0       0            0         "
            "0                  0                0       8               "
            "Connection refused\n");
}

TEST(StatisticsTest, Json) {
  EXPECT_EQ(
      StatisticsJson(SomeSnapshot()),
      R"({"uptime_s": 12.500, "draining": false, "generation": 3, )"
      R"("reloads_refused": 1, )"
      R"("last_reload_error": "proxy.yaml:3: lb: \"x\" is not known", )"
      R"("access_log_dropped": 0, "log_lines_lost": 0, )"
      R"("listening": ["127.0.0.1:80", "unix:/run/p"], )"
      R"("active": 7, "accepted": 100, "refused": 2, "unserved": 1, )"
      R"("idle": 3, "aborted": 6, "connect_failures": 5, "retries": 4, )"
      R"("bytes_to_upstream": 20000000, "bytes_to_client": 35000000, )"
      R"("sessions_per_group": [3, 4], "upstreams": [)"
      R"({"name": "a:1", "address": "10.0.0.1:1", "healthy": true, )"
      R"("paused": false, "active": 7, "connections": 0, "failures": 0, )"
      R"("bytes_to_upstream": 0, "bytes_to_client": 0, "checks": 9, )"
      R"("check_failures": 0, "last_check_error": ""}, )"
      R"({"name": "unix:/run/\"b\"", "address": "unix:/run/\"b\"", )"
      R"("healthy": false, "paused": false, "active": 0, "connections": 0, )"
      R"("failures": 0, "bytes_to_upstream": 0, "bytes_to_client": 0, )"
      R"("checks": 0, "check_failures": 8, )"
      R"("last_check_error": "Connection refused"}]})"
      "\n");
}

TEST(StatisticsTest, OfNothing) {
  EXPECT_NE(StatisticsText(Snapshot()), "");
  const std::string json = StatisticsJson(Snapshot());
  EXPECT_NE(json.find(R"("listening": [], )"), std::string::npos) << json;
  EXPECT_NE(StatisticsLine(Snapshot(), Snapshot(), 0), "");
}

}  // namespace
}  // namespace example::proxy
