// The methods of a server's services, by full name.
//
// Filled in before the server starts, by one thread; afterwards everything is
// thread-safe. Nothing blocks (but Add, for a short lock).
#ifndef FLARE_RPC_SERVER_METHOD_TABLE_H_
#define FLARE_RPC_SERVER_METHOD_TABLE_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/service.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flare/base/cpu.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/rpc/admission/admission_control.h"
#include "flare/rpc/admission/method_limits.h"
#include "flare/rpc/server/interceptor_chain.h"
#include "flare/rpc/server/method_counters.h"
#include "flare/rpc/server_statistics.h"

namespace flare::rpc {

// A method that can be called.
class Method {
 public:
  // With the limits of its .proto file (rpc_options.proto), which must not be
  // negative.
  Method(google::protobuf::Service* service,
         const google::protobuf::MethodDescriptor* descriptor);

  std::string_view name() const { return full_name; }
  bool streaming() const {
    return descriptor->client_streaming() || descriptor->server_streaming();
  }

  // Whether max_wait_ns is a limit.
  bool limits_wait() const {
    return max_wait_ns != std::numeric_limits<std::int64_t>::max();
  }

  // False: as many calls run as may. True: call Leave() at the end.
  bool TryEnter() const {
    if (max_running == 0) return true;
    // relaxed: a limit, nothing is ordered by it.
    if (running_.fetch_add(1, std::memory_order_relaxed) < max_running) {
      return true;
    }
    Leave();
    return false;
  }
  void Leave() const {
    if (max_running == 0) return;
    // relaxed: a limit, nothing is ordered by it.
    running_.fetch_sub(1, std::memory_order_relaxed);
  }

  const std::string_view full_name;  // The descriptor's own string.
  google::protobuf::Service* const service;
  const google::protobuf::MethodDescriptor* const descriptor;
  const google::protobuf::Message* const request_prototype;
  const google::protobuf::Message* const response_prototype;
  // Both of generated types: prototypes live as long as the program. Those of
  // messages that a program defines as it runs end with their factory.
  const bool keeps_messages;
  // Bytes of memory that one on the wire can add to kept messages
  // (message_growth.h).
  const std::size_t memory_per_byte;
  // ... and to the message of one request.
  const std::size_t memory_per_parsed_byte;
  // Whether kept messages tell how much they keep.
  const bool measurable;
  std::size_t max_running;  // 0: no limit. Constant once started.
  // Null if there are none. Constant once started.
  const Interceptors* interceptors = nullptr;
  // Null unless the server has rules of admission. Constant once started.
  std::unique_ptr<MethodAdmission> admission;
  // From when a call was read until it begins. Without limit it is the largest
  // number, so that comparing suffices.
  const std::int64_t max_wait_ns;

  mutable MethodCounters counters;

 private:
  // It changes with each call of a method with a limit, on any worker.
  alignas(kCacheLine) mutable std::atomic<std::size_t> running_{0};
};

class MethodTable {
 public:
  // Adds all methods of `service`, which must live until the last of them has
  // been called, with interceptors of its own. Fails if there is a service of
  // that name, or its .proto file sets a negative limit.
  flare::Status Add(google::protobuf::Service* service,
                    Interceptors interceptors = {});

  // Adds the one method of `service`, which gets the calls of all methods that
  // aren't here: as Add(), but nothing finds it by its name. Once at most.
  flare::Status AddFallback(google::protobuf::Service* service);
  // Null: there is none.
  const Method* fallback() const { return fallback_; }

  // No service was added.
  bool empty() const { return methods_.empty(); }

  // "package.Service.Method:10,...", besides the limits that methods have: the
  // smaller one holds. Names that aren't in the table are none of its business
  // (another server of the process may have them), unless no service of the
  // program has them: then it warns.
  flare::Status SetLimits(std::string_view limits);

  // Puts these before those that services have of their own. Once, when all
  // services were added.
  void PutInterceptorsFirst(const Interceptors& interceptors);
  // Destroys them. Nothing may be called any more.
  void DropInterceptors();

  // Gives the methods their parts of it.
  void SetUpAdmission(const AdmissionControl& control);

  // Has the methods count, once the runtime is running.
  void SetUpCounters();
  // Takes the sample of this second of all methods, for their latest rates.
  // Takes locks for moments.
  void SampleCounters() const;
  // Their counts, by their names.
  std::vector<ServerMethodStatistics> statistics() const;

  // The services, in any order, without the fallback.
  std::vector<const google::protobuf::ServiceDescriptor*> Services() const;

  // All of them, in any order, without the fallback.
  std::vector<const Method*> All() const;

  // Null if there is none of that name.
  const Method* Find(std::string_view name) const;

  // By "Service.Method", without the package. Null if several have that name.
  const Method* FindByShortName(std::string_view name) const;

  // Whether it has a method of the same service as `name`.
  bool HasServiceOf(std::string_view name) const;

  // Why `name` isn't here: STATUS_METHOD_NOT_FOUND, or
  // STATUS_SERVICE_NOT_FOUND if some server of this process has had it.
  static flare::Status ExplainMissing(std::string_view name);

 private:
  // The keys are the descriptors' own strings.
  std::unordered_map<std::string_view, std::unique_ptr<Method>> methods_;
  // Null where there are several.
  std::unordered_map<std::string_view, const Method*> by_short_name_;
  std::unordered_map<std::string_view,
                     const google::protobuf::ServiceDescriptor*>
      services_;
  const Method* fallback_ = nullptr;  // One of methods_.
  // By their services. Elements stay in place.
  std::unordered_map<const google::protobuf::ServiceDescriptor*, Interceptors>
      interceptors_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_SERVER_METHOD_TABLE_H_
