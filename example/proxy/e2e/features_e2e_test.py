#!/usr/bin/python3
"""How tcp_proxy chooses upstreams, informs them, and informs us."""

import contextlib
import os
import socket
import ssl
import struct
import subprocess
import threading

import proxy_harness
from proxy_harness import harness, needs


class NamedUpstreams(proxy_harness.ProxyTest):
  """Upstreams that answer with their own names."""

  def named(self, *names):

    def answer(name):

      def serve(connection):
        connection.sendall(name.encode())
        connection.recv(1)  # Until the client goes.

      return serve

    return [self.upstream(answer(name)) for name in names]

  def ask(self, proxy, source=None):
    with self.connect(proxy, source) as client:
      return client.recv(100).decode()


class LoadBalancing(NamedUpstreams):

  def test_round_robin(self):
    proxy = self.start_proxy("--flare_concurrency_hint=1",
                             upstreams=self.named("a", "b", "c"))
    answers = [self.ask(proxy) for _ in range(9)]
    self.assertEqual(answers, answers[:3] * 3)
    self.assertEqual(sorted(answers[:3]), ["a", "b", "c"])

  def test_least_connections(self):
    proxy = self.start_proxy("--lb=least_connections",
                             upstreams=self.named("a", "b"))
    held = {"a": [], "b": []}
    for _ in range(10):
      client = self.connect(proxy)
      held[client.recv(1).decode()].append(client)
    self.assertEqual(len(held["a"]), 5)
    for client in held["a"]:
      client.close()
    self.wait_for_statistics(proxy, lambda s: s["active"] == 5,
                             "the end of five")
    for _ in range(5):
      client = self.connect(proxy)
      self.assertEqual(client.recv(1), b"a")
      self.addCleanup(client.close)

  def test_source_hash_sticks(self):
    upstreams = self.named("a", "b", "c")
    proxy = self.start_proxy("--lb=source_hash", upstreams=upstreams)
    # All of 127.0.0.0/8 is this machine.
    sources = [f"127.0.0.{i}" for i in range(2, 42)]
    first = {source: self.ask(proxy, source) for source in sources}
    self.assertEqual(set(first.values()), {"a", "b", "c"})
    for source in sources:
      self.assertEqual(self.ask(proxy, source), first[source])
    # Another proxy agrees, and without one of the upstreams only its clients
    # go elsewhere.
    other = self.start_proxy("--lb=source_hash", upstreams=upstreams[1:])
    for source in sources:
      if first[source] != "a":
        self.assertEqual(self.ask(other, source), first[source])

  def test_limit_of_each_upstream(self):
    proxy = self.start_proxy("--max_connections_per_upstream=1",
                             upstreams=self.named("a", "b"))
    clients = [self.connect(proxy) for _ in range(2)]
    self.assertEqual(sorted(client.recv(1) for client in clients),
                     [b"a", b"b"])
    self.assertEqual(self.exchange(proxy), b"")
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "no-upstream")
    self.assertEqual(line["attempts"], "0")


class Names(proxy_harness.ProxyTest):

  def check_name(self, name):
    port = self.upstream().listener.getsockname()[1]
    proxy = self.start_proxy(listen=f"{name}:0", upstreams=[f"{name}:{port}"])
    for _ in range(5):
      self.assertEqual(self.exchange(proxy), b"hello")
    for row in self.statistics(proxy)["upstreams"]:
      self.assertTrue(row["name"].startswith(f"{name}:{port}"))

  def test_a_name_that_every_system_knows(self):
    self.check_name("127.1")

  def test_localhost_is_found_whatever_it_means_first(self):
    try:
      socket.getaddrinfo("localhost", 80)
    except OSError as error:
      self.skipTest(f"localhost is unknown here: {error}")
    self.check_name("localhost")


class HealthChecks(NamedUpstreams):

  def test_tcp_checks_keep_clients_from_a_dead_upstream(self):
    dead = proxy_harness.DeadAddress()
    proxy = self.start_proxy(
        "--health_check=tcp", "--health_check_interval=20ms",
        "--health_check_timeout=20s",
        "--health_check_fall=2", "--max_failures=0",
        upstreams=[dead, *self.named("b")])
    self.wait_for_statistics(
        proxy, lambda s: not s["upstreams"][0]["healthy"], "a bad verdict")
    failures = self.statistics(proxy)["connect_failures"]
    for _ in range(10):
      self.assertEqual(self.ask(proxy), "b")
    row = self.statistics(proxy)["upstreams"][0]
    self.assertEqual(self.statistics(proxy)["connect_failures"], failures)
    self.assertIn("Connection refused", row["last_check_error"])
    proxy.wait_for(r"Upstream .* is unhealthy: connect to .*: Connection ref")

    # It comes back.
    dead.close()
    self.keep(proxy_harness.Upstream(lambda c: c.sendall(b"a"),
                                     ("127.0.0.1", dead.port)))
    self.wait_for_statistics(proxy, lambda s: s["upstreams"][0]["healthy"],
                             "a good verdict")
    self.assertEqual({self.ask(proxy) for _ in range(10)}, {"a", "b"})

  def test_http_checks(self):
    status = [b"200 OK"]
    requests = []

    def serve(connection):
      request = connection.recv(4096)
      requests.append(request)
      connection.sendall(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" %
                         status[0])

    proxy = self.start_proxy(
        "--health_check=http", "--health_check_interval=20ms",
        "--health_check_timeout=20s",
        "--health_check_path=/up?deep=1", "--health_check_host=app.example",
        "--health_check_rise=1", "--health_check_fall=1",
        upstreams=[self.upstream(serve)])
    harness.wait_until(lambda: requests, "a check")
    self.assertTrue(requests[0].startswith(
        b"GET /up?deep=1 HTTP/1.1\r\nHost: app.example\r\n"), requests[0])
    status[0] = b"503 Busy"
    row = self.wait_for_statistics(
        proxy, lambda s: not s["upstreams"][0]["healthy"], "a bad verdict")
    self.assertEqual(row["upstreams"][0]["last_check_error"],
                     "status 503 rather than 200")
    status[0] = b"200 OK"
    self.wait_for_statistics(proxy, lambda s: s["upstreams"][0]["healthy"],
                             "a good verdict")


class ProxyProtocol(proxy_harness.ProxyTest):

  def start_recorder(self):
    received = []
    self.arrived = threading.Event()

    def record(connection):
      received.append(proxy_harness.read_all(connection))
      self.arrived.set()

    return received, self.upstream(record)

  def pass_on(self, *flags, sent=b"payload"):
    """The upstream's input, and the client's port."""
    received, upstream = self.start_recorder()
    proxy = self.start_proxy(*flags, upstreams=[upstream])
    with self.connect(proxy) as client:
      port = client.getsockname()[1]
      client.sendall(sent)
      client.shutdown(socket.SHUT_WR)
      self.assertTrue(self.arrived.wait(proxy_harness.LIMIT_S), proxy)
    return received[0], port, proxy.port

  def test_version_1(self):
    data, port, proxy_port = self.pass_on("--send_proxy_protocol=v1")
    self.assertEqual(
        data, b"PROXY TCP4 127.0.0.1 127.0.0.1 %d %d\r\npayload" %
        (port, proxy_port))

  def test_version_2(self):
    data, port, proxy_port = self.pass_on("--send_proxy_protocol=v2")
    localhost = bytes([127, 0, 0, 1])
    self.assertEqual(
        data, b"\r\n\r\n\0\r\nQUIT\n" + bytes([0x21, 0x11, 0, 12]) +
        localhost * 2 + struct.pack("!HH", port, proxy_port) + b"payload")

  def test_accepted_headers_name_the_source(self):
    header = b"PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\r\n"
    data, _, _ = self.pass_on("--accept_proxy_protocol=true",
                              "--send_proxy_protocol=v1",
                              sent=header + b"payload")
    self.assertEqual(data, header + b"payload")
    (line,) = self.access_lines(1)
    self.assertEqual(line["source"], "192.0.2.1:1234")
    self.assertTrue(line["client"].startswith("127.0.0.1:"))

  def test_a_header_in_small_pieces(self):
    received, upstream = self.start_recorder()
    proxy = self.start_proxy("--accept_proxy_protocol=true",
                             upstreams=[upstream])
    client = self.connect(proxy)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b"PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\r\npayload":
      client.sendall(bytes([byte]))
    client.shutdown(socket.SHUT_WR)
    self.assertTrue(self.arrived.wait(proxy_harness.LIMIT_S), proxy)
    self.assertEqual(received, [b"payload"])

  def test_no_header_where_one_must_be(self):
    _, upstream = self.start_recorder()
    proxy = self.start_proxy("--accept_proxy_protocol=true",
                             upstreams=[upstream])
    self.assertEqual(self.exchange(proxy, b"GET / HTTP/1.1\r\n\r\n"), b"")
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "bad-header")
    self.assertEqual(upstream.visitors, 0)

  def test_the_name_of_who_is_turned_away_is_one_line_of_the_log(self):
    path = self.path("listener")
    proxy = self.start_proxy("--accept_proxy_protocol=true",
                             listen=f"unix:{path}", upstreams=["127.0.0.1:1"])
    with socket.socket(socket.AF_UNIX) as client:
      client.settimeout(proxy_harness.LIMIT_S)
      client.bind(self.path("a\nE b"))
      client.connect(path)
      client.sendall(b"GET / HTTP/1.1\r\n\r\n")
      proxy.wait_for(r"Client unix:.*/a\\x0aE b was turned away: bad-header")


class ServerNames(proxy_harness.ProxyTest):
  """Clients of TLS, which the proxy passes through by the host they name."""

  def setUp(self):
    super().setUp()
    self.ca = self.path("ca")
    subprocess.run([os.path.join(harness.SOURCE_TREE, "tools", "make_test_ca"),
                    self.ca, "ca", "server", "other"], check=True)

  def tls_upstream(self, name):
    """Ends TLS by that certificate, and says its name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(os.path.join(self.ca, name + ".crt"),
                            os.path.join(self.ca, name + ".key"))

    def serve(connection):
      with context.wrap_socket(connection, server_side=True) as secure:
        secure.sendall(name.encode())
        secure.recv(1)  # Until the client goes.

    return self.upstream(serve)

  def ask(self, proxy, host):
    context = ssl.create_default_context(
        cafile=os.path.join(self.ca, "ca.crt"))
    with context.wrap_socket(self.connect(proxy),
                             server_hostname=host) as secure:
      return secure.recv(100).decode()

  def test_routes(self):
    server, other = self.tls_upstream("server"), self.tls_upstream("other")
    proxy = self.start_proxy(
        f"--sni_routes=localhost={server.address},"
        f"other.example={other.address},*.wild.example={other.address}")
    self.assertEqual(self.ask(proxy, "localhost"), "server")
    self.assertEqual(self.ask(proxy, "other.example"), "other")
    self.assertEqual(self.ask(proxy, "a.wild.example"), "other")
    with self.assertRaises(OSError):
      self.ask(proxy, "elsewhere.example")
    self.assertEqual(self.exchange(proxy, b"GET / HTTP/1.1\r\n\r\n"), b"")
    ends = [line["end"] for line in self.access_lines(5)]
    self.assertEqual(ends.count("no-route"), 2)


class UnixSockets(proxy_harness.ProxyTest):

  @needs("curl")
  def test_on_both_sides(self):
    http_reply = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes"

    def serve(connection):
      connection.recv(4096)
      connection.sendall(http_reply)

    back = self.upstream(serve, address=self.path("back.sock"))
    front = self.path("front.sock")
    proxy = self.start_proxy(listen=f"unix:{front}", upstreams=[back])
    done = self.run_client("curl", "-sS", "--unix-socket", front,
                           "http://anything/")
    self.assertEqual(done.stdout, b"yes", done)
    self.assertEqual(self.statistics(proxy)["listening"], [f"unix:{front}"])
    self.assertEqual(proxy.stop(), 0, proxy)
    self.assertFalse(os.path.exists(front))
    (line,) = self.access_lines(1)
    self.assertEqual(line["upstream"], back.address)
    self.assertEqual(line["listener"], f"unix:{front}")


class Splicing(proxy_harness.ProxyTest):

  def pipe_ends(self, proxy):
    count = 0
    for number in os.listdir(f"/proc/{proxy.pid}/fd"):
      with contextlib.suppress(FileNotFoundError):  # Closed meanwhile.
        link = os.readlink(f"/proc/{proxy.pid}/fd/{number}")
        count += link.startswith("pipe:")
    return count

  def test_both_ways_even_after_a_failed_connect(self):
    dead = self.keep(proxy_harness.DeadAddress())
    proxy = self.start_proxy("--copy_mode=splice",
                             upstreams=[dead, self.upstream()])
    before = self.pipe_ends(proxy)
    client = self.connect(proxy)
    for _ in range(3):
      client.sendall(b"hello")
      self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
    self.assertEqual(self.statistics(proxy)["connect_failures"], 1)
    self.assertEqual(self.pipe_ends(proxy), before + 2 * 2)


class Records(proxy_harness.ProxyTest):

  def test_access_log(self):
    upstream = self.upstream()
    proxy = self.start_proxy(upstreams=[upstream])
    with self.connect(proxy) as client:
      port = client.getsockname()[1]
      client.sendall(b"x" * 1000)
      client.shutdown(socket.SHUT_WR)
      self.assertEqual(len(proxy_harness.read_all(client)), 1000)
    (line,) = self.access_lines(1)
    self.assertRegex(line.pop("time"), r"^\d{4}-\d\d-\d\dT[\d:]{8}\.\d{6}Z$")
    connect_ms, total_ms = (float(line.pop(name))
                            for name in ("connect_ms", "total_ms"))
    self.assertLessEqual(connect_ms, total_ms)
    self.assertEqual(
        line, {
            "end": "finished",
            "client": f"127.0.0.1:{port}",
            "source": f"127.0.0.1:{port}",
            "listener": f"127.0.0.1:{proxy.port}",
            "upstream": upstream.address,
            "attempts": "1",
            "to_upstream": "1000",
            "to_client": "1000",
            "error": "-",
        })

  def test_access_log_to_stdout(self):
    proxy = self.start_proxy("--access_log=-", upstreams=[self.upstream()])
    self.assertEqual(self.exchange(proxy), b"hello")
    proxy.wait_for(r"^\S+ end=finished client=127\.0\.0\.1:\d+ ")

  @needs("curl")
  def test_pages(self):
    upstream = self.upstream()
    proxy = self.start_proxy(upstreams=[upstream])
    self.assertEqual(self.exchange(proxy), b"hello")
    # The client hears of the end a moment before it is counted.
    self.wait_for_statistics(proxy, lambda s: s["active"] == 0,
                             "the session's end")
    base = f"http://127.0.0.1:{proxy.admin_port}"
    index = self.run_client("curl", "-sS", base + "/").stdout.decode()
    for path in ("/stats", "/stats.json", "/ready", "/inspect"):
      self.assertIn(path, index)
      done = self.run_client("curl", "-sS", "-f", base + path)
      self.assertEqual(done.returncode, 0, done)
    text = self.run_client("curl", "-sS", base + "/stats").stdout.decode()
    self.assertRegex(text, r"(?m)^accepted 1$")
    self.assertRegex(text, r"(?m)^bytes_to_client 5$")
    self.assertRegex(text, rf"(?m)^{upstream.address} +up +0 +1 +0 +5 +5 ")
    statistics = self.statistics(proxy)
    self.assertEqual(statistics["listening"], [f"127.0.0.1:{proxy.port}"])
    self.assertEqual(statistics["generation"], 1)
    (row,) = statistics["upstreams"]
    self.assertEqual((row["name"], row["connections"], row["bytes_to_client"]),
                     (upstream.address, 1, 5))

  def test_statistics_in_the_log(self):
    proxy = self.start_proxy("--statistics_interval=50ms",
                             upstreams=[self.upstream()])
    self.assertEqual(self.exchange(proxy), b"hello")
    # The session may go on from one line's time into the next one's.
    found = proxy.wait_for(r"[01] sessions; in \d+\.\d s: 1 accepted, "
                           r"0 refused, .* 1 of 1 upstreams up\.")
    proxy.wait_for(r"0 sessions; in \d+\.\d s: 0 accepted, 0 refused, .* 1 of "
                   r"1 upstreams up\.", after=found.end())


if __name__ == "__main__":
  proxy_harness.main()
