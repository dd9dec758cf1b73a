#include "flare/rpc/redis/redis_cluster.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <new>
#include <unordered_set>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/future.h"
#include "flare/base/random.h"
#include "flare/fiber/async.h"
#include "flare/fiber/event.h"
#include "flare/fiber/future.h"
#include "flare/rpc/redis/redis_keys.h"
#include "flare/rpc/redis/redis_slot_map.h"

namespace flare::rpc {
namespace {

// Before the second, third, ... attempt, if another server isn't known to be
// the right one.
constexpr std::int64_t kFirstClusterDelayNs = 10'000'000;
constexpr std::int64_t kMaxClusterDelayNs = 500'000'000;
// A server that was asked for may not know yet that it has the slot.
constexpr int kRedirectsWithoutDelay = 3;

// Commands that one server runs, one after the other: a single one or a
// transaction.
struct ClusterPart {
  RedisCommandList commands;
  int slot = kNoRedisSlot;
  bool reads = false;  // A replica will do.
  // For the next attempt; null: the one that has the slot.
  RedisTopology::Server target = nullptr;
  bool has_choice = false;  // Another attempt may go to another server.
  bool asking = false;
  int redirects = 0;

  // The last attempt's: `failure`, if it wasn't sent, or `replies` of `server`.
  flare::Status failure = {};
  RedisTopology::Server server = nullptr;
  std::vector<RedisReply> replies = {};
};

// Parts for one server, in order.
struct ClusterGroup {
  RedisTopology::Server server;
  bool asking = false;
  std::vector<ClusterPart*> parts = {};
  flare::Status result = {};
  std::exception_ptr thrown = {};  // For want of memory.
};

// The error of the server that says what to do with the part, if it has not
// run. Null: it has, or has failed for good.
const RedisReply* RefusalOf(const ClusterPart& part) {
  const std::vector<RedisReply>& replies = part.replies;
  if (!replies.back().is_error()) return nullptr;
  if (replies.size() == 1) return &replies.front();
  if (replies.front().is_error()) return nullptr;  // There is no transaction.
  // EXEC has failed since a command in front of it has.
  const auto first =
      std::find_if(replies.begin(), replies.end(),
                   [](const RedisReply& reply) { return reply.is_error(); });
  return &*first;
}

// A request that may need several servers.
class ClusterRequest {
 public:
  ClusterRequest(RedisTopology* topology, const WaitLimit& limit)
      : topology_(topology), limit_(limit) {}

  // Commands of one server. Fails with REDIS_CROSS_SLOT.
  flare::Status Add(RedisCommandList commands);
  // Afterwards each part has replies.
  flare::Status Run();

  std::vector<ClusterPart>& parts() { return parts_; }

 private:
  using Parts = std::vector<ClusterPart*>;

  // Reads of slots that are written, too, have to come behind that.
  void KeepOrder();
  flare::Status Aim(const Parts& parts, bool last_attempt);
  flare::Status Send(const Parts& parts);
  // It wasn't sent, and another server, or another attempt, may help.
  bool MaySendAgain(const ClusterGroup& group) const;
  // The part must be sent again. `*wait`: not at once.
  bool MustRepeat(ClusterPart* part, bool* wait);
  bool Follow(const RedisRedirect& redirect, ClusterPart* part, bool* wait);
  // With a new map, perhaps.
  void StartAgain(ClusterPart* part, bool* wait);
  // False: there is no time for it.
  bool Pause(int attempt) const;
  // `why` some parts weren't sent.
  flare::Status FailureOfAll(const flare::Status& why) const;

  RedisTopology* const topology_;
  const WaitLimit limit_;
  std::vector<ClusterPart> parts_;
  bool some_have_run_ = false;
};

flare::Status ClusterRequest::Add(RedisCommandList commands) {
  ClusterPart part;
  part.reads = topology_->options().read_from_replicas &&
               commands.size() == 1 && OnlyReads(*commands.front());
  for (const RedisCommand* command : commands) {
    const auto slot = RedisSlotOf(*command);
    if (!slot) return slot.error();
    if (command->name() == "SCAN") {
      return flare::Status(REDIS_INVALID_COMMAND,
                           "a cursor of SCAN is one server's: use Masters()");
    }
    if (*slot == kNoRedisSlot) continue;
    if (part.slot != kNoRedisSlot && part.slot != *slot) {
      return flare::Status(REDIS_CROSS_SLOT,
                           "the keys of the transaction are in several slots "
                           "of the cluster; keys with the same {hash tag} are "
                           "in one");
    }
    part.slot = *slot;
  }
  part.commands = std::move(commands);
  parts_.push_back(std::move(part));
  return {};
}

void ClusterRequest::KeepOrder() {
  if (!topology_->options().read_from_replicas) return;
  std::unordered_set<int> written;
  for (const ClusterPart& part : parts_) {
    if (!part.reads) written.insert(part.slot);
  }
  for (ClusterPart& part : parts_) {
    if (written.contains(part.slot)) part.reads = false;
  }
}

flare::Status ClusterRequest::Run() {
  KeepOrder();
  Parts left;
  for (ClusterPart& part : parts_) left.push_back(&part);
  for (int attempt = 1;; ++attempt) {
    const bool last = attempt >= topology_->options().max_attempts;
    flare::Status status = Aim(left, last);
    if (status.ok()) status = Send(left);
    if (!status.ok()) return FailureOfAll(status);
    bool wait = false;
    std::erase_if(left, [&](ClusterPart* part) {
      if (MustRepeat(part, &wait)) return false;
      some_have_run_ = true;
      return true;
    });
    if (left.empty()) return {};
    if (last || (wait && !Pause(attempt))) break;
  }
  // The last refusal of a server is the reply.
  for (const ClusterPart* part : left) {
    if (!part->failure.ok()) return FailureOfAll(part->failure);
  }
  return {};
}

flare::Status ClusterRequest::Aim(const Parts& parts, bool last_attempt) {
  const ClusterPart* any = nullptr;  // All without keys go together.
  for (ClusterPart* part : parts) {
    if (part->target != nullptr) {
      part->has_choice = false;
      continue;
    }
    if (part->slot == kNoRedisSlot && any != nullptr) {
      part->target = any->target;
      part->has_choice = any->has_choice;
      continue;
    }
    bool only = false;
    auto found = topology_->Find(part->slot, part->reads, limit_, &only);
    if (!found) return found.error();
    part->target = *std::move(found);
    part->has_choice = !only && !last_attempt;
    if (part->slot == kNoRedisSlot) any = part;
  }
  return {};
}

bool AllHaveChoice(const ClusterGroup& group) {
  return std::all_of(group.parts.begin(), group.parts.end(),
                     [](const auto* part) { return part->has_choice; });
}

void SendClusterGroup(ClusterGroup* group, const WaitLimit& limit) {
  static const RedisCommand asking{"ASKING"};
  RedisCommandList commands;
  for (const ClusterPart* part : group->parts) {
    // It holds for the next command, or transaction.
    if (group->asking) commands.push_back(&asking);
    commands.insert(commands.end(), part->commands.begin(),
                    part->commands.end());
  }
  auto exchanged =
      RunRedisRequest(*group->server, nullptr, commands, limit,
                      AllHaveChoice(*group) ? limit.Half() : limit);
  group->result = exchanged ? flare::Status() : exchanged.error();
  if (!exchanged) return;
  RedisExchange& exchange = **exchanged;
  exchange.earlier.push_back(std::move(exchange.last));
  auto next = exchange.earlier.begin();
  for (ClusterPart* part : group->parts) {
    if (group->asking) ++next;
    part->server = group->server;
    const auto end = next + static_cast<std::ptrdiff_t>(part->commands.size());
    part->replies.assign(std::make_move_iterator(next),
                         std::make_move_iterator(end));
    next = end;
  }
}

void TrySendClusterGroup(ClusterGroup* group, const WaitLimit& limit) noexcept {
  try {
    SendClusterGroup(group, limit);
  } catch (const std::bad_alloc&) {
    group->thrown = std::current_exception();
  }
}

std::vector<ClusterGroup> GroupByServer(
    const std::vector<ClusterPart*>& parts) {
  std::vector<ClusterGroup> groups;
  for (ClusterPart* part : parts) {
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& known) {
          return known.server == part->target && known.asking == part->asking;
        });
    if (group == groups.end()) {
      groups.push_back({.server = part->target, .asking = part->asking});
      group = std::prev(groups.end());
    }
    group->parts.push_back(part);
  }
  return groups;
}

flare::Status ClusterRequest::Send(const Parts& parts) {
  std::vector<ClusterGroup> groups = GroupByServer(parts);
  std::vector<Future<>> others;
  others.reserve(groups.size());
  try {
    for (std::size_t i = 1; i < groups.size(); ++i) {
      others.push_back(fiber::Async(
          [this, group = &groups[i]] { TrySendClusterGroup(group, limit_); }));
    }
    TrySendClusterGroup(&groups[0], limit_);
  } catch (const std::bad_alloc&) {
    groups[0].thrown = std::current_exception();
  }
  for (auto& other : others) fiber::BlockingGet(std::move(other));
  for (const ClusterGroup& group : groups) {
    if (group.thrown != nullptr) std::rethrow_exception(group.thrown);
  }
  flare::Status worst;
  for (const ClusterGroup& group : groups) {
    const bool unsent = MaySendAgain(group);
    for (ClusterPart* part : group.parts) {
      part->failure = unsent ? AsUnsent(group.result) : flare::Status();
    }
    if (group.result.ok()) {
      some_have_run_ |= groups.size() > 1;
    } else if (!unsent && worst.code() < group.result.code()) {
      worst = group.result;  // One that may have run, if there is one.
    }
  }
  return worst;
}

bool ClusterRequest::MaySendAgain(const ClusterGroup& group) const {
  switch (group.result.code()) {
    case REDIS_FAIL_TO_CONNECT:
      return true;
    case REDIS_TIMEOUT_UNSENT:  // Only half of the time is over.
      return !limit_.exceeded();
    case REDIS_REFUSED:  // A replica that refuses this client has a master.
      return std::all_of(group.parts.begin(), group.parts.end(),
                         [](const auto* part) { return part->reads; });
    default:
      return false;
  }
}

bool ClusterRequest::MustRepeat(ClusterPart* part, bool* wait) {
  if (!part->failure.ok()) {
    StartAgain(part, wait);
    // Other replicas would refuse this client, too; the master may not.
    if (part->failure.code() == REDIS_REFUSED) part->reads = false;
    return true;
  }
  const RedisReply* const refusal = RefusalOf(*part);
  if (refusal == nullptr) return false;
  return Follow(ReadRedirect(refusal->text(), part->target->address()), part,
                wait);
}

bool ClusterRequest::Follow(const RedisRedirect& redirect, ClusterPart* part,
                            bool* wait) {
  part->asking = redirect.kind == RedisRedirect::Kind::kAsk;
  switch (redirect.kind) {
    case RedisRedirect::Kind::kNone:
      return false;
    case RedisRedirect::Kind::kMoved:
      part->target = topology_->Move(redirect.slot, redirect.address);
      break;
    case RedisRedirect::Kind::kAsk:
      part->target = topology_->At(redirect.address);
      break;
    case RedisRedirect::Kind::kWait:
      StartAgain(part, wait);
      part->reads = false;  // A replica may be worse off than its master.
      return true;
  }
  if (++part->redirects > kRedirectsWithoutDelay) *wait = true;
  return true;
}

void ClusterRequest::StartAgain(ClusterPart* part, bool* wait) {
  topology_->RequestRefresh();
  part->target = nullptr;
  part->asking = false;
  *wait = true;
}

bool ClusterRequest::Pause(int attempt) const {
  const std::int64_t delay_ns = std::min(
      kFirstClusterDelayNs << std::min(attempt - 1, 10), kMaxClusterDelayNs);
  const auto random = MixBits(static_cast<std::uint64_t>(NowNs()));
  const auto half = static_cast<std::uint64_t>(delay_ns / 2);
  const auto until = std::chrono::steady_clock::now() +
                     std::chrono::nanoseconds(half + random % (half + 1));
  if (until >= limit_.at) return false;
  fiber::Event never;
  return !never.WaitUntil(limit_.stop, until) && !limit_.exceeded();
}

flare::Status ClusterRequest::FailureOfAll(const flare::Status& why) const {
  if (!some_have_run_ || why.code() >= REDIS_TIMEOUT) return why;
  return flare::Status(REDIS_PARTLY_RUN,
                       "other servers have run their commands, but not this "
                       "one: " +
                           why.message());
}

// The replies of a request that may have one part only.
using ClusterReplies = Expected<std::vector<RedisReply>, flare::Status>;

// `*server`: the one that they are from.
ClusterReplies RunOnePart(RedisTopology* topology, const WaitLimit& limit,
                          RedisCommandList commands,
                          RedisTopology::Server* server) {
  ClusterRequest request(topology, limit);
  flare::Status status = request.Add(std::move(commands));
  if (status.ok()) status = request.Run();
  if (!status.ok()) return status;
  ClusterPart& part = request.parts().front();
  *server = std::move(part.server);
  return std::move(part.replies);
}

}  // namespace

std::shared_ptr<RedisCluster> RedisCluster::Create(RedisUri uri,
                                                   RedisClientOptions options) {
  return std::shared_ptr<RedisCluster>(new RedisCluster(
      RedisTopology::Create(std::move(uri), std::move(options))));
}

Expected<RedisReply, flare::Status> RedisCluster::Execute(
    const RedisCommand& command, const WaitLimit& limit) const {
  RedisTopology::Server server;
  auto replies = RunOnePart(topology_.get(), limit, {&command}, &server);
  if (!replies) return replies.error();
  return std::move(replies->front());
}

Expected<std::vector<RedisReply>, flare::Status> RedisCluster::Transact(
    const RedisCommandList& commands, const WaitLimit& limit,
    RedisTopology::Server* server) const {
  return RunOnePart(topology_.get(), limit, commands, server);
}

Expected<std::vector<RedisReply>, flare::Status> RedisCluster::ExecuteAll(
    const RedisCommandList& commands, const WaitLimit& limit) const {
  ClusterRequest request(topology_.get(), limit);
  for (const RedisCommand* command : commands) {
    flare::Status status = request.Add({command});
    if (!status.ok()) return status;
  }
  if (auto status = request.Run(); !status.ok()) return status;
  std::vector<RedisReply> replies;
  replies.reserve(commands.size());
  for (ClusterPart& part : request.parts()) {
    replies.push_back(std::move(part.replies.front()));
  }
  return replies;
}

Expected<std::vector<RedisTopology::Server>, flare::Status>
RedisCluster::ServersFor(std::optional<std::string_view> key,
                         const WaitLimit& limit) const {
  if (!key) return topology_->MastersInTurn(limit);
  auto server = topology_->Find(RedisSlotOfKey(*key), /*reads=*/false, limit);
  if (!server) return server.error();
  return std::vector<RedisTopology::Server>{*std::move(server)};
}

}  // namespace flare::rpc
