#include "flare/rpc/client/route.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/random.h"
#include "flare/fiber/runtime.h"
#include "flare/rpc/channel_credentials.h"
#include "flare/rpc/checks/server_check.h"
#include "flare/rpc/client/client_connection.h"
#include "flare/rpc/client/client_side.h"
#include "flare/rpc/connection_pool.h"
#include "flare/rpc/protocol_registry.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/tls_names.h"

namespace flare::rpc {
namespace {

flare::Status Invalid(const std::string& uri, const std::string& why) {
  return flare::Status(STATUS_INVALID_CHANNEL,
                       "can't open a channel to \"" + uri + "\": " + why);
}

std::string NslbOf(const RpcChannelOptions& options) {
  return options.override_nslb.empty() ? "list+rr" : options.override_nslb;
}

// "list", "rr" out of "list+rr"; one of them empty if it isn't of that form.
std::pair<std::string_view, std::string_view> SplitNslb(std::string_view nslb) {
  const std::size_t plus = nslb.find('+');
  if (plus == std::string_view::npos) return {};
  return {nslb.substr(0, plus), nslb.substr(plus + 1)};
}

}  // namespace

Expected<RefPtr<Route>, flare::Status> Route::Create(
    const std::string& uri, const RpcChannelOptions& options,
    RefPtr<Route>* later) {
  const std::size_t colon = uri.find("://");
  if (colon == std::string::npos || colon == 0 || colon + 3 == uri.size()) {
    return Invalid(uri,
                   "a URI is protocol://address, as in flare://127.0.0.1:5567");
  }
  RefPtr<Route> route(adopt_ref, new Route());
  route->options_ = options;
  if (options.pool == nullptr) route->options_.pool = ConnectionPool::Default();
  if (const flare::Status checked = CheckOptions(options); !checked.ok()) {
    return Invalid(uri, checked.message());
  }
  const bool secure = uri.starts_with(kTlsPrefix);
  auto protocol = NewClientProtocol(
      secure ? uri.substr(kTlsPrefix.size(), colon - kTlsPrefix.size())
             : uri.substr(0, colon),
      Limits{}, "");
  if (!protocol) return Invalid(uri, protocol.error().message());
  route->call_counters_.emplace(uri);
  route->address_ = uri.substr(colon + 3);
  route->protocol_ = (*protocol)->name();
  route->format_ = (*protocol)->format();
  route->traits_ = (*protocol)->traits();
  if (secure) {
    auto tls =
        io::TlsClientContext::Get(options.tls.value_or(TlsClientOptions()),
                                  {AlpnNameOf(route->protocol_)});
    if (!tls) return Invalid(uri, tls.error().message());
    route->tls_ = *std::move(tls);
    // It can't fail where the other one didn't.
    auto check_tls = io::TlsClientContext::Get(
        options.tls.value_or(TlsClientOptions()),
        {AlpnNameOf(
            ProtocolOfCheck(options.health_check.kind, route->protocol_))});
    if (!check_tls) return Invalid(uri, check_tls.error().message());
    route->check_tls_ = *std::move(check_tls);
  } else if (options.tls) {
    return Invalid(uri,
                   "Options::tls is given, but the URI doesn't ask for TLS: "
                   "tls+" +
                       uri);
  } else if (options.credentials != nullptr &&
             !options.credentials->allows_plaintext()) {
    return Invalid(uri,
                   "Options::credentials would be sent in the clear; use "
                   "tls+" +
                       uri +
                       ", or ChannelCredentialsOptions::allow_plaintext where "
                       "nobody else can listen");
  }
  if (!route->traits_.multiplexed &&
      options.connection_kind == ConnectionKind::kMultiplexed) {
    return Invalid(uri, route->protocol_ +
                            " carries one call at a time on a connection: "
                            "Options::connection_kind must be kPooled or "
                            "kShort");
  }

  const std::string nslb = NslbOf(options);
  const auto [resolver, balancer] = SplitNslb(nslb);
  if (resolver.empty() || balancer.empty()) {
    return Invalid(uri, "\"" + nslb +
                            "\" is not of the form resolver+balancer, as in "
                            "list+rr");
  }
  auto load_balancer = NewLoadBalancer(balancer);
  if (!load_balancer) return Invalid(uri, load_balancer.error().message());
  route->balancer_ = *std::move(load_balancer);
  route->group_ = std::make_shared<BackendGroup>(options.health);
  auto resolution = ResolveName(resolver, route->address_, &route->resolution_,
                                options.name_update_interval);
  if (!resolution) {
    if (route->resolution_ != nullptr) {
      OpenClientSide();
      AddListedChannel(route.Get());
      *later = std::move(route);
    }
    return Invalid(uri, resolution.error().message());
  }
  route->resolution_ = *std::move(resolution);
  OpenClientSide();
  AddListedChannel(route.Get());
  return route;
}

template <class F>
auto Route::WithTable(const F& f) {
  if (Table* table = FinalTable()) return f(*table);
  const RefPtr<Table> table = CurrentTable();
  return f(*table);
}

Expected<ClientConnection*, flare::Status> Route::Acquire(
    ConnectionKind kind, const void* preferred, std::int64_t patience_ns,
    const std::uint64_t* key, Choice* choice) noexcept {
  // The connection that it had got couldn't take it.
  if (choice->counted()) [[unlikely]]
    End(choice, STATUS_FAILED, Ending::kOther, -1);
  try {
    return WithTable([&](Table& table) {
      return AcquireFrom(table, kind, preferred, patience_ns, key, choice);
    });
  } catch (const std::bad_alloc&) {
    return flare::Status(STATUS_FAILED);
  } catch (...) {
    std::terminate();  // With the exception, which is the user's, in the log.
  }
}

Expected<ClientConnection*, flare::Status> Route::AcquireForStream(
    std::int64_t patience_ns, const std::uint64_t* key,
    Choice* choice) noexcept {
  return Acquire(kForStream, nullptr, patience_ns, key, choice);
}

bool Route::Hopeful() noexcept {
  return WithTable([&](const Table& table) {
    const std::size_t group =
        fiber::GetCurrentSchedulingGroupIndex() % table.groups;
    if (table.peers == 1) {
      return table.SetOf(0, group)->Promising(connection_kind() !=
                                              ConnectionKind::kMultiplexed);
    }
    for (std::size_t i = 0; i != table.peers; ++i) {
      if (table.SetOf(i, group)->Hopeful()) return true;
    }
    return false;
  });
}

Route::Table* Route::FinalTable() {
  // acquire: pairs with the release in CurrentTable [RT1].
  return final_table_.load(std::memory_order_acquire);
}

RefPtr<Route::Table> Route::CurrentTable() {
  const std::uint64_t version = resolution_->Version();
  const auto current = [&]() -> RefPtr<Table> {
    ScopedLock guard(lock_);
    return table_ != nullptr && table_->version >= version ? table_ : nullptr;
  };
  if (RefPtr<Table> table = current()) return table;
  ScopedLock rebuilding(rebuild_mutex_);
  if (RefPtr<Table> table = current()) return table;
  RefPtr<Table> table = MakeTable(version);
  RefPtr<Table> old = table;
  // Those of servers that stay begin before the old ones end.
  std::shared_ptr<const Watches> watches = WatchServers(table);
  {
    ScopedLock guard(lock_);
    table_.Swap(old);
    watches_.swap(watches);
  }
  if (resolution_->IsStatic()) {
    // release: pairs with the acquire in FinalTable [RT1].
    final_table_.store(table.Get(), std::memory_order_release);
  }
  return table;
}

RefPtr<Route::Table> Route::MakeTable(std::uint64_t version) {
  // Peers() may already be of a later version; then the next call makes the
  // same table again, which does no harm.
  std::vector<Peer> peers = resolution_->Peers();
  auto table = MakeRefCounted<Table>();
  table->without_tags = std::erase_if(peers, [this](const Peer& peer) {
    return !std::includes(peer.tags.begin(), peer.tags.end(),
                          options_.tags.begin(), options_.tags.end());
  });
  table->version = version;
  table->groups = fiber::GetSchedulingGroupCount();
  table->peers = peers.size();
  for (const Peer& peer : peers) {
    for (std::size_t group = 0; group != table->groups; ++group) {
      table->sets.push_back(options_.pool->Find(
          group, {protocol_, peer, settings().connections}));
    }
  }
  table->is_from_service = traits_.is_from_service;
  table->balancer = balancer_;
  table->group = group_;
  table->backends = group_->Update(std::move(peers));
  if (table->peers != 0) MakePicker(table.Get());
  table->observes = table->picker != nullptr && table->picker->Observes();
  return table;
}

std::shared_ptr<const Route::Watches> Route::WatchServers(
    const RefPtr<Table>& table) const {
  const HealthCheckOptions& options = options_.health_check;
  if (options.kind == HealthCheckKind::kNone) return nullptr;
  if (table->peers < 2) {
    // Nobody checks it any more.
    for (const Backend& backend : table->backends) {
      group_->NoteChecks(backend.state(), /*healthy=*/true);
    }
    return nullptr;
  }
  auto watches = std::make_shared<Watches>();
  for (std::size_t i = 0; i != table->peers; ++i) {
    const Peer& peer = table->backends[i].peer();
    const ServerCheck check{.options = options,
                            .endpoint = peer.endpoint,
                            .host = peer.host,
                            .protocol = protocol_,
                            .tls = check_tls_};
    watches->push_back(ServerWatch::Begin(check, [table, i](bool healthy) {
      table->group->NoteChecks(table->backends[i].state(), healthy);
      table->CountUsable();
    }));
  }
  return watches;
}

void Route::MakePicker(Table* table) {
  const std::string& zone = settings().zone;
  if (ZonePicker::IsOfUse(table->backends, zone)) {
    if (far_balancer_ == nullptr) {
      const std::string nslb = NslbOf(options_);
      // It was found when the channel was opened.
      far_balancer_ = std::move(*NewLoadBalancer(SplitNslb(nslb).second));
    }
    table->far_balancer = far_balancer_;
    auto picker = std::make_unique<ZonePicker>(
        table->backends, zone, balancer_.get(), far_balancer_.get());
    table->zones = picker.get();
    table->picker = std::move(picker);
    return;
  }
  table->picker = balancer_->NewPicker(table->backends);
}

const ClientSettings& Route::FillSettings() {
  auto settings = std::make_unique<ClientSettings>(FillDefaults(options_));
  settings->connections.tls = tls_;
  ScopedLock guard(lock_);
  if (own_settings_ == nullptr) {
    own_settings_ = std::move(settings);
    // release: pairs with the acquire in settings() [RT2].
    settings_.store(own_settings_.get(), std::memory_order_release);
  }
  return *own_settings_;
}

flare::Status Route::NoPeer(const Table& table) const {
  // Endless attempts end with the client side, too.
  if (!IsClientSideOpen()) return ShutDownStatus();
  std::string text = "no server is known for \"" + address_ + '"';
  if (table.without_tags != 0) {
    text += ": none of " + std::to_string(table.without_tags) +
            " has the tags of Options::tags";
  }
  const flare::Status why = resolution_->Failure();
  if (!why.ok()) text += ": " + why.message();
  return flare::Status(STATUS_NO_PEER, std::move(text));
}

Admission Route::Admit(const Table& table, std::size_t number) {
  return table.group->Admit(table.backends[number].state(), MixBits(ReadTsc()));
}

// The server that the balancer picks, or picks next if that one can't have the
// call, or else one that follows.
std::size_t Route::Pick(Table& table, std::size_t group, bool dedicated,
                        const std::uint64_t* key, Choice* choice) {
  constexpr std::uint32_t kPicks = 4;
  PickedCall call;
  if (key != nullptr) {
    call.key = *key;
    call.has_key = true;
  }
  std::size_t picked = 0;
  while (call.refused != kPicks) {
    picked = table.picker->Pick(call) % table.peers;
    if (table.SetOf(picked, group)->Promising(dedicated)) {
      const Admission admission = Admit(table, picked);
      choice->probe = admission == Admission::kProbe;
      if (admission != Admission::kRefused) return picked;
    }
    ++call.refused;
    call.last_refused = picked;
  }
  return Choose(table, group, picked, dedicated, choice);
}

// The first one, from `first` on, that is likely to answer and is well; or else
// that may be, and isn't ejected; or else, that is ejected; or else the one
// whose next attempt is due first.
std::size_t Route::Choose(const Table& table, std::size_t group,
                          std::size_t first, bool dedicated, Choice* choice) {
  choice->probe = 0;
  for (const bool ejected : {false, true}) {
    for (const bool promising : {true, false}) {
      for (std::size_t i = 0; i != table.peers; ++i) {
        const std::size_t number = (first + i) % table.peers;
        const PeerConnections* const set = table.SetOf(number, group);
        if (table.backends[number].state()->ejected() != ejected) continue;
        if (promising ? set->Promising(dedicated) : set->Hopeful()) {
          return number;
        }
      }
    }
  }
  std::size_t soonest = first;
  for (std::size_t i = 1; i != table.peers; ++i) {
    const std::size_t number = (first + i) % table.peers;
    if (table.SetOf(number, group)->retry_at_ns() <
        table.SetOf(soonest, group)->retry_at_ns()) {
      soonest = number;
    }
  }
  return soonest;
}

Expected<ClientConnection*, flare::Status> Route::AcquireFrom(
    Table& table, ConnectionKind kind, const void* preferred,
    std::int64_t patience, const std::uint64_t* key, Choice* choice) {
  if (table.peers == 0) return NoPeer(table);
  const std::size_t group =
      fiber::GetCurrentSchedulingGroupIndex() % table.groups;
  std::size_t taken = 0;
  if (table.picker != nullptr) [[unlikely]] {
    const bool dedicated = kind != ConnectionKind::kMultiplexed;
    if (table.peers == 1) {
      taken = table.picker->Pick({}) % table.peers;
    } else if (choice->peer == kNoPeer) {
      taken = Pick(table, group, dedicated, key, choice);
    } else {
      // It may be of another table: then it is as good as any.
      taken =
          Choose(table, group, (choice->peer + std::size_t{1}) % table.peers,
                 dedicated, choice);
    }
  }
  choice->peer = static_cast<std::uint32_t>(taken);
  choice->peers = std::min<std::size_t>(table.peers, 0x3fff) & 0x3fffU;
  PeerConnections* const set = table.SetOf(taken, group);
  choice->stream = kind == kForStream;
  if (choice->stream) {
    kind = traits_.streams_share || set->streams_can_share()
               ? ConnectionKind::kMultiplexed
               : ConnectionKind::kShort;
  }
  auto connection = set->Acquire(preferred, patience, kind);
  if (table.picker != nullptr) [[unlikely]] {
    Count(table, choice);
    if (!connection) End(choice, connection.error().code(), Ending::kOther, -1);
  }
  return connection;
}

// The call is under way on its server.
void Route::Count(Table& table, Choice* choice) {
  table.Ref();
  choice->table = &table;
  BackendState* const state = table.backends[choice->peer].state();
  choice->stream ? state->BeginStream() : state->Begin();
  if (table.observes) table.picker->OnBegin(choice->peer);
}

namespace {

ChannelServerState DescribeServer(const Backend& backend, bool hopeful,
                                  bool counted) {
  const BackendState& known = *backend.state();
  ChannelServerState server;
  server.server = backend.peer().endpoint.ToString();
  server.weight = backend.peer().weight;
  server.zone = backend.peer().zone;
  if (known.fails_checks()) {
    server.state = "unhealthy";
  } else if (known.ejected()) {
    server.state = std::string("ejected:") + ToString(known.reason());
    server.retry_in_ns =
        std::max<std::int64_t>(0, known.retry_at_ns() - NowNs());
  } else if (!hopeful) {
    server.state = "down";
  } else {
    server.state =
        known.mode() == BackendState::Mode::kWell ? "well" : "recovering";
  }
  server.counted = counted;
  server.in_flight = known.in_flight();
  server.calls = known.calls();
  server.failures = known.failures();
  server.ejections = known.ejections();
  server.latency_ns = known.latency_ns();
  return server;
}

// Connections have a back-off of their own, so failures to connect say nothing
// here. Nor do acts of the caller's side.
Verdict Judge(int status, Route::Ending ending, bool from_service) {
  if (ending == Route::Ending::kSilent) return Verdict::kSilent;
  if (ending == Route::Ending::kUnreadable) return Verdict::kFailed;
  if (ending == Route::Ending::kOversized) return Verdict::kAnswered;
  if (from_service) return Verdict::kAnswered;
  switch (status) {
    case STATUS_FAIL_TO_CONNECT:
    case STATUS_CHANNEL_SHUTDOWN:
    case STATUS_TIMEOUT:
    case STATUS_FAILED:
    case STATUS_NO_PEER:
    case STATUS_INVALID_CHANNEL:
    case STATUS_NOT_SUPPORTED:
      return Verdict::kNeutral;
    case STATUS_OVERLOADED:
      return Verdict::kRefused;
    case STATUS_OUT_OF_SERVICE:
      return Verdict::kFailed;
    case STATUS_IO_ERROR:
    case STATUS_MALFORMED_DATA:
      // As a reply's own they tell of the request, or of another server.
      return ending == Route::Ending::kReply ? Verdict::kAnswered
                                             : Verdict::kFailed;
    default:
      return Verdict::kAnswered;
  }
}

}  // namespace

void Route::End(Choice* choice, int status, Ending ending,
                std::int64_t latency_ns) noexcept {
  const RefPtr<Table> table(adopt_ref, std::exchange(choice->table, nullptr));
  const std::int64_t now = NowNs();
  BackendGroup& group = *table->group;
  BackendState* const state = table->backends[choice->peer].state();
  const Verdict verdict =
      latency_ns < 0 ? Verdict::kNeutral
                     : Judge(status, ending, table->is_from_service(status));
  const bool probe = choice->probe != 0;
  choice->probe = 0;
  if (choice->stream) {
    group.EndStream(state, verdict, latency_ns, now, probe);
    latency_ns = 0;
  } else {
    group.End(state, verdict, latency_ns, now, probe);
  }
  if (table->observes) {
    table->picker->OnEnd(choice->peer,
                         {status, std::chrono::nanoseconds(
                                      std::max<std::int64_t>(0, latency_ns))});
  }
  table->Review(now);
}

Function<void()> Route::OnAnswered(const Choice& choice) {
  if (!choice.counted()) return {};
  return [table = RefPtr<Table>(ref_ptr, choice.table), peer = choice.peer,
          probe = choice.probe != 0] {
    const std::int64_t now = NowNs();
    table->group->AnswerStream(table->backends[peer].state(), now, probe);
    table->Review(now);
  };
}

void Route::Table::Review(std::int64_t now_ns) const {
  if (!group->ReviewIsDue(now_ns)) return;
  try {
    group->Review(now_ns);
  } catch (const std::bad_alloc&) {  // The next one has more calls to compare.
  }
  CountUsable();
}

void Route::Table::CountUsable() const {
  const std::int64_t now_ns = NowNs();
  std::size_t usable = 0;
  std::size_t near = 0;
  std::size_t far = 0;
  for (std::size_t i = 0; i != peers; ++i) {
    // Connections of the first group stand for those of the others.
    if (!SetOf(i, 0)->Hopeful()) continue;
    const BackendState& state = *backends[i].state();
    const bool is_near = zones != nullptr && zones->IsNear(i);
    if (!state.ejected()) {
      ++usable;
      ++(is_near ? near : far);
    } else if (is_near && now_ns >= state.retry_at_ns()) {
      ++near;  // Calls must come to it, so that one of them probes it.
    }
  }
  group->NoteUsable(usable, peers);
  if (zones != nullptr) zones->NoteUsable(near, far);
}

ChannelState Route::Describe() {
  ChannelState channel;
  channel.uri = (tls_ != nullptr ? std::string(kTlsPrefix) : std::string()) +
                protocol_ + "://" + address_;
  channel.nslb = NslbOf(options_);
  channel.failure = resolution_->Failure();
  channel.panic = group_->panic();
  RefPtr<Table> table;
  std::shared_ptr<const Watches> watches;
  {
    ScopedLock guard(lock_);
    table = table_;
    watches = watches_;
  }
  if (table == nullptr) return channel;
  for (std::size_t i = 0; i != table->peers; ++i) {
    // Connections of the first group stand for those of the others.
    channel.servers.push_back(
        DescribeServer(table->backends[i], table->SetOf(i, 0)->Hopeful(),
                       /*counted=*/table->picker != nullptr));
    if (watches != nullptr) {
      channel.servers.back().check_failure = (*watches)[i]->LastFailure();
    }
  }
  return channel;
}

}  // namespace flare::rpc
