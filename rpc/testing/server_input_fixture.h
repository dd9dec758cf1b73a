// For tests of input that no well-behaved client sends to a server.

#ifndef FLARE_RPC_TESTING_SERVER_INPUT_FIXTURE_H_
#define FLARE_RPC_TESTING_SERVER_INPUT_FIXTURE_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "flare/rpc/testing/server_fixture.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

class ServerInputTest : public ServerTest {
 protected:
  // The server still serves newcomers.
  void ExpectAlive() {
    RawClient client(endpoint());
    client.Call(99, kCall, MakeRequest("alive"));
    const auto reply = client.ReadReply();
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->As<TestResponse>().body(), "alive");
  }

  // Statistics, once the connections counted there are through.
  Server::Statistics Final() {
    StopServer();
    return server().statistics();
  }
};

// A frame of the flare protocol with sizes that needn't be true.
inline std::string Frame(std::uint32_t meta_size, std::uint32_t body_size,
                         std::uint32_t attachment_size, std::string_view rest) {
  std::string frame = "CPRF";
  for (std::uint32_t size : {meta_size, body_size, attachment_size}) {
    char bytes[4];
    std::memcpy(bytes, &size, 4);  // Little-endian, as are our machines.
    frame.append(bytes, 4);
  }
  return frame.append(rest);
}

// correlation_id 5, method_type `type`, with or without request_meta{"x.Y.Z"}.
inline std::string Meta(char type, bool with_request_meta) {
  std::string meta("\x08\x05", 2);
  if (with_request_meta) meta += std::string("\x2a\x07\x12\x05x.Y.Z", 9);
  meta += '\x38';
  meta += type;
  return meta;
}

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_SERVER_INPUT_FIXTURE_H_
