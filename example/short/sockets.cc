// Sockets without RPC: a service of lines over TCP, with a fiber for each
// connection, and an echo of datagrams by UDP.
//
//   sockets 127.0.0.1:7007
//   nc 127.0.0.1 7007       # each line comes back, reversed; nc -u: as it is

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <iostream>
#include <stop_token>
#include <string>
#include <utility>

#include "flare/base/endpoint.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"
#include "flare/fiber/task_group.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/io/datagram_batch.h"
#include "flare/io/tcp_listener.h"
#include "flare/io/tcp_socket.h"
#include "flare/io/udp_socket.h"
#include "flare/io/wait_limit.h"

namespace {

using std::chrono::seconds;

// The lines that a peer sends.
class LineReader {
 public:
  explicit LineReader(flare::io::TcpSocket* socket) : socket_(socket) {}

  // Returns the next line, without its end.
  flare::Expected<std::string> Next(const flare::io::WaitLimit& limit) {
    char bytes[1024];
    std::size_t end;
    while ((end = ahead_.find('\n')) == std::string::npos) {
      if (ahead_.size() > 4096) {
        return flare::Status(EMSGSIZE, "the line is too long");
      }
      const auto size = socket_->Read(bytes, limit);
      if (!size) return size.error();
      if (*size == 0) return flare::Status(ENODATA, "no more lines");
      ahead_.append(bytes, *size);
    }
    const std::string rest = ahead_.substr(end + 1);
    ahead_.resize(end);
    return std::exchange(ahead_, rest);
  }

 private:
  flare::io::TcpSocket* const socket_;
  std::string ahead_;
};

// A connection's fiber. A peer has 60 s for a line, and 10 s for the answer.
void ServeLines(flare::io::TcpSocket socket, const std::stop_token& stop) try {
  LineReader lines(&socket);
  while (auto line = lines.Next({stop, seconds(60)})) {
    std::reverse(line->begin(), line->end());
    if (!socket.Write(*line + '\n', {stop, seconds(10)}).ok()) return;
  }
} catch (...) {  // An exception that leaves it would stop all connections.
  std::cerr << "a connection's fiber failed\n";
}  // Closes the connection.

void Accept(flare::io::TcpListener* listener) {
  flare::fiber::TaskGroup connections;
  for (;;) {
    auto socket = listener->Accept();
    if (socket) {
      connections.Spawn([s = *std::move(socket)](std::stop_token stop) mutable {
        ServeLines(std::move(s), stop);
      });
    } else if (socket.error().code() == EBADF) {
      return;  // Close(). ~TaskGroup() stops the connections.
    } else {
      std::cerr << socket.error().ToString() << '\n';  // Out of descriptors.
      flare::this_fiber::SleepFor(std::chrono::milliseconds(100));
    }
  }
}

void EchoDatagrams(flare::io::UdpSocket* socket) {
  flare::io::DatagramBatch batch(64, 2048);
  for (;;) {
    const auto count = socket->Receive(&batch);
    if (!count && count.error().code() == EBADF) return;  // Close().
    for (std::size_t done = 0; done < batch.size();) {
      done += socket->Send(batch, done).value_or(1);  // Skips a bad one.
    }
  }
}

int Entry(int argc, char** argv) {
  const auto address =
      flare::EndpointFromString(argc > 1 ? argv[1] : "127.0.0.1:0");
  if (!address) return 2;
  auto listener = flare::io::TcpListener::Listen(*address);
  if (!listener) return std::cerr << listener.error().ToString() << '\n', 1;
  auto datagrams = flare::io::UdpSocket::Bind(*address);
  if (!datagrams) return std::cerr << datagrams.error().ToString() << '\n', 1;
  std::cout << listener->local_endpoint() << ' ' << datagrams->local_endpoint()
            << std::endl;
  flare::fiber::TaskGroup services;
  services.Spawn([&] { Accept(&*listener); });
  services.Spawn([&] { EchoDatagrams(&*datagrams); });
  flare::WaitForQuitSignal();
  listener->Close();
  datagrams->Close();
  return services.Wait().ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
