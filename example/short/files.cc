// Files on fibers: a catalogue of prices that grows by appends and is read at
// any place, and a state that a crash leaves whole.
//
//   files FOLDER
//
// Prints the prices of all items, and how often it has run in this folder.

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <string>
#include <utility>

#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/task_group.h"
#include "flare/init.h"
#include "flare/io/file.h"

namespace {

// Records of a fixed size, in one file that all fibers use.
class Catalogue {
 public:
  static flare::Expected<Catalogue> Open(const std::string& path) {
    auto file = flare::io::File::Open(path, O_RDWR | O_CREAT);
    if (!file) return file.error();
    return Catalogue(*std::move(file));
  }

  flare::Status Add(const std::string& item, int cents) {
    std::ostringstream record;
    record << std::left << std::setw(kSize - 1)
           << item + ' ' + std::to_string(cents) << '\n';
    return file_.Append(record.str());
  }

  // Returns "item cents". From memory mostly, by one system call.
  flare::Expected<std::string> Get(std::uint64_t number) const {
    std::array<char, kSize> record;
    const auto size = file_.ReadAt(number * kSize, record);
    if (!size) return size.error();
    if (*size < kSize) return flare::Status(ENOENT, "no such item");
    const std::string text(record.data(), record.size());
    return text.substr(0, text.find_last_not_of(" \n") + 1);
  }

  flare::Expected<std::uint64_t> Count() const {
    const auto size = file_.Size();
    if (!size) return size.error();
    return *size / kSize;
  }

 private:
  static constexpr std::size_t kSize = 32;

  explicit Catalogue(flare::io::File file) : file_(std::move(file)) {}

  flare::io::File file_;
};

flare::Expected<int> CountRuns(const std::string& path) {
  const auto state = flare::io::ReadFile(path, 16);
  if (!state && state.error().code() != ENOENT) return state.error();
  const int runs = 1 + (state ? std::atoi(state->c_str()) : 0);
  const flare::Status saved =
      flare::io::WriteFileAtomically(path, std::to_string(runs) + '\n');
  if (!saved.ok()) return saved;
  return runs;
}

flare::Status Run(const std::string& folder) {
  auto prices = Catalogue::Open(folder + "/prices");
  if (!prices) return prices.error();
  flare::fiber::TaskGroup adding;
  for (const char* item : {"apples", "pears"}) {
    adding.Spawn([&prices, item] { return prices->Add(item, 250); });
  }
  if (const flare::Status added = adding.Wait(); !added.ok()) return added;
  const auto count = prices->Count();
  if (!count) return count.error();
  for (std::uint64_t number = 0; number != *count; ++number) {
    const auto item = prices->Get(number);
    if (!item) return item.error();
    std::cout << *item << '\n';
  }
  const auto runs = CountRuns(folder + "/runs");
  if (!runs) return runs.error();
  std::cout << "run " << *runs << '\n';
  return {};
}

int Entry(int argc, char** argv) {
  const flare::Status status = Run(argc > 1 ? argv[1] : ".");
  if (!status.ok()) std::cerr << status.ToString() << '\n';
  return status.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
