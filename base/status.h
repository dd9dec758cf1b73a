// The outcome of an operation: OK, or a code and a text for people.
//
//   Status Open(const std::string& path) {
//     if (fd < 0) return Status(errno, "can't open " + path + ": ...");
//     return Status();
//   }
//
// Codes belong to the layer that makes them: base, fiber and io use errno
// values, rpc the codes of rpc/rpc_status.h. 0 is always success. A text says
// what failed, with what, and what to do about it.
//
// A copy shares the text. An OK status and one without text allocate nothing.
// Thread-safe like an int: concurrent reads are fine.

#ifndef FLARE_BASE_STATUS_H_
#define FLARE_BASE_STATUS_H_

#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>

namespace flare {

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;  // OK.
  explicit Status(int code) noexcept : code_(code) {}
  Status(int code, std::string message);
  // Makes a Status as the constructor does, or one without the text if there is
  // no memory for it.
  static Status Lenient(int code, std::string_view message) noexcept;

  bool ok() const noexcept { return code_ == 0; }
  int code() const noexcept { return code_; }
  // Empty if there is none.
  const std::string& message() const noexcept;

  // "OK", "[22] unreadable CPU list ...", "[22]".
  std::string ToString() const;

  // Same code and same text.
  friend bool operator==(const Status& left, const Status& right) noexcept;

 private:
  int code_ = 0;
  std::shared_ptr<const std::string> message_;  // Null: no text.
};

std::ostream& operator<<(std::ostream& out, const Status& status);

// A status with the code `error` (an errno value) and the text "`what`: " and
// that error's description.
Status StatusFromErrno(int error, std::string what);

}  // namespace flare

#endif  // FLARE_BASE_STATUS_H_
