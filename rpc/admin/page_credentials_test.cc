// Credentials for pages, alone and on both ports of a server.
#include "flare/rpc/admin/page_credentials.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/endpoint.h"
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/testing/server_fixture.h"
#include "glog/logging.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {
namespace {

// "alice:s3cret" and "bob:t0p".
constexpr char kAlice[] = "Basic YWxpY2U6czNjcmV0";
constexpr char kBob[] = "Basic Ym9iOnQwcA==";

class CredentialsFile {
 public:
  CredentialsFile() {
    const int fd = ::mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    ::close(fd);
  }
  ~CredentialsFile() { ::unlink(path_.c_str()); }

  // As users should: by a rename.
  void Write(const std::string& text) const {
    const std::string fresh = path_ + ".new";
    std::ofstream(fresh) << text;
    EXPECT_EQ(std::rename(fresh.c_str(), path_.c_str()), 0);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = ::testing::TempDir() + "/credentials_XXXXXX";
};

TEST(PageCredentialsTest, AllowsThoseOfTheFile) {
  const CredentialsFile file;
  file.Write("# readers\n\n basic alice:s3cret\r\nBearer  abc.def \n");
  auto credentials = PageCredentials::Create(file.path());
  ASSERT_TRUE(credentials) << credentials.error().message();
  for (const char* good :
       {kAlice, "basic YWxpY2U6czNjcmV0", "BASIC  YWxpY2U6czNjcmV0 ",
        "Bearer abc.def", "bearer abc.def"}) {
    EXPECT_TRUE((*credentials)->Allow(good)) << good;
  }
  for (const char* bad : {"", "Basic", "Bearer", "Bearer ", kBob,
                          "Bearer abc.de", "Bearer abc.defg", "Bearer ABC.DEF",
                          "Basic abc.def", "Bearer YWxpY2U6czNjcmV0",
                          "Basic alice:s3cret", "abc.def", "Digest abc.def"}) {
    EXPECT_FALSE((*credentials)->Allow(bad)) << bad;
  }
  EXPECT_EQ((*credentials)->challenge(),
            "Basic realm=\"pages\", charset=\"UTF-8\", Bearer realm=\"pages\"");
}

TEST(PageCredentialsTest, MistakesNameTheLineAndNotTheSecret) {
  const CredentialsFile file;
  for (const char* bad :
       {"# one\nbasic s3cret", "# one\ns3cret", "# one\nbasic :s3cret",
        "# one\nbasic s3cret:", "# one\nbearer s3 cret", "# one\ntoken s3cret",
        "# one\nbearer"}) {
    file.Write(bad);
    const auto credentials = PageCredentials::Create(file.path());
    ASSERT_FALSE(credentials) << bad;
    const std::string& why = credentials.error().message();
    EXPECT_TRUE(why.starts_with(file.path() + ":2: ")) << why;
    EXPECT_EQ(why.find("s3"), std::string::npos) << why;
  }
  file.Write("# nobody\n");
  EXPECT_FALSE(PageCredentials::Create(file.path()));
  EXPECT_FALSE(PageCredentials::Create("/no/such/file"));
}

// Counts the errors that are logged with a text while it exists.
class ErrorLog : public google::LogSink {
 public:
  explicit ErrorLog(std::string text) : text_(std::move(text)) {
    google::AddLogSink(this);
  }
  ~ErrorLog() override { google::RemoveLogSink(this); }

  void send(google::LogSeverity severity, const char*, const char*, int,
            const struct ::tm*, const char* message,
            std::size_t size) override {
    if (severity == google::GLOG_ERROR &&
        std::string_view(message, size).find(text_) != std::string::npos) {
      ++count_;
    }
  }
  int count() const { return count_; }

 private:
  const std::string text_;
  std::atomic<int> count_{0};
};

TEST(PageCredentialsTest, FollowsTheFileAndKeepsGoodOnes) {
  const CredentialsFile file;
  file.Write("basic alice:s3cret\n");
  const auto credentials =
      *PageCredentials::Create(file.path(), std::chrono::milliseconds(1));
  EXPECT_TRUE(credentials->Allow(kAlice));
  file.Write("basic bob:t0p\n");
  ASSERT_TRUE(
      fiber::testing::Eventually([&] { return credentials->Allow(kBob); }));
  EXPECT_FALSE(credentials->Allow(kAlice));
  const ErrorLog errors("stay as they were");
  file.Write("nonsense\n");
  ASSERT_TRUE(fiber::testing::Eventually([&] {
    EXPECT_TRUE(credentials->Allow(kBob));
    return errors.count() != 0;
  }));
  EXPECT_TRUE(credentials->Allow(kBob));
  file.Write("bearer x\n");
  ASSERT_TRUE(fiber::testing::Eventually(
      [&] { return credentials->Allow("Bearer x"); }));
  EXPECT_FALSE(credentials->Allow(kBob));
}

class GuardedPagesTest : public ServerTest {
 protected:
  static std::string Get(const Endpoint& address, const std::string& path,
                         const std::string& authorization) {
    RawClient client(address);
    std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n";
    if (!authorization.empty()) {
      request += "Authorization: " + authorization + "\r\n";
    }
    client.Send(request + "Connection: close\r\n\r\n");
    return client.ReadAll();
  }

  static void CheckGuarded(const Endpoint& address) {
    for (const char* path : {"/inspect", "/inspect/server", "/inspect/methods",
                             "/inspect/fibers", "/metrics"}) {
      for (const char* bad : {"", kBob}) {
        const std::string refusal = Get(address, path, bad);
        EXPECT_TRUE(refusal.starts_with("HTTP/1.1 401 ")) << refusal;
        EXPECT_NE(refusal.find("\r\nWWW-Authenticate: Basic realm="),
                  std::string::npos)
            << refusal;
        EXPECT_EQ(refusal.find("flare_"), std::string::npos);
      }
      const std::string page = Get(address, path, kAlice);
      EXPECT_TRUE(page.starts_with("HTTP/1.1 200 ")) << page;
    }
  }
};

TEST_F(GuardedPagesTest, OnThePortOfTheService) {
  const CredentialsFile file;
  file.Write("basic alice:s3cret\n");
  server_options().pages_credentials_file = file.path();
  StartServer();
  CheckGuarded(endpoint());
}

TEST_F(GuardedPagesTest, OnThePortOfTheirOwn) {
  const CredentialsFile file;
  file.Write("basic alice:s3cret\n");
  server_options().pages_credentials_file = file.path();
  server_options().admin_address = "127.0.0.1:0";
  StartServer();
  CheckGuarded(server().admin_endpoint());
}

TEST_F(GuardedPagesTest, AFileThatCanNotBeUsedIsAnError) {
  server_options().pages_credentials_file = "/no/such/file";
  server().AddProtocol("flare");
  server().ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(server().Start());
  EXPECT_NE(server().error().message().find("/no/such/file"),
            std::string::npos);
}

TEST_F(GuardedPagesTest, TlsNeedsCertificates) {
  server_options().admin_address = "127.0.0.1:0";
  server_options().admin_tls = true;
  server().AddProtocol("flare");
  server().ListenOn(EndpointFromIpv4("127.0.0.1", 0));
  EXPECT_FALSE(server().Start());
  EXPECT_NE(server().error().message().find("--flare_rpc_server_admin_tls"),
            std::string::npos);
}

}  // namespace
}  // namespace flare::rpc::testing
