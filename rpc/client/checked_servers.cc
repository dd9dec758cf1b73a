// Rules:
//  [SV1] A CheckedServer is in the registry from its first watch until its last
//        one ends or the client side shuts down. Its fiber runs until then, and
//        holds a reference until it has ended.
//  [SV2] Fibers begin while the client side is open, so none does after
//        Shutdown() has begun; that waits for all of them.
//  [SV3] Servers with the same address share a turn, which outlives their
//        entries in the registry: so a fiber that is about to end doesn't check
//        a server at the same time as its successor.
//  [SV4] Locks are taken in this order: the client side's, the registry's, a
//        server's.
#include "flare/rpc/client/checked_servers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flare/base/thread_annotations.h"
#include "flare/base/thread_mutex.h"
#include "flare/fiber/event.h"
#include "flare/fiber/mutex.h"
#include "flare/fiber/task.h"
#include "flare/rpc/checks/check_loop.h"
#include "flare/rpc/client/client_side.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

// Empty: the check passed.
std::string TextOf(const flare::Status& outcome) {
  if (outcome.ok() || !outcome.message().empty()) return outcome.message();
  return "error " + std::to_string(outcome.code());
}

}  // namespace

class CheckedServer {
 public:
  CheckedServer(const ServerCheck& check, std::shared_ptr<fiber::Mutex> turn)
      : check_(check), turn_(std::move(turn)) {}

  const ServerCheck& check() const { return check_; }
  void RequestStop() { stop_.request_stop(); }

  // Runs on one fiber until the stop.
  void Run() {
    RepeatChecks(
        check_, stop_.get_token(), turn_.get(),
        [this](const flare::Status& outcome, std::int64_t) { Note(outcome); });
    turn_.reset();
  }

  void Add(ServerWatch* watch) {
    ScopedLock guard(mutex_);  // [SV4]
    watches_.push_back(watch);
    if (verdict_.decided()) watch->on_verdict_(verdict_.healthy());
  }
  void Remove(ServerWatch* watch) {
    ScopedLock guard(mutex_);
    std::erase(watches_, watch);
  }
  std::string LastFailure() {
    ScopedLock guard(mutex_);
    return last_failure_;
  }

  // The registry's, under its lock.
  std::size_t users = 0;

 private:
  void Note(const flare::Status& outcome) {
    bool healthy = false;
    bool was_decided = false;
    {
      ScopedLock guard(mutex_);
      last_failure_ = TextOf(outcome);
      was_decided = verdict_.decided();
      if (!verdict_.Note(outcome, check_.options)) return;
      healthy = verdict_.healthy();
      for (ServerWatch* watch : watches_) watch->on_verdict_(healthy);
    }
    const std::string server = check_.endpoint.ToString();
    if (!healthy) {
      LOG(WARNING) << "server " << server
                   << " fails its health checks: " << TextOf(outcome);
    } else if (was_decided) {
      LOG(INFO) << "server " << server << " passes its health checks again";
    }
  }

  const ServerCheck check_;
  std::shared_ptr<fiber::Mutex> turn_;  // The fiber's, from its beginning on.
  std::stop_source stop_;
  ThreadMutex mutex_;
  CheckVerdict verdict_ FLARE_GUARDED_BY(mutex_);
  std::string last_failure_ FLARE_GUARDED_BY(mutex_);
  std::vector<ServerWatch*> watches_ FLARE_GUARDED_BY(mutex_);
};

namespace {

class CheckedServers final : public ClientSideMember {
 public:
  static CheckedServers* Instance() {
    static auto* const servers = [] {
      auto made = std::make_shared<CheckedServers>();
      JoinClientSide(made);
      return new std::shared_ptr<CheckedServers>(made);  // Never destroyed.
    }();
    return servers->get();
  }

  // Counts a user. Null: the client side is shut down.
  std::shared_ptr<CheckedServer> Use(const ServerCheck& check) {
    std::shared_ptr<CheckedServer> server;
    IfClientSideIsOpen([&] {
      ScopedLock guard(mutex_);
      server = FindOrBegin(check);
      ++server->users;
    });
    return server;
  }

  void Leave(const std::shared_ptr<CheckedServer>& server) {
    {
      ScopedLock guard(mutex_);
      if (--server->users != 0) return;
      const auto [begin, end] = servers_.equal_range(server->check().endpoint);
      const auto found = std::find_if(
          begin, end, [&](const auto& s) { return s.second == server; });
      if (found != end) servers_.erase(found);  // [SV1]
    }
    server->RequestStop();
  }

  void Shutdown() override {
    Servers servers;
    fiber::Event ended;
    {
      ScopedLock guard(mutex_);
      servers.swap(servers_);
      if (running_ == 0) return;
      all_ended_ = &ended;
    }
    for (const auto& [endpoint, server] : servers) server->RequestStop();
    ended.Wait();  // [SV2]
  }

  std::size_t size() {
    ScopedLock guard(mutex_);
    return servers_.size();
  }

 private:
  using Servers =
      std::unordered_multimap<Endpoint, std::shared_ptr<CheckedServer>>;

  std::shared_ptr<CheckedServer> FindOrBegin(const ServerCheck& check)
      FLARE_REQUIRES(mutex_) {
    const auto [begin, end] = servers_.equal_range(check.endpoint);
    const auto found = std::find_if(
        begin, end, [&](const auto& s) { return s.second->check() == check; });
    if (found != end) return found->second;
    auto server =
        std::make_shared<CheckedServer>(check, TurnOf(check.endpoint));
    const auto place = servers_.emplace(check.endpoint, server);
    try {
      fiber::Spawn([this, server]() mutable {
        server->Run();
        const Endpoint endpoint = server->check().endpoint;
        server.reset();
        Ended(endpoint);
      });
    } catch (...) {  // No memory for a fiber.
      servers_.erase(place);
      throw;
    }
    ++running_;  // In time: Ended() waits for the lock.
    return server;
  }

  std::shared_ptr<fiber::Mutex> TurnOf(const Endpoint& endpoint)
      FLARE_REQUIRES(mutex_) {
    std::weak_ptr<fiber::Mutex>& known = turns_[endpoint];
    std::shared_ptr<fiber::Mutex> turn = known.lock();  // [SV3]
    if (turn == nullptr) known = turn = std::make_shared<fiber::Mutex>();
    return turn;
  }

  void Ended(const Endpoint& endpoint) {
    ScopedLock guard(mutex_);
    const auto turn = turns_.find(endpoint);
    if (turn != turns_.end() && turn->second.expired()) turns_.erase(turn);
    if (--running_ == 0 && all_ended_ != nullptr) {
      std::exchange(all_ended_, nullptr)->Set();
    }
  }

  ThreadMutex mutex_;
  Servers servers_ FLARE_GUARDED_BY(mutex_);
  std::unordered_map<Endpoint, std::weak_ptr<fiber::Mutex>> turns_
      FLARE_GUARDED_BY(mutex_);
  std::size_t running_ FLARE_GUARDED_BY(mutex_) = 0;
  fiber::Event* all_ended_ FLARE_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace

std::unique_ptr<ServerWatch> ServerWatch::Begin(const ServerCheck& check,
                                                OnVerdict on_verdict) {
  std::unique_ptr<ServerWatch> watch(new ServerWatch(std::move(on_verdict)));
  watch->server_ = CheckedServers::Instance()->Use(check);
  if (watch->server_ != nullptr) watch->server_->Add(watch.get());
  return watch;
}

ServerWatch::~ServerWatch() {
  if (server_ == nullptr) return;
  server_->Remove(this);
  CheckedServers::Instance()->Leave(server_);
}

std::string ServerWatch::LastFailure() const {
  return server_ == nullptr ? "" : server_->LastFailure();
}

std::size_t CountCheckedServers() { return CheckedServers::Instance()->size(); }

}  // namespace flare::rpc
