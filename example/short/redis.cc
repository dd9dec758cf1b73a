// Redis by hiredis on fibers. Two ways keep workers free: blocking functions on
// threads meant for them, and non-blocking ones with an FdWaiter.
//
//   redis 127.0.0.1 6379

#include <hiredis/hiredis.h>
#include <poll.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/task_group.h"
#include "flare/init.h"
#include "flare/io/fd_waiter.h"

namespace {

using Result = flare::Expected<std::string, flare::Status>;

constexpr timeval kConnectTimeout = {5, 0};  // The system's takes minutes.

struct Free {
  void operator()(redisContext* redis) const { redisFree(redis); }
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Redis = std::unique_ptr<redisContext, Free>;  // For one fiber at a time.

flare::Status Failure(const Redis& redis) {
  return flare::Status(EIO, redis ? redis->errstr : "no memory");
}

// The reply to BLPOP is the queue and its element: returns the element.
Result Answer(const Redis& redis, void* taken) {
  const std::unique_ptr<redisReply, Free> reply(
      static_cast<redisReply*>(taken));
  if (!reply) return Failure(redis);
  // The server's own error, of which redis->err says nothing.
  if (reply->type == REDIS_REPLY_ERROR) return flare::Status(EIO, reply->str);
  if (reply->type == REDIS_REPLY_NIL) return flare::Status(ETIMEDOUT, "empty");
  if (reply->elements != 2) return std::string();
  return std::string(reply->element[1]->str, reply->element[1]->len);
}

// The first way. It takes any library, and a thread for as long as it blocks.
Result PopBlocking(const char* host, int port) {
  return flare::fiber::RunBlocking([&]() -> Result {
    const Redis redis(redisConnectWithTimeout(host, port, kConnectTimeout));
    if (!redis || redis->err != 0) return Failure(redis);
    return Answer(redis, redisCommand(redis.get(), "BLPOP blocking 30"));
  });
}

// The second way. A thousand such fibers need no further thread. `host` must be
// an address: hiredis looks names up in a blocking way.
Result PopWaiting(const char* host, int port) {
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(30);
  const flare::Status late(ETIMEDOUT, "no answer in time");
  const Redis redis(redisConnectNonBlock(host, port));
  if (!redis || redis->err != 0) return Failure(redis);
  const auto socket = flare::io::FdWaiter::Create(redis->fd);
  if (!socket) return socket.error();
  if (redisAppendCommand(redis.get(), "BLPOP waiting 0") != REDIS_OK) {
    return Failure(redis);
  }
  for (int sent = 0; sent == 0;) {  // The first turn waits for the connection.
    if ((*socket)->WaitUntil(POLLOUT, deadline) == 0) return late;
    if (redisBufferWrite(redis.get(), &sent) != REDIS_OK) return Failure(redis);
  }
  for (void* reply = nullptr;;) {
    if (redisGetReplyFromReader(redis.get(), &reply) != REDIS_OK) {
      return Failure(redis);
    }
    if (reply != nullptr) return Answer(redis, reply);
    if ((*socket)->WaitUntil(POLLIN, deadline) == 0) return late;
    if (redisBufferRead(redis.get()) != REDIS_OK) return Failure(redis);
  }
}

// Sends both of them their element.
flare::Status Push(const char* host, int port) {
  return flare::fiber::RunBlocking([&]() -> flare::Status {
    const Redis redis(redisConnectWithTimeout(host, port, kConnectTimeout));
    if (!redis || redis->err != 0) return Failure(redis);
    for (const char* queue : {"blocking", "waiting"}) {
      const Result pushed =
          Answer(redis, redisCommand(redis.get(), "RPUSH %s news", queue));
      if (!pushed) return pushed.error();
    }
    return flare::Status();
  });
}

int Entry(int argc, char** argv) {
  if (argc != 3) return 2;
  const int port = std::atoi(argv[2]);
  Result blocking;
  Result waiting;
  flare::fiber::TaskGroup fibers;
  fibers.Spawn([&] { blocking = PopBlocking(argv[1], port); });
  fibers.Spawn([&] { waiting = PopWaiting(argv[1], port); });
  fibers.Spawn([&] { return Push(argv[1], port); });
  const flare::Status pushed = fibers.Wait();
  if (!pushed.ok()) std::cout << "push: " << pushed.message() << '\n';
  for (const Result* result : {&blocking, &waiting}) {
    std::cout << (*result ? **result : result->error().message()) << '\n';
  }
  return blocking && waiting ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
