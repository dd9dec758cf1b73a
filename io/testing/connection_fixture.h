// A server-side connection and the plain socket it talks to, for tests.

#ifndef FLARE_IO_TESTING_CONNECTION_FIXTURE_H_
#define FLARE_IO_TESTING_CONNECTION_FIXTURE_H_

#include <cerrno>
#include <utility>

#include "flare/base/ref_ptr.h"
#include "flare/base/status.h"
#include "flare/io/fd.h"
#include "flare/io/stream_connection.h"
#include "flare/io/testing/loopback.h"

namespace flare::io::testing {

class ConnectionTest : public IoTest {
 protected:
  void Open(StreamConnection::Options options = PatientOptions(),
            int our_send_buffer = 0, int peer_receive_buffer = 0) {
    SocketPair pair = TcpPair(our_send_buffer, peer_receive_buffer);
    peer_ = std::move(pair.peer);
    connection_ =
        StreamConnection::Accepted(std::move(pair.ours), 0, &handler_, options);
    connection_->Start();
  }

  // Leaves nothing of a connection that the test hasn't let go.
  void TearDown() override {
    if (connection_) {
      connection_->Close(Status(ECANCELED, "the test ends"));
      handler_.WaitClosed();
      ExpectGone();
    }
    IoTest::TearDown();
  }

  // Lets the connection go, of which nothing else is left.
  void ExpectGone() {
    testing::ExpectGone(connection_);
    connection_.Reset();
  }

  RecordingHandler handler_;
  UniqueFd peer_;
  RefPtr<StreamConnection> connection_;
};

}  // namespace flare::io::testing

#endif  // FLARE_IO_TESTING_CONNECTION_FIXTURE_H_
