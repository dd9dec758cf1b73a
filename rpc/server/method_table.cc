#include "flare/rpc/server/method_table.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <limits>
#include <map>
#include <new>
#include <optional>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/rpc/rpc_options.pb.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/server/message_growth.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// The methods of all services that any server of this process was given, and
// the services they belong to. protobuf's own registry would do as well, but
// it remembers each unknown name it was asked for: food for an attacker.
class KnownMethods {
 public:
  static KnownMethods& Instance() {
    static KnownMethods* const instance = new KnownMethods();
    return *instance;
  }

  void Add(const google::protobuf::ServiceDescriptor& service) {
    ScopedLock guard(mutex_);
    for (int i = 0; i != service.method_count(); ++i) {
      services_[std::string(service.method(i)->full_name())] =
          service.full_name();
    }
  }

  std::optional<std::string> ServiceOf(std::string_view method) {
    ScopedLock guard(mutex_);
    const auto found = services_.find(method);
    if (found == services_.end()) return std::nullopt;
    return found->second;
  }

 private:
  ThreadMutex mutex_;
  std::map<std::string, std::string, std::less<>> services_
      FLARE_GUARDED_BY(mutex_);
};

bool IsGenerated(const google::protobuf::Message* prototype) {
  return google::protobuf::MessageFactory::generated_factory()->GetPrototype(
             prototype->GetDescriptor()) == prototype;
}

std::int64_t MaxWaitNs(const google::protobuf::MethodOptions& options) {
  const std::int64_t ms = options.GetExtension(flare::max_queueing_delay_ms);
  return ms == 0 ? std::numeric_limits<std::int64_t>::max() : ms * kNsPerMs;
}

flare::Status CheckOptions(const google::protobuf::MethodDescriptor& method) {
  const auto& options = method.options();
  for (const auto& [name, value] :
       {std::pair("max_ongoing_requests",
                  options.GetExtension(flare::max_ongoing_requests)),
        std::pair("max_queueing_delay_ms",
                  options.GetExtension(flare::max_queueing_delay_ms))}) {
    if (value < 0) {
      return flare::Status(
          EINVAL, "method " + std::string(method.full_name()) +
                      " has the option (flare." + name +
                      ") = " + std::to_string(value) +
                      " in its .proto file; it must be at least 0, which "
                      "means no limit");
    }
  }
  return flare::Status();
}

}  // namespace

Method::Method(google::protobuf::Service* service,
               const google::protobuf::MethodDescriptor* descriptor)
    : full_name(descriptor->full_name()),
      service(service),
      descriptor(descriptor),
      request_prototype(&service->GetRequestPrototype(descriptor)),
      response_prototype(&service->GetResponsePrototype(descriptor)),
      keeps_messages(IsGenerated(request_prototype) &&
                     IsGenerated(response_prototype)),
      memory_per_byte(
          keeps_messages
              ? std::max(MemoryPerByte(request_prototype->GetDescriptor()),
                         MemoryPerByte(response_prototype->GetDescriptor()))
              : 0),
      memory_per_parsed_byte(
          MemoryPerParsedByte(request_prototype->GetDescriptor())),
      measurable(keeps_messages &&
                 IsMeasurable(request_prototype->GetDescriptor()) &&
                 IsMeasurable(response_prototype->GetDescriptor())),
      max_running(
          descriptor->options().GetExtension(flare::max_ongoing_requests)),
      max_wait_ns(MaxWaitNs(descriptor->options())) {}

flare::Status MethodTable::Add(google::protobuf::Service* service,
                               Interceptors interceptors) {
  const auto* const descriptor = service->GetDescriptor();
  for (int i = 0; i != descriptor->method_count(); ++i) {
    flare::Status status = CheckOptions(*descriptor->method(i));
    if (!status.ok()) return status;
  }
  for (int i = 0; i != descriptor->method_count(); ++i) {
    auto method = std::make_unique<Method>(service, descriptor->method(i));
    const Method* const added = method.get();
    const std::string_view name = added->name();
    if (!methods_.emplace(name, std::move(method)).second) {
      return flare::Status(
          EEXIST, "service " + std::string(descriptor->full_name()) +
                      " was added before: a server has each service once");
    }
    const std::size_t package = descriptor->file()->package().size();
    const auto [entry, first] = by_short_name_.emplace(
        name.substr(package == 0 ? 0 : package + 1), added);
    if (!first) entry->second = nullptr;
  }
  interceptors_[descriptor] = std::move(interceptors);
  services_.emplace(descriptor->full_name(), descriptor);
  KnownMethods::Instance().Add(*descriptor);
  return flare::Status();
}

flare::Status MethodTable::AddFallback(google::protobuf::Service* service) {
  const auto* const descriptor = service->GetDescriptor();
  auto method = std::make_unique<Method>(service, descriptor->method(0));
  const Method* const added = method.get();
  if (!methods_.emplace(added->name(), std::move(method)).second) {
    return flare::Status(EEXIST,
                         "a generic service was set before: there can be one");
  }
  fallback_ = added;
  interceptors_[descriptor] = {};
  return flare::Status();
}

void MethodTable::PutInterceptorsFirst(const Interceptors& interceptors) {
  for (auto& [service, own] : interceptors_) {
    own.insert(own.begin(), interceptors.begin(), interceptors.end());
  }
  for (const auto& [name, method] : methods_) {
    const Interceptors& all = interceptors_[method->descriptor->service()];
    method->interceptors = all.empty() ? nullptr : &all;
  }
}

void MethodTable::DropInterceptors() {
  for (const auto& [name, method] : methods_) method->interceptors = nullptr;
  interceptors_.clear();
}

flare::Status MethodTable::SetLimits(std::string_view limits) {
  auto parsed = ParseMethodLimits(limits);
  if (!parsed) return parsed.error();
  for (const auto& [name, limit] : *parsed) {
    const auto found = methods_.find(name);
    if (found == methods_.end()) {
      // Another server of the program may have it, as the flag is for all.
      LOG_IF(WARNING, google::protobuf::DescriptorPool::generated_pool()
                              ->FindMethodByName(name) == nullptr)
          << "There is no method " << name << ", whose calls at a time are to "
          << "be limited to " << limit << ".";
      continue;
    }
    std::size_t& max_running = found->second->max_running;
    max_running = max_running == 0 ? limit : std::min(max_running, limit);
  }
  return flare::Status();
}

void MethodTable::SetUpAdmission(const AdmissionControl& control) {
  for (const auto& [name, method] : methods_) {
    method->admission = std::make_unique<MethodAdmission>();
    control.SetUp(method->admission.get());
  }
}

void MethodTable::SetUpCounters() {
  for (const auto& [name, method] : methods_) method->counters.SetUp();
}

void MethodTable::SampleCounters() const {
  const std::int64_t now_ns = NowNs();
  try {
    for (const auto& [name, method] : methods_) method->counters.Sample(now_ns);
  } catch (const std::bad_alloc&) {  // The next sample is of this time, too.
  }
}

std::vector<ServerMethodStatistics> MethodTable::statistics() const {
  std::vector<ServerMethodStatistics> all;
  for (const auto& [name, method] : methods_) {
    all.push_back(method->counters.Read());
    all.back().name = name;
    if (method->admission != nullptr && method->admission->limited) {
      all.back().limit = method->admission->limit.limit();
    }
  }
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

std::vector<const google::protobuf::ServiceDescriptor*> MethodTable::Services()
    const {
  std::vector<const google::protobuf::ServiceDescriptor*> all;
  for (const auto& [name, service] : services_) all.push_back(service);
  return all;
}

std::vector<const Method*> MethodTable::All() const {
  std::vector<const Method*> all;
  for (const auto& [name, method] : methods_) {
    if (method.get() != fallback_) all.push_back(method.get());
  }
  return all;
}

const Method* MethodTable::Find(std::string_view name) const {
  const auto found = methods_.find(name);
  if (found == methods_.end() || found->second.get() == fallback_) {
    return nullptr;
  }
  return found->second.get();
}

const Method* MethodTable::FindByShortName(std::string_view name) const {
  const auto found = by_short_name_.find(name);
  return found == by_short_name_.end() ? nullptr : found->second;
}

bool MethodTable::HasServiceOf(std::string_view name) const {
  const std::size_t dot = name.rfind('.');
  return dot != std::string_view::npos &&
         services_.contains(name.substr(0, dot));
}

flare::Status MethodTable::ExplainMissing(std::string_view name) {
  if (auto service = KnownMethods::Instance().ServiceOf(name)) {
    return flare::Status(STATUS_SERVICE_NOT_FOUND,
                         "Service [" + *service + "] is not found.");
  }
  return flare::Status(STATUS_METHOD_NOT_FOUND, "Method [" + std::string(name) +
                                                    "] is not implemented.");
}

}  // namespace flare::rpc
