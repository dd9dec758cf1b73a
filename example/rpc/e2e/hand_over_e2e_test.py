#!/usr/bin/python3
"""Servers that take over from one another with --hand_over, and etcd's keys."""

import base64
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import unittest
import urllib.request

import harness
import wire

NOBODY = 65534
ETCD = "/usr/bin/etcd"


class FreshCallers:
  """Threads that make each request on a connection of its own, until told to
  end, and once more if the connection ends without an answer: a server that
  stops may not have seen the request. They collect other errors."""

  def __init__(self, port, threads=2):
    self.port = port
    self.answered = 0
    self.errors = []
    self._ends = threading.Event()
    self._threads = [
        threading.Thread(target=self._run, daemon=True) for _ in range(threads)
    ]
    for thread in self._threads:
      thread.start()

  def _run(self):
    while not self._ends.is_set():
      try:
        self._call()
        self.answered += 1
      except (http.client.RemoteDisconnected, ConnectionResetError,
              BrokenPipeError):
        continue
      except (OSError, http.client.HTTPException, AssertionError) as error:
        self.errors.append(repr(error))

  def _call(self):
    connection = http.client.HTTPConnection("127.0.0.1", self.port,
                                            timeout=harness.PATIENCE_S)
    try:
      connection.request("POST", "/echo", b"hello")
      reply = connection.getresponse()
      assert (reply.status, reply.read()) == (200, b"hello"), reply.status
    finally:
      connection.close()

  def end(self):
    self._ends.set()
    for thread in self._threads:
      thread.join(harness.PATIENCE_S)

# Starts a program as a service manager does: python -c LAUNCH FD,FD... PROGRAM.
LAUNCH = """
import fcntl, os, sys
fds = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 100)
       for fd in sys.argv[1].split(',')]
for i, fd in enumerate(fds):
  os.dup2(fd, 3 + i)
  os.close(fd)
os.environ.setdefault('LISTEN_FDS', str(len(fds)))
os.environ.setdefault('LISTEN_PID', str(os.getpid()))
os.execv(sys.argv[2], sys.argv[2:])
"""


class HandOver(harness.TestCase):

  def setUp(self):
    super().setUp()
    self.door = self.path("hand_over")

  def start_first(self, *arguments):
    server = self.start_server(f"--hand_over={self.door}",
                               "--flare_concurrency_hint=2", *arguments)
    # It offers its sockets a moment after it listens.
    harness.wait_until(lambda: os.path.exists(self.door), self.door)
    return server

  def start_next(self, port, *arguments, **options):
    server = self.start("server", "--logtostderr", f"--port={port}",
                        f"--hand_over={self.door}",
                        "--flare_concurrency_hint=2", *arguments, **options)
    server.port = port
    return server

  def take_sockets(self):
    """The connection to the server, and descriptors of its sockets."""
    door = socket.socket(socket.AF_UNIX)
    self.addCleanup(door.close)
    door.settimeout(harness.PATIENCE_S)
    door.connect(self.door)
    what, sockets, _, _ = socket.recv_fds(door, 1, 16)
    self.assertEqual(what, b"S")
    for fd in sockets:
      self.addCleanup(os.close, fd)
    return door, sockets


class UnderLoad(HandOver):

  def start_press(self, protocol, port):
    press = self.start("press", f"--server_addr={protocol}://127.0.0.1:{port}",
                       "--max_pending=10", "--qps=500", "--timeout=30000",
                       "--flare_concurrency_hint=2", "--report_interval=0.1",
                       f"--json={self.report_of(protocol)}")
    press.protocol = protocol
    return press

  def report_of(self, protocol):
    return self.path(f"press.{protocol}.json")

  def wait_for_calls(self, presses, callers):
    answered = callers.answered
    # The report that begins now may be of calls before.
    starts = [(press, len(press.log())) for press in presses]
    for press, start in starts:
      press.wait_for(r"QPS: \d+[\s\S]*QPS: [1-9]", after=start)
    harness.wait_until(lambda: callers.answered > answered, "an answer")

  def check_no_call_failed(self, press):
    self.assertEqual(press.stop(signal.SIGINT), 0, press)
    with open(self.report_of(press.protocol)) as f:
      figures = json.load(f)
    self.assertEqual(figures["failures"], 0, press)
    self.assertGreater(figures["requests"], 0)

  def test_no_call_fails(self):
    self.check_take_overs("flare", "http+pb", "grpc")

  def test_no_call_fails_over_protocols_with_notices_of_ours(self):
    self.check_take_overs("baidu-std", "trpc", "bolt")

  def check_take_overs(self, *protocols):
    # A busy machine may bring neither a request nor a reply for long.
    # Some calls are under way at each moment.
    flags = ("--flare_rpc_server_stop_linger_ms=4000", "--work=sleep_fiber",
             "--work_us=6000")
    first = self.start_first(*flags)
    presses = [self.start_press(protocol, first.port)
               for protocol in protocols]
    callers = FreshCallers(first.port)
    self.addCleanup(callers.end)
    server = first
    for _ in range(2):
      self.wait_for_calls(presses, callers)
      successor = self.start_next(first.port, *flags)
      successor.wait_for("Has taken over")
      self.assertEqual(server.wait(), 0, server)
      server = successor
    self.wait_for_calls(presses, callers)
    callers.end()
    self.assertEqual(callers.errors, [])
    for press in presses:
      self.check_no_call_failed(press)
    self.assertEqual(server.stop(), 0, server)
    self.assertFalse(os.path.exists(self.door))


class Rollback(HandOver):

  def test_successors_that_end_before_they_are_ready(self):
    first = self.start_first()
    door, _ = self.take_sockets()
    door.close()
    first.wait_for("ended before it was ready; this process goes on")
    self.assertTrue(wire.echo_works(first.port))

    # It gets the sockets, but can't have this address for its pages.
    seen = len(first.log())
    failing = self.start_next(
        first.port, f"--flare_rpc_server_admin_address=127.0.0.1:{first.port}")
    self.assertEqual(failing.wait(), 1, failing)
    first.wait_for("ended before it was ready; this process goes on", seen)
    self.assertTrue(wire.echo_works(first.port))

    successor = self.start_next(first.port)
    successor.wait_for("Has taken over")
    self.assertEqual(first.wait(), 0, first)
    self.assertTrue(wire.echo_works(first.port))

  def test_another_address(self):
    first = self.start_first()
    other = self.start_next(harness.free_port())
    self.assertEqual(other.wait(), 1, other)
    self.assertRegex(other.log(), "a successor has to take the same address")
    self.assertTrue(wire.echo_works(first.port))

  def test_server_that_stops_before_the_successor_is_ready(self):
    first = self.start_first()
    door, sockets = self.take_sockets()
    self.assertEqual(first.stop(), 0, first)
    # In place of an answer. The successor has the sockets and goes on.
    self.assertEqual(door.recv(1), b"")
    self.assertFalse(os.path.exists(self.door))
    self.assertTrue(harness.can_connect(first.port))
    self.assertGreaterEqual(len(sockets), 2)

  def test_server_that_was_killed(self):
    first = self.start_first()
    first.kill()
    self.assertTrue(os.path.exists(self.door))
    second = self.start_server(f"--hand_over={self.door}", port=first.port)
    self.assertTrue(wire.echo_works(second.port))
    self.assertNotIn("Has taken over", second.log())


class Refusals(HandOver):

  def test_file_that_is_no_socket(self):
    with open(self.door, "w") as f:
      f.write("precious")
    server = self.start_next(harness.free_port())
    self.assertEqual(server.wait(), 1, server)
    self.assertRegex(server.log(),
                     f"hand-over at {self.door}: .*a file that is no socket")
    with open(self.door) as f:
      self.assertEqual(f.read(), "precious")

  def test_path_that_is_too_long(self):
    self.door = self.path("x" * 200)
    server = self.start_next(harness.free_port())
    self.assertEqual(server.wait(), 1, server)
    self.assertRegex(server.log(), "hand-over at .*xxx: ")

  def test_process_that_gives_no_sockets(self):
    with socket.socket(socket.AF_UNIX) as stranger:
      stranger.bind(self.door)
      stranger.listen()
      server = self.start_next(harness.free_port())
      connection, _ = stranger.accept()
      connection.send(b"?")
      self.assertEqual(server.wait(), 1, server)
      connection.close()
    self.assertRegex(server.log(), "gives no sockets")

  def run_as_nobody(self, code, **options):
    """A process of another user that runs `code`, with the path as `door`."""
    if os.geteuid() != 0:
      raise unittest.SkipTest("only root can start processes of another user")
    os.chmod(self.folder, 0o777)
    process = subprocess.Popen(
        [sys.executable, "-c", f"import socket; door = {self.door!r}; {code}"],
        user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
        stdout=subprocess.PIPE, stdin=subprocess.PIPE,
        preexec_fn=harness.die_with_parent, text=True, **options)
    for pipe in (process.stdin, process.stdout):
      self.addCleanup(pipe.close)
    self.addCleanup(process.wait)
    self.addCleanup(process.kill)
    return process

  def test_sockets_are_not_for_other_users(self):
    first = self.start_first()
    self.assertEqual(os.stat(self.door).st_mode & 0o777, 0o600)
    os.chmod(self.door, 0o777)
    thief = self.run_as_nobody(
        "s = socket.socket(socket.AF_UNIX); s.connect(door); "
        "print(socket.recv_fds(s, 1, 9)[:2])")
    output, _ = thief.communicate(timeout=harness.PATIENCE_S)
    self.assertEqual(output, "(b'', [])\n")
    first.wait_for(f"refused: process {thief.pid} belongs to user {NOBODY}")
    self.assertTrue(wire.echo_works(first.port))

  def test_sockets_are_not_taken_from_other_users(self):
    other = self.run_as_nobody(
        "s = socket.socket(socket.AF_UNIX); s.bind(door); s.listen(); "
        "print('listens', flush=True); input()")
    self.assertEqual(other.stdout.readline(), "listens\n")
    server = self.start_next(harness.free_port())
    self.assertEqual(server.wait(), 1, server)
    self.assertRegex(server.log(), f"belongs to user {NOBODY}")


class Etcd:
  """A real etcd, and its keys through its JSON gateway."""

  def __init__(self, test):
    host = f"127.{random.randint(1, 250)}.{random.randint(0, 255)}.77"
    self.address = f"{host}:2379"
    peer = f"http://{host}:2380"
    log = open(test.path("etcd.log"), "w")
    test.addCleanup(log.close)
    process = subprocess.Popen(
        [ETCD, "--data-dir", test.path("etcd"),
         "--listen-client-urls", f"http://{self.address}",
         "--advertise-client-urls", f"http://{self.address}",
         "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
         "--initial-cluster", f"default={peer}"],
        stdout=log, stderr=log, preexec_fn=harness.die_with_parent,
        env=dict(os.environ, ETCD_UNSUPPORTED_ARCH="arm64"))
    test.addCleanup(process.wait)
    test.addCleanup(process.kill)

  def get(self, key):
    """The pair with its value and its lease, or None."""
    body = {"key": base64.b64encode(key.encode()).decode()}
    try:
      with urllib.request.urlopen(f"http://{self.address}/v3/kv/range",
                                  json.dumps(body).encode(),
                                  timeout=harness.PATIENCE_S) as reply:
        pairs = json.load(reply).get("kvs")
    except OSError:
      return None
    if not pairs:
      return None
    pairs[0]["value"] = base64.b64decode(pairs[0]["value"]).decode()
    return pairs[0]


@unittest.skipUnless(os.path.exists(ETCD), f"there is no {ETCD} (etcd-server)")
class Registration(HandOver):

  def test_key_lives_as_long_as_the_service(self):
    etcd = Etcd(self)
    where = f"--register=etcd://{etcd.address}/echo/"
    first = self.start_first(where)
    key = f"/echo/127.0.0.1:{first.port}"
    harness.wait_until(lambda: etcd.get(key), key)
    lease = etcd.get(key)["lease"]
    self.assertEqual(etcd.get(key)["value"], f"127.0.0.1:{first.port}")

    successor = self.start_next(first.port, where)
    self.assertEqual(first.wait(), 0, first)
    # The first server didn't take the key of the next one along.
    harness.wait_until(lambda: (etcd.get(key) or {}).get("lease", lease) !=
                       lease, "the successor's key")
    self.assertEqual(successor.stop(), 0, successor)
    self.assertIsNone(etcd.get(key))
    successor.wait_for("isn't registered in etcd any more")

  def test_address_and_weight(self):
    etcd = Etcd(self)
    server = self.start_server(
        "--ip=0.0.0.0", f"--register=etcd://{etcd.address}/echo/",
        "--register_as=127.0.0.1:5567;weight=3")
    harness.wait_until(lambda: etcd.get("/echo/127.0.0.1:5567"), "the key")
    self.assertEqual(etcd.get("/echo/127.0.0.1:5567")["value"],
                     "127.0.0.1:5567;weight=3")
    self.assertEqual(server.stop(), 0, server)

  def test_wrong_flags(self):
    server = self.start("server", "--logtostderr", "--port=0",
                        "--register=127.0.0.1:2379")
    self.assertEqual(server.wait(), 2, server)
    self.assertRegex(server.log(), "Bad --register: .*etcd://")
    server = self.start("server", "--logtostderr", "--port=0", "--ip=0.0.0.0",
                        "--register=etcd://127.0.0.1:1/echo/")
    self.assertEqual(server.wait(), 2, server)
    self.assertRegex(server.log(), "Bad --register_as: .*no address that "
                     "clients can connect to")


class Activation(harness.TestCase):
  """The test is the service manager."""

  def listen(self, family=socket.AF_INET, address=("127.0.0.1", 0)):
    listener = socket.socket(family)
    self.addCleanup(listener.close)
    listener.bind(address)
    listener.listen()
    return listener

  def activate(self, sockets, *arguments, **environment):
    fds = [s.fileno() for s in sockets]
    variables = [f"{name}={value}" for name, value in environment.items()]
    prefix = ("env", *variables, sys.executable, "-c", LAUNCH,
              ",".join(map(str, fds)))
    return self.start("server", "--logtostderr", "--port=1",
                      "--flare_concurrency_hint=2", *arguments,
                      prefix=prefix, pass_fds=fds)

  def check_fails(self, sockets, pattern, *arguments, **environment):
    server = self.activate(sockets, *arguments, **environment)
    self.assertEqual(server.wait(), 1, server)
    self.assertRegex(server.log(), pattern)

  def test_connections_wait_while_no_server_runs(self):
    listener = self.listen()
    port = listener.getsockname()[1]
    for _ in range(2):
      with wire.FlareConnection(port) as early:
        early.send(wire.echo_frame(1, "early"))
        server = self.activate([listener])
        self.assertEqual(early.receive().text, "early")
      self.assertEqual(server.stop(), 0, server)

  def test_unix_socket(self):
    path = self.path("socket")
    listener = self.listen(socket.AF_UNIX, path)
    server = self.activate([listener])
    server.wait_for(f"listens on unix:{path}")
    with socket.socket(socket.AF_UNIX) as client:
      client.settimeout(harness.PATIENCE_S)
      client.connect(path)
      client.send(b"GET / HTTP/1.0\r\n\r\n")
      self.assertIn(b"200", client.recv(100))
    self.assertEqual(server.stop(), 0, server)
    self.assertTrue(os.path.exists(path))

  def test_names(self):
    one, other = self.listen(), self.listen()
    server = self.activate([one, other], "--socket_name=other",
                           LISTEN_FDNAMES="one:other")
    server.wait_for(f"listens on 127.0.0.1:{other.getsockname()[1]}")
    self.check_fails([one, other], "no socket .* the name \"third\"; they "
                     "are one:other", "--socket_name=third",
                     LISTEN_FDNAMES="one:other")
    self.check_fails([one, other], "sockets of two addresses")

  def test_sockets_of_another_process_are_left(self):
    listener = self.listen()
    port = harness.free_port()
    server = self.activate([listener], f"--port={port}", LISTEN_PID="1")
    server.wait_for(f"listens on 127.0.0.1:{port}")

  def test_what_is_of_no_use(self):
    listener = self.listen()
    self.check_fails([listener], 'LISTEN_FDS is "two", not a number',
                     LISTEN_FDS="two")
    self.check_fails([listener], "--hand_over is of no use",
                     f"--hand_over={self.path('hand_over')}")
    with socket.socket() as no_listener:
      self.check_fails([no_listener], "is no .*socket")


if __name__ == "__main__":
  harness.main()
