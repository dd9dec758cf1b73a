#include "example/proxy/own_address.h"

#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "flare/io/fd.h"
#include "flare/io/socket_options.h"
#include "gtest/gtest.h"

namespace example::proxy {
namespace {

using flare::Endpoint;

bool Leads(const std::string& target, const std::string& listener) {
  return LeadsTo(flare::MustParseEndpoint(target),
                 flare::MustParseEndpoint(listener));
}

TEST(OwnAddressTest, SameAddress) {
  EXPECT_TRUE(Leads("10.0.0.1:80", "10.0.0.1:80"));
  EXPECT_FALSE(Leads("10.0.0.1:80", "10.0.0.1:81"));
  EXPECT_FALSE(Leads("127.0.0.1:80", "127.0.0.2:80"));
  EXPECT_TRUE(Leads("unix:@name", "unix:@name"));
  EXPECT_FALSE(Leads("unix:@name", "unix:@other"));
  EXPECT_FALSE(Leads("unix:@name", "unix:name"));
  EXPECT_FALSE(Leads("unix:/run/x", "127.0.0.1:80"));
}

TEST(OwnAddressTest, Wildcards) {
  EXPECT_TRUE(Leads("127.0.0.1:80", "0.0.0.0:80"));
  EXPECT_TRUE(Leads("127.1.2.3:80", "0.0.0.0:80"));
  EXPECT_FALSE(Leads("127.0.0.1:80", "0.0.0.0:81"));
  EXPECT_FALSE(Leads("127.0.0.1:80", "0.0.0.0:0"));
  EXPECT_TRUE(Leads("[::1]:80", "[::]:80"));
  // Each is for its own family.
  EXPECT_FALSE(Leads("[::1]:80", "0.0.0.0:80"));
  EXPECT_FALSE(Leads("127.0.0.1:80", "[::]:80"));
  // Addresses for documentation are nobody's.
  EXPECT_FALSE(Leads("192.0.2.1:80", "0.0.0.0:80"));
  EXPECT_FALSE(Leads("[2001:db8::1]:80", "[::]:80"));
  // To connect to: this machine.
  EXPECT_TRUE(Leads("0.0.0.0:80", "0.0.0.0:80"));
  EXPECT_TRUE(Leads("0.0.0.0:80", "127.0.0.1:80"));
  EXPECT_TRUE(Leads("[::]:80", "[::1]:80"));
  EXPECT_FALSE(Leads("0.0.0.0:80", "127.0.0.2:80"));
}

TEST(OwnAddressTest, MappedAddresses) {
  EXPECT_TRUE(Leads("[::ffff:127.0.0.1]:80", "127.0.0.1:80"));
  EXPECT_TRUE(Leads("127.0.0.1:80", "[::ffff:127.0.0.1]:80"));
  EXPECT_TRUE(Leads("[::ffff:127.0.0.1]:80", "0.0.0.0:80"));
  EXPECT_TRUE(Leads("127.0.0.1:80", "[::ffff:0.0.0.0]:80"));
  EXPECT_FALSE(Leads("[::ffff:192.0.2.1]:80", "0.0.0.0:80"));
  EXPECT_FALSE(Leads("[::ffff:127.0.0.1]:80", "[::]:80"));
}

TEST(OwnAddressTest, AddressesOfThisMachine) {
  // The one it would send from; no packet is sent.
  const flare::io::UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage storage;
  const socklen_t length =
      flare::MustParseEndpoint("192.0.2.1:9").ToSockaddr(&storage);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0) {
    GTEST_SKIP() << "there is no network";
  }
  Endpoint own = flare::io::GetLocalEndpoint(fd.get());
  own.set_port(80);
  EXPECT_TRUE(LeadsTo(own, flare::MustParseEndpoint("0.0.0.0:80"))) << own;
  EXPECT_FALSE(LeadsTo(own, flare::MustParseEndpoint("0.0.0.0:81"))) << own;
  EXPECT_FALSE(LeadsTo(own, flare::MustParseEndpoint("127.0.0.3:80"))) << own;
}

TEST(OwnAddressTest, SocketFiles) {
  namespace fs = std::filesystem;
  char pattern[] = "/tmp/own_address_test.XXXXXX";  // Paths have to be short.
  ASSERT_NE(::mkdtemp(pattern), nullptr);
  const fs::path folder = pattern;
  fs::create_directory(folder / "real");
  fs::create_directory_symlink(folder / "real", folder / "alias");
  const std::string base = "unix:" + folder.string();
  const auto check = [&] {
    EXPECT_TRUE(Leads(base + "/alias/x", base + "/real/x"));
    EXPECT_TRUE(Leads(base + "/real/../alias/./x", base + "/real/x"));
    EXPECT_TRUE(Leads("unix:" + fs::relative(folder / "real" / "x").string(),
                      base + "/real/x"));
    EXPECT_FALSE(Leads(base + "/real/y", base + "/real/x"));
  };
  check();  // While there is no such file,
  std::ofstream(folder / "real" / "x") << "";
  check();  // and when there is.
  fs::create_hard_link(folder / "real" / "x", folder / "link");
  EXPECT_TRUE(Leads(base + "/link", base + "/real/x"));
  fs::remove_all(folder);
}

}  // namespace
}  // namespace example::proxy
