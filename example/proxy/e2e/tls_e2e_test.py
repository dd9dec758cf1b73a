#!/usr/bin/python3
"""tcp_proxy speaks TLS: to clients, to upstreams, and to both."""

import os
import select
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time

import proxy_harness
from proxy_harness import harness


# Made once, as it takes a while.
CA = None


def setUpModule():
  global CA
  CA = tempfile.mkdtemp()
  harness.unittest.addModuleCleanup(shutil.rmtree, CA)
  subprocess.run([os.path.join(harness.SOURCE_TREE, "tools", "make_test_ca"),
                  CA, "ca", "server", "other", "client"], check=True)


class TlsTest(proxy_harness.ProxyTest):
  """With certificates of tools/make_test_ca."""

  def file(self, name):
    return os.path.join(CA, name)

  def pair(self, name, prefix="--tls"):
    return (f"{prefix}_certificate={self.file(name + '.crt')}",
            f"{prefix}_key={self.file(name + '.key')}")

  def client_context(self, certificate=None):
    context = ssl.create_default_context(cafile=self.file("ca.crt"))
    if certificate:
      context.load_cert_chain(self.file(certificate + ".crt"),
                              self.file(certificate + ".key"))
    return context

  def secure(self, proxy, host="localhost", certificate=None):
    secure = self.client_context(certificate).wrap_socket(
        self.connect(proxy), server_hostname=host)
    self.addCleanup(secure.close)
    return secure

  def tls_upstream(self, serve=proxy_harness.echo, name="server",
                   client_ca=None, before=None, alpn=None):
    """`before` is given the connection ahead of the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self.file(name + ".crt"), self.file(name + ".key"))
    if client_ca:
      context.load_verify_locations(self.file(client_ca))
      context.verify_mode = ssl.CERT_REQUIRED

    if alpn:
      context.set_alpn_protocols(alpn)

    def serve_tls(connection):
      if before:
        before(connection)
      with context.wrap_socket(connection, server_side=True) as secure:
        serve(secure)

    return self.upstream(serve_tls)

  def make_hello(self):
    outgoing = ssl.MemoryBIO()
    client = self.client_context().wrap_bio(ssl.MemoryBIO(), outgoing,
                                            server_hostname="localhost")
    with self.assertRaises(ssl.SSLWantReadError):
      client.do_handshake()
    return outgoing.read()

  def exchange_on(self, connection):
    connection.sendall(b"hello")
    self.assertEqual(proxy_harness.read_exactly(connection, 5), b"hello")

  def the_end(self, proxy):
    """How its only client has ended. The proxy ends, too, as it then writes
    its log at once."""
    proxy.stop()
    (line,) = self.access_lines(1)
    return line

  def exchange_much(self, connection, size=3 << 20):
    """Reads only while nothing can be sent: more than the buffers on the way
    hold, so that both directions come to wait. On one thread: an ssl.SSLSocket
    is for one at a time."""
    data = memoryview(os.urandom(1 << 16) * (size >> 16))
    sent, received = 0, bytearray()
    connection.setblocking(False)
    waits = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
    while len(received) < size:
      try:
        if sent < size:
          sent += connection.send(data[sent:sent + (16 << 10)])
          continue
      except waits:
        pass
      try:
        piece = connection.recv(1 << 16)
        self.assertTrue(piece, f"the end after {len(received)} bytes")
        received += piece
      except waits:
        ready = select.select([connection], [connection] if sent < size else [],
                              [], proxy_harness.LIMIT_S)
        self.assertTrue(any(ready), f"nothing after {len(received)} bytes")
    connection.settimeout(proxy_harness.LIMIT_S)
    self.assertTrue(received == data, "the bytes have come back altered")


class HalfClosing:
  """A client of TLS that reads on after its own close_notify, which an
  ssl.SSLSocket can't."""

  def __init__(self, connection, context, host="localhost"):
    self.socket = connection
    self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    self.tls = context.wrap_bio(self.incoming, self.outgoing,
                                server_hostname=host)
    self.run(self.tls.do_handshake)

  def flush(self):
    self.socket.sendall(self.outgoing.read())

  def run(self, step, *arguments):
    while True:
      try:
        result = step(*arguments)
        self.flush()
        return result
      except ssl.SSLWantReadError:
        self.flush()
        data = self.socket.recv(1 << 16)
        if data:
          self.incoming.write(data)
        else:
          self.incoming.write_eof()

  def send(self, data):
    self.run(self.tls.write, data)

  def end(self):
    try:
      self.tls.unwrap()
    except ssl.SSLWantReadError:
      pass
    self.flush()

  def read_all(self):
    """To close_notify: the end of the stream alone is an error."""
    pieces = []
    while True:
      try:
        piece = self.run(self.tls.read, 1 << 16)
      except ssl.SSLZeroReturnError:
        return b"".join(pieces)
      if not piece:
        return b"".join(pieces)
      pieces.append(piece)


class OfClients(TlsTest):

  def start_tls(self, *flags, upstreams=None, **options):
    return self.start_proxy(*self.pair("server"), *flags,
                            upstreams=upstreams or [self.upstream()],
                            **options)

  def test_bytes_come_across(self):
    proxy = self.start_tls()
    client = self.secure(proxy)
    client.sendall(b"hello")
    self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
    self.exchange_much(client)
    client.unwrap()
    line = self.the_end(proxy)
    self.assertEqual(line["end"], "finished")
    self.assertEqual(int(line["to_upstream"]), 5 + (3 << 20))
    self.assertEqual(int(line["to_client"]), 5 + (3 << 20))

  def test_a_client_that_reads_late(self):
    size = 8 << 20
    data = os.urandom(1 << 16) * (size >> 16)
    sent = threading.Event()

    def serve(connection):
      connection.sendall(data[:1 << 20])
      sent.set()
      connection.sendall(data[1 << 20:])

    proxy = self.start_tls("--high_watermark=64KiB", "--low_watermark=16KiB",
                           upstreams=[self.upstream(serve)])
    client = self.secure(proxy)
    self.assertTrue(sent.wait(proxy_harness.LIMIT_S))
    self.assertTrue(proxy_harness.read_all(client) == data)

  def test_each_direction_ends_by_itself(self):
    def serve(connection):
      request = proxy_harness.read_all(connection)
      connection.sendall(b"all of " + request)

    proxy = self.start_tls(upstreams=[self.upstream(serve)])
    client = HalfClosing(self.connect(proxy), self.client_context())
    client.send(b"a request")
    client.end()
    self.assertEqual(client.read_all(), b"all of a request")
    client.socket.close()
    line = self.the_end(proxy)
    self.assertEqual(line["end"], "finished")

  def test_the_end_of_an_upstream_is_told(self):
    proxy = self.start_tls(
        upstreams=[self.upstream(lambda connection: connection.sendall(b"x"))])
    client = HalfClosing(self.connect(proxy), self.client_context())
    self.assertEqual(client.read_all(), b"x")

  def test_an_end_without_close_notify_is_none(self):
    ends = []
    ended = threading.Event()

    def serve(connection):
      try:
        proxy_harness.read_exactly(connection, 4)
        ends.append(connection.recv(1))
      except OSError as error:
        ends.append(error.errno)
      ended.set()

    proxy = self.start_tls(upstreams=[self.upstream(serve)])
    client = self.secure(proxy)
    client.sendall(b"half")
    # In place of unwrap().
    client.shutdown(socket.SHUT_WR)
    self.assertTrue(ended.wait(proxy_harness.LIMIT_S))
    self.assertEqual(ends, [104])  # ECONNRESET
    line = self.the_end(proxy)
    self.assertEqual((line["end"], line["error"]), ("client-aborted", "EPROTO"))

  def test_certificates_by_host(self):
    proxy = self.start_proxy(
        f"--tls_certificate={self.file('server.crt')},{self.file('other.crt')}",
        f"--tls_key={self.file('server.key')},{self.file('other.key')}",
        upstreams=[self.upstream()])
    for host in ("localhost", "other.example", "a.wild.example"):
      client = self.secure(proxy, host)
      client.sendall(host.encode())
      self.assertEqual(proxy_harness.read_exactly(client, len(host)),
                       host.encode())

  def test_client_certificates(self):
    proxy = self.start_tls(f"--tls_client_ca={self.file('ca.crt')}")
    client = self.secure(proxy, certificate="client")
    client.sendall(b"hello")
    self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
    client.close()
    with self.assertRaises(OSError):
      stranger = self.secure(proxy)
      stranger.sendall(b"hello")
      proxy_harness.read_exactly(stranger, 5)
    proxy.wait_for("turned away: TLS: the client has shown no certificate")
    proxy.stop()
    self.assertIn("tls-failed", [line["end"] for line in self.access_lines(2)])

  def test_a_client_without_tls(self):
    proxy = self.start_tls()
    self.exchange(proxy, b"POST / HTTP/1.1\r\n\r\n")
    proxy.wait_for("the peer speaks no TLS: what it sent begins with 50 4f")
    self.assertEqual(self.the_end(proxy)["end"], "tls-failed")

  def test_a_handshake_that_takes_too_long(self):
    proxy = self.start_tls("--tls_handshake_timeout=500ms")
    silent = self.connect(proxy)
    silent.sendall(b"\x16\x03\x01")
    self.assertEqual(silent.recv(1), b"")
    line = self.the_end(proxy)
    self.assertEqual((line["end"], line["error"]), ("tls-failed", "ETIMEDOUT"))

  def test_handshakes_that_stop_shut_nobody_out(self):
    """There are as many as may go on at a time."""
    most = 4096
    proxy_harness.want_descriptors(most + 500)
    proxy = self.start_tls("--max_connections=10000")
    silent = [self.connect(proxy) for _ in range(most + 100)]
    self.exchange_on(self.secure(proxy))
    # The first ones have made way.
    self.assertEqual(silent[0].recv(1), b"")
    proxy.wait_for("turned away: TLS: the handshake made way for a newer one")

  def test_clients_go_ahead_of_handshakes(self):
    """Many come at once; a client that is connected is served before most of
    them."""
    proxy = self.start_tls("--flare_concurrency_hint=1")
    secure = self.secure(proxy)

    def served_before():
      peers = [self.connect(proxy) for _ in range(100)]
      self.exchange_on(secure)  # All are accepted.
      hello = self.make_hello()
      proxy.send_signal(signal.SIGSTOP)
      for peer in peers:
        peer.sendall(hello)
      secure.sendall(b"hello")
      proxy.send_signal(signal.SIGCONT)
      self.assertEqual(proxy_harness.read_exactly(secure, 5), b"hello")
      answered = select.poll()
      for peer in peers:
        answered.register(peer, select.POLLIN)
      number = len(answered.poll(0))
      for peer in peers:
        peer.close()
      return number

    # Handshakes go on while this process gets to counting them.
    harness.wait_until(lambda: served_before() < 50,
                       "bytes that are passed on ahead of handshakes")

  def test_sessions_that_end_while_they_await_their_turn(self):
    # Mostly enough for one that is served behind all the others.
    proxy = self.start_tls("--tls_handshake_timeout=3s",
                           "--flare_concurrency_hint=1")
    hello = self.make_hello()

    def is_served():
      try:
        self.exchange_on(self.secure(proxy))
      except (OSError, EOFError):
        return False
      return True

    for _ in range(3):
      peers = [self.connect(proxy) for _ in range(200)]
      proxy.send_signal(signal.SIGSTOP)
      for number, peer in enumerate(peers):
        peer.sendall(hello)
        if number % 2 == 0:
          proxy_harness.reset(peer)
      time.sleep(3)  # All are over their time when it goes on.
      proxy.send_signal(signal.SIGCONT)
      for peer in peers:
        peer.close()
      harness.wait_until(is_served, "an exchange behind all the others")
    self.wait_for_statistics(
        proxy, lambda figures: figures["active"] == 3,
        "the end of all hostile connections")

  def test_new_certificates(self):
    for end in (".crt", ".key"):
      shutil.copy(self.file("server" + end), self.path("mine" + end))
    proxy = self.start_proxy(f"--tls_certificate={self.path('mine.crt')}",
                             f"--tls_key={self.path('mine.key')}",
                             upstreams=[self.upstream()])
    before = self.secure(proxy)
    for end in (".key", ".crt"):
      shutil.copy(self.file("other" + end), self.path("new"))
      os.replace(self.path("new"), self.path("mine" + end))

    def has_come():
      try:
        return self.secure(proxy, "other.example")
      except ssl.SSLCertVerificationError:
        return None

    harness.wait_until(has_come, "the new certificate")
    before.sendall(b"goes on")
    self.assertEqual(proxy_harness.read_exactly(before, 7), b"goes on")

  def test_proxy_headers_are_ahead_of_tls(self):
    header = b"PROXY TCP4 192.0.2.7 192.0.2.8 1000 2000\r\n"
    proxy = self.start_tls("--accept_proxy_protocol=true")
    connection = self.connect(proxy)
    connection.sendall(header[:10])
    connection.sendall(header[10:])
    with self.client_context().wrap_socket(
        connection, server_hostname="localhost") as client:
      client.sendall(b"hello")
      self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
      client.unwrap()
    self.assertEqual(self.the_end(proxy)["source"], "192.0.2.7:1000")

  def test_openssl(self):
    def serve(connection):
      request = proxy_harness.read_exactly(connection, 6)
      connection.sendall(request.upper())

    proxy = self.start_tls(upstreams=[self.upstream(serve)])
    for version in ("-tls1_2", "-tls1_3"):
      done = self.run_client(
          "openssl", "s_client", "-connect", f"127.0.0.1:{proxy.port}",
          version, "-quiet", "-CAfile", self.file("ca.crt"),
          "-verify_return_error", stdin=b"hello\n")
      self.assertEqual(done.stdout, b"HELLO\n", done)


class OfUpstreams(TlsTest):

  def start_tls(self, *flags, upstreams, **options):
    return self.start_proxy("--upstream_tls", "--connect_timeout=30s",
                            f"--upstream_tls_ca={self.file('ca.crt')}", *flags,
                            upstreams=upstreams, **options)

  def test_bytes_come_across(self):
    proxy = self.start_tls(upstreams=[self.tls_upstream()])
    client = self.connect(proxy)
    client.sendall(b"hello")
    self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
    self.exchange_much(client)
    client.shutdown(socket.SHUT_WR)
    # A server of Python ends without close_notify, after it was told the end.
    self.assertEqual(client.recv(1), b"")

  def test_each_direction_ends_by_itself(self):
    def serve(connection):
      request = proxy_harness.read_all(connection)
      connection.sendall(b"all of " + request)
      connection.unwrap()

    proxy = self.start_tls(upstreams=[self.tls_upstream(serve)])
    self.assertEqual(self.exchange(proxy, b"a request"), b"all of a request")
    self.assertEqual(self.the_end(proxy)["end"], "finished")

  def test_an_end_without_close_notify_is_none(self):
    def serve(connection):
      connection.sendall(b"half")
      # In place of unwrap(), while the client's direction goes on.

    proxy = self.start_tls(upstreams=[self.tls_upstream(serve)])
    client = self.connect(proxy)
    with self.assertRaises(ConnectionResetError):
      while client.recv(100):
        pass
    line = self.the_end(proxy)
    self.assertEqual((line["end"], line["error"]),
                     ("upstream-aborted", "EPROTO"))

  def test_another_host_is_refused(self):
    back = self.tls_upstream(name="other")
    proxy = self.start_tls(upstreams=[back])
    self.assertEqual(self.exchange(proxy), b"")
    proxy.wait_for(f"Can't connect to upstream {back.address}: TLS: the "
                   "server's certificate is refused: it is for another host")
    self.assertEqual(self.the_end(proxy)["end"], "no-upstream")

  def test_the_next_one_is_tried(self):
    good = self.tls_upstream()
    proxy = self.start_tls(upstreams=[self.tls_upstream(name="other"), good])
    client = self.connect(proxy)
    client.sendall(b"hello")
    self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
    self.assertEqual(good.visitors, 1)

  def test_server_name(self):
    proxy = self.start_tls("--upstream_tls_server_name=other.example",
                           upstreams=[self.tls_upstream(name="other")])
    client = self.connect(proxy)
    client.sendall(b"hello")
    self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")

  def test_the_certificate_of_the_proxy(self):
    back = self.tls_upstream(client_ca="ca.crt")
    proxy = self.start_tls(*self.pair("client", "--upstream_tls"),
                           upstreams=[back])
    client = self.connect(proxy)
    client.sendall(b"hello")
    self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")

  def test_proxy_headers_are_ahead_of_tls(self):
    headers = []

    def take_header(connection):
      line = b""
      while not line.endswith(b"\r\n"):
        line += connection.recv(1)
      headers.append(line)

    proxy = self.start_tls("--send_proxy_protocol=v1",
                           upstreams=[self.tls_upstream(before=take_header)])
    client = self.connect(proxy)
    client.sendall(b"hello")
    self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
    self.assertRegex(headers[0], rb"^PROXY TCP4 127.0.0.1 127.0.0.1 ")


class OfProtocols(TlsTest):
  """ALPN: the offers to clients, and to upstreams."""

  def chosen(self, proxy, *offered):
    context = self.client_context()
    if offered:
      context.set_alpn_protocols(offered)
    with context.wrap_socket(self.connect(proxy),
                             server_hostname="localhost") as secure:
      # An upstream was chosen, and its handshake was done.
      secure.sendall(b"hello")
      self.assertEqual(proxy_harness.read_exactly(secure, 5), b"hello")
      return secure.selected_alpn_protocol()

  def test_clients_choose(self):
    proxy = self.start_proxy(*self.pair("server"), "--tls_alpn=h2,http/1.1",
                             upstreams=[self.upstream()])
    self.assertEqual(self.chosen(proxy, "http/1.1"), "http/1.1")
    # The proxy's order counts.
    self.assertEqual(self.chosen(proxy, "http/1.1", "h2"), "h2")
    self.assertIsNone(self.chosen(proxy, "flare"))
    self.assertIsNone(self.chosen(proxy))

  def test_upstreams_choose(self):
    seen = []

    def echo(connection):
      seen.append(connection.selected_alpn_protocol())
      proxy_harness.echo(connection)

    back = self.tls_upstream(echo, alpn=["http/1.1", "h2"])
    for flags, chosen in (((), None), (("--upstream_tls_alpn=h2",), "h2"),
                          (("--upstream_tls_alpn=h2,http/1.1",), "http/1.1"),
                          (("--upstream_tls_alpn=flare",), None)):
      with self.subTest(flags=flags):
        proxy = self.start_proxy(
            *self.pair("server"), "--upstream_tls", "--connect_timeout=30s",
            f"--upstream_tls_ca={self.file('ca.crt')}", *flags,
            upstreams=[back])
        self.chosen(proxy)
        self.assertEqual(seen.pop(), chosen)

  def test_mistakes(self):
    for flag, text in (
        ("--tls_alpn=h2", "it goes with tls_certificate and tls_key only"),
        ("--upstream_tls_alpn=h2", "it goes with upstream_tls only"),
        ("--tls_alpn=" + 256 * "x", "is too long; a protocol's name has up")):
      code, log = self.run_to_end(
          "proxy/tcp_proxy", "--listen=127.0.0.1:0", "--upstreams=127.0.0.1:1",
          flag)
      self.assertEqual(code, 2, log)
      self.assertIn(text, log)


class OfBoth(TlsTest):

  def start_tls(self, *flags):
    return self.start_proxy(*self.pair("server"), "--upstream_tls",
                            "--connect_timeout=30s",
                            f"--upstream_tls_ca={self.file('ca.crt')}", *flags,
                            upstreams=[self.tls_upstream()])

  def test_bytes_come_across(self):
    proxy = self.start_tls("--copy_mode=splice")
    self.exchange_much(self.secure(proxy))

  def test_clients_that_are_cut_are_told(self):
    proxy = self.start_tls("--drain_deadline=0s")
    client = HalfClosing(self.connect(proxy), self.client_context())
    client.send(b"hello")
    self.assertEqual(client.run(client.tls.read, 100), b"hello")
    self.assertEqual(self.the_end(proxy)["end"], "cut")
    self.assertEqual(client.read_all(), b"")


class Settings(TlsTest):

  def fails_with(self, text, *flags):
    program = self.start(proxy_harness.PROXY, "--listen=127.0.0.1:0",
                         "--upstreams=127.0.0.1:1", *flags)
    self.assertEqual(program.wait(), 2, program)
    program.wait_for(text)

  def test_mistakes(self):
    self.fails_with("--tls_certificate: tls_certificate and tls_key must name "
                    "as many files", "--tls_certificate=x.crt")
    self.fails_with("--tls_certificate: .*nothing.crt",
                    "--tls_certificate=nothing.crt", "--tls_key=nothing.key")
    self.fails_with("--upstream_tls_ca: it goes with upstream_tls only",
                    "--upstream_tls_ca=x.crt")
    self.fails_with("--health_check: http checks speak no TLS",
                    "--upstream_tls", "--health_check=http")
    self.fails_with("--tls_certificate: sni_routes pass TLS through",
                    *self.pair("server"), "--sni_routes=a.b=127.0.0.1:2")


if __name__ == "__main__":
  proxy_harness.main()
