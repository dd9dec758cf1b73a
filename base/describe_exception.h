// Exceptions as text, for messages.

#ifndef FLARE_BASE_DESCRIBE_EXCEPTION_H_
#define FLARE_BASE_DESCRIBE_EXCEPTION_H_

#include <exception>
#include <string>

namespace flare {

// "std::runtime_error: no such picture": its type, and what() if it is a
// std::exception. `exception` is not null. Any thread; doesn't block.
std::string DescribeException(const std::exception_ptr& exception);

}  // namespace flare

#endif  // FLARE_BASE_DESCRIBE_EXCEPTION_H_
