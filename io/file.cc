#include "flare/io/file.h"

#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <new>
#include <utility>
#include <vector>

#include "flare/base/read_file.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/this_fiber.h"
#include "flare/io/fd.h"

namespace flare::io {
namespace {

// Bytes that a worker copies itself, some 25 us of its time. More go to the
// pool.
constexpr std::size_t kMostNow = 256 << 10;

// Repeats the system call `move`, which adds the bytes that it moves to `done`,
// until these are `size`, there are no more, or it fails. Returns errno or 0.
template <class Move>
int MoveRest(const std::size_t& done, std::size_t size, Move& move) {
  while (done < size) {
    const ssize_t moved = move(0);
    if (moved == 0) break;
    if (moved < 0 && errno != EINTR) return errno;
  }
  return 0;
}

// Makes the system call `move` in the way that doesn't wait, if the caller is
// on a worker and the file system is able to do that. Returns how many bytes
// were moved. -1: it's the turn of MoveRest() in the pool, which also finds
// errors.
template <class Move>
ssize_t MoveNow(std::atomic<bool>* able, Move& move) {
  // relaxed, also below: a hint, which may come late.
  if (!fiber::IsFiberWorker() || !able->load(std::memory_order_relaxed)) {
    return -1;
  }
  const ssize_t moved = move(RWF_NOWAIT);
  if (moved < 0 && fiber::GetLastError() == EOPNOTSUPP) {
    able->store(false, std::memory_order_relaxed);
  }
  return moved;
}

// Tells the end of a file from bytes that aren't in memory. Asking for the size
// doesn't block where MoveNow() works. A read that returned 0 doesn't prove the
// end: see BUGS in preadv2(2).
bool IsEnd(int fd, std::uint64_t offset) {
  struct stat info;
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
         offset >= static_cast<std::uint64_t>(info.st_size);
}

// Beyond it, -1 would be the position of the descriptor.
bool IsOffset(std::uint64_t offset) {
  return offset <= std::uint64_t{std::numeric_limits<off_t>::max()};
}

// Drops the first `size` bytes.
void Skip(std::span<iovec>* pieces, std::size_t size) {
  while (size > 0) {
    iovec& first = pieces->front();
    const std::size_t some = std::min(size, first.iov_len);
    first.iov_base = static_cast<char*>(first.iov_base) + some;
    first.iov_len -= some;
    size -= some;
    if (first.iov_len == 0) *pieces = pieces->subspan(1);
  }
}

Status Failed(int error, const char* what, const std::string& path) noexcept {
  try {
    return StatusFromErrno(error,
                           std::string("can't ") + what + " '" + path + "'");
  } catch (const std::bad_alloc&) {
    return Status(error);
  }
}

}  // namespace

struct File::Opened {
  std::string path;
  UniqueFd fd;
  std::atomic<bool> able_to_read_now{true};
  std::atomic<bool> able_to_write_now{true};
};

void File::Closer::operator()(Opened* opened) const noexcept {
  if (opened->fd) fiber::RunBlocking([&] { opened->fd.Reset(); });
  delete opened;
}

File::File(std::unique_ptr<Opened, Closer> opened) noexcept
    : opened_(std::move(opened)) {}
File::File(File&&) noexcept = default;
File& File::operator=(File&&) noexcept = default;
File::~File() = default;

Expected<File> File::Open(const std::string& path, int flags,
                          mode_t permissions) try {
  std::unique_ptr<Opened, Closer> opened(new Opened{.path = path, .fd = {}});
  const int error = fiber::RunBlocking([&] {
    int fd;
    do {
      fd = ::open(path.c_str(), flags | O_CLOEXEC, permissions);
    } while (fd < 0 && errno == EINTR);
    opened->fd.Reset(fd);  // Keeps errno.
    return fd < 0 ? errno : 0;
  });
  if (error != 0) return Failed(error, "open", path);
  // With these the kernel waits for the disk, whatever RWF_NOWAIT says.
  opened->able_to_read_now = (flags & O_DIRECT) == 0;
  opened->able_to_write_now = (flags & (O_DIRECT | O_SYNC | O_DSYNC)) == 0;
  return File(std::move(opened));
} catch (const std::bad_alloc&) {
  return Status(ENOMEM);
}

Expected<std::size_t> File::ReadAt(std::uint64_t offset,
                                   std::span<char> bytes) const {
  if (!IsOffset(offset)) return Failure(EINVAL, "read");
  std::size_t done = 0;
  auto read = [&](int flags) {
    const std::size_t most = (flags & RWF_NOWAIT) != 0 ? kMostNow : SIZE_MAX;
    const iovec rest{bytes.data() + done, std::min(bytes.size() - done, most)};
    const ssize_t some =
        ::preadv2(fd(), &rest, 1, static_cast<off_t>(offset + done), flags);
    if (some > 0) done += static_cast<std::size_t>(some);
    return some;
  };
  const ssize_t now = MoveNow(&opened_->able_to_read_now, read);
  if (done == bytes.size() || (now >= 0 && IsEnd(fd(), offset + done))) {
    return done;
  }
  const int error =
      fiber::RunBlocking([&] { return MoveRest(done, bytes.size(), read); });
  if (error != 0) return Failure(error, "read");
  return done;
}

Expected<Buffer> File::ReadAt(std::uint64_t offset, std::size_t size) const
    try {
  auto bytes = std::make_unique_for_overwrite<char[]>(size);
  char* const data = bytes.get();
  const auto read = ReadAt(offset, {data, size});
  if (!read) return read.error();
  return MakeReferencingBuffer(data, *read, [owner = std::move(bytes)] {});
} catch (const std::bad_alloc&) {  // Or bad_array_new_length.
  return Failure(ENOMEM, "read");
}

Status File::WriteAt(std::uint64_t offset, const Buffer& bytes) {
  return WriteBuffer(offset, bytes, 0);
}

Status File::WriteAt(std::uint64_t offset, std::string_view bytes) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  return Write(offset, {&piece, 1}, bytes.size(), 0);
}

Status File::Append(const Buffer& bytes) {
  return WriteBuffer(0, bytes, RWF_APPEND);
}

Status File::Append(std::string_view bytes) {
  iovec piece{const_cast<char*>(bytes.data()), bytes.size()};
  return Write(0, {&piece, 1}, bytes.size(), RWF_APPEND);
}

Status File::WriteBuffer(std::uint64_t offset, const Buffer& bytes,
                         int flags) try {
  std::vector<iovec> pieces(bytes.SliceCount());
  if (pieces.size() > IOV_MAX) {
    return WriteBuffer(offset, MakeForeignBuffer(FlattenSlow(bytes)), flags);
  }
  bytes.FillIovecs(pieces.data(), pieces.size());
  return Write(offset, pieces, bytes.size(), flags);
} catch (const std::bad_alloc&) {
  return Failure(ENOMEM, "write");
}

Status File::Write(std::uint64_t offset, std::span<iovec> pieces,
                   std::size_t size, int flags) {
  if (!IsOffset(offset)) return Failure(EINVAL, "write");
  std::size_t done = 0;
  auto write = [&](int more) {
    const ssize_t some =
        ::pwritev2(fd(), pieces.data(), static_cast<int>(pieces.size()),
                   static_cast<off_t>(offset + done), flags | more);
    if (some > 0) {
      done += static_cast<std::size_t>(some);
      Skip(&pieces, static_cast<std::size_t>(some));
    }
    return some;
  };
  // An append mustn't be cut in two.
  if (flags == 0 && size <= kMostNow) {
    MoveNow(&opened_->able_to_write_now, write);
  }
  if (done == size) return Status();
  const int error =
      fiber::RunBlocking([&] { return MoveRest(done, size, write); });
  if (error != 0) return Failure(error, "write");
  return done == size ? Status() : Failure(EIO, "write");
}

Expected<std::uint64_t> File::Size() const {
  struct stat info;
  Status status =
      Run("ask the size of", [&info](int fd) { return ::fstat(fd, &info); });
  if (!status.ok()) return status;
  return static_cast<std::uint64_t>(info.st_size);
}

Status File::Truncate(std::uint64_t size) {
  if (!IsOffset(size)) return Failure(EINVAL, "truncate");
  return Run("truncate", [size](int fd) {
    return ::ftruncate(fd, static_cast<off_t>(size));
  });
}

Status File::SyncData() { return Run("sync", ::fdatasync); }

Status File::Sync() { return Run("sync", ::fsync); }

Status File::Close() {
  if (!opened_->fd) return Status();
  return Run("close", [this](int) {
    const int result = ::close(opened_->fd.Release());
    return result != 0 && errno == EINTR ? 0 : result;  // It is closed.
  });
}

const std::string& File::path() const noexcept { return opened_->path; }

int File::fd() const noexcept { return opened_->fd.get(); }

template <class Call>
Status File::Run(const char* what, Call call) const {
  const int error = fiber::RunBlocking([&] {
    int result;
    do {
      result = call(fd());
    } while (result != 0 && errno == EINTR);
    return result == 0 ? 0 : errno;
  });
  return error == 0 ? Status() : Failure(error, what);
}

Status File::Failure(int error, const char* what) const noexcept {
  return Failed(error, what, opened_->path);
}

Expected<std::string> ReadFile(const std::string& path,
                               std::size_t max_bytes) try {
  return fiber::RunBlocking([&] { return flare::ReadFile(path, max_bytes); });
} catch (const std::bad_alloc&) {
  return Failed(ENOMEM, "read", path);
}

namespace {

// Opens a file of a new name beside `path`.
Expected<File> OpenBeside(const std::string& path, mode_t permissions) {
  static std::atomic<unsigned> last{0};
  const std::string prefix = path + ".tmp-" + std::to_string(::getpid()) + '-';
  for (;;) {
    // relaxed: only the number counts.
    const unsigned number = last.fetch_add(1, std::memory_order_relaxed);
    auto file = File::Open(prefix + std::to_string(number),
                           O_WRONLY | O_CREAT | O_EXCL, permissions);
    // One that exists was left by a process that had our number.
    if (file || file.error().code() != EEXIST) return file;
  }
}

Expected<File> OpenFolderOf(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return File::Open(
      slash == std::string::npos ? "." : path.substr(0, slash + 1),
      O_RDONLY | O_DIRECTORY);
}

Status SyncFolder(File* folder) {
  Status status = folder->Sync();
  // Some file systems have nothing to do for a folder.
  return status.code() == EINVAL ? Status() : status;
}

template <class Bytes>
Status Replace(const std::string& path, const Bytes& bytes,
               mode_t permissions) try {
  // Once the file is replaced only the disk may fail.
  auto folder = OpenFolderOf(path);
  if (!folder) return folder.error();
  auto file = OpenBeside(path, permissions);
  if (!file) return file.error();
  Status status = file->WriteAt(0, bytes);
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = file->Close();
  if (status.ok() && ::rename(file->path().c_str(), path.c_str()) != 0) {
    status = Failed(errno, "replace", path);
  }
  if (status.ok()) return SyncFolder(&*folder);
  ::unlink(file->path().c_str());
  return status;
} catch (const std::bad_alloc&) {
  return Failed(ENOMEM, "replace", path);
}

}  // namespace

Status WriteFileAtomically(const std::string& path, const Buffer& bytes,
                           mode_t permissions) {
  return fiber::RunBlocking([&] { return Replace(path, bytes, permissions); });
}

Status WriteFileAtomically(const std::string& path, std::string_view bytes,
                           mode_t permissions) {
  return fiber::RunBlocking([&] { return Replace(path, bytes, permissions); });
}

}  // namespace flare::io
