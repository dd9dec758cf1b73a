// A connected socket on an event loop, with Buffers on both sides: reads with
// one system call into the thread's hot block, as flare's own connections do
// (base/read_space.h), and writes all that is waiting with one send.
//
// Everything is for the loop's thread.

#ifndef BENCHMARK_BASELINE_STREAM_H_
#define BENCHMARK_BASELINE_STREAM_H_

#include <cstddef>
#include <cstdint>

#include "benchmark/baseline/event_loop.h"
#include "flare/base/buffer.h"

namespace baseline {

class Stream : public Watched {
 public:
  // Beyond so much waiting output nothing is read, unless ReadsWhileSending().
  static constexpr std::size_t kMaxOutput = 4 << 20;

  using Watched::Watched;

  // Queues bytes, which leave at the end of the OnData() that this is called
  // in, or else of the loop's round. Ignored once the stream is closing.
  void Send(flare::Buffer&& bytes);
  // Sends waiting output now.
  void Flush();

  // Closes when all that was queued has been sent; no more input is taken.
  void CloseAfterSending();
  // Closes now.
  void Close();

  std::size_t waiting_output() const { return output_.size(); }

 protected:
  // `in` has all the input that was not taken off it yet. *need: how many
  // bytes it should have before this is called again; 0: any more. False: the
  // peer talks nonsense, close.
  virtual bool OnData(flare::Buffer& in, std::size_t* need) = 0;
  // The peer has ended its side; OnData won't be called any more.
  virtual void OnEndOfInput() = 0;
  // Called once, by either side's close. The object is destroyed later, after
  // Discard().
  virtual void OnClosed() = 0;
  // A connection that was begun is there; for those that connect.
  virtual void OnConnected() {}
  // False: read no more for now. Call ResumeInput() when it's true again.
  virtual bool WantsInput() const { return true; }

  // False, as servers should be: those whose replies nobody takes are sent no
  // more. Two that talk to each other must not both be like that.
  virtual bool ReadsWhileSending() const { return false; }

  // The socket isn't connected yet: OnConnected() or OnClosed() follows.
  void SetConnecting() { connecting_ = true; }
  void ResumeInput();

 private:
  enum class Read { kMore, kDrained, kEnded };

  void OnEvents(std::uint32_t events) final;
  void OnRoundEnd() final { Flush(); }

  // False: it isn't, yet or at all.
  bool FinishConnecting();
  void ReadAll();
  Read ReadOnce(std::size_t* bytes);
  bool MayRead() const;
  bool WriteOnce();

  flare::Buffer input_;
  flare::Buffer output_;
  std::size_t need_ = 0;
  bool connecting_ = false;
  bool writable_ = true;
  bool hung_up_ = false;  // Told once; earlier input may not be read yet.
  bool handling_events_ = false;
  bool input_paused_ = false;
  bool input_ended_ = false;
  bool closing_ = false;
};

}  // namespace baseline

#endif  // BENCHMARK_BASELINE_STREAM_H_
