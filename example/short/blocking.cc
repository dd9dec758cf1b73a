// A library that blocks its thread, on fibers: SQLite, whose calls go to
// threads meant for that (RunBlocking). Workers run other fibers meanwhile.

#include <sqlite3.h>

#include <iostream>
#include <memory>
#include <string>

#include "flare/base/status.h"
#include "flare/fiber/blocking_region.h"
#include "flare/fiber/task_group.h"
#include "flare/init.h"

namespace {

class Database {
 public:
  explicit Database(const std::string& path) {
    sqlite3* db = nullptr;
    const int code = flare::fiber::RunBlocking(
        [&] { return sqlite3_open(path.c_str(), &db); });
    db_.reset(db);
    if (code != SQLITE_OK) db_.reset();
  }

  bool is_open() const { return db_ != nullptr; }

  // Runs a statement; the last row's first value, if there are any rows, goes
  // into *value. The library locks `db_` by itself.
  flare::Status Run(const std::string& statement, std::string* value) {
    // All of the library's work is within the function: its locks and its
    // thread_locals see one thread.
    return flare::fiber::RunBlocking([&]() -> flare::Status {
      const auto take = [](void* out, int, char** columns, char**) {
        if (columns[0] != nullptr) {
          *static_cast<std::string*>(out) = columns[0];
        }
        return 0;
      };
      char* error = nullptr;
      const int code =
          sqlite3_exec(db_.get(), statement.c_str(), take, value, &error);
      if (code == SQLITE_OK) return {};
      const std::string text = error != nullptr ? error : "no memory";
      sqlite3_free(error);
      return flare::Status(code, text);
    });
  }

 private:
  struct Close {
    void operator()(sqlite3* db) const {
      flare::fiber::RunBlocking([db] { return sqlite3_close(db); });
    }
  };
  std::unique_ptr<sqlite3, Close> db_;
};

int Entry(int, char**) {
  Database database(":memory:");
  if (!database.is_open()) return 1;
  std::string value;
  flare::Status status =
      database.Run("CREATE TABLE visits (page TEXT)", &value);
  flare::fiber::TaskGroup group;
  for (int visitor = 0; visitor != 20; ++visitor) {
    group.Spawn([&] {
      std::string nothing;
      return database.Run("INSERT INTO visits VALUES ('start')", &nothing);
    });
  }
  if (status.ok()) status = group.Wait();
  if (status.ok()) status = database.Run("SELECT count(*) FROM visits", &value);
  if (!status.ok()) {
    std::cout << status.ToString() << '\n';
    return 1;
  }
  std::cout << value << " visits\n";
  std::cout << database.Run("SELECT x FROM nowhere", &value).message() << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
