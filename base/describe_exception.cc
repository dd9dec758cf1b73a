#include "flare/base/describe_exception.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <typeinfo>

namespace flare {
namespace {

// Returns the type of the exception being handled.
std::string CurrentType() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "an exception of unknown type";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  return name != nullptr ? name.get() : type->name();
}

}  // namespace

std::string DescribeException(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& e) {
    return CurrentType() + ": " + e.what();
  } catch (...) {
    return CurrentType();
  }
}

}  // namespace flare
