// A socket with as little around it as there can be: input in one piece of
// memory, output copied together if it is short and sent from where it lies if
// it is long, one read and one send for all that comes together.
//
// Everything is for the loop's thread.

#ifndef BENCHMARK_BASELINE_BARE_STREAM_H_
#define BENCHMARK_BASELINE_BARE_STREAM_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "benchmark/baseline/event_loop.h"

namespace baseline {

// Bytes to be sent.
class BareOutput {
 public:
  // Longer ones are sent from where they are.
  static constexpr std::size_t kCopyAtMost = 4096;

  // To append short texts to.
  std::string* text() { return &text_; }
  // If they are more than kCopyAtMost, `bytes` must stay where they are until
  // this is empty().
  void Append(std::string_view bytes);

  // One send, if the socket takes it all. The rest is left for the next time.
  // False: the connection is broken.
  [[nodiscard]] bool Send(int fd);
  bool empty() const { return text_.size() == sealed_ && pieces_.empty(); }

 private:
  struct Piece {
    const char* data;  // Null: in text_, from `at` on.
    std::size_t at;
    std::size_t size;
  };

  void SealText();
  std::size_t FillIovecs();
  void Drop(std::size_t sent);
  void Compact();

  std::string text_;
  std::size_t sealed_ = 0;  // The part of text_ that is or was in pieces_.
  std::vector<Piece> pieces_;
  std::size_t first_ = 0;  // The first of pieces_ that has not been sent.
  std::vector<iovec> iovecs_;
};

class BareStream : public Watched {
 public:
  explicit BareStream(flare::io::UniqueFd fd);

 protected:
  // Handles the input that came and wasn't consumed. Returns how many bytes of
  // it are consumed now; the rest stays, and *need says how large the input
  // must be for the next one (0: unknown). kBadInput: close. May append to
  // output(), which is sent afterwards.
  static constexpr std::size_t kBadInput = static_cast<std::size_t>(-1);
  virtual std::size_t OnInput(char* data, std::size_t size,
                              std::size_t* need) = 0;
  virtual void OnClosed() {}
  // False, as servers should be: nothing is read while output waits, and so
  // output may refer to the input. Two that talk to each other must not both
  // be like that.
  virtual bool ReadsWhileSending() const { return false; }

  BareOutput* output() { return &output_; }
  void SendOutput();
  // When all output has been sent.
  void CloseAfterSending() { closing_ = true; }
  void Close();

 private:
  void OnEvents(std::uint32_t events) final;
  // False: there is no more input or work now.
  bool ReadOnce(std::size_t* bytes);
  bool MayRead() const {
    return !is_closed() && !closing_ &&
           (output_.empty() || ReadsWhileSending());
  }
  void MakeRoom();

  std::unique_ptr<char[]> input_;
  std::size_t capacity_;
  std::size_t consumed_ = 0;  // Bytes of the input, at its start.
  std::size_t size_ = 0;      // With those.
  std::size_t need_ = 0;
  BareOutput output_;
  bool hung_up_ = false;  // Told once; earlier input may not be read yet.
  bool closing_ = false;
};

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_BARE_STREAM_H_
