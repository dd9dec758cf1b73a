#include "flare/rpc/naming/list_resolution.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "flare/base/spinlock.h"
#include "flare/base/string.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/io/resolver.h"
#include "flare/rpc/naming/refresh_gate.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

flare::Status InvalidServer(std::string text) {
  return flare::Status(STATUS_INVALID_CHANNEL, std::move(text));
}

using HostLookupFunction = std::function<LookupResult(std::string_view)>;

ThreadMutex lookup_mutex;
HostLookupFunction* other_lookup FLARE_GUARDED_BY(lookup_mutex) = nullptr;

LookupResult LookUpAll(std::string_view name) {
  HostLookupFunction lookup;
  {
    ScopedLock lock(lookup_mutex);
    if (other_lookup != nullptr) lookup = *other_lookup;
  }
  return lookup ? lookup(name) : io::Resolve(name);
}

std::optional<std::uint32_t> ReadWeight(std::string_view text) {
  std::uint16_t weight = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return weight;
}

// "weight=3", "zone=a" or "tag.env=new". `seen` has the names before this one.
flare::Status ReadAttribute(std::string_view text,
                            std::set<std::string_view>* seen,
                            ListEntry* entry) {
  constexpr std::string_view kTag = "tag.";
  const std::size_t mark = text.find('=');
  const std::string_view name = Trim(text.substr(0, mark));
  const std::string value(
      mark == std::string_view::npos ? "" : Trim(text.substr(mark + 1)));
  if (!seen->insert(name).second) {
    return InvalidServer("\"" + std::string(name) + "\" is there twice");
  }
  if (name == "weight") {
    const std::optional<std::uint32_t> weight = ReadWeight(value);
    if (!weight) return InvalidServer("its weight isn't from 0 to 65535");
    entry->weight = *weight;
    return {};
  }
  if (value.empty()) {
    return InvalidServer("\"" + std::string(text) + "\" has no value");
  }
  if (name == "zone") {
    entry->zone = value;
    return {};
  }
  if (!name.starts_with(kTag) || name.size() == kTag.size()) {
    return InvalidServer("\"" + std::string(text) +
                         "\" is no weight, zone or tag");
  }
  entry->tags[std::string(name.substr(kTag.size()))] = value;
  return {};
}

flare::Status CheckPorts(const ListEntry& entry) {
  for (const Endpoint& endpoint : entry.endpoints) {
    if (endpoint.family() != AF_UNIX && endpoint.port() == 0) {
      return InvalidServer("server \"" + entry.name + "\" has port 0");
    }
  }
  return {};
}

bool AllLiteral(const ListEntries& entries) {
  return std::all_of(entries.begin(), entries.end(),
                     [](const ListEntry& e) { return e.literal; });
}

// Each address counts once.
std::vector<Peer> PeersOf(const ListEntries& entries) {
  std::vector<Peer> peers;
  for (const ListEntry& entry : entries) {
    for (const Endpoint& endpoint : entry.endpoints) {
      if (std::none_of(peers.begin(), peers.end(),
                       [&](const Peer& p) { return p.endpoint == endpoint; })) {
        peers.push_back(
            {endpoint, entry.name, entry.weight, entry.zone, entry.tags});
      }
    }
  }
  return peers;
}

}  // namespace

// Each address counts as a server, so one without a route would cost a call
// again and again.
LookupResult LookUpHost(std::string_view name) {
  LookupResult found = LookUpAll(name);
  if (found) return io::WithRoute(*std::move(found));
  return found;
}

Expected<ListEntry, flare::Status> ReadListEntry(std::string_view text) {
  ListEntry entry;
  const std::vector<std::string_view> parts =
      Split(text, ';', /*keep_empty=*/true);
  entry.name = std::string(Trim(parts[0]));
  std::set<std::string_view> seen;
  for (std::size_t i = 1; i != parts.size(); ++i) {
    const flare::Status read = ReadAttribute(Trim(parts[i]), &seen, &entry);
    if (!read.ok()) {
      return InvalidServer("server \"" + std::string(Trim(text)) +
                           "\": " + read.message() +
                           ", as in 10.0.0.1:5567;weight=3;zone=a;tag.env=new");
    }
  }
  if (auto endpoint = EndpointFromString(entry.name)) {
    entry.literal = true;
    entry.endpoints.push_back(*std::move(endpoint));
  }
  if (const flare::Status ports = CheckPorts(entry); !ports.ok()) return ports;
  return entry;
}

flare::Status FillIn(LookupResult found, ListEntry* entry) {
  if (found) {
    entry->endpoints = *std::move(found);
    entry->unknown = {};
    return CheckPorts(*entry);
  }
  entry->unknown = InvalidServer(
      "server \"" + entry->name +
      "\" is no address and can't be resolved: " + found.error().message());
  // Else it may be known later.
  return found.error().code() == EINVAL ? entry->unknown : flare::Status();
}

ListResolution::ListResolution(ListEntries entries,
                               const UpdateInterval& interval)
    : BackgroundResolution(interval),
      all_literal_(AllLiteral(entries)),
      entries_(std::move(entries)) {
  RefreshAfter(all_literal_ ? std::numeric_limits<std::int64_t>::max()
                            : IntervalNs());
  Publish();
}

void ListResolution::SetEntries(ListEntries entries) {
  entries_ = std::move(entries);
  Publish();
}

void ListResolution::SetSourceFailure(flare::Status failure) {
  source_failure_ = std::move(failure);
  Publish();
}

void ListResolution::Publish() {
  Set(PeersOf(entries_));
  flare::Status failure = source_failure_;
  for (const ListEntry& entry : entries_) {
    if (failure.ok()) failure = entry.unknown;
  }
  static_cast<void>(SetFailure(std::move(failure)));
}

bool ListResolution::RefreshNames() {
  for (ListEntry& entry : entries_) {
    if (entry.literal) continue;
    auto answer = RefreshGate::Instance()->Ask(
        [name = entry.name] { return LookUpHost(name); });
    if (!answer) return false;
    if (!*answer) {
      LOG(WARNING) << "server \"" << entry.name << "\" can't be resolved now"
                   << (entry.endpoints.empty()
                           ? ": "
                           : ", its old addresses stay in use: ")
                   << answer->error().message();
    }
    static_cast<void>(FillIn(*std::move(answer), &entry));
    Publish();
  }
  return true;
}

Resolution ResolveList(std::string_view address,
                       std::shared_ptr<NameResolution>* later,
                       const UpdateInterval& interval) {
  ListEntries entries;
  flare::Status unknown;
  for (std::string_view text : Split(address, ',', /*keep_empty=*/true)) {
    auto entry = ReadListEntry(text);
    if (!entry) return entry.error();
    if (entry->name.empty()) {
      return InvalidServer("there is an empty server in the list \"" +
                           std::string(address) + '"');
    }
    if (!entry->literal) {
      const flare::Status read = FillIn(LookUpHost(entry->name), &*entry);
      if (!read.ok()) return read;
    }
    if (unknown.ok()) unknown = entry->unknown;
    entries.push_back(*std::move(entry));
  }
  std::shared_ptr<NameResolution> resolution =
      std::make_shared<ListResolution>(std::move(entries), interval);
  if (unknown.ok()) return resolution;
  if (later != nullptr) *later = std::move(resolution);
  return unknown;
}

void SetHostLookup(HostLookupFunction lookup) {
  ScopedLock guard(lookup_mutex);
  delete std::exchange(
      other_lookup,
      lookup ? new HostLookupFunction(std::move(lookup)) : nullptr);
}

}  // namespace flare::rpc
