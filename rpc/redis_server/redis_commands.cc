#include "flare/rpc/redis_server/redis_commands.h"

#include "flare/base/string.h"

namespace flare::rpc {
namespace {

void ClearKeepingSome(std::vector<std::size_t>* numbers) {
  if (numbers->capacity() * sizeof(std::size_t) > kMaxKeptBytes) {
    *numbers = {};
  } else {
    numbers->clear();
  }
}

}  // namespace

void RedisCommands::Get(std::size_t n,
                        std::vector<std::string_view>* words) const {
  words->clear();
  for (std::size_t i = FirstWord(n); i != commands_[n]; ++i) {
    const std::size_t first = FirstByte(i);
    words->emplace_back(bytes_.data() + first, words_[i] - first);
  }
}

void RedisCommands::MoveRest(RedisCommands* next) {
  const std::size_t word = FirstWord(commands_.size());
  const std::size_t byte = FirstByte(word);
  next->bytes_.assign(bytes_, byte);
  for (std::size_t i = word; i != words_.size(); ++i) {
    next->words_.push_back(words_[i] - byte);
  }
  bytes_.resize(byte);
  words_.resize(word);
}

void RedisCommands::Clear() {
  ClearKeeping(&bytes_);
  ClearKeepingSome(&words_);
  ClearKeepingSome(&commands_);
}

}  // namespace flare::rpc
