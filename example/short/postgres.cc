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

using Result = flare::Expected<std::string, flare::Status>;

// A connection, for one fiber at a time.
class Database {
 public:
  // Looks names up, and shakes hands for TLS: on another thread.
  explicit Database(const std::string& conninfo)
      : db_(flare::fiber::RunBlocking(
            [&] { return PQconnectdb(conninfo.c_str()); })) {}

  // The first way. It takes any library, and a thread for as long as it blocks.
  Result AskBlocking(const std::string& sql) {
    if (PQstatus(db_.get()) != CONNECTION_OK) return Failure();
    return flare::fiber::RunBlocking(
        [&] { return Value(PQexec(db_.get(), sql.c_str())); });
  }

  // The second way. A thousand such fibers need no further thread.
  Result AskWaiting(const std::string& sql, std::chrono::seconds timeout) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    const auto socket = flare::io::FdWaiter::Create(PQsocket(db_.get()));
    if (!socket || PQsetnonblocking(db_.get(), 1) != 0 ||
        PQsendQuery(db_.get(), sql.c_str()) == 0) {
      return Failure();
    }
    const flare::Status late(ETIMEDOUT, "no answer in time");
    for (int left = PQflush(db_.get()); left != 0; left = PQflush(db_.get())) {
      if (left < 0) return Failure();
      if ((*socket)->WaitUntil(POLLIN | POLLOUT, deadline) == 0) return late;
      if (PQconsumeInput(db_.get()) == 0) return Failure();
    }
    Result last = Failure();
    for (;;) {
      while (PQisBusy(db_.get()) != 0) {
        if ((*socket)->WaitUntil(POLLIN, deadline) == 0) return late;
        if (PQconsumeInput(db_.get()) == 0) return Failure();
      }
      PGresult* const result = PQgetResult(db_.get());
      if (result == nullptr) return last;
      last = Value(result);
    }
  }

 private:
  struct Free {
    void operator()(PGconn* db) const {
      flare::fiber::RunBlocking([db] { PQfinish(db); });
    }
    void operator()(PGresult* result) const { PQclear(result); }
  };

  flare::Status Failure() const {
    return flare::Status(EIO, PQerrorMessage(db_.get()));
  }

  // The first row's first value.
  Result Value(PGresult* taken) const {
    const std::unique_ptr<PGresult, Free> result(taken);
    if (PQresultStatus(taken) != PGRES_TUPLES_OK) return Failure();
    return std::string(PQntuples(taken) == 0 ? "" : PQgetvalue(taken, 0, 0));
  }

  const std::unique_ptr<PGconn, Free> db_;
};

int Entry(int argc, char** argv) {
  if (argc != 2) return 2;
  // The others wait for this one's locks, and hold no worker.
  Database holder(argv[1]);
  Result locked =
      holder.AskBlocking("SELECT pg_advisory_lock(1), pg_advisory_lock(2)");
  if (!locked) {
    std::cout << locked.error().message();
    return 1;
  }
  flare::fiber::TaskGroup fibers;
  Result blocking;
  Result waiting;
  fibers.Spawn([&] {
    blocking = Database(argv[1]).AskBlocking(
        "SELECT 'blocking' FROM pg_advisory_lock(1)");
  });
  fibers.Spawn([&] {
    waiting = Database(argv[1]).AskWaiting(
        "SELECT 'waiting' FROM pg_advisory_lock(2)", std::chrono::seconds(30));
  });
  (void)holder.AskBlocking("SELECT pg_advisory_unlock_all()");
  (void)fibers.Wait();
  for (const Result* result : {&blocking, &waiting}) {
    std::cout << (*result ? **result : result->error().message()) << '\n';
  }
  return blocking && waiting ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
