#!/usr/bin/python3
"""example/http/server, asked by curl, by load generators where they are
installed, and over sockets."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

HERE = os.path.dirname(os.path.realpath(__file__))  # Bazel runs it by a link.
sys.path.append(os.path.join(HERE, "..", "..", "rpc", "e2e"))
import harness  # noqa: E402

MAKE_TEST_CA = os.path.join(harness.SOURCE_TREE, "tools", "make_test_ca")
SERVER = "http/server"
LISTENS = r"listens on 127\.0\.0\.1:(\d+)"


def read_reply(stream):
  """Returns (status line, {lower-case name: value}, body) from a socket's
  file."""
  status = stream.readline().decode().rstrip("\r\n")
  fields = {}
  while line := stream.readline().decode().rstrip("\r\n"):
    name, value = line.split(": ", 1)
    fields[name.lower()] = value
  return status, fields, stream.read(int(fields["content-length"]))


class HttpServerTest(harness.TestCase):

  def serve(self, *flags):
    """A server on a free port, which it has as `.port`."""
    server = self.start(SERVER, "--port=0", "--flare_concurrency_hint=2",
                        *flags)
    server.port = int(server.wait_for(LISTENS)[1])
    return server

  def url(self, server, path="/"):
    return f"http://127.0.0.1:{server.port}{path}"

  def connect(self, server):
    connection = socket.create_connection(("127.0.0.1", server.port),
                                          harness.PATIENCE_S)
    self.addCleanup(connection.close)
    stream = connection.makefile("rb")
    self.addCleanup(stream.close)
    return connection, stream

  def close(self, connection, stream):
    stream.close()
    connection.close()

  def total(self, server):
    """Ends it; returns how many requests it says it has processed. (It gives
    clients time to close their connections: without any left it's quick.)"""
    self.assertEqual(server.stop(), 0, server)
    return int(re.search(r"Processed (\d+) request\(s\) in total",
                         server.log())[1])


class Replies(HttpServerTest):

  def test_any_path_and_method_is_answered_alike(self):
    server = self.serve("--body_size=300")
    connection, stream = self.connect(server)
    bodies = set()
    for head in ("GET / HTTP/1.1", "GET /a/b?c=d HTTP/1.1",
                 "DELETE /inspect HTTP/1.1", "OPTIONS * HTTP/1.1"):
      connection.sendall(f"{head}\r\nHost: x\r\n\r\n".encode())
      status, fields, body = read_reply(stream)
      self.assertEqual(status, "HTTP/1.1 200 OK")
      self.assertEqual(fields["content-type"], "text/plain; charset=UTF-8")
      self.assertRegex(fields["date"],
                       r"^\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT$")
      self.assertRegex(body, rb"^[!-~]{300}$")
      bodies.add(body)
    self.close(connection, stream)
    self.assertEqual(len(bodies), 1)
    self.assertEqual(self.total(server), 4)

  def test_sizes(self):
    for size in (0, 1, 256, 257, 65536, 3_000_000):
      with self.subTest(size=size):
        server = self.serve(f"--body_size={size}")
        connection, stream = self.connect(server)
        # The second one shares the body's memory with the first.
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        _, _, first = read_reply(stream)
        _, _, second = read_reply(stream)
        self.close(connection, stream)
        self.assertEqual(len(first), size)
        self.assertEqual(first, second)
        self.assertEqual(self.total(server), 2)

  def test_head_has_no_body(self):
    server = self.serve("--body_size=300")
    connection, stream = self.connect(server)
    connection.sendall(b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n"
                       b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    head = stream.readline()
    while (line := stream.readline()) != b"\r\n":
      head += line
    self.assertIn(b"Content-Length: 300\r\n", head)
    # The next reply follows, without a body.
    self.assertEqual(read_reply(stream)[0], "HTTP/1.1 200 OK")

  @unittest.skipUnless(shutil.which("curl"), "curl isn't installed")
  def test_tls(self):
    subprocess.run([MAKE_TEST_CA, self.folder, "ca", "server"], check=True,
                   capture_output=True)
    server = self.serve("--body_size=70000",
                        f"--tls_certificate={self.path('server.crt')}",
                        f"--tls_key={self.path('server.key')}")
    reply = subprocess.run(
        ["curl", "-sS", "--cacert", self.path("ca.crt"),
         f"https://127.0.0.1:{server.port}/"], check=True, capture_output=True)
    self.assertEqual(len(reply.stdout), 70000)
    self.assertEqual(self.total(server), 1)

  def test_a_certificate_without_its_key(self):
    status, log = self.run_to_end(SERVER, "--port=0", "--tls_certificate=a.crt")
    self.assertEqual(status, 2)
    self.assertIn("--tls_certificate and --tls_key must name as many files",
                  log)

  def test_curl(self):
    server = self.serve("--body_size=1000")
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "60", "-d", "data", "-D", "-",
         self.url(server, "/x"), "--next", "-sS", "--http1.0",
         self.url(server, "/y")],
        capture_output=True, text=True, check=True)
    self.assertEqual(done.stdout.count("Content-Length: 1000"), 1)
    self.assertEqual(self.total(server), 2)


class LongRequests(HttpServerTest):

  def test_take_their_time_and_hold_nobody_up(self):
    for path in ("/long_req/", "/long_req/block", "/long_req/spin"):
      with self.subTest(path):
        server = self.serve("--long_req_us=300000")
        slow, slow_stream = self.connect(server)
        begin = time.monotonic()
        slow.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        # On other connections there are answers in the meantime, and if it
        # were only the last of many.
        answered = 0
        while not answered or time.monotonic() < begin + 0.1:
          connection, stream = self.connect(server)
          connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
          read_reply(stream)
          self.close(connection, stream)
          answered += 1
        self.assertEqual(read_reply(slow_stream)[0], "HTTP/1.1 200 OK")
        self.close(slow, slow_stream)
        self.assertGreaterEqual(time.monotonic() - begin, 0.3)
        self.assertEqual(self.total(server), answered + 1)

  def test_fibers_that_sleep_need_no_workers(self):
    server = self.serve("--long_req_us=400000")
    streams = []
    begin = time.monotonic()
    for _ in range(100):
      connection, stream = self.connect(server)
      connection.sendall(b"GET /long_req/ HTTP/1.1\r\nHost: x\r\n\r\n")
      streams.append(stream)
    for stream in streams:
      self.assertEqual(read_reply(stream)[0], "HTTP/1.1 200 OK")
    # One after the other, two workers would need 20 seconds.
    self.assertLess(time.monotonic() - begin, 15)

  def test_are_answered_before_the_server_ends(self):
    server = self.serve("--long_req_us=1000000")
    connection, stream = self.connect(server)
    connection.sendall(b"GET /now HTTP/1.1\r\nHost: x\r\n\r\n"
                       b"GET /long_req/ HTTP/1.1\r\nHost: x\r\n\r\n")
    read_reply(stream)
    server.send_signal(signal.SIGTERM)
    self.assertEqual(read_reply(stream)[0], "HTTP/1.1 200 OK")
    self.assertEqual(stream.read(), b"")
    self.close(connection, stream)
    self.assertEqual(server.wait(), 0)


class LoadGenerators(HttpServerTest):

  @unittest.skipUnless(shutil.which("h2load"), "h2load isn't installed")
  def test_h2load(self):
    server = self.serve("--body_size=100")
    done = subprocess.run(
        ["h2load", "--h1", "-n", "3000", "-c", "20", "-m", "5",
         self.url(server)], capture_output=True, text=True, check=True)
    self.assertIn("3000 succeeded, 0 failed", done.stdout)
    self.assertEqual(self.total(server), 3000)

  @unittest.skipUnless(shutil.which("wrk"), "wrk isn't installed")
  def test_wrk(self):
    server = self.serve("--body_size=100")
    done = subprocess.run(
        ["wrk", "-t1", "-c20", "-d1", "--timeout", "60s", self.url(server)],
        capture_output=True, text=True, check=True)
    self.assertNotIn("Socket errors", done.stdout)
    self.assertNotIn("Non-2xx", done.stdout)
    self.assertGreater(self.total(server), 0)


class WrongFlags(HttpServerTest):

  def test_end_with_status_2(self):
    for flag in ("--ip=nonsense", "--port=65536", "--port=-1",
                 "--body_size=-1", "--body_size=100000000",
                 "--long_req_us=-1", "--long_req_us=100000000"):
      with self.subTest(flag):
        status, output = self.run_to_end(SERVER, flag)
        self.assertEqual(status, 2, output)
        self.assertRegex(output, f"Bad .*{flag.split(chr(61))[0]}")
    status, output = self.run_to_end(SERVER, "8080")
    self.assertEqual(status, 2, output)
    self.assertIn("'8080' is no flag", output)

  def test_a_port_in_use_ends_with_status_1(self):
    server = self.serve()
    status, output = self.run_to_end(SERVER, f"--port={server.port}")
    self.assertEqual(status, 1)
    self.assertIn("Address already in use", output)


if __name__ == "__main__":
  harness.main()
