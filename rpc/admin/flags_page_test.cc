// The page /inspect/flags: as a reader gets it, and changes by it.
#include "flare/rpc/admin/flags_page.h"

#include <gflags/gflags.h>

#include <atomic>
#include <string>
#include <thread>

#include "flare/base/endpoint.h"
#include "flare/rpc/changeable_flag.h"
#include "flare/rpc/start/flags.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/server_fixture.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

DEFINE_int32(flags_page_number, 7, "A number <of> the test.");
DEFINE_double(flags_page_even_more, 0.5, "Between 0 and 1.");
DEFINE_validator(flags_page_even_more, [](const char*, double value) {
  return 0 <= value && value <= 1;
});
DEFINE_bool(flags_page_fixed, false, "Read once.");
DEFINE_string(flags_page_password, "hunter2", "A secret.");
DEFINE_string(flags_page_password_file, "/run/p", "No secret.");

FLARE_CHANGEABLE_FLAG(flags_page_number);
FLARE_CHANGEABLE_FLAG(flags_page_even_more);

namespace flare::rpc::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr char kHeader[] = "X-Requested-With: test\r\n";

class FlagsPageTest : public ServerTest {
 protected:
  void StartServerWithChanges() {
    server_options().pages_change_flags = true;
    StartServer();
  }

  // The whole reply.
  std::string Ask(const std::string& method, const std::string& query,
                  const std::string& fields = "",
                  const std::string& host = "localhost") {
    RawClient client(endpoint());
    client.Send(method + " /inspect/flags?" + query + " HTTP/1.1\r\nHost: " +
                host + "\r\nConnection: close\r\n" + fields + "\r\n");
    return client.ReadAll();
  }
  std::string Change(const std::string& query) {
    return Ask("POST", query, kHeader);
  }
};

TEST_F(FlagsPageTest, ListsFlagsAsAFlagFile) {
  StartServer();
  EXPECT_THAT(
      Ask("GET", "name=flags_page_"),
      AllOf(HasSubstr("200 OK"), HasSubstr("\n# 5 flags\n"),
            HasSubstr("\n# int32, can be changed: A number <of> the test.\n"
                      "--flags_page_number=7\n"),
            HasSubstr("\n# bool: Read once.\n--flags_page_fixed=false\n"),
            HasSubstr("\n# --flags_page_password is hidden"),
            Not(HasSubstr("hunter2")),
            HasSubstr("\n--flags_page_password_file=/run/p\n"),
            Not(HasSubstr("--minloglevel"))));
  EXPECT_THAT(Ask("GET", ""), HasSubstr("\n--minloglevel="));
}

TEST_F(FlagsPageTest, IsHtmlForBrowsers) {
  StartServer();
  EXPECT_THAT(Ask("GET", "name=flags_page_&x", "Accept: text/html\r\n"),
              AllOf(HasSubstr("text/html"), HasSubstr("number &lt;of> the"),
                    HasSubstr("<code>7</code>"), Not(HasSubstr("<script>")),
                    Not(HasSubstr("hunter2"))));
}

TEST_F(FlagsPageTest, OffersChangesToBrowsersWhereTheyAreAllowed) {
  StartServerWithChanges();
  EXPECT_THAT(
      Ask("GET", "name=flags_page_", "Accept: text/html\r\n"),
      AllOf(HasSubstr("<script>"),
            HasSubstr("<input name=\"flags_page_number\" size=16 value=\"7\">"),
            HasSubstr("<code>false</code>")));
}

TEST_F(FlagsPageTest, ChangesNothingUnlessToldTo) {
  StartServer();
  EXPECT_THAT(Change("flags_page_number=8"),
              AllOf(HasSubstr(" 403 "),
                    HasSubstr("--flare_rpc_server_pages_change_flags")));
  EXPECT_EQ(FLAGS_flags_page_number, 7);
}

TEST_F(FlagsPageTest, ChangesAndLogs) {
  StartServerWithChanges();
  const LoggedLines log;
  EXPECT_THAT(Change("flags_page_number=8"),
              AllOf(HasSubstr(" 200 "), HasSubstr("\n--flags_page_number was "
                                                  "7\n")));
  EXPECT_EQ(ReadFlag(FLAGS_flags_page_number), 8);
  EXPECT_THAT(
      log.All(),
      HasSubstr("--flags_page_number is changed from \"7\" to \"8\" by 127."));
  EXPECT_THAT(Ask("GET", "name=flags_page_number"),
              HasSubstr("\n# int32, default 7, can be changed: A number <of> "
                        "the test.\n--flags_page_number=8\n"));
  EXPECT_THAT(Change("flags%5Fpage_number=7"), HasSubstr(" 200 "));
  EXPECT_EQ(FLAGS_flags_page_number, 7);
}

TEST_F(FlagsPageTest, ChangesNothingForPagesOfStrangers) {
  server_options().builtin_pages = BuiltinPages::kEveryone;
  StartServerWithChanges();
  // By a link, an image, a form.
  EXPECT_THAT(Ask("GET", "flags_page_number=8", kHeader), HasSubstr(" 200 "));
  EXPECT_THAT(Ask("POST", "flags_page_number=8"),
              AllOf(HasSubstr(" 403 "), HasSubstr("X-Requested-With")));
  // By a script, under a name that leads here.
  EXPECT_THAT(Ask("POST", "flags_page_number=8", kHeader, "evil.example"),
              AllOf(HasSubstr(" 403 "), HasSubstr("Host")));
  // A browser asks first whether it may send the field.
  EXPECT_THAT(Ask("OPTIONS", "flags_page_number=8"),
              AllOf(HasSubstr(" 405 "), Not(HasSubstr("Access-Control"))));
  EXPECT_EQ(FLAGS_flags_page_number, 7);
  EXPECT_THAT(Ask("POST", "flags_page_number=7", kHeader, "127.0.0.1:80"),
              HasSubstr(" 200 "));
}

TEST_F(FlagsPageTest, TakesNamesOfTheServerWithCredentials) {
  const HttpHandlerPtr page =
      NewFlagsPage({.may_change = true, .has_credentials = true});
  HttpRequest request;
  request.set_method(HttpMethod::Post);
  request.set_uri("/inspect/flags?flags_page_number=7");
  request.headers()->Set("Host", "server7.example");
  request.headers()->Set("X-Requested-With", "test");
  HttpResponse response;
  HttpServerContext context;
  page->HandleRequest(request, &response, &context);
  EXPECT_EQ(response.status(), HttpStatus::OK);
}

TEST_F(FlagsPageTest, SaysWhyItRefuses) {
  StartServerWithChanges();
  EXPECT_THAT(Change("flags_page_fixed=true"),
              AllOf(HasSubstr(" 403 "),
                    HasSubstr("nothing says that it is "
                              "read again"),
                    HasSubstr("--flags_page_number"),
                    HasSubstr("FLARE_CHANGEABLE_FLAG")));
  EXPECT_THAT(Change("no_such_flag=1"), HasSubstr(" 404 "));
  EXPECT_THAT(Change("flags_page_number=x"),
              AllOf(HasSubstr(" 400 "), HasSubstr("of the type int32")));
  EXPECT_THAT(Change("flags_page_even_more=1.5"),
              AllOf(HasSubstr(" 400 "), HasSubstr("validator")));
  EXPECT_THAT(Change("flags_page_even_more=0.25"), HasSubstr(" 200 "));
  EXPECT_THAT(Change("flags_page_number=1&v=1"), HasSubstr(" 400 "));
  EXPECT_THAT(Change(""), HasSubstr(" 400 "));
  EXPECT_FALSE(FLAGS_flags_page_fixed);
  EXPECT_EQ(FLAGS_flags_page_number, 7);
  EXPECT_EQ(FLAGS_flags_page_even_more, 0.25);
}

TEST_F(FlagsPageTest, WorksOnTheAdminPort) {
  server_options().admin_address = "127.0.0.1:0";
  StartServerWithChanges();
  RawClient client(server().admin_endpoint());
  client.Send("POST /inspect/flags?flags_page_number=9 HTTP/1.1\r\n" +
              std::string(kHeader) + "\r\n");
  EXPECT_THAT(client.ReadAll(), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(ReadFlag(FLAGS_flags_page_number), 9);
  FLAGS_flags_page_number = 7;
}

// The library's own checks hold, too.
TEST(ChangeableFlagTest, TakesBackValuesOutOfRange) {
  const int before = FLAGS_flare_name_resolver_update_interval_seconds;
  const char* const name = "flare_name_resolver_update_interval_seconds";
  const auto refused = ChangeFlag(name, "0", "test");
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("must be from 1 to"));
  EXPECT_EQ(FLAGS_flare_name_resolver_update_interval_seconds, before);
  ASSERT_TRUE(ChangeFlag(name, "5", "test"));
  EXPECT_EQ(FLAGS_flare_name_resolver_update_interval_seconds, 5);
  EXPECT_EQ(*ChangeFlag(name, std::to_string(before), "test"), "5");
}

bool IsVerbose() { return VLOG_IS_ON(3); }

// A site in another file, whose pattern holds for the rest of the process.
bool IsVerboseElsewhere() {
  static google::SiteFlag site{};
  return site.level == nullptr
             ? google::InitVLOG3__(&site, &FLAGS_v, "flags_elsewhere.cc", 3)
             : *site.level >= 3;
}

TEST(ChangeableFlagTest, ChangesVerbosity) {
  EXPECT_FALSE(IsVerbose());
  ASSERT_TRUE(ChangeFlag("v", "3", "test"));
  EXPECT_TRUE(IsVerbose());
  ASSERT_TRUE(ChangeFlag("v", "0", "test"));
  EXPECT_FALSE(IsVerbose());
}

TEST(ChangeableFlagTest, ChangesVerbosityOfFiles) {
  EXPECT_FALSE(IsVerboseElsewhere());
  for (const char* bad : {"x", "=1", "x=", "x=y", "a=1,b"}) {
    EXPECT_FALSE(ChangeFlag("vmodule", bad, "test")) << bad;
  }
  ASSERT_TRUE(ChangeFlag("vmodule", "other=1,flags_elsewhere=3", "test"));
  EXPECT_TRUE(IsVerboseElsewhere());
  EXPECT_FALSE(IsVerbose());
  // glog would pass over these, or over them for some files.
  for (const std::string pattern :
       {"fl*e", "*", "?????_elsewhere", "*_e*e*e", "flags*e***", "*s*x"}) {
    const auto refused = ChangeFlag(
        "vmodule", "flags*x=1,flags_elsewhere=0," + pattern + "=0", "test");
    ASSERT_FALSE(refused) << pattern;
    EXPECT_THAT(refused.error().message(),
                HasSubstr("\"" + pattern + "\" beside \""));
  }
  EXPECT_TRUE(IsVerboseElsewhere());
  EXPECT_THAT(*ChangeFlag("vmodule", "flags*x=1,?=1,flags_elsewhere=0", "test"),
              EndsWith("other=1,flags_elsewhere=3"));
  EXPECT_FALSE(IsVerboseElsewhere());
  EXPECT_THAT(*ChangeFlag("vmodule", "other=0", "test"),
              EndsWith("other=1,flags_elsewhere=0,flags*x=1,?=1"));
}

// Both ways, although the level hides warnings in between.
TEST(ChangeableFlagTest, LogsChangesOfTheLeastLevel) {
  const std::string before = std::to_string(FLAGS_minloglevel);
  const LoggedLines log;
  ASSERT_FALSE(ChangeFlag("minloglevel", "high", "test"));
  ASSERT_TRUE(ChangeFlag("minloglevel", "2", "test"));
  LOG(WARNING) << "unseen";
  ASSERT_TRUE(ChangeFlag("minloglevel", before, "test"));
  EXPECT_THAT(
      log.All(),
      AllOf(HasSubstr("changed from \"" + before + "\" to \"2\" by test"),
            HasSubstr("changed from \"2\" to \"" + before + "\" by test"),
            Not(HasSubstr("unseen")), Not(HasSubstr("to \"high\""))));
}

TEST(ChangeableFlagTest, MayBeReadMeanwhile) {
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      const int value = ReadFlag(FLAGS_flags_page_number);
      EXPECT_TRUE(value == 7 || value == -1) << value;
    }
  });
  for (int i = 0; i != 100; ++i) {
    ASSERT_TRUE(ChangeFlag("flags_page_number", i % 2 == 0 ? "-1" : "7", "me"));
  }
  done = true;
  reader.join();
}

}  // namespace
}  // namespace flare::rpc::testing
