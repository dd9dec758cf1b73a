#include "example/rpc/output_file.h"

#include <cstdio>

namespace example {

OutputFile::OutputFile(const std::string& flag, const std::string& name)
    : name_("--" + flag + "=" + name), to_stdout_(name == "-") {
  if (!name.empty() && !to_stdout_) file_.emplace(name);
}

bool OutputFile::Write(const std::string& text) {
  if (to_stdout_) {
    // Buffered text may be lost when the process ends, unnoticed.
    return std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
  }
  if (file_) *file_ << text;
  return Close();
}

bool OutputFile::Close() {
  if (!file_) return true;
  file_->close();
  return ok();
}

}  // namespace example
