// Cuts lines, and blocks of a known size, out of bytes that come in pieces.
// Both end with CR LF.
//
//   bytes.remove_prefix(reader.TakeLine(bytes, &line));
//   if (!line.empty()) ...  // Complete, without its end.
//   reader.BeginBlock(size);
//   bytes.remove_prefix(reader.TakeBlock(bytes, &block));
//   if (!reader.in_block()) ...  // Complete.
//
// Takes each byte once. Fails for good: see failure(). Not thread-safe.
#ifndef FLARE_RPC_PIPELINE_CRLF_READER_H_
#define FLARE_RPC_PIPELINE_CRLF_READER_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace flare::rpc {

// A text for people about a bad line, which it quotes.
std::string FaultOfLine(std::string_view what, std::string_view line);

class CrLfReader {
 public:
  static constexpr std::size_t kMaxLine = 64 << 10;

  // Returns how many bytes were taken. `*line` is valid until `bytes` go, or
  // the next call. Lines that are empty are malformed.
  std::size_t TakeLine(std::string_view bytes, std::string_view* line);

  void BeginBlock(std::size_t size) { left_ = size + 2; }
  bool in_block() const noexcept { return left_ != 0; }
  // Bytes that the block lacks, its end included.
  std::size_t left() const noexcept { return left_; }
  // Returns how many bytes were taken. Appends those of the block to `*block`.
  std::size_t TakeBlock(std::string_view bytes, std::string* block);

  // Empty: it hasn't failed.
  const std::string& failure() const noexcept { return failure_; }
  // It failed as a line is longer than kMaxLine.
  bool too_long() const noexcept { return too_long_; }

 private:
  std::string line_;  // The begin of a line, or one that was handed out.
  bool handed_out_ = false;
  bool too_long_ = false;
  std::size_t left_ = 0;
  std::string failure_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_PIPELINE_CRLF_READER_H_
