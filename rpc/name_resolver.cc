#include "flare/rpc/name_resolver.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/named_registry.h"
#include "flare/base/spinlock.h"
#include "flare/base/string.h"
#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/runtime.h"
#include "flare/fiber/task.h"
#include "flare/io/resolver.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/start/flags.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

flare::Status Invalid(std::string text) {
  return flare::Status(STATUS_INVALID_CHANNEL, std::move(text));
}

using LookupResult = Expected<std::vector<Endpoint>, flare::Status>;

ThreadMutex lookup_mutex;
HostLookup* lookup_for_testing FLARE_GUARDED_BY(lookup_mutex) = nullptr;

LookupResult LookUpAll(std::string_view name) {
  HostLookup lookup;
  {
    ScopedLock lock(lookup_mutex);
    if (lookup_for_testing != nullptr) lookup = *lookup_for_testing;
  }
  return lookup ? lookup(name) : io::Resolve(name);
}

// Each address counts as a server, so one without a route would cost a call
// again and again.
LookupResult LookUp(std::string_view name) {
  LookupResult found = LookUpAll(name);
  if (found) return io::WithRoute(*std::move(found));
  return found;
}

// Refreshes under way in the process, so that the end can wait for them. They
// don't wait for the system's resolver then, which may take half a minute: each
// look-up has a thread of its own and shares what it finds with whoever waits,
// if anybody still does.
//
// `open_` becomes false under mutex_. It becomes true without that, since a
// fiber may be suspended for it, but never during Close() [CP2]: so a refresh
// that has entered finds it false from the next Close() on, which waits until
// the refresh has left.
class RefreshGate {
 public:
  static RefreshGate* Instance() {
    // Never destroyed. Not allocated: the end of a program without memory may
    // be the first to ask.
    alignas(RefreshGate) static std::byte place[sizeof(RefreshGate)];
    static RefreshGate* const gate = ::new (place) RefreshGate();
    return gate;
  }

  // Not while Close() runs. Doesn't block.
  void Open() {
    // relaxed: the caller's lock puts it before or after Close() [CP2].
    open_.store(true, std::memory_order_relaxed);
  }
  bool Enter() {
    ScopedLock guard(mutex_);
    if (!IsOpen()) return false;
    ++running_;
    return true;
  }
  void Leave() {
    ScopedLock guard(mutex_);
    if (--running_ == 0) changed_.notify_all();
  }
  // Unchecked, as Ask(): clang doesn't see that a std::unique_lock locks.
  void Close() FLARE_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock lock(mutex_);
    // relaxed: those that enter, or wait, look at it under mutex_.
    open_.store(false, std::memory_order_relaxed);
    changed_.notify_all();
    changed_.wait(lock, [this]() FLARE_NO_THREAD_SAFETY_ANALYSIS {
      return running_ == 0;
    });
  }

  // Between Enter() and Leave(): looks up `name`. Nothing: the gate is closed,
  // at the beginning or while the look-up takes its time.
  std::optional<LookupResult> Ask(const std::string& name)
      FLARE_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock lock(mutex_);
    if (!IsOpen()) return std::nullopt;
    auto answer = std::make_shared<std::optional<LookupResult>>();
    try {
      std::thread([this, name, answer] {
        LookupResult found = LookUp(name);
        ScopedLock guard(mutex_);
        answer->emplace(std::move(found));
        changed_.notify_all();
      }).detach();
    } catch (const std::system_error& error) {
      return flare::Status(EAGAIN, std::string("no thread: ") + error.what());
    }
    changed_.wait(lock, [&]() FLARE_NO_THREAD_SAFETY_ANALYSIS {
      return answer->has_value() || !IsOpen();
    });
    return std::move(*answer);
  }

 private:
  bool IsOpen() const {
    // relaxed: see Open() and Close().
    return open_.load(std::memory_order_relaxed);
  }

  fiber::Mutex mutex_;
  // Notified when an answer is there, the gate closes, or nothing runs.
  fiber::ConditionVariable changed_;
  std::atomic<bool> open_{true};
  int running_ FLARE_GUARDED_BY(mutex_) = 0;
};

// One piece of the list.
struct Entry {
  std::string name;
  bool literal = false;
  std::uint32_t weight = 1;
  std::vector<Endpoint> endpoints;
  flare::Status unknown;  // Why there are none, if that may change.
};

// "weight=3"; nothing: it is something else.
std::optional<std::uint32_t> ReadWeight(std::string_view text) {
  constexpr std::string_view kName = "weight=";
  if (!text.starts_with(kName)) return std::nullopt;
  text.remove_prefix(kName.size());
  std::uint16_t weight = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), weight);
  if (error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return weight;
}

Expected<Entry, flare::Status> ReadEntry(std::string_view text,
                                         std::string_view whole) {
  Entry entry;
  const std::size_t mark = text.find(';');
  entry.name = std::string(Trim(text.substr(0, mark)));
  if (mark != std::string_view::npos) {
    const std::optional<std::uint32_t> weight =
        ReadWeight(Trim(text.substr(mark + 1)));
    if (!weight) {
      return Invalid("server \"" + std::string(Trim(text)) +
                     "\" may have a number from 0 to 65535 behind it, as in "
                     "10.0.0.1:5567;weight=3, and nothing else");
    }
    entry.weight = *weight;
  }
  if (entry.name.empty()) {
    return Invalid("there is an empty server in the list \"" +
                   std::string(whole) + '"');
  }
  if (auto endpoint = EndpointFromString(entry.name)) {
    entry.literal = true;
    entry.endpoints.push_back(*std::move(endpoint));
  } else {
    auto endpoints = LookUp(entry.name);
    if (!endpoints) {
      flare::Status why = Invalid("server \"" + entry.name +
                                  "\" is no address and can't be resolved: " +
                                  endpoints.error().message());
      if (endpoints.error().code() == EINVAL) return why;  // It can't be read.
      entry.unknown = std::move(why);
      return entry;
    }
    entry.endpoints = *std::move(endpoints);
  }
  for (const Endpoint& endpoint : entry.endpoints) {
    if (endpoint.family() != AF_UNIX && endpoint.port() == 0) {
      return Invalid("server \"" + entry.name + "\" has port 0");
    }
  }
  return entry;
}

class ListResolution final
    : public NameResolution,
      public std::enable_shared_from_this<ListResolution> {
 public:
  using Interval = std::optional<std::chrono::nanoseconds>;

  ListResolution(std::vector<Entry> entries, const Interval& interval)
      : interval_(interval),
        all_literal_(std::all_of(entries.begin(), entries.end(),
                                 [](const Entry& e) { return e.literal; })),
        entries_(std::move(entries)),
        next_refresh_ns_(NowNs() + IntervalNs()) {}

  bool IsStatic() const override { return all_literal_; }

  std::uint64_t Version() override {
    if (!all_literal_) RefreshIfDue();
    // acquire: pairs with the release in Refresh [NR1].
    return version_.load(std::memory_order_acquire);
  }

  std::vector<Peer> Peers() override {
    ScopedLock guard(lock_);
    std::vector<Peer> peers;
    for (const Entry& entry : entries_) {
      for (const Endpoint& endpoint : entry.endpoints) {
        Peer peer{endpoint, entry.name, entry.weight};
        if (std::none_of(peers.begin(), peers.end(), [&](const Peer& p) {
              return p.endpoint == endpoint;
            })) {
          peers.push_back(std::move(peer));
        }
      }
    }
    return peers;
  }

 private:
  std::int64_t IntervalNs() const {
    return ToNs(interval_.value_or(
        ClientDefaultsFromFlags().name_resolver_update_interval));
  }

  void RefreshIfDue() {
    const std::int64_t now = NowNs();
    // relaxed: this only decides who refreshes, and when.
    std::int64_t due = next_refresh_ns_.load(std::memory_order_relaxed);
    if (now < due || !next_refresh_ns_.compare_exchange_strong(
                         due, now + IntervalNs(), std::memory_order_relaxed)) {
      return;
    }
    if (!RefreshGate::Instance()->Enter()) return;
    fiber::Spawn([self = shared_from_this()] {
      self->Refresh();
      RefreshGate::Instance()->Leave();
    });
  }

  void Refresh() {
    // One at a time: a slow look-up isn't followed by a queue of others.
    std::unique_lock refreshing(refresh_mutex_, std::try_to_lock);
    if (!refreshing.owns_lock()) return;
    // `entries_` changes only here, so its names can be read without lock_.
    for (Entry& entry : entries_) {
      if (entry.literal) continue;
      auto answer = RefreshGate::Instance()->Ask(entry.name);
      if (!answer) return;
      LookupResult& endpoints = *answer;
      if (!endpoints) {
        LOG(WARNING) << "server \"" << entry.name << "\" can't be resolved now"
                     << (entry.endpoints.empty()
                             ? ": "
                             : ", its old addresses stay in use: ")
                     << endpoints.error().message();
        continue;
      }
      if (std::is_permutation(endpoints->begin(), endpoints->end(),
                              entry.endpoints.begin(), entry.endpoints.end())) {
        continue;
      }
      ScopedLock guard(lock_);
      entry.endpoints = *std::move(endpoints);
      // release: pairs with the acquire in Version [NR1].
      version_.fetch_add(1, std::memory_order_release);
    }
  }

  const Interval interval_;  // None: the flag's.
  const bool all_literal_;
  fiber::Mutex refresh_mutex_;
  Spinlock lock_;  // For the endpoints in entries_.
  std::vector<Entry> entries_;
  std::atomic<std::uint64_t> version_{1};
  std::atomic<std::int64_t> next_refresh_ns_;
};

Expected<std::shared_ptr<NameResolution>, flare::Status> ResolveList(
    std::string_view address, std::shared_ptr<NameResolution>* later,
    const std::optional<std::chrono::nanoseconds>& interval) {
  std::vector<Entry> entries;
  flare::Status unknown;
  for (std::string_view text : Split(address, ',', /*keep_empty=*/true)) {
    auto entry = ReadEntry(text, address);
    if (!entry) return entry.error();
    if (unknown.ok()) unknown = entry->unknown;
    entries.push_back(*std::move(entry));
  }
  std::shared_ptr<NameResolution> resolution =
      std::make_shared<ListResolution>(std::move(entries), interval);
  if (unknown.ok()) return resolution;
  if (later != nullptr) *later = std::move(resolution);
  return unknown;
}

constexpr std::string_view kList = "list";

NamedRegistry<NameResolver>& Resolvers() {
  static auto* registry = new NamedRegistry<NameResolver>(
      {{std::string(kList), [](std::string_view address) {
          return ResolveList(address, nullptr, {});
        }}});
  return *registry;
}

}  // namespace

bool RegisterNameResolver(std::string name, NameResolver resolver) {
  return Resolvers().Add(std::move(name), std::move(resolver));
}

Expected<std::shared_ptr<NameResolution>, flare::Status> ResolveName(
    std::string_view resolver, std::string_view address,
    std::shared_ptr<NameResolution>* later,
    std::optional<std::chrono::nanoseconds> update_interval) {
  if (resolver == kList) return ResolveList(address, later, update_interval);
  const std::optional<NameResolver> found = Resolvers().Find(resolver);
  if (!found) return Invalid(Resolvers().Unknown("name resolver", resolver));
  return (*found)(address);
}

void StopNameResolution() { RefreshGate::Instance()->Close(); }

void ResumeNameResolution() { RefreshGate::Instance()->Open(); }

void SetHostLookupForTesting(HostLookup lookup) {
  ScopedLock guard(lookup_mutex);
  delete std::exchange(lookup_for_testing,
                       lookup ? new HostLookup(std::move(lookup)) : nullptr);
}

}  // namespace flare::rpc
