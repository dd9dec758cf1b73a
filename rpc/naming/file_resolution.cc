#include "flare/rpc/naming/file_resolution.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flare/base/clock.h"
#include "flare/base/expected.h"
#include "flare/base/read_file.h"
#include "flare/base/status.h"
#include "flare/base/string.h"
#include "flare/io/file.h"
#include "flare/rpc/naming/list_resolution.h"
#include "flare/rpc/naming/refresh_gate.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{16} << 20;

// It is read as often as this, whatever its time of change says: times of
// change are too coarse for two changes at once.
constexpr std::int64_t kReadEveryNs = kNsPerSecond;

using Text = Expected<std::string>;
using Entries = Expected<ListEntries, flare::Status>;

flare::Status InvalidFile(std::string text) {
  return flare::Status(STATUS_INVALID_CHANNEL, std::move(text));
}

// "file:3: why".
flare::Status InLine(const std::string& path, std::size_t line,
                     const flare::Status& why) {
  return InvalidFile(path + ":" + std::to_string(line) + ": " + why.message());
}

// Servers by line, or separated by commas; comments begin with '#'. Names that
// aren't among `known` are looked up by `look_up`, which returns nothing if the
// look-up was given up, and then so does this.
template <class F>
std::optional<Entries> ReadEntries(const std::string& path,
                                   std::string_view text,
                                   const ListEntries& known, const F& look_up) {
  ListEntries entries;
  std::size_t number = 0;
  for (std::string_view line : Split(text, '\n', /*keep_empty=*/true)) {
    ++number;
    line = Trim(line.substr(0, line.find('#')));
    for (std::string_view piece : Split(line, ',')) {
      auto entry = ReadListEntry(piece);
      if (!entry) return InLine(path, number, entry.error());
      const auto old = std::find_if(
          known.begin(), known.end(),
          [&](const ListEntry& e) { return e.name == entry->name; });
      if (old != known.end()) {
        entry->endpoints = old->endpoints;
        entry->unknown = old->unknown;
      } else if (!entry->literal) {
        auto found = look_up(entry->name);
        if (!found) return std::nullopt;
        const flare::Status read = FillIn(*std::move(found), &*entry);
        if (!read.ok()) return InLine(path, number, read);
      }
      entries.push_back(*std::move(entry));
    }
  }
  if (entries.empty()) return InvalidFile(path + " names no server");
  return entries;
}

class FileResolution final : public ListResolution {
 public:
  // Blocks, as it reads the file.
  FileResolution(std::string path, const UpdateInterval& interval)
      : ListResolution({}, interval), path_(std::move(path)) {
    names_due_ns_ = NowNs() + IntervalNs();
    RefreshAfter(std::min(kReadEveryNs, IntervalNs()));
    Take(io::ReadFile(path_, kMaxBytes), [](const std::string& name) {
      return std::optional<LookupResult>(LookUpHost(name));
    });
  }

  bool IsStatic() const override { return false; }

 private:
  void Refresh() override {
    RefreshAfter(std::min(kReadEveryNs, IntervalNs()));
    RefreshGate* const gate = RefreshGate::Instance();
    auto text = gate->Ask([path = path_] { return ReadFile(path, kMaxBytes); });
    if (!text) return;
    Take(*std::move(text), [&](const std::string& name) {
      return gate->Ask([name] { return LookUpHost(name); });
    });
    if (NowNs() < names_due_ns_) return;
    names_due_ns_ = NowNs() + IntervalNs();
    static_cast<void>(RefreshNames());
  }

  // The file holds this now. Whatever is wrong with it, the servers of before
  // stay.
  template <class F>
  void Take(Text text, const F& look_up) {
    if (!text) return SetState(text.error());
    if (text_ != *text) {
      std::optional<Entries> read =
          ReadEntries(path_, *text, entries(), look_up);
      if (!read) return;
      text_ = *std::move(text);
      mistake_ = *read ? flare::Status() : read->error();
      if (*read) SetEntries(**std::move(read));
    }
    SetState(mistake_);
  }

  void SetState(const flare::Status& state) {
    if (state.message() == state_.message()) return;
    state_ = state;
    if (state.ok()) {
      LOG(INFO) << path_ << " can be used again";
    } else {
      LOG(WARNING) << (entries().empty()
                           ? "no server is known yet: "
                           : "servers that were known stay in use: ")
                   << state.message();
    }
    SetSourceFailure(state);
  }

  const std::string path_;
  // For refreshes, and the constructor.
  std::optional<std::string> text_;  // Read last, right or wrong.
  flare::Status mistake_;            // In that.
  flare::Status state_;              // Or why it can't be read now.
  std::int64_t names_due_ns_ = 0;
};

}  // namespace

Resolution ResolveFile(std::string_view path, const UpdateInterval& interval) {
  std::shared_ptr<NameResolution> resolution =
      std::make_shared<FileResolution>(std::string(path), interval);
  return resolution;
}

}  // namespace flare::rpc
