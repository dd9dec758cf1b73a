// Commands that came together, as their reader leaves them: all words one
// behind the other, so that they cost no allocation each.
#ifndef FLARE_RPC_REDIS_SERVER_REDIS_COMMANDS_H_
#define FLARE_RPC_REDIS_SERVER_REDIS_COMMANDS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace flare::rpc {

class RedisCommands {
 public:
  // The cost of a word beside its bytes.
  static constexpr std::size_t kWordCost = 24;

  // The complete commands.
  std::size_t size() const { return commands_.size(); }
  // Bytes of memory, a part of a command included.
  std::size_t memory() const {
    return bytes_.size() + words_.size() * kWordCost;
  }
  bool empty() const { return bytes_.empty() && words_.empty(); }
  // Fills *words with the words of the command `n`, valid as long as nothing is
  // added.
  void Get(std::size_t n, std::vector<std::string_view>* words) const;

  // --- For the reader ---

  void AddBytes(std::string_view bytes) { bytes_ += bytes; }
  void EndWord() { words_.push_back(bytes_.size()); }
  void EndCommand() { commands_.push_back(words_.size()); }

  // Moves the command that isn't complete to `next`, which is empty.
  void MoveRest(RedisCommands* next);
  // Keeps a little of the memory.
  void Clear();

 private:
  std::size_t FirstWord(std::size_t command) const {
    return command == 0 ? 0 : commands_[command - 1];
  }
  std::size_t FirstByte(std::size_t word) const {
    return word == 0 ? 0 : words_[word - 1];
  }

  std::string bytes_;
  std::vector<std::size_t> words_;     // Where each ends in bytes_.
  std::vector<std::size_t> commands_;  // Where each ends in words_.
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_SERVER_REDIS_COMMANDS_H_
