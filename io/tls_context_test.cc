// Files that hang.
#include "flare/io/tls_context.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "flare/base/clock.h"
#include "flare/fiber/fiber.h"
#include "flare/fiber/testing/runtime_fixture.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/fd.h"
#include "flare/io/testing/tls_certificate.h"
#include "flare/io/tls_options.h"
#include "flare/io/transport.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

std::string NewFolder() {
  std::string folder = ::testing::TempDir() + "/tls_context_XXXXXX";
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  return folder;
}

class TlsFilesTest : public fiber::testing::RuntimeTest {};
FLARE_INSTANTIATE_RUNTIME_TEST(TlsFilesTest);

// As on a network mount whose server is gone: here the reads wait for somebody
// who writes to a pipe.
TEST_P(TlsFilesTest, ConnectionsDoNotWaitForFilesThatHang) {
  const std::string folder = NewFolder();
  testing::MakeTlsCertificate(folder);
  const std::string certificate = folder + "/certificate";
  const auto context = TlsServerContext::Create(
      {.certificates = {{certificate, folder + "/key"}},
       .reload_interval = std::chrono::nanoseconds(1)});
  ASSERT_TRUE(context) << context.error().message();
  const std::string kept = folder + "/kept";
  ASSERT_EQ(std::rename(certificate.c_str(), kept.c_str()), 0);
  ASSERT_EQ(::mkfifo(certificate.c_str(), 0600), 0);
  const std::int64_t start_ns = NowNs();
  Fiber connecting([&] {
    for (int i = 0; i != 100; ++i) {
      EXPECT_NE((*context)->NewTransport(), nullptr);
    }
  });
  // Somebody else works meanwhile, were there one worker.
  Fiber([] { this_fiber::Yield(); }).join();
  connecting.join();
  EXPECT_LT(NowNs() - start_ns, 5 * kNsPerSecond);
  // Lets the read go on, which finds nothing of use.
  const UniqueFd writer(::open(certificate.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_TRUE(writer);
  ASSERT_EQ(std::rename(kept.c_str(), certificate.c_str()), 0);
}

}  // namespace
}  // namespace flare::io
