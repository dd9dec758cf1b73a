// A chat over WebSocket: each message goes to all that are in the room. Open
// http://127.0.0.1:PORT/ in two windows of a browser.
//
//   chat [PORT]

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "flare/fiber/mutex.h"
#include "flare/init.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/server.h"
#include "flare/rpc/websocket.h"

namespace {

using namespace std::chrono_literals;

constexpr char kPage[] = R"(<!DOCTYPE html>
<title>chat</title>
<form id="form"><input id="text" autofocus></form>
<pre id="log"></pre>
<script>
  const socket = new WebSocket(
      location.href.replace('http', 'ws') + 'room', 'chat');
  const log = text => document.getElementById('log').textContent += text + '\n';
  socket.onmessage = event => log(event.data);
  socket.onclose = event => log(`closed: ${event.code} ${event.reason}`);
  document.getElementById('form').onsubmit = event => {
    event.preventDefault();
    socket.send(document.getElementById('text').value);
    document.getElementById('text').value = '';
  };
</script>
)";

class Room {
 public:
  // One WebSocket, from its beginning to its end.
  void Serve(flare::WebSocket& socket) {
    const int id = Enter(socket);
    Tell("(" + std::to_string(id) + " enters)");
    while (auto message = socket.Read()) {
      if (!message->is_text) {
        static_cast<void>(socket.Close(1003, "text only"));
        break;
      }
      Tell(std::to_string(id) + ": " + flare::FlattenSlow(message->data));
    }
    Leave(id);
    Tell("(" + std::to_string(id) + " leaves)");
  }

 private:
  int Enter(const flare::WebSocket& socket) {
    const std::lock_guard lock(mutex_);
    members_.emplace(++last_id_, socket);
    return last_id_;
  }

  void Leave(int id) {
    const std::lock_guard lock(mutex_);
    members_.erase(id);
  }

  // Copies are written to without the lock: a write may wait for its peer. One
  // that takes nothing for a second is closed by `write_timeout`.
  void Tell(const std::string& text) {
    std::vector<flare::WebSocket> all;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, socket] : members_) all.push_back(socket);
    }
    for (flare::WebSocket& socket : all) {
      static_cast<void>(socket.WriteText(text));
    }
  }

  flare::fiber::Mutex mutex_;
  std::map<int, flare::WebSocket> members_;
  int last_id_ = 0;
};

int Entry(int argc, char** argv) {
  Room room;
  flare::Server server;
  server.AddHttpHandler(
      "/", flare::NewHttpGetHandler([](const flare::HttpRequest&,
                                       flare::HttpResponse* response, auto*) {
        response->headers()->Set("Content-Type", "text/html");
        response->set_body(kPage);
      }));
  server.AddWebSocketHandler(
      "/room",
      [&](flare::WebSocket& socket, const flare::HttpRequest&) {
        room.Serve(socket);
      },
      {.subprotocols = {"chat"},
       .compress_from = 200,
       .limits = {.max_message_size = 1000, .write_timeout = 1s}});
  const int port = argc > 1 ? std::atoi(argv[1]) : 0;
  server.ListenOn(
      flare::EndpointFromIpv4("127.0.0.1", static_cast<std::uint16_t>(port)));
  if (!server.Start()) return 1;
  std::cout << "http://" << server.endpoint().ToString() << std::endl;
  flare::WaitForQuitSignal();
  server.Stop();
  server.Join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
