// A server for clients of Redis: keys and values, a command that blocks its
// fiber, transactions.
//
//   redis_server 127.0.0.1:6379 [password]
//   redis-cli -p 6379 SET greeting hello
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "flare/base/string.h"
#include "flare/fiber/condition_variable.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/mutex.h"
#include "flare/init.h"
#include "flare/rpc/redis_service.h"
#include "flare/rpc/server.h"
#include "glog/logging.h"

namespace {

using flare::RedisReply;
using flare::RedisRequest;

class Store {
 public:
  RedisReply Get(const RedisRequest& request) {
    const auto lock = Lock(request);
    const auto found = values_.find(request[1]);
    return found == values_.end() ? RedisReply()
                                  : RedisReply::OfString(found->second);
  }

  RedisReply Set(const RedisRequest& request) {
    const auto lock = Lock(request);
    values_.insert_or_assign(std::string(request[1]), std::string(request[2]));
    changed_.notify_all();
    return RedisReply::OfStatus("OK");
  }

  RedisReply Increment(const RedisRequest& request) {
    const auto lock = Lock(request);
    std::string& value = values_[std::string(request[1])];
    const auto number = flare::TryParse<int>(value.empty() ? "0" : value);
    if (!number) {
      return RedisReply::OfError("ERR value is not an integer or out of range");
    }
    value = std::to_string(*number + 1LL);
    changed_.notify_all();
    return RedisReply::OfInteger(*number + 1LL);
  }

  // WAITFOR key seconds: until there is such a key, or the server stops.
  RedisReply WaitFor(const RedisRequest& request) {
    const auto seconds = flare::TryParse<int>(request[2]);
    if (!seconds || request.in_transaction()) {
      return RedisReply::OfError("ERR can't wait like that");
    }
    const auto stop = flare::fiber::ExecutionContext::Current()->stop_token();
    std::unique_lock lock(mutex_);
    const bool found = changed_.wait_for(
        lock, stop, std::chrono::seconds(*seconds),
        [&] { return values_.find(request[1]) != values_.end(); });
    return RedisReply::OfBoolean(found);
  }

  // Commands between MULTI and EXEC run under one lock.
  void Transact(const std::function<void()>& run) {
    std::scoped_lock lock(mutex_);
    run();
  }

 private:
  std::unique_lock<flare::fiber::Mutex> Lock(const RedisRequest& request) {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!request.in_transaction()) lock.lock();
    return lock;
  }

  flare::fiber::Mutex mutex_;
  flare::fiber::ConditionVariable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

flare::RedisService Serve(Store* store, std::string password) {
  flare::RedisService redis;
  redis.Handle("GET", 2, [store](auto& request) { return store->Get(request); })
      .Handle("SET", 3, [store](auto& request) { return store->Set(request); })
      .Handle("INCR", 2,
              [store](auto& request) { return store->Increment(request); })
      .Handle("WAITFOR", 3,
              [store](auto& request) { return store->WaitFor(request); })
      .AllowTransactions([store](auto& run) { store->Transact(run); });
  if (!password.empty()) {
    redis.RequireAuth([password](auto user, auto shown) {
      return user == "default" && shown == password;
    });
  }
  return redis;
}

int Main(int argc, char** argv) {
  const auto address = flare::EndpointFromString(argc > 1 ? argv[1] : "");
  if (!address) LOG(FATAL) << "usage: redis_server ADDRESS:PORT [PASSWORD]";
  Store store;
  flare::Server server;
  server.AddRedisService(Serve(&store, argc > 2 ? argv[2] : ""));
  server.ListenOn(*address);
  if (!server.Start()) return 1;
  flare::WaitForQuitSignal();
  server.Stop();
  return server.Join() == 0 ? 0 : 1;  // 1: a handler was abandoned.
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Main); }
