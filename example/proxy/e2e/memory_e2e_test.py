#!/usr/bin/python3
"""The programs under a tight limit of address space (`ulimit -v`): peers that
send large messages on many connections get errors or lose their connections,
the process lives, and serves the next caller."""

import contextlib
import gzip
import os
import selectors
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))  # Bazel runs it by a link.
sys.path.append(os.path.join(HERE, "..", "..", "rpc", "e2e"))
import harness  # noqa: E402
import wire  # noqa: E402

MIB = 1 << 20
WORKERS = "--flare_concurrency_hint=2"

# No limit of the programs' own keeps them from running out of memory.
UNBOUNDED = ("--flare_rpc_server_max_buffered_bytes=1000000000000",)


def http_call(body, fields=""):
  return (f"POST /rpc/{wire.ECHO} HTTP/1.1\r\nHost: h\r\n"
          f"Content-Type: application/x-proto3-json\r\n{fields}"
          f"Content-Length: {len(body)}\r\n\r\n").encode() + body


def large_messages():
  """Names, and what to send on each connection."""
  text = "x" * (2 * MIB)
  json = b'{"body":"' + b"\\u00e4" * (MIB // 2) + b'"}'
  bomb = gzip.compress(b'{"body":"' + b" " * (24 * MIB) + b'"}', 1)
  return {
      "echo": wire.echo_frame(1, text) * 2,
      "unfinished": wire.echo_frame(1, text)[:-1],
      "json": http_call(json) * 2,
      "compressed": http_call(bomb, "Content-Encoding: gzip\r\n") * 4,
      "small": wire.echo_frame(1, "x" * 20000) * 200,
  }


class Flood:
  """Sends to a port on many connections, as far as it is taken, and reads
  nothing until told to."""

  def __init__(self, port, data, connections):
    self.selector = selectors.DefaultSelector()
    self.left = {}
    for _ in range(connections):
      client = socket.socket()
      client.setblocking(False)
      client.connect_ex(("127.0.0.1", port))
      self.left[client] = memoryview(data)
      self.selector.register(client, selectors.EVENT_WRITE)

  def send(self, quiet_s=0.5):
    """Until nobody has taken anything for so long."""
    while self.left and (events := self.selector.select(quiet_s)):
      for key, _ in events:
        self._send_to(key.fileobj)

  def _send_to(self, client):
    try:
      sent = client.send(self.left[client])
    except OSError:  # Refused, or reset.
      return self.drop(client)
    self.left[client] = self.left[client][sent:]
    if not self.left[client]:
      self.selector.unregister(client)

  def drop(self, client):
    with contextlib.suppress(KeyError):
      self.selector.unregister(client)
    self.left.pop(client)
    client.close()

  def close(self):
    for client in list(self.left):
      self.drop(client)
    self.selector.close()


class MemoryLimit(harness.TestCase):

  def start_limited(self, name, limit_mib, *flags):
    return self.start_server(
        WORKERS, *flags, name=name,
        prefix=("prlimit", f"--as={limit_mib * MIB}", "--"))

  def check_survives(self, program, connections, kinds=None):
    for name, data in large_messages().items():
      if kinds and name not in kinds:
        continue
      with self.subTest(name):
        flood = Flood(program.port, data, connections)
        flood.send()
        self.assertTrue(program.is_running(), program)
        flood.close()
        harness.wait_until(lambda: self.serves(program),
                           f"a reply after the flood from {program}")
    self.assertEqual(program.stop(), 0, program)

  def serves(self, program):
    self.assertTrue(program.is_running(), program)
    with contextlib.suppress(OSError, AssertionError):
      return wire.echo_works(program.port)

  def test_server(self):
    for flags in (), UNBOUNDED:
      with self.subTest(flags=flags):
        self.check_survives(self.start_limited("server", 200, *flags), 150)

  def test_rpc_proxy(self):
    server = self.start_server(WORKERS)
    descriptors = self.path("echo.pb")
    subprocess.run(
        ["protoc", "--include_imports", f"--descriptor_set_out={descriptors}",
         f"--proto_path={os.path.dirname(harness.PROTO_FILE)}",
         os.path.basename(harness.PROTO_FILE)],
        check=True, timeout=harness.PATIENCE_S)
    proxy = self.start_limited(
        "proxy/rpc_proxy", 200, f"--descriptors={descriptors}",
        f"--routes=*=flare://127.0.0.1:{server.port}", *UNBOUNDED)
    self.check_survives(proxy, 150)

  def test_tcp_proxy(self):
    server = self.start_server(WORKERS)
    port = harness.free_port()
    proxy = self.start(
        "proxy/tcp_proxy", WORKERS, f"--listen=127.0.0.1:{port}",
        f"--upstreams=127.0.0.1:{server.port}",
        f"--access_log={self.path('access.log')}",
        prefix=("prlimit", f"--as={200 * MIB}", "--"))
    proxy.wait_for("Proxy listens on")
    proxy.port = port
    # To it they are all bytes.
    self.check_survives(proxy, 700, kinds=("echo", "unfinished"))


if __name__ == "__main__":
  harness.main()
