#include "flare/rpc/services/etcd_resolver.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/base/string.h"
#include "flare/fiber/execution_context.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/naming/list_resolution.h"
#include "flare/rpc/naming/refresh_gate.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"
#include "rpc/services/etcd.flare.pb.h"

namespace flare {
namespace {

using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using rpc::ListEntries;

constexpr std::int64_t kMaxServers = 4096;
constexpr std::int64_t kAskEveryNs = kNsPerSecond;
constexpr auto kTimeout = std::chrono::seconds(1);

// The first key behind those that begin with `prefix`, which isn't empty.
std::string EndOf(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');  // All that follow.
  prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

flare::Status Invalid(std::string text) {
  return flare::Status(rpc::STATUS_INVALID_CHANNEL, std::move(text));
}

class EtcdResolution final : public rpc::ListResolution {
 public:
  // Asks nothing yet; look at status().
  EtcdResolution(const std::string& hosts, std::string prefix)
      : ListResolution({}, {}), prefix_(std::move(prefix)) {
    request_.set_key(prefix_);
    request_.set_range_end(EndOf(prefix_));
    request_.set_limit(kMaxServers);
    channel_.Open("grpc://" + hosts);
  }

  bool IsStatic() const override { return false; }
  const flare::Status& status() const { return channel_.status(); }

  void AskFirst() {
    names_due_ns_ = NowNs() + IntervalNs();
    Ask([](const std::string& name) {
      return std::optional<rpc::LookupResult>(rpc::LookUpHost(name));
    });
  }

 private:
  void Refresh() override {
    Ask([](const std::string& name) {
      return rpc::RefreshGate::Instance()->Ask(
          [name] { return rpc::LookUpHost(name); });
    });
    if (NowNs() < names_due_ns_) return;
    names_due_ns_ = NowNs() + IntervalNs();
    static_cast<void>(RefreshNames());
  }

  // `look_up` returns nothing if it is to be given up, and then so does this.
  template <class F>
  void Ask(const F& look_up) {
    RefreshAfter(std::min(kAskEveryNs, IntervalNs()));
    RpcClientController controller;
    controller.SetTimeout(kTimeout);
    std::optional<Expected<RangeResponse, flare::Status>> reply;
    // A call that occasions this may have a deadline, which isn't etcd's.
    fiber::ExecutionContext::Create()->Execute(
        [&] { reply.emplace(stub_.Range(request_, &controller)); });
    if (!*reply) {
      return SetState(Invalid("etcd can't be asked for \"" + prefix_ +
                              "\": " + reply->error().ToString()));
    }
    const auto entries = Read(**reply, look_up);
    if (!entries) return;
    // As others do: servers that were known stay if none is found.
    if (!entries->empty()) SetEntries(*entries);
    SetState(mistake_);
  }

  // A value that can't be read has no server, but doesn't take the others away.
  template <class F>
  std::optional<ListEntries> Read(const RangeResponse& reply,
                                  const F& look_up) {
    ListEntries read;
    mistake_ = {};
    if (reply.more()) {
      mistake_ = Invalid("etcd has " + std::to_string(reply.count()) +
                         " keys below \"" + prefix_ + "\"; the first " +
                         std::to_string(kMaxServers) + " are used");
    }
    for (const auto& pair : reply.kvs()) {
      auto entry = rpc::ReadListEntry(Trim(pair.value()));
      flare::Status state = entry ? flare::Status() : entry.error();
      const auto old = entry ? std::find_if(entries().begin(), entries().end(),
                                            [&](const rpc::ListEntry& e) {
                                              return e.name == entry->name;
                                            })
                             : entries().end();
      if (old != entries().end()) {
        entry->endpoints = old->endpoints;
        entry->unknown = old->unknown;
      } else if (entry && !entry->literal) {
        auto found = look_up(entry->name);
        if (!found) return std::nullopt;
        state = rpc::FillIn(*std::move(found), &*entry);
      }
      if (state.ok()) {
        read.push_back(*std::move(entry));
      } else {
        mistake_ =
            Invalid("etcd's key \"" + pair.key() + "\": " + state.message());
      }
    }
    if (read.empty() && mistake_.ok()) {
      mistake_ = Invalid("etcd has no server below \"" + prefix_ + "\"");
    }
    return read;
  }

  void SetState(const flare::Status& state) {
    if (state.message() == state_.message()) return;
    state_ = state;
    if (state.ok()) {
      LOG(INFO) << "the servers below \"" << prefix_ << "\" are known again";
    } else {
      LOG(WARNING) << state.message();
    }
    SetSourceFailure(state);
  }

  const std::string prefix_;
  RangeRequest request_;
  RpcChannel channel_;
  const etcdserverpb::KV_SyncStub stub_{&channel_};
  // Of refreshes.
  flare::Status mistake_;  // In the last reply.
  flare::Status state_;    // Or why there was none.
  std::int64_t names_due_ns_ = 0;
};

rpc::Resolution ResolveEtcd(std::string_view address) {
  const auto slash = address.find('/');
  if (slash == 0 || slash == std::string_view::npos ||
      slash + 1 == address.size()) {
    return Invalid("\"" + std::string(address) +
                   "\" isn't etcd's addresses and the beginning of keys, as in "
                   "10.0.0.1:2379,10.0.0.2:2379/services/echo/");
  }
  auto resolution =
      std::make_shared<EtcdResolution>(std::string(address.substr(0, slash)),
                                       std::string(address.substr(slash)));
  if (!resolution->status().ok()) return resolution->status();
  resolution->AskFirst();
  return std::shared_ptr<rpc::NameResolution>(std::move(resolution));
}

}  // namespace

bool RegisterEtcdResolver() {
  return rpc::RegisterNameResolver("etcd", ResolveEtcd);
}

}  // namespace flare
