// Shows interceptors each message of a streaming call (interceptor.h).
#ifndef FLARE_RPC_MESSAGE_OBSERVER_H_
#define FLARE_RPC_MESSAGE_OBSERVER_H_

#include <cstddef>
#include <functional>

namespace flare {

struct ObservedMessage {
  enum class Direction {
    kReceived,  // Handed to the reader.
    kSent,      // Taken by the connection.
  };
  Direction direction = Direction::kReceived;
  std::size_t bytes = 0;  // The size of the encoded message.
};

// Called by the fiber that reads or writes the message, right after that; so
// one of each direction may come at the same time, and in each direction they
// come in order. May block, which holds up that direction. Mustn't throw, nor
// use the stream.
using MessageObserver = std::function<void(const ObservedMessage&)>;

}  // namespace flare

#endif  // FLARE_RPC_MESSAGE_OBSERVER_H_
