// Where a program's results go: a file that a flag names, or stdout.
//
//   OutputFile json("json", FLAGS_json);
//   if (!json.ok()) return RefuseFlags("Can't write to " + json.name() + ".");
//   ...the run...
//   if (!json.Write(text)) LOG(ERROR) << "Can't write to " << json.name();
//
// Not thread-safe; writing blocks the thread.

#ifndef EXAMPLE_RPC_OUTPUT_FILE_H_
#define EXAMPLE_RPC_OUTPUT_FILE_H_

#include <fstream>
#include <optional>
#include <ostream>
#include <string>

namespace example {

class OutputFile {
 public:
  // The file of the flag --`flag`. "": there is none; "-": stdout. Opened at
  // once, so that a name that can't be written to isn't found out at the end of
  // a run.
  OutputFile(const std::string& flag, const std::string& name);

  bool ok() const { return !file_ || !file_->fail(); }
  const std::string& name() const { return name_; }  // "--json=x"
  // For writers that write bit by bit, and Close(). Null: there is none, or
  // stdout.
  std::ostream* stream() { return file_ ? &*file_ : nullptr; }

  // All there is to write. False: not all of it has been taken, as where a disk
  // is full. True if there is nowhere to write to.
  [[nodiscard]] bool Write(const std::string& text);
  // Closes the file that stream() wrote to; false if something wasn't written.
  [[nodiscard]] bool Close();

 private:
  const std::string name_;
  const bool to_stdout_;
  std::optional<std::ofstream> file_;
};

}  // namespace example

#endif  // EXAMPLE_RPC_OUTPUT_FILE_H_
