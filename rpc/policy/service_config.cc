#include "flare/rpc/policy/service_config.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_status.h"

namespace flare::rpc {
namespace {

using google::protobuf::Struct;
using google::protobuf::Value;
using std::chrono::nanoseconds;

// Reads one JSON value after the other. The first error stays; after it readers
// return any value.
class ConfigReader {
 public:
  flare::Status Read(const Struct& config,
                     std::vector<ServiceConfigEntry>* entries) {
    CheckFields(config, "", {"methodConfig"});
    const Value* const methods = Field(config, "methodConfig");
    if (methods == nullptr) return error_;
    if (!methods->has_list_value()) Fail("methodConfig", "it must be a list");
    for (int i = 0; i != methods->list_value().values_size() && error_.ok();
         ++i) {
      ReadMethodConfig(methods->list_value().values(i),
                       "methodConfig[" + std::to_string(i) + "]", entries);
    }
    return error_;
  }

 private:
  void Fail(const std::string& where, const std::string& what) {
    if (error_.ok()) error_ = flare::Status(EINVAL, where + ": " + what);
  }

  static const Value* Field(const Struct& object, const std::string& name) {
    const auto field = object.fields().find(name);
    return field == object.fields().end() ? nullptr : &field->second;
  }

  // Whether all fields are among `known`. Names the first of the others.
  void CheckFields(const Struct& object, const std::string& where,
                   std::initializer_list<std::string_view> known) {
    std::string unknown;
    for (const auto& [name, value] : object.fields()) {
      if (std::find(known.begin(), known.end(), name) == known.end() &&
          (unknown.empty() || name < unknown)) {
        unknown = name;
      }
    }
    if (unknown.empty()) return;
    std::string all;
    for (const std::string_view name : known) {
      all += (all.empty() ? "" : ", ") + std::string(name);
    }
    Fail(where.empty() ? unknown : where + "." + unknown,
         "no such field is known, there are: " + all);
  }

  const Struct& Object(const Value& value, const std::string& where) {
    if (!value.has_struct_value()) Fail(where, "it must be an object");
    return value.struct_value();
  }

  // "1.5s". Null: `absent`.
  nanoseconds Duration(const Value* value, const std::string& where,
                       nanoseconds absent) {
    if (value == nullptr) return absent;
    const std::string& text = value->string_value();
    double seconds = -1;
    if (!text.empty() && text.back() == 's') {
      const char* const end = text.data() + text.size() - 1;
      const auto parsed = std::from_chars(text.data(), end, seconds);
      if (parsed.ec != std::errc() || parsed.ptr != end) seconds = -1;
    }
    // Three hundred years are 9.5e9 s.
    if (!(seconds >= 0 && seconds < 9e9)) {
      Fail(where, "it must be seconds such as \"0.25s\"");
      return absent;
    }
    return nanoseconds(static_cast<std::int64_t>(std::round(seconds * 1e9)));
  }

  double Number(const Value* value, const std::string& where, double absent) {
    if (value == nullptr) return absent;
    if (value->kind_case() != Value::kNumberValue) {
      Fail(where, "it must be a number");
    }
    return value->number_value();
  }

  std::size_t Attempts(const Value* value, const std::string& where) {
    if (value == nullptr) Fail(where, "it is missing");
    const double attempts = Number(value, where, 0);
    if (!(attempts >= 2 && attempts <= 100) ||
        attempts != std::floor(attempts)) {
      Fail(where, "it must be a whole number from 2 to 100");
      return 2;
    }
    return static_cast<std::size_t>(attempts);
  }

  // All of our statuses that are one of gRPC's codes in the list.
  std::vector<int> Statuses(const Value* value, const std::string& where) {
    std::vector<int> statuses;
    if (value == nullptr) return statuses;
    if (!value->has_list_value()) Fail(where, "it must be a list");
    for (const Value& name : value->list_value().values()) {
      const std::optional<GrpcCode> code = Code(name);
      if (!code) {
        Fail(where,
             "each must be a code of gRPC, such as \"UNAVAILABLE\" or 14");
        continue;
      }
      const int exact = StatusFromGrpc(*code);
      statuses.push_back(exact);
      for (int ours = 1; ours <= STATUS_RESERVED_MAX; ++ours) {
        if (ours != exact && GrpcFromStatus(ours) == *code &&
            StatusName(ours) != "STATUS_UNKNOWN") {
          statuses.push_back(ours);
        }
      }
    }
    return statuses;
  }

  static std::optional<GrpcCode> Code(const Value& value) {
    for (int number = 1; number <= 16; ++number) {
      const auto code = static_cast<GrpcCode>(number);
      if (value.kind_case() == Value::kNumberValue
              ? value.number_value() == number
              : value.string_value() == GrpcCodeName(code)) {
        return code;
      }
    }
    return std::nullopt;
  }

  std::string Name(const Value& value, const std::string& where) {
    const Struct& name = Object(value, where);
    CheckFields(name, where, {"service", "method"});
    const auto text = [&](const char* field) -> std::string {
      const Value* const part = Field(name, field);
      if (part == nullptr) return {};
      if (part->kind_case() != Value::kStringValue) {
        Fail(where + "." + field, "it must be a string");
      }
      return part->string_value();
    };
    const std::string service = text("service");
    const std::string method = text("method");
    if (service.empty() && !method.empty()) {
      Fail(where, "a method needs its service");
    }
    return method.empty() ? service : service + "." + method;
  }

  RetryPolicy Retry(const Value& value, const std::string& where) {
    const Struct& object = Object(value, where);
    CheckFields(
        object, where,
        {"maxAttempts", "initialBackoff", "maxBackoff", "backoffMultiplier",
         "retryableStatusCodes", "perAttemptRecvTimeout"});
    RetryPolicy policy;
    policy.max_attempts =
        Attempts(Field(object, "maxAttempts"), where + ".maxAttempts");
    policy.initial_backoff =
        Duration(Field(object, "initialBackoff"), where + ".initialBackoff",
                 policy.initial_backoff);
    policy.max_backoff = Duration(Field(object, "maxBackoff"),
                                  where + ".maxBackoff", policy.max_backoff);
    policy.multiplier = Number(Field(object, "backoffMultiplier"),
                               where + ".backoffMultiplier", policy.multiplier);
    policy.statuses = Statuses(Field(object, "retryableStatusCodes"),
                               where + ".retryableStatusCodes");
    policy.attempt_timeout =
        Duration(Field(object, "perAttemptRecvTimeout"),
                 where + ".perAttemptRecvTimeout", policy.attempt_timeout);
    return policy;
  }

  HedgingPolicy Hedging(const Value& value, const std::string& where) {
    const Struct& object = Object(value, where);
    CheckFields(object, where,
                {"maxAttempts", "hedgingDelay", "hedgingPercentile",
                 "nonFatalStatusCodes"});
    HedgingPolicy policy;
    policy.max_attempts =
        Attempts(Field(object, "maxAttempts"), where + ".maxAttempts");
    policy.delay = Duration(Field(object, "hedgingDelay"),
                            where + ".hedgingDelay", policy.delay);
    policy.percentile = Number(Field(object, "hedgingPercentile"),
                               where + ".hedgingPercentile", policy.percentile);
    policy.non_fatal_statuses = Statuses(Field(object, "nonFatalStatusCodes"),
                                         where + ".nonFatalStatusCodes");
    return policy;
  }

  void ReadMethodConfig(const Value& value, const std::string& where,
                        std::vector<ServiceConfigEntry>* entries) {
    const Struct& object = Object(value, where);
    CheckFields(
        object, where,
        {"name", "timeout", "waitForReady", "retryPolicy", "hedgingPolicy"});
    CallPolicy policy;
    if (const Value* const timeout = Field(object, "timeout")) {
      policy.timeout = Duration(timeout, where + ".timeout", nanoseconds(0));
    }
    if (const Value* const wait = Field(object, "waitForReady")) {
      if (wait->kind_case() != Value::kBoolValue) {
        Fail(where + ".waitForReady", "it must be true or false");
      }
      policy.wait_for_ready = wait->bool_value();
    }
    if (const Value* const retry = Field(object, "retryPolicy")) {
      policy.retry = Retry(*retry, where + ".retryPolicy");
    }
    if (const Value* const hedging = Field(object, "hedgingPolicy")) {
      policy.hedging = Hedging(*hedging, where + ".hedgingPolicy");
    }
    const Value* const names = Field(object, "name");
    if (names == nullptr || names->list_value().values().empty()) {
      Fail(where + ".name",
           "it must be a list such as [{\"service\": \"package.Service\", "
           "\"method\": \"Method\"}]; [{}] are all methods");
    }
    if (!error_.ok()) return;
    for (int i = 0; i != names->list_value().values_size(); ++i) {
      const std::string at = where + ".name[" + std::to_string(i) + "]";
      entries->push_back({Name(names->list_value().values(i), at), at, policy});
    }
  }

  flare::Status error_;
};

}  // namespace

Expected<std::vector<ServiceConfigEntry>, flare::Status> ReadServiceConfig(
    const std::string& json) {
  Struct config;
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(json, &config);
  if (!parsed.ok()) {
    return flare::Status(EINVAL, "no JSON object: " + parsed.ToString());
  }
  std::vector<ServiceConfigEntry> entries;
  flare::Status read = ConfigReader().Read(config, &entries);
  if (!read.ok()) return read;
  return entries;
}

}  // namespace flare::rpc
