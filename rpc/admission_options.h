// Rules by which a server refuses calls before its queues get long
// (docs/admission.md). A plain value: Server::Options::admission.
#ifndef FLARE_RPC_ADMISSION_OPTIONS_H_
#define FLARE_RPC_ADMISSION_OPTIONS_H_

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace flare {

struct AdmissionOptions {
  enum class Mode {
    kOff,
    kCount,   // Counts the calls that it would refuse, and refuses none.
    kRefuse,  // Refuses them, with rpc::STATUS_OVERLOADED.
  };

  // An adaptive limit of the server's queued and running calls: it falls while
  // calls take longer than with few of them, and grows otherwise. Streams
  // aren't counted.
  Mode limit = Mode::kOff;
  // An adaptive limit of each method's running calls, by the time that they
  // run.
  Mode method_limits = Mode::kOff;
  // After an interval in which no call has waited for less than the target,
  // calls that have waited for more than twice the target are refused, until
  // most wait for less than it.
  Mode queue = Mode::kOff;
  std::chrono::nanoseconds queue_target = std::chrono::milliseconds(5);
  std::chrono::nanoseconds queue_interval = std::chrono::milliseconds(100);
  // Calls are refused if their callers wait for less time than the method has
  // taken lately.
  Mode late = Mode::kOff;
  // The name, in lower case, of the metadata entry with a call's priority:
  // "critical", "default" or "sheddable", or 0 to 9. Limits and the queue
  // refuse the lowest first. Empty: all calls are equal.
  std::string priority_key = {};

  bool AnyIsOn() const {
    return limit != Mode::kOff || method_limits != Mode::kOff ||
           queue != Mode::kOff || late != Mode::kOff;
  }
};

// "off", "count" or "refuse"; nullopt: something else.
constexpr std::optional<AdmissionOptions::Mode> ParseAdmissionMode(
    std::string_view text) {
  if (text == "off") return AdmissionOptions::Mode::kOff;
  if (text == "count") return AdmissionOptions::Mode::kCount;
  if (text == "refuse") return AdmissionOptions::Mode::kRefuse;
  return std::nullopt;
}

}  // namespace flare

#endif  // FLARE_RPC_ADMISSION_OPTIONS_H_
