#include "flare/rpc/services/etcd_resolver.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/base/string.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/name_resolver.h"
#include "flare/rpc/naming/list_resolution.h"
#include "flare/rpc/naming/refresh_gate.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/services/etcd_client.h"
#include "flare/rpc/services/etcd_place.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "glog/logging.h"
#include "rpc/services/etcd.flare.pb.h"
#include "rpc/services/etcd_server.flare.pb.h"

namespace flare {
namespace {

constexpr std::int64_t kMaxServers = 4096;
constexpr std::int64_t kMaxPauseNs = 3 * kNsPerSecond;
// A watch without news begins again after this time, which shows whether etcd
// is there.
constexpr std::int64_t kWatchForNs = 5 * kNsPerSecond;
constexpr std::int64_t kShortestWatchNs = kNsPerSecond / 10;

// The first key after all keys that begin with `prefix`.
std::string EndOf(std::string prefix) {
  while (!prefix.empty() && prefix.back() == '\xff') prefix.pop_back();
  if (prefix.empty()) return std::string(1, '\0');  // All that follow.
  prefix.back() = static_cast<char>(prefix.back() + 1);
  return prefix;
}

// Reads a value, in JSON or as in a list. `name` is its key without the prefix.
Expected<rpc::ListEntry, flare::Status> ReadValue(std::string_view name,
                                                  std::string_view value) {
  value = Trim(value);
  if (!value.starts_with('{')) return rpc::ReadListEntry(value);
  etcd::Server server;
  const auto parsed =
      google::protobuf::util::JsonStringToMessage(std::string(value), &server);
  if (!parsed.ok()) {
    return EtcdError(
        "the JSON isn't that of a server, as in {\"address\": "
        "\"10.0.0.1:5567\", \"weight\": 2, \"zone\": \"a\", "
        "\"tags\": {\"env\": \"new\"}}: " +
        std::string(parsed.message()));
  }
  auto entry =
      rpc::ReadListEntry(server.address().empty() ? name : server.address());
  if (!entry) return entry;
  if (server.has_weight()) entry->weight = server.weight();
  if (entry->weight > rpc::kMaxWeight) {
    return EtcdError("its weight isn't from 0 to 65535");
  }
  if (!server.zone().empty()) entry->zone = server.zone();
  for (const auto& [tag, its] : server.tags()) entry->tags[tag] = its;
  return entry;
}

// Returns nothing if the caller should give up.
using LookUp =
    std::optional<rpc::LookupResult> (*)(const std::string& host_and_port);

std::optional<rpc::LookupResult> LookUpHere(const std::string& name) {
  return rpc::LookUpHost(name);
}

std::optional<rpc::LookupResult> LookUpAside(const std::string& name) {
  return rpc::RefreshGate::Instance()->Ask(
      [name] { return rpc::LookUpHost(name); });
}

// The servers below a prefix. A refresh reads the list and then watches it, as
// long as etcd answers and nobody calls Stop(). After a failure the first call
// after a pause begins the next refresh.
class EtcdServers final : public rpc::ListResolution {
 public:
  // Doesn't contact etcd. Look at status() for mistakes in the arguments.
  EtcdServers(const EtcdPlace& place, const EtcdResolverOptions& options)
      : ListResolution({}, {}),
        prefix_(place.prefix),
        end_(EndOf(place.prefix)),
        client_(place, options.tls, options.user) {}

  bool IsStatic() const override { return false; }
  const flare::Status& status() const { return client_.status(); }

  // Before any refresh.
  void AskFirst() { RefreshAfter(List(LookUpHere) ? 0 : pauses_.NextNs()); }

  // Ends the watch for good. Any thread; doesn't block.
  void Stop() { stop_.request_stop(); }

 private:
  enum class Watched {
    kNothing,  // For a while.
    kGap,      // The list must be read again.
    kFailed,
  };

  void Refresh() override {
    RefreshAfter(std::numeric_limits<std::int64_t>::max());
    int gaps = 0;
    while (!stop_.stop_requested()) {
      if (!listed_ && !List(LookUpAside)) break;
      const Watched watched = Watch(/*again=*/gaps != 0);
      listed_ = watched == Watched::kNothing;
      // One gap after the other may be a member that is behind: it needs time.
      gaps = watched == Watched::kGap ? gaps + 1 : 0;
      if (watched == Watched::kFailed || gaps > 1) break;
      if (NowNs() < names_due_ns_) continue;
      names_due_ns_ = NowNs() + IntervalNs();
      if (!RefreshNames()) break;
    }
    RefreshAfter(pauses_.NextNs());
  }

  // Reads the whole list. False: etcd doesn't tell.
  bool List(LookUp look_up) {
    etcdserverpb::RangeRequest request;
    request.set_key(prefix_);
    request.set_range_end(end_);
    request.set_limit(kMaxServers);
    const auto reply =
        client_.Call(stop_.get_token(), [&](RpcClientController* controller) {
          return etcdserverpb::KV_SyncStub(client_.channel())
              .Range(request, controller);
        });
    if (!reply) {
      Fail("etcd can't be asked for \"" + prefix_ +
           "\": " + reply.error().ToString());
      return false;
    }
    values_.clear();
    for (const auto& pair : reply->kvs()) values_[pair.key()] = pair.value();
    count_ = reply->more() ? reply->count() : reply->kvs_size();
    next_revision_ = SaturatingAdd(reply->header().revision(), 1);
    names_due_ns_ = NowNs() + IntervalNs();
    listed_ = true;
    UseValues(look_up);
    return true;
  }

  // Follows changes from next_revision_ on. `again`: after a gap.
  Watched Watch(bool again) {
    if (const flare::Status status = client_.LogIn(stop_.get_token());
        !status.ok()) {
      return FailWatch(status.ToString());
    }
    RpcClientController controller;
    controller.SetTimeout(std::chrono::hours(24));
    client_.AddToken(&controller);
    auto [reader, writer] =
        etcdserverpb::Watch_SyncStub(client_.channel()).Watch_(&controller);
    // At once, if it has been requested.
    const std::stop_callback cancel(
        stop_.get_token(), [&controller] { controller.StartCancel(); });
    etcdserverpb::WatchRequest request;
    auto* const create = request.mutable_create_request();
    create->set_key(prefix_);
    create->set_range_end(end_);
    create->set_start_revision(next_revision_);
    static_cast<void>(writer.Write(request));
    reader.SetExpiration(kEtcdTimeout);
    etcdserverpb::WatchResponse response;
    bool answered = false;
    while (reader.Read(&response)) {
      answered = true;
      if (response.compact_revision() != 0) return Watched::kGap;
      if (response.canceled()) {
        // etcd 3.4 says "permission denied" of tokens that it doesn't know. If
        // the next token doesn't help, it is the user that it denies.
        return !again && client_.ForgetToken()
                   ? Watched::kGap
                   : FailWatch(response.cancel_reason());
      }
      // etcd may have another history, or this member be behind the others.
      if (response.header().revision() < next_revision_ - 1) {
        return Watched::kGap;
      }
      if (response.events_size() != 0 && !Take(response)) return Watched::kGap;
      pauses_.Reset();
      reader.SetExpiration(std::chrono::nanoseconds(TermNs()));
    }
    if (reader.error() != StreamError::Timeout) {
      if (!again && client_.ForgetToken(reader.status())) return Watched::kGap;
      return FailWatch(reader.status().ok() ? "the watch has ended"
                                            : reader.status().ToString());
    }
    return answered ? Watched::kNothing : FailWatch("no answer in time");
  }

  // False: the list must be read again.
  bool Take(const etcdserverpb::WatchResponse& response) {
    // A change may bring other keys among the first ones.
    if (count_ > kMaxServers) return false;
    for (const auto& event : response.events()) {
      if (event.type() == etcdserverpb::Event::DELETE) {
        values_.erase(event.kv().key());
      } else {
        values_[event.kv().key()] = event.kv().value();
      }
      next_revision_ =
          std::max(next_revision_, SaturatingAdd(event.kv().mod_revision(), 1));
    }
    count_ = static_cast<std::int64_t>(values_.size());
    if (count_ > kMaxServers) return false;
    UseValues(LookUpAside);
    return true;
  }

  // How long a watch goes on without changes.
  std::int64_t TermNs() const {
    const bool literal =
        std::all_of(entries().begin(), entries().end(),
                    [](const rpc::ListEntry& e) { return e.literal; });
    if (literal) return kWatchForNs;
    return std::clamp(names_due_ns_ - NowNs(), kShortestWatchNs, kWatchForNs);
  }

  // Makes servers of the values. One that can't be read has no effect on the
  // others.
  void UseValues(LookUp look_up) {
    rpc::ListEntries read;
    flare::Status mistake;
    if (count_ > kMaxServers) {
      mistake = EtcdError("etcd has " + std::to_string(count_) +
                          " keys below \"" + prefix_ + "\"; the first " +
                          std::to_string(kMaxServers) + " are used");
    }
    std::unordered_map<std::string_view, const rpc::ListEntry*> known;
    for (const rpc::ListEntry& entry : entries()) known[entry.name] = &entry;
    for (const auto& [key, value] : values_) {
      if (!key.starts_with(prefix_)) continue;  // It wasn't asked for.
      auto entry =
          ReadValue(std::string_view(key).substr(prefix_.size()), value);
      flare::Status state = entry ? flare::Status() : entry.error();
      const auto old = entry ? known.find(entry->name) : known.end();
      if (old != known.end()) {
        entry->endpoints = old->second->endpoints;
        entry->unknown = old->second->unknown;
      } else if (entry && !entry->literal) {
        auto found = look_up(entry->name);
        if (!found) return;
        state = rpc::FillIn(*std::move(found), &*entry);
      }
      if (state.ok()) {
        read.push_back(*std::move(entry));
      } else {
        mistake = EtcdError("etcd's key \"" + key + "\": " + state.message());
      }
    }
    if (read.empty() && mistake.ok()) {
      mistake = EtcdError("etcd has no server below \"" + prefix_ + "\"");
    }
    // Known servers stay if none is found, as with other resolvers.
    if (!read.empty()) SetEntries(std::move(read));
    SetState(mistake);
  }

  Watched FailWatch(const std::string& why) {
    Fail("etcd doesn't tell changes below \"" + prefix_ + "\": " + why);
    return Watched::kFailed;
  }

  void Fail(std::string text) {
    // Otherwise this process has ended the watch itself.
    if (!stop_.stop_requested() && rpc::IsClientSideOpen()) {
      SetState(EtcdError(std::move(text)));
    }
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
  const std::string end_;
  std::stop_source stop_;
  // Used by refreshes.
  EtcdClient client_;
  bool listed_ = false;  // values_ is the state just before next_revision_.
  std::int64_t next_revision_ = 0;
  std::map<std::string, std::string> values_;  // By key.
  std::int64_t count_ = 0;                     // Keys that etcd has.
  EtcdPauses pauses_{kMaxPauseNs};
  flare::Status state_;
  std::int64_t names_due_ns_ = 0;
};

// Ends the watch with the channel.
class EtcdResolution final : public rpc::NameResolution {
 public:
  explicit EtcdResolution(std::shared_ptr<EtcdServers> servers)
      : servers_(std::move(servers)) {}
  ~EtcdResolution() override { servers_->Stop(); }

  std::uint64_t Version() override { return servers_->Version(); }
  std::vector<rpc::Peer> Peers() override { return servers_->Peers(); }
  flare::Status Failure() override { return servers_->Failure(); }

 private:
  const std::shared_ptr<EtcdServers> servers_;
};

rpc::Resolution ResolveEtcd(std::string_view address,
                            const EtcdResolverOptions& options) {
  auto place = ReadEtcdPlace(address);
  if (!place) return place.error();
  place->tls = options.tls.has_value();
  auto servers = std::make_shared<EtcdServers>(*place, options);
  if (!servers->status().ok()) return servers->status();
  servers->AskFirst();
  std::shared_ptr<rpc::NameResolution> resolution =
      std::make_shared<EtcdResolution>(std::move(servers));
  return resolution;
}

}  // namespace

bool RegisterEtcdResolver(const EtcdResolverOptions& options) {
  return rpc::RegisterNameResolver(options.name,
                                   [options](std::string_view address) {
                                     return ResolveEtcd(address, options);
                                   });
}

}  // namespace flare
