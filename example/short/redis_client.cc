// Redis by flare's own client: commands of many fibers over one connection, a
// transaction, a queue and a subscription.
//
//   redis_client redis://127.0.0.1:6379

#include "flare/rpc/redis_client.h"

#include <chrono>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "flare/fiber/async.h"
#include "flare/fiber/future.h"
#include "flare/init.h"

namespace {

using namespace std::literals;
using flare::RedisClient;

void Report(const char* what, const RedisClient::Result& result) {
  std::cout << what << ": ";
  if (result) {
    std::cout << *result << '\n';  // The server's errors, too.
  } else {
    std::cout << RedisClient::ErrorCodeToString(result.error().code()) << '\n';
    std::cerr << result.error().message() << '\n';
  }
}

// Each fiber waits for its own replies only.
void CountVisits(const RedisClient& client) {
  std::vector<flare::Future<>> fibers;
  for (int i = 0; i != 10; ++i) {
    fibers.push_back(flare::fiber::Async([&client] {
      for (int j = 0; j != 100; ++j) {
        static_cast<void>(client.Execute({"INCR", "visits"}));
      }
    }));
  }
  for (auto& fiber : fibers) flare::fiber::BlockingGet(std::move(fiber));
  Report("visits", client.Execute({"GET", "visits"}));
}

// All or nothing, with nothing in between.
void MoveMoney(const RedisClient& client) {
  Report("balances",
         client.Transact({{"DECRBY", "alice", "30"}, {"INCRBY", "bob", "30"}}));
}

// A command that blocks has a connection to itself, and more time than it
// blocks at the server.
void TakeJob(const RedisClient& client) {
  auto worker = client.Dedicate();
  if (!worker) return Report("job", worker.error());
  auto job = flare::fiber::Async([&] {
    return worker->Execute({"BLPOP", "jobs", "30"}, {.timeout = 35s});
  });
  static_cast<void>(client.Execute({"RPUSH", "jobs", "sweep"}));
  Report("job", flare::fiber::BlockingGet(std::move(job)));
}

void Listen(const RedisClient& client) {
  auto session = client.Dedicate();
  if (!session) return Report("news", session.error());
  flare::Status subscribed = session->Subscribe({"SUBSCRIBE", "news"});
  if (!subscribed.ok()) return Report("news", subscribed);
  Report("news", session->Receive());  // That it has subscribed.
  static_cast<void>(client.Execute({"PUBLISH", "news", "it rains"}));
  Report("news", session->Receive());
}

int Entry(int argc, char** argv) {
  RedisClient client;
  flare::Status opened = client.Open(argc == 2 ? argv[1] : "", {.timeout = 5s});
  if (!opened.ok()) {
    std::cerr << opened.message() << '\n';
    return 1;
  }
  const auto pong = client.Execute({"PING"});
  if (!pong || pong->is_error()) {
    Report("ping", pong);
    return 1;
  }
  CountVisits(client);
  MoveMoney(client);
  TakeJob(client);
  Listen(client);
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
