// A command for a Redis server: its words, which may have any bytes.
//
//   client.Execute({"SET", key, value});
//
//   flare::RedisCommand push{"RPUSH", list};
//   for (const std::string& each : values) push.Add(each);
//   client.Execute(std::move(push));
//
// Holds the words in the form in which they are sent, so the arguments needn't
// live on. Like an int as to threads. Nothing blocks.
#ifndef FLARE_RPC_REDIS_COMMAND_H_
#define FLARE_RPC_REDIS_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "flare/base/buffer.h"

namespace flare {

class RedisCommand {
 public:
  // NOLINTNEXTLINE: implicit, for lists in braces.
  RedisCommand(std::initializer_list<std::string_view> words);
  explicit RedisCommand(const std::vector<std::string>& words);

  RedisCommand& Add(std::string_view word);
  RedisCommand& Add(std::int64_t number);

  std::size_t words() const noexcept { return words_; }
  // The words. They live as long as this command isn't changed.
  std::vector<std::string_view> Words() const;
  // The first word, in upper case and without what exceeds 31 bytes.
  const std::string& name() const noexcept { return name_; }
  // It changes the state of its connection, or blocks it, as MULTI, SELECT,
  // SUBSCRIBE and BLPOP do.
  bool needs_session() const noexcept;
  // It is answered by messages, not by one reply, as SUBSCRIBE, UNSUBSCRIBE and
  // MONITOR are: for RedisSession::Subscribe().
  bool has_messages() const noexcept;
  // CLIENT REPLY, after which commands have no replies. No client sends it.
  bool silences() const noexcept { return silences_; }

  // The bytes to send.
  Buffer Encode() const;

 private:
  std::string bytes_;  // The words, each with its length.
  std::size_t words_ = 0;
  std::string name_;
  bool blocks_ = false;  // XREAD and XREADGROUP with BLOCK.
  bool silences_ = false;
};

}  // namespace flare

#endif  // FLARE_RPC_REDIS_COMMAND_H_
