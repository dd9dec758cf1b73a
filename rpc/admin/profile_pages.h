// The pages /inspect/profile/cpu, /inspect/profile/heap and
// /inspect/profile/contention, for pprof, and /inspect/contention, for people:
//
//   pprof http://localhost:5567/inspect/profile/cpu?seconds=10
#ifndef FLARE_RPC_ADMIN_PROFILE_PAGES_H_
#define FLARE_RPC_ADMIN_PROFILE_PAGES_H_

#include <stop_token>

#include "flare/rpc/http_handler.h"

namespace flare::rpc {

inline constexpr char kCpuProfilePath[] = "/inspect/profile/cpu";
inline constexpr char kHeapProfilePath[] = "/inspect/profile/heap";
inline constexpr char kContentionProfilePath[] = "/inspect/profile/contention";
inline constexpr char kContentionPath[] = "/inspect/contention";

struct ProfileRules {
  bool allowed = false;  // Else they answer 403.
  // Ends a profile in the making when the server stops.
  std::stop_token stopping = {};
};

// Profiles the whole process for as many seconds as the query says, 30 by
// default and kMaxProfileSeconds at most; one request at a time, others are
// answered 503. Ends early if the execution context of the request is stopped.
// Suspends the fiber, or blocks the thread, meanwhile.
inline constexpr int kMaxProfileSeconds = 300;
HttpHandlerPtr NewCpuProfilePage(const ProfileRules& rules);

// Waits for locks (contention_profile.h), under the same rules; beside a CPU
// profile, but one of both forms at a time. The text is of 10 seconds by
// default.
HttpHandlerPtr NewContentionProfilePage(const ProfileRules& rules);
HttpHandlerPtr NewContentionPage(const ProfileRules& rules);

// The heap as it is now (heap_profile.h); 501 if the process can't tell.
HttpHandlerPtr NewHeapProfilePage(const ProfileRules& rules);

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMIN_PROFILE_PAGES_H_
