// Shared by the tests of client protocols: a connection's input, and the
// protocol that reads it.
#ifndef FLARE_RPC_WIRE_CLIENT_PROTOCOL_TESTING_H_
#define FLARE_RPC_WIRE_CLIENT_PROTOCOL_TESTING_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "flare/rpc/client_protocol.h"
#include "flare/rpc/protocol.h"
#include "flare/rpc/wire/protocol_testing.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

template <class Base = ::testing::Test>
class ClientProtocolTest : public Base {
 protected:
  explicit ClientProtocolTest(std::unique_ptr<ClientProtocol> protocol)
      : protocol_(std::move(protocol)) {}

  // Adds the bytes, in slices of this size, and cuts one message.
  CutResult Cut(std::string_view bytes, InboundResponse* response,
                std::size_t piece = std::string::npos) {
    in_.Append(SlicedBuffer(bytes, piece));
    CutResult result;
    do {
      result = protocol_->Cut(in_, response, &need_, &error_);
    } while (result == CutResult::kHandled);
    return result;
  }

  std::string Write(OutboundRequest&& request) const {
    BufferBuilder out;
    EXPECT_TRUE(protocol_->Write(std::move(request), &out).ok());
    return FlattenSlow(out.DestructiveGet());
  }

  std::unique_ptr<ClientProtocol> protocol_;
  Buffer in_;
  std::size_t need_ = 0;
  std::string error_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_WIRE_CLIENT_PROTOCOL_TESTING_H_
