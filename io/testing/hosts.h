// Hosts with addresses of a test's own, for tests that replace getaddrinfo():
// the machine may have no /etc/hosts.
//
//   extern "C" int getaddrinfo(const char* name, const char* service,
//                              const addrinfo* hints, addrinfo** result) {
//     if (name == std::string_view("two.test")) {
//       return flare::io::testing::LookUp({"::1", "127.0.0.1"}, hints, result);
//     }
//     return flare::io::testing::SystemLookUp(name, service, hints, result);
//   }

#ifndef FLARE_IO_TESTING_HOSTS_H_
#define FLARE_IO_TESTING_HOSTS_H_

#include <dlfcn.h>
#include <netdb.h>

#include <initializer_list>

namespace flare::io::testing {

// The system's getaddrinfo(). It needs no files for a literal address, nor for
// "127.1", which isn't one for us, but a name.
inline int SystemLookUp(const char* name, const char* service,
                        const addrinfo* hints, addrinfo** result) {
  static const auto real =
      reinterpret_cast<decltype(&getaddrinfo)>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(name, service, hints, result);
}

// A host that has these addresses, in this order.
inline int LookUp(std::initializer_list<const char*> addresses,
                  const addrinfo* hints, addrinfo** result) {
  *result = nullptr;
  addrinfo** end = result;
  for (const char* address : addresses) {
    const int error = SystemLookUp(address, nullptr, hints, end);
    if (error != 0) return error;
    while (*end != nullptr) end = &(*end)->ai_next;
  }
  return 0;
}

}  // namespace flare::io::testing

#endif  // FLARE_IO_TESTING_HOSTS_H_
