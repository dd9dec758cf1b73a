// Files, without blocking a worker.
//
//   auto file = io::File::Open("/var/lib/shop/prices");
//   if (!file) return file.error();
//   std::array<char, 4096> page;
//   auto size = file->ReadAt(8192, page);  // 0: the end of the file.
//
//   auto text = io::ReadFile("/etc/shop/settings.json");
//   Status saved = io::WriteFileAtomically("/var/lib/shop/state", state);
//
// A read on a worker first asks the kernel for bytes that are in memory (its
// page cache): one system call, no suspension. Only if the disk has to be
// waited for, or there is more than 256 KiB, does the fiber go to a thread of
// the pool (blocking_region.h), and its worker runs other fibers. Writes do the
// same on file systems that can tell whether a write would wait, such as XFS
// and Btrfs. All other functions always go to the pool. On plain threads, and
// in a region, calls block the thread.
//
// For regular files and block devices. Opening a FIFO holds a thread of the
// pool until the other end is opened; reads of pipes and terminals fail.
//
// All functions may be called from fibers and plain threads, several at a time,
// except Close(), the destructor and moves: no call may be in progress then. A
// call can't be cancelled and has no deadline. Calls that fail return a Status
// with an errno value and a text that names the file:
//
//   EBADF   Close() was called, or the flags of Open() don't allow it (calls
//           with nothing to read or write may succeed all the same)
//   ENOMEM  memory has run out
//   EINVAL  the offset, or the end of the bytes, is above 2^63 - 1
//   others  as of the system call; never EINTR

#ifndef FLARE_IO_FILE_H_
#define FLARE_IO_FILE_H_

#include <fcntl.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace flare::io {

class File {
 public:
  // Opens a file by flags of open(2), such as O_RDWR | O_CREAT; O_CLOEXEC is
  // added. A new file gets `permissions`, less the umask. With O_APPEND all
  // writes go to the end.
  static Expected<File> Open(const std::string& path, int flags = O_RDONLY,
                             mode_t permissions = 0644);

  // `other` may only be assigned to or destroyed then.
  File(File&& other) noexcept;
  // ... and closes the file held before.
  File& operator=(File&& other) noexcept;
  // Closes the file; errors are lost.
  ~File();

  // Fills `bytes` from `offset` on. Returns how many bytes there were: fewer
  // than asked for only at the end of the file. Holes read as zeros.
  Expected<std::size_t> ReadAt(std::uint64_t offset,
                               std::span<char> bytes) const;
  // Returns up to `size` bytes. Allocates memory for all of them first.
  Expected<Buffer> ReadAt(std::uint64_t offset, std::size_t size) const;

  // Writes all of `bytes`. Behind the end of the file that leaves a hole. If it
  // fails, a first part of them may have been written. The bytes survive the
  // process at once, and a power failure after a Sync().
  Status WriteAt(std::uint64_t offset, const Buffer& bytes);
  Status WriteAt(std::uint64_t offset, std::string_view bytes);

  // Writes behind the end of the file. The bytes stay together, whatever else
  // is appended meanwhile, as they go to the kernel by one system call, in the
  // pool; up to 2 GiB, and unless the disk is full.
  Status Append(const Buffer& bytes);
  Status Append(std::string_view bytes);

  // Returns the bytes up to the end, holes included. 0 for devices.
  Expected<std::uint64_t> Size() const;

  // Cuts the file, or makes it longer by a hole.
  Status Truncate(std::uint64_t size);

  // Waits until the disk has all that was written: the bytes and the size, or
  // the rest of the file's properties, too. After an error bytes may be lost,
  // even if a second call returns OK.
  Status SyncData();
  Status Sync();

  // Closes the file; later calls fail with EBADF. On network file systems this
  // may have the error of an earlier write. A second call does nothing.
  Status Close();

  const std::string& path() const noexcept;

  // For calls that this class doesn't have, such as posix_fadvise(2) and
  // flock(2). The file's; -1 after Close().
  int fd() const noexcept;

 private:
  struct Opened;
  struct Closer {
    void operator()(Opened* opened) const noexcept;
  };

  explicit File(std::unique_ptr<Opened, Closer> opened) noexcept;

  Status WriteBuffer(std::uint64_t offset, const Buffer& bytes, int flags);
  Status Write(std::uint64_t offset, std::span<iovec> pieces, std::size_t size,
               int flags);
  // Makes a system call that returns 0, or -1 and errno, in the pool.
  template <class Call>
  Status Run(const char* what, Call call) const;
  Status Failure(int error, const char* what) const noexcept;

  std::unique_ptr<Opened, Closer> opened_;
};

inline constexpr std::size_t kDefaultMaxFileBytes = std::size_t{64} << 20;

// Returns all of a file of at most `max_bytes`, by one visit to the pool. Files
// without a size work, too, such as those of /proc. Further errors: EFBIG if
// there is more.
Expected<std::string> ReadFile(const std::string& path,
                               std::size_t max_bytes = kDefaultMaxFileBytes);

// Replaces the content of a file, or makes a new one, such that readers, and
// the next process after a crash or a power failure, find the old content or
// the new, whole. Returns once the disk has it. Writes "<path>.tmp-<pid>-<n>",
// which a crash may leave behind, and renames it; so the name of the file must
// be some 25 bytes shorter than the system allows, and its folder readable.
//
// The new file belongs to the caller, with `permissions`, less the umask. A
// symbolic link is replaced, not followed. If it fails, the old content stays;
// except that with an error of the last step, "sync" of the folder, the new
// content is there, but a power failure may undo it.
Status WriteFileAtomically(const std::string& path, const Buffer& bytes,
                           mode_t permissions = 0644);
Status WriteFileAtomically(const std::string& path, std::string_view bytes,
                           mode_t permissions = 0644);

}  // namespace flare::io

#endif  // FLARE_IO_FILE_H_
