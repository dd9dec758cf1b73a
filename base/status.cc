#include "flare/base/status.h"

#include <new>
#include <ostream>
#include <system_error>
#include <utility>

namespace flare {

Status::Status(int code, std::string message) : code_(code) {
  if (!message.empty()) {
    message_ = std::make_shared<const std::string>(std::move(message));
  }
}

Status Status::Lenient(int code, std::string_view message) noexcept {
  try {
    return Status(code, std::string(message));
  } catch (const std::bad_alloc&) {
    return Status(code);
  }
}

const std::string& Status::message() const noexcept {
  // Never destroyed: statuses may be read while the process ends.
  static const std::string* const empty = new std::string;
  return message_ != nullptr ? *message_ : *empty;
}

std::string Status::ToString() const {
  if (ok() && message_ == nullptr) return "OK";
  std::string text = ok() ? "OK" : "[" + std::to_string(code_) + "]";
  if (message_ != nullptr) text += " " + *message_;
  return text;
}

bool operator==(const Status& left, const Status& right) noexcept {
  return left.code() == right.code() && left.message() == right.message();
}

std::ostream& operator<<(std::ostream& out, const Status& status) {
  return out << status.ToString();
}

Status StatusFromErrno(int error, std::string what) {
  what += ": ";
  what +=
      std::generic_category().message(error);  // Unlike strerror, reentrant.
  return Status(error, std::move(what));
}

}  // namespace flare
