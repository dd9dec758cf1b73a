// A client for tests of servers: a blocking socket under our hands, so that
// every byte is ours, and calls on it in any of the protocols. Runs on plain
// threads. A failure fails the test; nothing waits longer than 20 s.
#ifndef FLARE_RPC_TESTING_RAW_CLIENT_H_
#define FLARE_RPC_TESTING_RAW_CLIENT_H_

#include <google/protobuf/message.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"
#include "flare/base/endpoint.h"
#include "flare/io/fd.h"
#include "flare/rpc/client_protocol.h"

namespace flare::rpc::testing {

class RawClient {
 public:
  struct Reply {
    std::uint64_t id = 0;
    int status = -1;
    std::string description;
    CompressionAlgorithm compression = CompressionAlgorithm::kNone;
    bool attachment_compressed = false;
    std::string body;
    std::string attachment;

    // The body as a message; fails the test if it can't be parsed.
    template <class T>
    T As() const {
      T message;
      if (!message.ParseFromString(body)) ReportUnparsable();
      return message;
    }

   private:
    void ReportUnparsable() const;
  };

  explicit RawClient(const Endpoint& server, std::string_view scheme = "flare");

  void Send(std::string_view bytes);
  // False: the connection is broken. Doesn't fail the test.
  bool TrySend(std::string_view bytes);

  // The bytes of a call.
  std::string Encode(OutboundRequest&& request);
  std::string Encode(std::uint64_t id, std::string_view method,
                     const google::protobuf::Message& message,
                     std::uint32_t timeout_ms = 0);
  void Call(std::uint64_t id, std::string_view method,
            const google::protobuf::Message& message,
            std::uint32_t timeout_ms = 0) {
    Send(Encode(id, method, message, timeout_ms));
  }

  // The next reply; nullopt at the end of the stream.
  std::optional<Reply> ReadReply();

  // The next bytes of the stream, up to and including `end`; fewer if it ends
  // before.
  std::string ReadUntil(std::string_view end);
  std::string ReadExactly(std::size_t n);
  // Everything up to the end of the stream.
  std::string ReadAll();
  // Waits for the server to close; false: it sends more.
  bool AtEnd() { return ReadAll().empty(); }

  // Ends our direction.
  void Shutdown();
  void Close() { fd_.Reset(); }
  int fd() const { return fd_.get(); }

 private:
  // Reads some bytes to in_; false: the end (a reset counts as one).
  bool ReadMore();

  io::UniqueFd fd_;
  std::unique_ptr<ClientProtocol> protocol_;
  Buffer in_;
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_TESTING_RAW_CLIENT_H_
