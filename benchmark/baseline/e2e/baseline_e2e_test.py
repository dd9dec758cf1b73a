#!/usr/bin/python3
"""The baselines as tables use them: each server under the real press, whose
replies are compared with requests, and under input that is none."""

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import time

HERE = os.path.dirname(os.path.realpath(__file__))  # Bazel runs it by a link.
sys.path.append(os.path.join(HERE, "..", "..", "..", "example", "rpc", "e2e"))
import harness  # noqa: E402

FOLDER = "benchmark/baseline/"
LISTENS = r"listens on (?:127\.0\.0\.1|\[::1\]):(\d+)"
METHOD = "example.protobuf_echo.EchoService.Echo"

# (program, flags, protocols)
MODELS = {
    "gdt": ("gdt_server", ["--threads=2"], ["http+pb", "flare"]),
    "gdt-tp": ("gdt_server", ["--threads=4", "--thread_pool"],
               ["http+pb", "flare"]),
    "merge": ("merge_server", ["--threads=2"], ["trpc", "flare", "http+pb"]),
    "epoll_limit": ("epoll_limit_server", ["--threads=2"],
                    ["flare", "http+pb"]),
}


def echo_request(number, body=b"hello"):
  """A call over http+pb, as bytes."""
  message = b"\x0a" + bytes([len(body)]) + body
  return (f"POST /rpc/{METHOD} HTTP/1.1\r\nHost: a\r\nRpc-SeqNo: {number}\r\n"
          "Content-Type: application/x-protobuf\r\n"
          f"Content-Length: {len(message)}\r\n\r\n").encode() + message


class TestCase(harness.TestCase):

  def serve(self, program, *flags):
    """A server on a free port, which it has as `.port`."""
    server = self.start(FOLDER + program, "--port=0", *flags)
    server.port = int(server.wait_for(LISTENS)[1])
    return server

  def models(self):
    """(running server, its protocols), one model after the other."""
    for program, flags, protocols in MODELS.values():
      yield self.serve(program, *flags), protocols

  def press(self, server, protocol, *flags, requests=1000, status=0,
            in_tail=False):
    """Runs press and returns its figures. `in_tail`: some of the requests are
    of the tail."""
    result = self.path("press.json")
    code, log = self.run_to_end(
        "press", f"--server_addr={protocol}://127.0.0.1:{server.port}",
        "--flare_concurrency_hint=2", f"--requests={requests}",
        "--max_pending=50", "--flare_rpc_client_max_connections_per_server=5",
        "--timeout=30000", "--verify", f"--json={result}", *flags)
    self.assertEqual(code, status, log)
    with open(result) as f:
      figures = json.load(f)
    ended = figures["requests"]
    if in_tail:
      self.assertEqual(figures["tail"]["failures"], 0, log)
      ended += figures["tail"]["requests"]
    self.assertEqual(ended, requests, log)
    if status == 0:
      self.assertEqual(figures["failures"], 0, log)
    return figures

  def connect(self, server):
    connection = socket.create_connection(("127.0.0.1", server.port),
                                          harness.PATIENCE_S)
    self.addCleanup(connection.close)
    return connection

  def assert_closes(self, connection):
    with contextlib.suppress(ConnectionResetError):
      while connection.recv(65536):
        pass

  def assert_stops(self, server):
    self.assertEqual(server.stop(), 0, server)
    self.assertRegex(server.log(), r"Processed \d+ request\(s\) in total")


class Servers(TestCase):

  def test_echoes_to_press(self):
    for server, protocols in self.models():
      for protocol in protocols:
        self.press(server, protocol, "--body_size=10")
        self.press(server, protocol, "--body_size=100000", requests=20)
      self.assert_stops(server)

  def test_attachments(self):
    for server, _ in self.models():
      self.press(server, "flare", "--body_size=10", "--attachment_size=5000")

  def test_published_command_line(self):
    server = self.serve("gdt_server", "--flare_concurrency_hint=2")
    self.assertRegex(server.log(), "2 event loop")
    self.press(server, "http+pb", "--gdt_stub", "--logtostderr",
               "--override_nslb=list+rr", "--flare_numa_aware")

  def test_many_connections(self):
    for server, _ in self.models():
      connections = [self.connect(server) for _ in range(300)]
      for number, connection in enumerate(connections):
        connection.sendall(echo_request(number))
      for number, connection in enumerate(connections):
        reply = connection.recv(65536)
        self.assertIn(b"Rpc-SeqNo: %d\r\n" % number, reply)
        self.assertTrue(reply.endswith(b"\x12\x05hello"), reply)
        connection.close()
      self.press(server, "http+pb")

  def test_requests_in_pieces(self):
    for server, _ in self.models():
      connection = self.connect(server)
      # With NODELAY and a reply in between, pieces come as they were sent.
      connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
      request = echo_request(1)
      for end in range(1, len(request) + 1):
        connection.sendall(request[end - 1:end])
      self.assertIn(b"Rpc-SeqNo: 1\r\n", connection.recv(65536))
      # The end of the input in the middle of a request.
      connection.sendall(request[:-1])
      connection.shutdown(socket.SHUT_WR)
      self.assert_closes(connection)

  def test_malformed_input(self):
    inputs = [
        b"\x16\x03\x01\x02\x00\x01\x00 no TLS here",
        b"CPRF" + b"\xff" * 12,
        b"CPRF" + b"\x00" * 12,
        b"\x09\x30\x00\x00\x00\x00\x00\x00" + b"\x00" * 8,
        echo_request(1) + b"\x00\x01\x02\x03 and then nonsense",
        b"POST /rpc/x HTTP/1.1\r\nContent-Length: 1\r\n"
        b"Content-Length: 2\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad field\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ]
    for server, protocols in self.models():
      for bad in inputs:
        connection = self.connect(server)
        connection.sendall(bad)
        self.assert_closes(connection)
      self.press(server, protocols[0])
      self.assert_stops(server)

  def test_stops_under_load(self):
    for server, protocols in self.models():
      press = self.start(
          "press", f"--server_addr={protocols[0]}://127.0.0.1:{server.port}",
          "--flare_concurrency_hint=2", "--max_pending=50", "--timeout=1000",
          "--report_interval=0.1")
      press.wait_for(r"QPS: [1-9]")
      self.assert_stops(server)
      press.stop()

  def test_work(self):
    for name in ("gdt", "gdt-tp", "merge"):
      program, flags, protocols = MODELS[name]
      with self.subTest(name):
        server = self.serve(program, *flags, "--work=sleep_thread",
                            "--work_us=2000", "--work_dist=poisson")
        figures = self.press(server, protocols[0], requests=200)
        self.assertGreater(figures["p50_us"], 1000)
        # A request's own wish goes first.
        server = self.serve(program, *flags)
        figures = self.press(server, protocols[0], "--tail_ratio=0.5",
                             "--tail_us=3000", "--tail_work=spin",
                             requests=100, in_tail=True)
        self.assertGreater(figures["tail"]["p50_us"], 2900)

  def test_without_descriptors(self):
    for descriptors in 5, 6, 7, 8:
      with self.subTest(descriptors):
        server = harness.Program(
            FOLDER + "merge_server", "--port=0", "--threads=2",
            prefix=("sh", "-c",
                    f'ulimit -n {descriptors} && exec "$0" "$@"'))
        self.addCleanup(server.kill)
        self.assertIn(server.wait(), (1, 2), server)
        self.assertIn("Too many open files", server.log())
        self.assertNotIn("Check fail", server.log())

  def test_refuses_flags(self):
    for program, said, *flags in [
        ("gdt_server", "--threads=-1", "--threads=-1"),
        ("gdt_server", "--work=x", "--work=x"),
        ("gdt_server", "--work_us=-1", "--work=spin", "--work_us=-1"),
        ("gdt_server", "--thread_pool", "--io_threads=1"),
        ("gdt_server", "between 0 and 4096", "--thread_pool",
         "--io_threads=4097"),
        ("gdt_server", "between 0 and 4096", "--thread_pool",
         "--worker_threads=100000"),
        ("gdt_server", "99999", "--port=99999"),
        ("gdt_server", "no_such_flag", "--no_such_flag"),
        ("gdt_server", "--flare_io_spin_us=-1", "--flare_io_spin_us=-1"),
        ("gdt_server", "--flare_concurrency_hint=-1",
         "--flare_concurrency_hint=-1"),
        ("gdt_server", "zzz", "--flare_fiber_worker_accessible_cpus=zzz"),
        ("gdt_server", "/no/such", "--flare_topology_file=/no/such"),
        ("gdt_server", "/no/such: No such file", "--flagfile=/no/such"),
        ("gdt_server", "'x' is no flag", "x"),
        ("merge_server", "nonsense", "--forward_to=nonsense"),
        ("merge_server", "pigeon", "--forward_to=pigeon://127.0.0.1:1"),
        ("merge_server", "don't go together", "--work=spin",
         "--forward_to=flare://127.0.0.1:1"),
        ("merge_server", "must be positive", "--downstream_timeout=0",
         "--forward_to=flare://127.0.0.1:1"),
        ("merge_server", "between 1 and 100000",
         "--downstream_connections=100001",
         "--forward_to=flare://127.0.0.1:1"),
        ("epoll_limit_server", "--body_size", "--body_size=-1"),
        ("epoll_limit_server", "192.0.2.1", "--ip=192.0.2.1"),
        ("epoll_limit_proxy", "names nobody", "--forward_to="),
        ("epoll_limit_proxy", "nonsense", "--forward_to=127.0.0.1:1,nonsense"),
        ("epoll_limit_client", "--server_addr"),
        ("epoll_limit_client", "trpc", "--server_addr=trpc://127.0.0.1:1"),
        ("epoll_limit_client", "--max_pending", "--connections=30",
         "--server_addr=flare://127.0.0.1:1"),
    ]:
      with self.subTest(program, flags=flags):
        status, log = self.run_to_end(FOLDER + program, *flags)
        self.assertEqual(status, 2, log)
        self.assertIn(said, log)


class Relay(TestCase):

  def test_passes_calls_on(self):
    backend = self.serve("merge_server", "--threads=2")
    for protocol in ("trpc", "flare", "http+pb"):
      with self.subTest(protocol):
        relay = self.serve(
            "merge_server", "--threads=2", "--downstream_connections=2",
            "--downstream_timeout=20000",
            f"--forward_to={protocol}://127.0.0.1:{backend.port}")
        self.press(relay, "trpc", "--body_size=10")
        self.press(relay, "flare", "--relay_stub", "--body_size=10")
        self.press(relay, "trpc", "--body_size=100000", requests=20)
        self.assert_stops(relay)

  def test_dead_server(self):
    port = harness.free_port()
    relay = self.serve("merge_server", "--threads=1",
                       "--downstream_timeout=20000",
                       f"--forward_to=trpc://127.0.0.1:{port}")
    figures = self.press(relay, "flare", requests=100, status=1)
    self.assertEqual(list(figures["failures_by_status"]), ["2"])
    backend = self.start(FOLDER + "merge_server", f"--port={port}")
    backend.wait_for(LISTENS)

    def works():
      code, _ = self.run_to_end(
          "press", f"--server_addr=trpc://127.0.0.1:{relay.port}",
          "--flare_concurrency_hint=2", "--requests=1", "--max_pending=1")
      return code == 0

    harness.wait_until(works, "the relay to find its server")
    # Gone in the middle of calls: each is answered, nothing crashes.
    press = self.start(
        "press", f"--server_addr=trpc://127.0.0.1:{relay.port}",
        "--flare_concurrency_hint=2", "--max_pending=50",
        "--report_interval=0.1", "--timeout=30000")
    press.wait_for(r"QPS: [1-9]")
    backend.kill()
    press.wait_for(r"failures: [1-9]")
    press.stop()
    self.assertNotRegex(press.log(), "STATUS_TIMEOUT")
    self.assert_stops(relay)

  def test_silent_server(self):
    with socket.create_server(("127.0.0.1", 0)) as silent:
      relay = self.serve(
          "merge_server", "--threads=1", "--downstream_timeout=50",
          f"--forward_to=flare://127.0.0.1:{silent.getsockname()[1]}")
      figures = self.press(relay, "flare", requests=60, status=1)
      self.assertEqual(figures["failures_by_status"], {"3": 60})
      self.assert_stops(relay)


class EpollLimit(TestCase):

  def run_client(self, server, protocol, *flags, status=0):
    result = self.path("client.json")
    code, log = self.run_to_end(
        FOLDER + "epoll_limit_client", "--threads=2", f"--json={result}",
        f"--server_addr={protocol}://127.0.0.1:{server.port}", *flags)
    self.assertEqual(code, status, log)
    self.assertRegex(log, r"Finished: \d+ call\(s\)")
    with open(result) as f:
      return json.load(f)

  def test_client_presses_all_servers(self):
    for server, protocols in self.models():
      for protocol in set(protocols) - {"trpc"}:
        for requests, *flags in ([1000, "--connections=7"],
                                 [30, "--body_size=300000"]):
          figures = self.run_client(server, protocol,
                                    f"--requests={requests}", *flags)
          self.assertEqual(figures["requests"], requests)
          self.assertEqual(figures["failures"], 0)

  def test_client_has_the_keys_of_press(self):
    server = self.serve("epoll_limit_server", "--threads=1")
    # Time for a call in each part, also on a busy machine.
    figures = self.run_client(server, "flare", "--duration=0.7",
                              "--warmup=0.7")
    self.assertGreater(figures["qps"], 0)
    self.assertGreater(figures["warmup_requests"], 0)
    self.assertEqual(set(figures), set(self.press(server, "flare")))

  def test_times_without_end(self):
    server = self.serve("epoll_limit_server", "--threads=1")
    figures = self.run_client(server, "flare", "--duration=inf",
                              "--report_interval=inf", "--requests=1000")
    self.assertEqual(figures["requests"], 1000)
    result = self.path("warm_up.json")
    client = self.start(
        FOLDER + "epoll_limit_client", "--warmup=inf", f"--json={result}",
        f"--server_addr=flare://127.0.0.1:{server.port}")
    server.wait_for(r"Processed [1-9]\d* request")
    server.wait_for(r"Processed [1-9]\d* request", after=len(server.log()))
    self.assertEqual(client.stop(), 1, client)
    self.assertIn("nothing was measured", client.log())
    self.assertEqual(os.path.getsize(result), 0)

  def test_one_request_at_a_time_lasts_as_long_as_others(self):
    server = self.serve("epoll_limit_server", "--threads=1")
    figures = self.run_client(server, "flare", "--max_pending=1",
                              "--duration=2")
    self.assertGreaterEqual(figures["duration_s"], 2)

  def test_requests_count_from_the_end_of_the_warm_up(self):
    server = self.serve("epoll_limit_server", "--threads=1")
    figures = self.run_client(server, "flare", "--requests=100",
                              "--warmup=0.3")
    self.assertGreaterEqual(figures["requests"], 100)

  def test_plain_http(self):
    server = self.serve("epoll_limit_server", "--threads=1",
                        "--body_size=5000")
    connection = self.connect(server)
    connection.sendall(b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n" * 3 +
                       b"GET / HTTP/1.1\r\nHost: a\r\n"
                       b"Connection: close\r\n\r\n")
    received = b""
    while data := connection.recv(65536):
      received += data
    self.assertEqual(received.count(b"HTTP/1.1 200 OK\r\n"), 4)
    self.assertEqual(received.count(b"a" * 5000), 4)
    figures = self.run_client(server, "http", "--requests=500")
    self.assertEqual((figures["requests"], figures["failures"]), (500, 0))

  def test_server_that_goes(self):
    server = self.serve("epoll_limit_server", "--threads=1")
    client = self.start(
        FOLDER + "epoll_limit_client", "--report_interval=0.1",
        f"--server_addr=flare://127.0.0.1:{server.port}")
    client.wait_for(r"QPS: [1-9]")
    server.stop(signal.SIGTERM)
    self.assertEqual(client.wait(), 1, client)
    self.assertRegex(client.log(), r"failures: \d+")
    status, log = self.run_to_end(
        FOLDER + "epoll_limit_client",
        f"--server_addr=flare://127.0.0.1:{server.port}")
    self.assertEqual(status, 1, log)
    self.assertTrue(re.search("can't connect.*refused", log), log)


class Proxy(TestCase):

  def proxy(self, *ports):
    upstreams = ",".join(f"127.0.0.1:{port}" for port in ports)
    return self.serve("epoll_limit_proxy", "--threads=1",
                      f"--forward_to={upstreams}")

  def test_passes_calls_on(self):
    servers = [self.serve("epoll_limit_server", "--threads=1")
               for _ in range(2)]
    proxy = self.proxy(*(server.port for server in servers))
    self.press(proxy, "flare", "--body_size=10")
    self.press(proxy, "flare", "--body_size=300000", requests=100)
    for server in servers:  # By turns.
      server.wait_for(r"Processed [1-9]\d* request")
    self.assert_stops(proxy)

  def test_waits_for_who_is_slow(self):
    data = os.urandom(1 << 16) * 256
    with socket.create_server(("127.0.0.1", 0)) as upstream:
      proxy = self.proxy(upstream.getsockname()[1])
      for slow, fast in ((0, 1), (1, 0)):
        client = self.connect(proxy)
        server = upstream.accept()[0]
        self.addCleanup(server.close)
        ends = (client, server)
        sender = threading.Thread(target=ends[fast].sendall, args=(data,))
        sender.start()
        received = bytearray()
        time.sleep(0.2)
        while len(received) < len(data):
          received += ends[slow].recv(1 << 20)
        sender.join()
        self.assertEqual(received, data)
        # The end of one is the end of both.
        ends[fast].close()
        self.assertEqual(ends[slow].recv(1), b"")
      self.assert_stops(proxy)

  def test_ends_what_it_cannot_pass_on(self):
    proxy = self.proxy(harness.free_port())
    for _ in range(10):
      self.assertEqual(self.connect(proxy).recv(1), b"")
    self.assert_stops(proxy)


if __name__ == "__main__":
  harness.main()
