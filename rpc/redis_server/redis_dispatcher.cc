#include "flare/rpc/redis_server/redis_dispatcher.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/string.h"
#include "flare/rpc/call_cells.h"
#include "flare/rpc/redis_server/redis_command_counters.h"
#include "flare/rpc/redis_server/redis_commands.h"

namespace flare::rpc {
namespace {

using Kind = RedisReply::Kind;

// The version by which clients tell the abilities of a server: HELLO, RESP3 and
// CLIENT SETINFO are there.
constexpr char kRedisVersion[] = "7.2.0";

// An error repeats no more of a client's bytes.
constexpr std::size_t kMaxRepeated = 128;

// The most commands that one COMMAND INFO describes: a description takes much
// more memory than its name.
constexpr std::size_t kMaxDescribed = 1024;

// Memory of a transaction's replies: half of
// RedisClientOptions::max_reply_size, so that clients take them.
constexpr std::size_t kMaxTransactionReplies = 32 << 20;

RedisReply OkReply() { return RedisReply::OfStatus("OK"); }
RedisReply ErrReply(std::string text) {
  return RedisReply::OfError("ERR " + std::move(text));
}
RedisReply Bulk(std::string_view text) {
  return RedisReply::OfString(std::string(text));
}

std::string LowerName(std::string_view name) {
  std::string lower(name.substr(0, kMaxRepeated));
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return OneLine(lower);
}

RedisReply WrongArity(std::string_view name) {
  return ErrReply("wrong number of arguments for '" + LowerName(name) +
                  "' command");
}

RedisReply UnknownCommand(const flare::RedisRequest& request) {
  std::string text = "unknown command '" +
                     OneLine(request.name().substr(0, kMaxRepeated)) +
                     "', with args beginning with: ";
  const std::size_t most = text.size() + kMaxRepeated;
  for (std::size_t i = 1; i < request.size() && text.size() < most; ++i) {
    text += "'" + OneLine(request[i].substr(0, most - text.size())) + "' ";
  }
  return ErrReply(std::move(text));
}

bool Fits(int arity, std::size_t words) {
  if (arity >= 0) return arity == 0 || words == static_cast<std::size_t>(arity);
  return words >= static_cast<std::size_t>(-arity);
}

RedisReply ReplyToHello(const RedisPeer& peer) {
  std::vector<RedisReply> facts;
  const auto add = [&facts](std::string_view key, RedisReply value) {
    facts.push_back(Bulk(key));
    facts.push_back(std::move(value));
  };
  add("server", Bulk("flare"));
  add("version", Bulk(kRedisVersion));
  add("proto", RedisReply::OfInteger(peer.resp3() ? 3 : 2));
  add("id", RedisReply::OfInteger(static_cast<std::int64_t>(peer.id())));
  add("mode", Bulk("standalone"));
  add("role", Bulk("master"));
  add("modules", RedisReply::Of(Kind::kArray, {}));
  return RedisReply::Of(Kind::kMap, std::move(facts));
}

std::size_t MemoryOf(const RedisReply& reply) {
  std::size_t bytes = sizeof(reply) + reply.text().size();
  for (const RedisReply& element : reply.elements()) bytes += MemoryOf(element);
  return bytes;
}

// The replies of a transaction, which wait for its end: memory of their
// connection.
class TransactionReplies {
 public:
  explicit TransactionReplies(StreamOutput* output) : output_(*output) {}
  TransactionReplies(const TransactionReplies&) = delete;
  TransactionReplies& operator=(const TransactionReplies&) = delete;
  ~TransactionReplies() { output_.CountHeld(held_, 0); }

  // An error takes the place of a reply that doesn't fit: its command has run,
  // and those behind it run, too, as a transaction isn't cut off half-way.
  void Add(RedisReply reply) {
    std::size_t bytes = MemoryOf(reply);
    if (bytes >
        kMaxTransactionReplies - std::min(held_, kMaxTransactionReplies)) {
      reply = ErrReply("the command ran, but the replies are too large");
      bytes = MemoryOf(reply);
    }
    replies_.push_back(std::move(reply));
    output_.CountHeld(held_, held_ + bytes);
    held_ += bytes;
  }
  std::vector<RedisReply> Take() { return std::move(replies_); }

 private:
  StreamOutput& output_;
  std::vector<RedisReply> replies_;
  std::size_t held_ = 0;
};

// A command's name in capitals, on the stack. Longer names aren't any's.
class Capitals {
 public:
  explicit Capitals(std::string_view name) {
    if (name.size() > text_.size()) return;
    size_ = name.size();
    std::transform(name.begin(), name.end(), text_.begin(), [](char c) {
      return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    });
  }
  std::string_view view() const { return {text_.data(), size_}; }

 private:
  std::array<char, RedisService::kMaxName> text_;
  std::size_t size_ = 0;
};

// Counts a handler, at its end: also by an exception.
class HandlerCount {
 public:
  explicit HandlerCount(CallCells* counters) : counters_(counters) {}
  HandlerCount(const HandlerCount&) = delete;
  HandlerCount& operator=(const HandlerCount&) = delete;
  ~HandlerCount() { counters_->End(outcome_, NowNs() - began_ns_); }

  void NoteReply(const RedisReply& reply) {
    if (!reply.is_error()) outcome_ = RedisCommandCounters::kOk;
  }

 private:
  CallCells* const counters_;
  const std::int64_t began_ns_ = NowNs();
  int outcome_ = RedisCommandCounters::kError;
};

}  // namespace

// In the order of their names.
const RedisDispatcher::Builtin RedisDispatcher::kBuiltins[] = {
    {"AUTH", -2, &RedisDispatcher::Auth, true, true, false},
    {"CLIENT", -2, &RedisDispatcher::Client, false, false, false},
    {"COMMAND", -1, &RedisDispatcher::Command, false, false, false},
    {"DISCARD", 1, &RedisDispatcher::Discard, true, false, true},
    {"ECHO", 2, &RedisDispatcher::Echo, false, false, false},
    {"EXEC", 1, &RedisDispatcher::Exec, true, false, true},
    {"HELLO", -1, &RedisDispatcher::Hello, true, true, false},
    {"INFO", -1, &RedisDispatcher::Info, false, false, false},
    {"MULTI", 1, &RedisDispatcher::Multi, true, false, true},
    {"PING", -1, &RedisDispatcher::Ping, false, false, false},
    {"QUIT", -1, &RedisDispatcher::Quit, true, true, true},
    {"RESET", 1, &RedisDispatcher::Reset, true, true, true},
    {"SELECT", 2, &RedisDispatcher::Select, false, false, false},
};

const RedisDispatcher::Builtin* RedisDispatcher::FindBuiltin(
    std::string_view name) {
  const auto* const found = std::lower_bound(
      std::begin(kBuiltins), std::end(kBuiltins), name,
      [](const Builtin& a, std::string_view b) { return a.name < b; });
  return found != std::end(kBuiltins) && found->name == name ? found : nullptr;
}

bool RedisDispatcher::ChangesConnection(std::string_view name) {
  const Builtin* const builtin = FindBuiltin(Capitals(name).view());
  return builtin != nullptr &&
         (builtin->fixed || builtin->answer == &RedisDispatcher::Select);
}

RedisDispatcher::Found RedisDispatcher::Find(std::string_view name) const {
  const Capitals capitals(name);
  const Builtin* const builtin = FindBuiltin(capitals.view());
  if (builtin == nullptr || !builtin->fixed) {
    const auto mine = service_.commands_.find(capitals.view());
    if (mine != service_.commands_.end()) {
      return {nullptr, &mine->second, mine->second.arity};
    }
  }
  if (builtin != nullptr) {
    const bool of_transaction = builtin->answer == &RedisDispatcher::Multi ||
                                builtin->answer == &RedisDispatcher::Exec ||
                                builtin->answer == &RedisDispatcher::Discard;
    if (!of_transaction || service_.guard_) {
      return {builtin, nullptr, builtin->arity};
    }
  }
  if (service_.others_.handler) return {nullptr, &service_.others_, 0};
  return {};
}

RedisReply RedisDispatcher::Run(const flare::RedisRequest& request) const {
  RedisPeer& peer = request.peer();
  const Found found = Find(request.name());
  const bool open = found.builtin != nullptr && found.builtin->open;
  if (service_.authenticator_ && !peer.authenticated_ && !open) {
    return RedisReply::OfError("NOAUTH Authentication required.");
  }
  const bool exists = found.builtin != nullptr || found.command != nullptr;
  if (!exists || !Fits(found.arity, request.size())) {
    peer.queue_failed_ = peer.queues_;
    return exists ? WrongArity(request.name()) : UnknownCommand(request);
  }
  const bool immediate = found.builtin != nullptr && found.builtin->immediate;
  if (peer.queues_ && !immediate) return Queue(request);
  return Call(found, request);
}

RedisReply RedisDispatcher::Call(const Found& found,
                                 const flare::RedisRequest& request) const {
  if (found.builtin != nullptr) return (this->*found.builtin->answer)(request);
  HandlerCount count(found.command->counters);
  RedisReply reply = found.command->handler(request);
  count.NoteReply(reply);
  return reply;
}

// --- the connection ----------------------------------------------------------

// Returns OK, or an error. Without RequireAuth() "default" is the only user,
// whom any password suits, as in Redis; it proves nothing, so user() stays
// empty.
RedisReply RedisDispatcher::Authenticate(std::string_view user,
                                         std::string_view password,
                                         RedisPeer* peer) const {
  const bool asks = static_cast<bool>(service_.authenticator_);
  if (asks ? !service_.authenticator_(user, password) : user != "default") {
    return RedisReply::OfError(
        "WRONGPASS invalid username-password pair or user is disabled.");
  }
  if (asks) {
    peer->user_ = user;
    peer->authenticated_ = true;
  }
  return OkReply();
}

RedisReply RedisDispatcher::Auth(const flare::RedisRequest& request) const {
  if (request.size() > 3) return ErrReply("syntax error");
  const bool named = request.size() == 3;
  if (!named && !service_.authenticator_) {
    return ErrReply("AUTH called, but this server asks for no password");
  }
  return Authenticate(named ? request[1] : "default", request[named ? 2 : 1],
                      &request.peer());
}

RedisReply RedisDispatcher::Hello(const flare::RedisRequest& request) const {
  RedisPeer& peer = request.peer();
  bool resp3 = peer.resp3_;
  if (request.size() > 1) {
    if (request[1] != "2" && request[1] != "3") {
      return RedisReply::OfError("NOPROTO unsupported protocol version");
    }
    resp3 = request[1] == "3";
  }
  std::string_view name = peer.name_;
  std::size_t shows = 0;  // Where AUTH is.
  for (std::size_t i = 2; i < request.size();) {
    const std::size_t left = request.size() - i;
    if (IEquals(request[i], "AUTH") && left >= 3) {
      shows = i;
      i += 3;
    } else if (IEquals(request[i], "SETNAME") && left >= 2) {
      name = request[i + 1];
      i += 2;
    } else {
      return ErrReply("Syntax error in HELLO option '" +
                      OneLine(request[i].substr(0, kMaxRepeated)) + "'");
    }
  }
  if (shows != 0) {
    RedisReply shown =
        Authenticate(request[shows + 1], request[shows + 2], &peer);
    if (shown.is_error()) return shown;
  }
  if (service_.authenticator_ && !peer.authenticated_) {
    return RedisReply::OfError(
        "NOAUTH HELLO must be called with the client already authenticated, "
        "otherwise the HELLO <proto> AUTH <user> <pass> option can be used to "
        "authenticate the client and select the RESP protocol version at the "
        "same time");
  }
  peer.name_ = std::string(name);
  peer.resp3_ = resp3;
  return ReplyToHello(peer);
}

RedisReply RedisDispatcher::Client(const flare::RedisRequest& request) const {
  RedisPeer& peer = request.peer();
  const std::string_view what = request[1];
  if (IEquals(what, "SETNAME") && request.size() == 3) {
    peer.name_ = std::string(request[2]);
    return OkReply();
  }
  if (IEquals(what, "GETNAME") && request.size() == 2) {
    return peer.name_.empty() ? RedisReply() : Bulk(peer.name_);
  }
  if (IEquals(what, "ID") && request.size() == 2) {
    return RedisReply::OfInteger(static_cast<std::int64_t>(peer.id_));
  }
  // Names and versions of client libraries, which nobody asks for.
  if (IEquals(what, "SETINFO") && request.size() == 4) return OkReply();
  return ErrReply("unknown subcommand or wrong number of arguments for '" +
                  OneLine(what.substr(0, kMaxRepeated)) + "'");
}

RedisReply RedisDispatcher::Echo(const flare::RedisRequest& request) const {
  return Bulk(request[1]);
}

// Some libraries ask for this before their first command, and take an error for
// a broken server. The sections that the client names make no difference.
RedisReply RedisDispatcher::Info(const flare::RedisRequest& /*request*/) const {
  return Bulk(std::string("# Server\r\nredis_version:") + kRedisVersion +
              "\r\nredis_mode:standalone\r\n\r\n"
              "# Replication\r\nrole:master\r\n");
}

RedisReply RedisDispatcher::Ping(const flare::RedisRequest& request) const {
  if (request.size() > 2) return WrongArity(request.name());
  return request.size() == 2 ? Bulk(request[1]) : RedisReply::OfStatus("PONG");
}

RedisReply RedisDispatcher::Quit(const flare::RedisRequest& request) const {
  request.peer().CloseAfterReply();
  return OkReply();
}

RedisReply RedisDispatcher::Reset(const flare::RedisRequest& request) const {
  RedisPeer& peer = request.peer();
  static_cast<void>(Discard(request));
  peer.name_.clear();
  peer.user_.clear();
  peer.authenticated_ = false;
  peer.database_ = 0;
  peer.resp3_ = false;
  return RedisReply::OfStatus("RESET");
}

RedisReply RedisDispatcher::Select(const flare::RedisRequest& request) const {
  const auto database = TryParse<int>(request[1]);
  if (!database) return ErrReply("value is not an integer or out of range");
  if (*database < 0 || *database >= service_.databases_) {
    return ErrReply("DB index is out of range");
  }
  request.peer().database_ = *database;
  return OkReply();
}

// --- the commands that there are ---------------------------------------------

// In the form of Redis 7, which its clients parse; nothing is known of keys.
RedisReply RedisDispatcher::DescribeCommand(std::string_view name,
                                            int arity) const {
  std::vector<RedisReply> facts;
  facts.push_back(RedisReply::OfString(LowerName(name)));
  facts.push_back(RedisReply::OfInteger(arity == 0 ? -1 : arity));
  facts.push_back(RedisReply::Of(Kind::kArray, {}));  // Flags.
  for (int i = 0; i != 3; ++i) facts.push_back(RedisReply::OfInteger(0));
  // Categories, tips, positions of keys, subcommands.
  for (int i = 0; i != 4; ++i) {
    facts.push_back(RedisReply::Of(Kind::kArray, {}));
  }
  return RedisReply::Of(Kind::kArray, std::move(facts));
}

RedisReply RedisDispatcher::Command(const flare::RedisRequest& request) const {
  std::map<std::string_view, int> all;
  for (const Builtin& builtin : kBuiltins) {
    if (Find(builtin.name).builtin == &builtin) {
      all.emplace(builtin.name, builtin.arity);
    }
  }
  for (const auto& [name, command] : service_.commands_) {
    all.emplace(name, command.arity);
  }
  const std::string_view what = request.size() > 1 ? request[1] : "";
  if (IEquals(what, "COUNT")) {
    return RedisReply::OfInteger(static_cast<std::int64_t>(all.size()));
  }
  // There is no documentation.
  if (IEquals(what, "DOCS")) return RedisReply::Of(Kind::kMap, {});
  const bool list = IEquals(what, "LIST");
  if (!what.empty() && !list && !IEquals(what, "INFO")) {
    return ErrReply("unknown subcommand '" +
                    OneLine(what.substr(0, kMaxRepeated)) + "'");
  }
  std::vector<RedisReply> replies;
  if (request.size() > 2 && !list) {
    if (request.size() > 2 + kMaxDescribed) return ErrReply("too many names");
    for (const std::string_view name : request.words().subspan(2)) {
      const auto found = all.find(Capitals(name).view());
      replies.push_back(found == all.end()
                            ? RedisReply()
                            : DescribeCommand(name, found->second));
    }
  } else {
    for (const auto& [name, arity] : all) {
      replies.push_back(list ? RedisReply::OfString(LowerName(name))
                             : DescribeCommand(name, arity));
    }
  }
  return RedisReply::Of(Kind::kArray, std::move(replies));
}

// --- transactions ------------------------------------------------------------

RedisReply RedisDispatcher::Multi(const flare::RedisRequest& request) const {
  RedisPeer& peer = request.peer();
  if (peer.queues_) return ErrReply("MULTI calls can not be nested");
  peer.queues_ = true;
  return OkReply();
}

RedisReply RedisDispatcher::Queue(const flare::RedisRequest& request) const {
  RedisPeer& peer = request.peer();
  std::size_t bytes = sizeof(RedisPeer::Words);
  for (const std::string_view word : request.words()) {
    bytes += word.size() + sizeof(std::string);
  }
  if (bytes > max_queued_ - peer.queued_bytes_) {
    peer.queue_failed_ = true;
    return ErrReply("the transaction is too large");
  }
  peer.queued_bytes_ += bytes;
  peer.queued_.emplace_back(request.words().begin(), request.words().end());
  return RedisReply::OfStatus("QUEUED");
}

RedisReply RedisDispatcher::Discard(const flare::RedisRequest& request) const {
  RedisPeer& peer = request.peer();
  if (!peer.queues_) return ErrReply("DISCARD without MULTI");
  peer.queues_ = peer.queue_failed_ = false;
  peer.queued_ = {};
  peer.queued_bytes_ = 0;
  return OkReply();
}

RedisReply RedisDispatcher::RunQueued(const RedisPeer::Words& command,
                                      RedisPeer* peer) const {
  const std::vector<std::string_view> words(command.begin(), command.end());
  const flare::RedisRequest request(words, peer, /*in_transaction=*/true);
  return Call(Find(request.name()), request);
}

RedisReply RedisDispatcher::Exec(const flare::RedisRequest& request) const {
  RedisPeer& peer = request.peer();
  if (!peer.queues_) return ErrReply("EXEC without MULTI");
  const bool failed = peer.queue_failed_;
  const std::vector<RedisPeer::Words> queued = std::move(peer.queued_);
  static_cast<void>(Discard(request));
  if (failed) {
    return RedisReply::OfError(
        "EXECABORT Transaction discarded because of previous errors.");
  }
  bool ran = false;
  TransactionReplies replies(output_);
  service_.guard_([&] {
    ran = true;
    for (const RedisPeer::Words& command : queued) {
      replies.Add(RunQueued(command, &peer));
    }
  });
  return ran ? RedisReply::Of(Kind::kArray, replies.Take())
             : RedisReply::OfNilArray();
}

}  // namespace flare::rpc
