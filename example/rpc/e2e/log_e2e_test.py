#!/usr/bin/python3
"""Programs whose log nobody reads: stderr is a pipe that is full."""

import contextlib
import json
import signal
import socket
import urllib.request

import harness
import wire

LIMIT_S = harness.PATIENCE_S


def counters(port):
  url = f"http://127.0.0.1:{port}/inspect/server"
  with urllib.request.urlopen(url, timeout=LIMIT_S) as reply:
    return {
        name: int(value) for name, value in (
            line.split() for line in reply.read().decode().splitlines())
    }


def send_garbage(port):
  """A worker of the server logs it."""
  with contextlib.suppress(ConnectionResetError):
    with socket.create_connection(("127.0.0.1", port), LIMIT_S) as connection:
      connection.sendall(b"\0" * 64)
      while connection.recv(4096):
        pass


class UnreadLog(harness.TestCase):

  def full_pipe(self):
    pipe = harness.Pipe().fill()
    self.addCleanup(pipe.close)
    return pipe

  def check_calls(self, port):
    for scheme in ("flare", "http+pb"):
      status, log = self.run_to_end(
          "client", f"--server_addr={scheme}://127.0.0.1:{port}",
          "--flare_rpc_client_default_rpc_timeout_ms=60000")
      self.assertEqual(status, 0, log)

  def test_the_server_goes_on_and_ends(self):
    server = self.start_server(stderr=self.full_pipe())
    for _ in range(3):
      send_garbage(server.port)
    self.check_calls(server.port)
    after = counters(server.port)
    self.assertEqual(after["connections_malformed"], 3)
    self.assertEqual(after["log_lines_lost"], 0)  # They are kept.
    self.assertEqual(server.stop(), 0)

  def test_the_relay_goes_on_and_ends(self):
    backend = self.start_server()
    relay = self.start_server(f"--forward_to=flare://127.0.0.1:{backend.port}",
                              name="relay_server", stderr=self.full_pipe())
    send_garbage(relay.port)
    status, log = self.run_to_end(
        "press", f"--server_addr=flare://127.0.0.1:{relay.port}",
        "--relay_stub", "--requests=100", "--max_pending=2",
        "--timeout=60000")
    self.assertEqual(status, 0, log)
    self.assertEqual(relay.stop(), 0)

  def test_a_second_signal_aborts(self):
    server = self.start_server("--work=sleep_fiber", "--work_us=10000000",
                               stderr=self.full_pipe())
    call = wire.FlareConnection(server.port)
    call.socket.sendall(wire.echo_frame(1, "hello", timeout=60000))
    harness.wait_until(lambda: counters(server.port)["calls_running"] == 2,
                       "the call, beside the one that asks")

    def ends():
      if server.is_running():
        server.send_signal(signal.SIGTERM)
      return not server.is_running()

    # Those that come soon after the first count as the same.
    harness.wait_until(ends, "the end")
    self.assertEqual(server.wait(), -signal.SIGABRT)

  def test_lines_come_when_somebody_reads(self):
    pipe = self.full_pipe()
    server = self.start_server(stderr=pipe)
    send_garbage(server.port)
    pipe.read_until(r"listens on (.|\n)*connection from 127")
    self.assertEqual(server.stop(), 0)
    pipe.read_until(r"Processed \d+ request\(s\) in total")

  def test_press_measures_and_ends(self):
    server = self.start_server()
    press = self.start(
        "press", f"--server_addr=flare://127.0.0.1:{server.port}",
        "--requests=1000", "--timeout=60000", f"--json={self.path('press.json')}",
        stderr=self.full_pipe())
    self.assertEqual(press.wait(), 0)
    with open(self.path("press.json")) as f:
      self.assertEqual(json.load(f)["requests"], 1000)

  def test_wrong_flags_end_it(self):
    press = self.start("press", "--max_pending=0", stderr=self.full_pipe())
    self.assertEqual(press.wait(), 2)
    press = self.start("press", "--no_such_flag", stderr=self.full_pipe())
    self.assertEqual(press.wait(), 2)


if __name__ == "__main__":
  harness.main()
