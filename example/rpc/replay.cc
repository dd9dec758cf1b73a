#include "example/rpc/replay.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "flare/base/string.h"
#include "glog/logging.h"

namespace example {
namespace {

using flare::RecordedCall;
using flare::Status;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptorProto;
using google::protobuf::MethodDescriptor;

// Recorded calls would belong to traces that are over.
constexpr std::string_view kHeadersOfTraces[] = {
    "traceparent", "tracestate",        "b3",           "x-b3-traceid",
    "x-b3-spanid", "x-b3-parentspanid", "x-b3-sampled", "x-b3-flags"};

Status BadCall(const RecordedCall& call, const std::string& why) {
  return Status(EINVAL, "the recorded call of " + flare::OneLine(call.method) +
                            " can't be sent: " + why);
}

// Nothing but the names of a service and its methods, which is all that binary
// messages need. Null: they are no names.
std::unique_ptr<DescriptorPool> DescribeNames(
    const std::string& service, const std::set<std::string>& methods) {
  FileDescriptorProto file;
  file.set_name("recorded.proto");
  const std::size_t dot = service.rfind('.');
  if (dot != service.npos) file.set_package(service.substr(0, dot));
  file.add_message_type()->set_name("RecordedMessage");  // Never looked at.
  auto* const added = file.add_service();
  added->set_name(dot == service.npos ? service : service.substr(dot + 1));
  for (const std::string& name : methods) {
    auto* const method = added->add_method();
    method->set_name(name);
    method->set_input_type("RecordedMessage");
    method->set_output_type("RecordedMessage");
  }
  auto pool = std::make_unique<DescriptorPool>();
  return pool->BuildFile(file) != nullptr ? std::move(pool) : nullptr;
}

std::string ServiceOf(const RecordedCall& call) {
  const std::size_t dot = call.method.rfind('.');
  return dot == call.method.npos ? "" : call.method.substr(0, dot);
}

}  // namespace

class Replay::Maker {
 public:
  // Moves the bytes out of `calls`.
  Maker(std::vector<RecordedCall>* calls, const ReplayOptions& options)
      : calls_(*calls), options_(options) {}

  Status Make(Replay* replay) {
    if (calls_.empty()) {
      return Status(EINVAL, "no recorded call is of the methods asked for");
    }
    if (options_.describe == nullptr) {
      if (Status named = NameServices(replay); !named.ok()) return named;
    }
    for (RecordedCall& call : calls_) {
      Item item;
      Status made = options_.describe == nullptr
                        ? FindByName(*replay, call, &item)
                        : Describe(replay, call, &item);
      if (!made.ok()) return made;
      FillIn(&call, &item);
      replay->longest_timeout_ =
          std::max(replay->longest_timeout_, item.timeout);
      replay->items_.push_back(std::move(item));
    }
    Warn();
    return {};
  }

 private:
  Status NameServices(Replay* replay) {
    std::map<std::string, std::set<std::string>> services;
    for (const RecordedCall& call : calls_) {
      services[ServiceOf(call)].insert(
          call.method.substr(call.method.rfind('.') + 1));
    }
    for (const auto& [service, methods] : services) {
      auto pool = DescribeNames(service, methods);
      if (pool == nullptr) {
        return Status(EINVAL, '"' + flare::OneLine(service) +
                                  "\", which is recorded, names no service");
      }
      replay->pools_.emplace(service, std::move(pool));
    }
    return {};
  }

  Status FindByName(const Replay& replay, const RecordedCall& call,
                    Item* item) {
    item->method =
        replay.pools_.at(ServiceOf(call))->FindMethodByName(call.method);
    return item->method != nullptr ? Status()
                                   : BadCall(call, "that names no method");
  }

  Status Describe(Replay* replay, const RecordedCall& call, Item* item) {
    auto& source = replay->sources_[ServiceOf(call)];
    if (source == nullptr) {
      auto made = options_.describe(call.method);
      if (!made) return made.error();
      source = *std::move(made);
    }
    const auto method = source->FindMethod(call.method);
    if (!method) return BadCall(call, method.error().message());
    item->method = *method;
    item->source = source.get();
    const auto message = source->NewMessage((*method)->input_type());
    if (message->ParsePartialFromString(call.request)) return {};
    return BadCall(call,
                   "its request is no " + (*method)->input_type()->full_name());
  }

  void FillIn(RecordedCall* call, Item* item) {
    item->request = flare::MakeForeignBuffer(std::move(call->request));
    if (options_.attachments) {
      item->attachment = flare::MakeForeignBuffer(std::move(call->attachment));
    } else if (!call->attachment.empty()) {
      ++attachments_left_out_;
    }
    AddMetadata(*call, &item->metadata);
    if (options_.timeout) {
      item->timeout = *options_.timeout;
    } else if (call->timeout_ns > 0) {
      item->timeout = std::chrono::nanoseconds(call->timeout_ns);
    } else {
      item->timeout = options_.default_timeout;
    }
    item->received_unix_ns = call->received_unix_ns;
    item->status = call->status;
    if (!options_.compare_replies || !call->reply) return;
    item->reply = std::move(call->reply);
    if (!options_.attachments) item->reply->attachment.clear();
  }

  void AddMetadata(const RecordedCall& call, flare::Metadata* metadata) {
    for (const auto& [name, value] : call.metadata) {
      if (std::find(std::begin(kHeadersOfTraces), std::end(kHeadersOfTraces),
                    name) != std::end(kHeadersOfTraces) ||
          options_.more_metadata.Contains(name)) {
        continue;
      }
      if (!options_.metadata || !metadata->Add(name, value).ok()) {
        ++entries_left_out_;
      }
    }
    for (const auto& [name, value] : options_.more_metadata) {
      if (!metadata->Add(name, value).ok()) ++entries_left_out_;
    }
    for (const std::string& name : call.left_out) {
      if (!options_.more_metadata.Contains(name)) secrets_.insert(name);
    }
  }

  void Warn() const {
    if (attachments_left_out_ != 0) {
      LOG(WARNING) << flare::CountOf(attachments_left_out_, "call")
                   << " will be sent without their attachments, which the "
                      "protocol doesn't carry.";
    }
    if (entries_left_out_ != 0) {
      LOG(WARNING) << flare::CountOf(entries_left_out_, "recorded entry")
                   << " of metadata can't be sent.";
    }
    for (const std::string& name : secrets_) {
      LOG(WARNING) << "Calls had the metadata " << flare::OneLine(name)
                   << ", which wasn't recorded; -H sends one.";
    }
  }

  std::vector<RecordedCall>& calls_;
  const ReplayOptions& options_;
  std::size_t attachments_left_out_ = 0;
  std::size_t entries_left_out_ = 0;
  std::set<std::string> secrets_;
};

flare::Expected<std::shared_ptr<const Replay>, Status> Replay::Make(
    std::vector<RecordedCall> calls, const ReplayOptions& options) {
  std::shared_ptr<Replay> replay(new Replay());
  if (Status made = Maker(&calls, options).Make(replay.get()); !made.ok()) {
    return made;
  }
  return std::shared_ptr<const Replay>(std::move(replay));
}

double NsBetween(const RecordedCall& first, const RecordedCall& later) {
  // Unsigned: a signed difference of any two times may overflow.
  return static_cast<double>(
      static_cast<std::uint64_t>(later.received_unix_ns) -
      static_cast<std::uint64_t>(first.received_unix_ns));
}

std::vector<RecordedPace> PacesOf(const std::vector<RecordedCall>& calls,
                                  double speed, std::size_t targets) {
  std::vector<RecordedPace> paces(targets);
  std::int64_t last = 0;
  for (std::size_t i = 0; i != calls.size(); ++i) {
    const double ns = NsBetween(calls.front(), calls[i]);
    // A recording of a century would be damaged.
    last = static_cast<std::int64_t>(std::min(ns / speed, 4e18));
    paces[i % targets].offsets_ns.push_back(last);
  }
  // The first of the next pass follows the last one as these did on average.
  const auto gaps = static_cast<std::int64_t>(calls.size()) - 1;
  const std::int64_t gap = gaps == 0 ? 1'000'000'000 : last / gaps;
  for (RecordedPace& pace : paces) {
    pace.period_ns = last + std::max<std::int64_t>(gap, 1);
  }
  return paces;
}

flare::Histogram LatenciesOf(const std::vector<RecordedCall>& calls) {
  flare::Histogram latencies;
  for (const RecordedCall& call : calls) {
    if (call.status == 0) {
      latencies.Record(std::max<std::int64_t>(call.latency_ns, 0));
    }
  }
  return latencies;
}

}  // namespace example
