// PostgreSQL's library (libpq) on fibers. Two ways keep workers free: blocking
// functions on threads meant for them, and non-blocking ones with an FdWaiter.
//
//   postgres 'host=127.0.0.1 user=alice dbname=shop connect_timeout=5'

#include <poll.h>
#include <postgresql/libpq-fe.h>

#include <cerrno>
#include <chrono>
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

using Clock = std::chrono::steady_clock;
using Result = flare::Expected<std::string, flare::Status>;

// A connection, for one fiber at a time. `value` is $1 in `sql`.
class Database {
 public:
  // Looks names up, and shakes hands for TLS: on another thread.
  explicit Database(const std::string& conninfo)
      : db_(flare::fiber::RunBlocking(
            [&] { return PQconnectdb(conninfo.c_str()); })) {}

  // The first way. It takes any library, and a thread for as long as it blocks.
  Result AskBlocking(const char* sql, const char* value) {
    if (PQstatus(db_.get()) != CONNECTION_OK) return Failure();
    return flare::fiber::RunBlocking([&] {
      return FirstValue(PQexecParams(db_.get(), sql, 1, nullptr, &value,
                                     nullptr, nullptr, 0));
    });
  }

  // The second way. A thousand such fibers need no further thread.
  Result AskWaiting(const char* sql, const char* value, Clock::time_point end) {
    if (PQstatus(db_.get()) != CONNECTION_OK) return Failure();
    const auto socket = flare::io::FdWaiter::Create(PQsocket(db_.get()));
    if (!socket) return socket.error();
    if (PQsetnonblocking(db_.get(), 1) != 0 ||
        PQsendQueryParams(db_.get(), sql, 1, nullptr, &value, nullptr, nullptr,
                          0) == 0) {
      return Failure();
    }
    Result answer = Failure();
    for (int results = 0; results < 2; ++results) {  // The second is null.
      int unsent = 0;
      while ((unsent = PQflush(db_.get())) != 0 || PQisBusy(db_.get()) != 0) {
        if (unsent < 0) return Failure();
        const short events = unsent == 0 ? POLLIN : POLLIN | POLLOUT;
        if ((*socket)->WaitUntil(events, end) == 0) return Late();
        if (PQconsumeInput(db_.get()) == 0) return Failure();
      }
      if (PGresult* got = PQgetResult(db_.get())) answer = FirstValue(got);
    }
    return answer;
  }

 private:
  struct Free {
    void operator()(PGconn* db) const {
      flare::fiber::RunBlocking([db] { PQfinish(db); });
    }
  };

  flare::Status Failure() const {
    return flare::Status(EIO, PQerrorMessage(db_.get()));
  }

  // A connection that awaits an answer takes no other query: it's of no use.
  flare::Status Late() {
    db_.reset();
    return flare::Status(ETIMEDOUT, "no answer in time");
  }

  Result FirstValue(PGresult* taken) const {
    const std::unique_ptr<PGresult, decltype(&PQclear)> result(taken, PQclear);
    if (PQresultStatus(taken) != PGRES_TUPLES_OK) return Failure();
    return std::string(PQntuples(taken) == 0 ? "" : PQgetvalue(taken, 0, 0));
  }

  std::unique_ptr<PGconn, Free> db_;
};

int Entry(int argc, char** argv) {
  if (argc != 2) return 2;
  // The others wait for this one's lock, and hold no worker.
  Database holder(argv[1]);
  Result locked =
      holder.AskBlocking("SELECT $1::text FROM pg_advisory_lock(1)", "locked");
  const char* const sql = "SELECT $1::text FROM pg_advisory_lock_shared(1)";
  flare::fiber::TaskGroup fibers;
  Result blocking;
  Result waiting;
  fibers.Spawn(
      [&] { blocking = Database(argv[1]).AskBlocking(sql, "blocking"); });
  fibers.Spawn([&] {
    const auto end = Clock::now() + std::chrono::seconds(30);
    waiting = Database(argv[1]).AskWaiting(sql, "waiting", end);
  });
  (void)holder.AskBlocking("SELECT pg_advisory_unlock($1)", "1");
  (void)fibers.Wait();
  for (const Result* result : {&locked, &blocking, &waiting}) {
    std::cout << (*result ? **result : result->error().message()) << '\n';
  }
  return locked && blocking && waiting ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
