// Each allocation of a call in turn fails: the call fails, too, or needs it for
// a text only. None throws, and sockets and files that are there go on.
#include "flare/base/sanitizer.h"

#if !defined(FLARE_ASAN) && !defined(FLARE_TSAN)

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/io/fd.h"
#include "flare/io/file.h"
#include "flare/io/tcp_listener.h"
#include "flare/io/tcp_socket.h"
#include "flare/io/testing/loopback.h"
#include "flare/io/udp_socket.h"
#include "gtest/gtest.h"

namespace flare::io {
namespace {

// How many allocations of this thread succeed before one fails; negative: all.
thread_local int before_failure = -1;

void* AllocateOrFail(std::size_t size, std::size_t alignment) {
  if (before_failure >= 0 && before_failure-- == 0) throw std::bad_alloc();
  void* const memory =
      alignment == 0 ? std::malloc(size)
                     : std::aligned_alloc(alignment, (size + alignment - 1) /
                                                         alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace
}  // namespace flare::io

void* operator new(std::size_t size) {
  return flare::io::AllocateOrFail(size, 0);
}
void* operator new[](std::size_t size) {
  return flare::io::AllocateOrFail(size, 0);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return flare::io::AllocateOrFail(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace flare::io {
namespace {

using std::chrono::milliseconds;

class SocketNoMemoryTest : public testing::IoTest {
 protected:
  // Calls `f`, which returns the code of its error, until no allocation of it
  // fails. All codes but the last must be `code`. Returns the last.
  template <class F>
  static int FailEachAllocation(int code, F f) {
    for (int i = 0;; ++i) {
      before_failure = i;
      const int result = f();
      const bool failed = before_failure < 0;
      before_failure = -1;
      if (!failed) {
        EXPECT_GT(i, 0) << "there is nothing to allocate";
        return result;
      }
      EXPECT_EQ(result, code) << "allocation " << i;
    }
  }

  static Endpoint AnyPort() { return MustParseEndpoint("127.0.0.1:0"); }

  // Too long for a string without memory of its own.
  static std::string Path() {
    return "/tmp/flare_socket_no_memory_" + std::to_string(::getpid());
  }
};
FLARE_INSTANTIATE_RUNTIME_TEST(SocketNoMemoryTest);

template <class T>
int CodeOf(const Expected<T, Status>& result) {
  return result ? 0 : result.error().code();
}

TEST_P(SocketNoMemoryTest, SocketsAreNotOpened) {
  auto listener = TcpListener::Listen(AnyPort());
  ASSERT_TRUE(listener.has_value());
  const Endpoint address = listener->local_endpoint();
  EXPECT_EQ(FailEachAllocation(
                ENOMEM, [&] { return CodeOf(TcpSocket::Connect(address)); }),
            0);
  EXPECT_EQ(FailEachAllocation(
                ENOMEM, [&] { return CodeOf(UdpSocket::Bind(AnyPort())); }),
            0);
  EXPECT_EQ(FailEachAllocation(ENOMEM,
                               [&] {
                                 UniqueFd fd(::socket(
                                     AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
                                 return CodeOf(TcpSocket::Adopt(std::move(fd)));
                               }),
            0);
}

TEST_P(SocketNoMemoryTest, AnAcceptedConnectionIsClosedAndTheNextIsTaken) {
  auto listener = TcpListener::Listen(AnyPort());
  ASSERT_TRUE(listener.has_value());
  EXPECT_EQ(FailEachAllocation(ENOMEM,
                               [&] {
                                 const int failure =
                                     std::exchange(before_failure, -1);
                                 const UniqueFd peer = testing::PlainConnect(
                                     listener->local_endpoint());
                                 before_failure = failure;
                                 return CodeOf(listener->Accept());
                               }),
            0);
}

TEST_P(SocketNoMemoryTest, AListenerIsOpenedOrNot) {
  const Endpoint address = EndpointFromUnix(Path());
  EXPECT_EQ(FailEachAllocation(
                ENOMEM, [&] { return CodeOf(TcpListener::Listen(address)); }),
            0);
}

TEST_P(SocketNoMemoryTest, ErrorsLoseTheirTextsOnly) {
  auto socket = UdpSocket::Bind(AnyPort());
  ASSERT_TRUE(socket.has_value());
  std::array<char, 8> bytes;
  const auto receive = [&] {
    return CodeOf(socket->Receive(bytes, milliseconds(0)));
  };
  EXPECT_EQ(FailEachAllocation(ETIMEDOUT, receive), ETIMEDOUT);
  socket->Close();
  EXPECT_EQ(FailEachAllocation(EBADF, receive), EBADF);

  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  auto ours = TcpSocket::Adopt(UniqueFd(fds[0]));
  ASSERT_TRUE(ours.has_value());
  UniqueFd(fds[1]).Reset();
  const auto read = [&] { return ours->ReadExactly(bytes).code(); };
  EXPECT_EQ(FailEachAllocation(ENODATA, read), ENODATA);
}

TEST_P(SocketNoMemoryTest, FilesAreNotOpenedReadOrReplaced) {
  const std::string path = Path();
  Buffer bytes = CreateBufferSlow("by");
  bytes.Append(MakeReferencingBuffer("tes", 3));
  EXPECT_EQ(
      FailEachAllocation(
          ENOMEM, [&] { return WriteFileAtomically(path, bytes).code(); }),
      0);
  EXPECT_EQ(
      FailEachAllocation(ENOMEM, [&] { return CodeOf(File::Open(path)); }), 0);
  EXPECT_EQ(FailEachAllocation(ENOMEM, [&] { return CodeOf(ReadFile(path)); }),
            0);
  auto file = File::Open(path, O_RDWR);
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(
      FailEachAllocation(ENOMEM, [&] { return CodeOf(file->ReadAt(0, 100)); }),
      0);
  EXPECT_EQ(FailEachAllocation(ENOMEM,
                               [&] { return file->WriteAt(0, bytes).code(); }),
            0);
  EXPECT_EQ(*ReadFile(path), "bytes");
  EXPECT_EQ(FailEachAllocation(
                EINVAL, [&] { return file->WriteAt(~0ULL, "x").code(); }),
            EINVAL);
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace flare::io

#endif
