// Commands as people type them: `set "my key" 'it\'s'`. Pure functions.
#ifndef FLARE_RPC_REDIS_SERVER_REDIS_LINE_H_
#define FLARE_RPC_REDIS_SERVER_REDIS_LINE_H_

#include <string>
#include <string_view>
#include <vector>

namespace flare::rpc {

// The words of a line, by Redis' rules: separated by blanks; "..." may have
// blanks and the escapes \n \r \t \b \a \xHH, '...' only \'. False: a quote
// isn't closed, or something follows it at once.
[[nodiscard]] bool SplitRedisLine(std::string_view line,
                                  std::vector<std::string>* words);

}  // namespace flare::rpc

#endif  // FLARE_RPC_REDIS_SERVER_REDIS_LINE_H_
