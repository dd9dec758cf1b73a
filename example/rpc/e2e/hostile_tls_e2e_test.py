#!/usr/bin/python3
"""Hostile and broken handshakes of TLS, many at once: calls of others go on,
and the server's memory comes back.

FLARE_HOSTILE_PEERS=5000 has so many of them at a time in place of a CI's
share, and prints how long calls took."""

import os
import resource
import select
import signal
import socket
import ssl
import subprocess

import harness
from tls_e2e_test import HELLO, TlsTest

IS_SANITIZED = any(name in os.environ
                   for name in ("ASAN_OPTIONS", "TSAN_OPTIONS"))
# At a time.
PEERS = int(os.environ.get("FLARE_HOSTILE_PEERS", 40 if IS_SANITIZED else 150))
# The first one warms the server up.
WAVES = 6
# From the first wave to the last one. The allocator's part grows by half of
# that; a leak of 20 KiB a connection would be 5/3 of it.
MOST_GROWTH = PEERS * (60 << 10)

# More than the 100 KiB that OpenSSL takes of a peer's certificates.
HUGE_CHAIN = 400


class HostileHandshakes(TlsTest):
  CERTIFICATES = ("ca", "server", "client")

  def setUp(self):
    super().setUp()
    self.peers = []
    self.addCleanup(self.close_peers)
    self.hello = self.make_hello()
    self.plain_context = self.context()
    self.old_context = self.context(version=ssl.TLSVersion.TLSv1_2)
    self.huge_context = self.make_huge_context()
    self.want_descriptors(2 * PEERS + 500)

  def want_descriptors(self, wanted):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
      if hard < wanted:
        self.skipTest(f"only {hard} descriptors (`ulimit -n`)")
      resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

  def close_peers(self):
    for peer in self.peers:
      peer.close()
    self.peers.clear()

  def make_hello(self):
    outgoing = ssl.MemoryBIO()
    client = self.context().wrap_bio(ssl.MemoryBIO(), outgoing,
                                     server_hostname="localhost")
    with self.assertRaises(ssl.SSLWantReadError):
      client.do_handshake()
    return outgoing.read()

  def make_huge_context(self):
    chain = self.path("huge.crt")
    with open(self.file("client.crt")) as own, open(
        self.file("ca.crt")) as root, open(chain, "w") as file:
      file.write(own.read() + root.read() * HUGE_CHAIN)
    context = self.context()
    context.load_cert_chain(chain, self.file("client.key"))
    return context

  # Each opens a connection and does its worst. The server's answer is ignored:
  # it may be gone already.

  def open(self, server):
    peer = socket.create_connection(("127.0.0.1", server.port),
                                    harness.PATIENCE_S)
    self.peers.append(peer)
    return peer

  def secure(self, server, context):
    # Leaves the descriptor to the wrapper.
    secure = context.wrap_socket(
        socket.create_connection(("127.0.0.1", server.port),
                                 harness.PATIENCE_S),
        server_hostname="localhost")
    self.peers.append(secure)
    return secure

  def silent(self, server, _):
    self.open(server)

  def half_a_hello(self, server, number):
    self.open(server).sendall(self.hello[:number % len(self.hello)])

  def hello_and_nothing_else(self, server, _):
    self.open(server).sendall(self.hello)

  def hello_by_the_byte(self, server, _):
    """As a record for each of them, which is allowed."""
    header, body = self.hello[:3], self.hello[5:]
    self.open(server).sendall(b"".join(
        header + b"\x00\x01" + body[i:i + 1] for i in range(len(body))))

  def hello_that_goes_on(self, server, number):
    self.slow.append([self.open(server), number % 20])

  def garbage(self, server, _):
    self.open(server).sendall(os.urandom(300))

  def too_long_a_record(self, server, _):
    self.open(server).sendall(b"\x16\x03\x01\xff\xff" + bytes(1000))

  def truncated_record(self, server, _):
    peer = self.open(server)
    peer.sendall(self.hello[:-10])
    peer.shutdown(socket.SHUT_WR)

  def garbage_after_the_handshake(self, server, number):
    secure = self.secure(server, (self.plain_context, self.old_context)[
        number // 11 % 2])
    raw = socket.socket(fileno=os.dup(secure.fileno()))
    self.peers.append(raw)
    raw.sendall(b"\x17\x03\x03\x00\x40" + os.urandom(64))

  def half_a_record_after_the_handshake(self, server, _):
    secure = self.secure(server, self.plain_context)
    raw = socket.socket(fileno=os.dup(secure.fileno()))
    self.peers.append(raw)
    raw.sendall(b"\x17\x03\x03\x40\x00" + bytes(100))

  def huge_chain(self, server, _):
    self.secure(server, self.huge_context).sendall(b"x")

  KINDS = (silent, half_a_hello, hello_and_nothing_else, hello_by_the_byte,
           hello_that_goes_on, garbage, too_long_a_record, truncated_record,
           garbage_after_the_handshake, half_a_record_after_the_handshake,
           huge_chain)

  def go_on(self):
    """The slow ones send a byte more."""
    for slow in self.slow:
      peer, at = slow
      try:
        peer.send(self.hello[at:at + 1])
      except OSError:
        continue
      slow[1] += 1

  def renegotiate(self, server):
    return subprocess.Popen(
        ["openssl", "s_client", "-tls1_2", "-connect",
         f"127.0.0.1:{server.port}"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, preexec_fn=harness.die_with_parent)

  def attack(self, server):
    """A wave of them; each kind as often. Meanwhile others are served."""
    self.slow = []
    asking = [self.renegotiate(server) for _ in range(3)]
    for client in asking:
      client.stdin.write(b"R\n")
      client.stdin.close()
    for number in range(PEERS):
      kind = self.KINDS[number % len(self.KINDS)]
      try:
        kind(self, server, number)
      except OSError:  # ssl.SSLError is one.
        pass
      if number % 16 == 0:
        self.go_on()
      if number % 64 == 0:
        with self.connect(server) as secure:
          self.echo(secure)
    with self.connect(server) as secure:
      self.echo(secure)
    for client in asking:
      client.wait(harness.PATIENCE_S)

  def connections_to(self, server):
    """How many the server holds: one has an inode once it was accepted, and
    until it is closed."""
    listening = "0A"
    with open(f"/proc/{server.pid}/net/tcp") as f:
      rows = [line.split() for line in f.readlines()[1:]]
    return sum(1 for row in rows
               if row[1].endswith(f":{server.port:04X}") and
               row[3] != listening and row[9] != "0")

  def test_others_are_served_and_memory_comes_back(self):
    server = self.start_tls_server(f"--tls_client_ca={self.file('ca.crt')}",
                                   "--tls_client_certificates=request",
                                   "--flare_concurrency_hint=2")
    others = self.start(
        "press", f"--server_addr=tls+flare://localhost:{server.port}",
        "--flare_rpc_client_max_connections_per_server=1",
        "--max_pending=2", "--timeout=20000", "--body=hello", "--verify",
        "--logtostderr", "--flare_rpc_client_connect_timeout_ms=20000",
        *self.trusting())
    harness.wait_until(lambda: others.cpu_seconds() > 0.05, "calls of press")
    sizes = []
    for _ in range(WAVES):
      self.attack(server)
      self.close_peers()
      # That of press, which may only be on its way.
      harness.wait_until(lambda: self.connections_to(server) == 1,
                         f"the end of all hostile connections to {server}")
      sizes.append(server.resident_bytes())
    self.assertEqual(others.stop(), 0, others)
    self.assertRegex(others.log(), r"Finished: [1-9]\d* call.* failures: 0\.")
    if "FLARE_HOSTILE_PEERS" in os.environ:
      print(PEERS, "peers; resident bytes after each wave:", sizes)
      print(others.log())
    if not IS_SANITIZED:
      self.assertLess(sizes[-1] - sizes[0], MOST_GROWTH, sizes)
    self.assertEqual(server.stop(), 0, server)

  def test_calls_go_ahead_of_handshakes(self):
    """Among many that come at once few are served before a request that comes
    last."""
    server = self.start_tls_server("--flare_concurrency_hint=1")

    def served_before():
      with self.connect(server) as secure:
        self.echo(secure)
        for _ in range(PEERS):
          self.open(server)
        with self.connect(server) as last:  # All before it are accepted.
          self.echo(last)
        server.send_signal(signal.SIGSTOP)
        for peer in self.peers:
          peer.sendall(self.hello)
        secure.sendall(HELLO)
        server.send_signal(signal.SIGCONT)
        while not secure.recv(65536).endswith(b"hello"):
          pass
        answered = select.poll()
        for peer in self.peers:
          answered.register(peer, select.POLLIN)
        number = len(answered.poll(0))
      self.close_peers()
      return number

    # Handshakes go on while this process gets to counting them, which may take
    # a while.
    harness.wait_until(lambda: served_before() < PEERS // 2,
                       "a request that is answered ahead of handshakes")

  def test_handshakes_that_stop_shut_nobody_out(self):
    """There are as many as may go on at a time."""
    if IS_SANITIZED:
      self.skipTest("it would take long")
    most = 4096
    self.want_descriptors(most + 500)
    server = self.start_tls_server()
    for _ in range(most + 100):
      self.silent(server, 0)
    with self.connect(server) as secure:
      self.echo(secure)
    # The first ones have made way.
    self.peers[0].settimeout(harness.PATIENCE_S)
    self.assertEqual(self.peers[0].recv(1), b"")

  def test_a_huge_chain_is_refused(self):
    server = self.start_tls_server(f"--tls_client_ca={self.file('ca.crt')}",
                                   "--tls_client_certificates=request")

    def connect():
      try:
        self.huge_chain(server, 0)
      except OSError:
        pass  # By when the client learns of it depends on the version.

    self.provoke(server, connect, "TLS: .*excessive message size")
    with self.connect(server) as secure:
      self.echo(secure)


if __name__ == "__main__":
  harness.main()
