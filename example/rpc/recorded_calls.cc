#include "example/rpc/recorded_calls.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "flare/rpc/recording/recording_reader.h"
#include "glog/logging.h"

namespace example {
namespace {

using flare::RecordedCall;
using flare::Status;

flare::Expected<std::vector<std::string>, Status> FilesOf(
    const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code ignored;  // Opening it tells.
    if (!std::filesystem::is_directory(path, ignored)) {
      files.push_back(path);
      continue;
    }
    auto within = flare::ListRecordings(path);
    if (!within) return within.error();
    if (within->empty()) {
      return Status(ENOENT, "there is no recording in " + path);
    }
    files.insert(files.end(), within->begin(), within->end());
  }
  return files;
}

bool IsAskedFor(const RecordedCall& call,
                const std::vector<std::string>& methods) {
  return methods.empty() ||
         std::any_of(methods.begin(), methods.end(),
                     [&](const std::string& beginning) {
                       return call.method.starts_with(beginning);
                     });
}

}  // namespace

flare::Expected<std::vector<RecordedCall>, Status> ReadRecordedCalls(
    const std::vector<std::string>& paths,
    const std::vector<std::string>& methods) {
  const auto files = FilesOf(paths);
  if (!files) return files.error();
  std::vector<RecordedCall> calls;
  for (const std::string& file : *files) {
    const auto reader = flare::RecordingReader::Open(file);
    if (!reader) return reader.error();
    while (true) {
      auto call = (*reader)->Next();
      if (!call) return call.error();
      if (!*call) break;
      if (IsAskedFor(**call, methods)) calls.push_back(**std::move(call));
    }
    if ((*reader)->cut_off()) {
      LOG(WARNING) << file << " is cut off, or still written to: calls up to "
                   << "there are used.";
    }
  }
  // Files have them in the order of their ends.
  std::stable_sort(calls.begin(), calls.end(),
                   [](const RecordedCall& a, const RecordedCall& b) {
                     return a.received_unix_ns < b.received_unix_ns;
                   });
  return calls;
}

}  // namespace example
