"""Shared by the tests of tcp_proxy: the program with all that belongs to it,
and upstreams of which every byte is in the test's hands."""

import contextlib
import json
import os
import resource
import select
import shutil
import socket
import struct
import subprocess
import sys
import threading
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "..", "rpc", "e2e"))
import harness  # noqa: E402

PROXY = "proxy/tcp_proxy"
HTTP_SERVER = "http/server"
LIMIT_S = harness.PATIENCE_S

# A sanitizer's allocator keeps memory, which says nothing about the program.
IS_MEMORY_MEANINGFUL = not any(
    name in os.environ for name in ("ASAN_OPTIONS", "TSAN_OPTIONS"))


def want_descriptors(count):
  """Skips a test for which the system allows too few."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  if hard != resource.RLIM_INFINITY and hard < count:
    raise harness.unittest.SkipTest(f"only {hard} descriptors (`ulimit -n`)")
  if soft != resource.RLIM_INFINITY and soft < count:
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def needs(program):
  """Skips a test where a client isn't installed."""
  return harness.unittest.skipUnless(
      shutil.which(program),
      f"{program} is not installed (tools/setup does that)")


def reset(connection):
  """Closes it so that the peer gets a reset."""
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                        struct.pack("ii", 1, 0))
  connection.close()


def read_all(connection):
  """To the end of the stream."""
  pieces = []
  while piece := connection.recv(1 << 16):
    pieces.append(piece)
  return b"".join(pieces)


def read_exactly(connection, size):
  data = b""
  while len(data) < size:
    piece = connection.recv(size - len(data))
    if not piece:
      raise EOFError(f"the end after {len(data)} of {size} bytes")
    data += piece
  return data


def echo(connection):
  while data := connection.recv(1 << 16):
    connection.sendall(data)


class Upstream:
  """A server that runs `serve(connection)` on a thread for each visitor and
  closes the connection after it. Failures in `serve` are the test's own doing,
  mostly: a connection that it has broken."""

  def __init__(self, serve=echo, address=("127.0.0.1", 0), receive_buffer=0):
    self.serve = serve
    self.visitors = 0
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    self.listener = socket.socket(family)
    if receive_buffer:
      self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF,
                               receive_buffer)
    self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    self.listener.bind(address)
    self.listener.listen(1024)
    bound = self.listener.getsockname()
    self.address = (f"unix:{bound}" if family == socket.AF_UNIX else
                    f"{bound[0]}:{bound[1]}")
    self._open = set()
    self._lock = threading.Lock()
    threading.Thread(target=self._accept, daemon=True).start()

  def _accept(self):
    while True:
      try:
        connection, _ = self.listener.accept()
      except OSError:
        return
      connection.settimeout(LIMIT_S)
      with self._lock:
        self.visitors += 1
        self._open.add(connection)
      threading.Thread(target=self._serve, args=(connection,),
                       daemon=True).start()

  def _serve(self, connection):
    with contextlib.suppress(OSError, EOFError), connection:
      self.serve(connection)
    with self._lock:
      self._open.discard(connection)

  def close(self):
    """Refuses visitors, and ends the connections that are left."""
    with contextlib.suppress(OSError):
      self.listener.shutdown(socket.SHUT_RDWR)
    self.listener.close()
    with self._lock:
      left = list(self._open)
    for connection in left:
      with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class DeadAddress:
  """Bound but not listened on: refuses connections, and nobody else gets it.
  (It may be listened on later.)"""

  def __init__(self):
    self.socket = socket.socket()
    self.socket.bind(("127.0.0.1", 0))
    self.port = self.socket.getsockname()[1]
    self.address = f"127.0.0.1:{self.port}"

  def close(self):
    self.socket.close()


class SilentAddress:
  """Doesn't answer who wants to connect: its queue is full."""

  def __init__(self):
    self.listener = socket.socket()
    self.listener.bind(("127.0.0.1", 0))
    self.listener.listen(0)
    self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
    self.fillers = []
    for _ in range(3):
      filler = socket.socket()
      filler.setblocking(False)
      with contextlib.suppress(BlockingIOError):
        filler.connect(self.listener.getsockname())
      self.fillers.append(filler)
    # Before, the kernel would answer the next one, too.
    select.select([self.listener], [], [], 30)

  def close(self):
    for filler in self.fillers:
      filler.close()
    self.listener.close()


class ProxyTest(harness.TestCase):

  def upstream(self, *arguments, **options):
    return self.keep(Upstream(*arguments, **options))

  def keep(self, resource):
    """Closed when the test ends."""
    self.addCleanup(resource.close)
    return resource

  def start_proxy(self, *flags, listen="127.0.0.1:0", upstreams=(),
                  admin=True, access_log=None, stdout=None,
                  stderr=subprocess.STDOUT):
    """Starts a proxy that accepts connections when this returns. It has its
    port as `.port` and that of its pages as `.admin_port`."""
    arguments = [f"--listen={listen}"] if listen else []
    if upstreams:
      arguments.append("--upstreams=" + ",".join(
          u if isinstance(u, str) else u.address for u in upstreams))
    if admin:
      arguments.append("--admin=127.0.0.1:0")
    proxy = self.start(PROXY, "--flare_concurrency_hint=2",
                       f"--access_log={access_log or self.path('access.log')}",
                       *arguments, *flags, stdout=stdout, stderr=stderr)
    if stderr != subprocess.STDOUT:
      return proxy  # No line of it can be waited for.
    found = proxy.wait_for(
        r"Proxy listens on (?:127\.0\.0\.1:(\d+)|unix:.*)\.$")
    proxy.port = int(found[1] or 0)
    if admin:
      proxy.admin_port = int(
          proxy.wait_for(r"Server admin listens on 127\.0\.0\.1:(\d+)")[1])
    return proxy

  def connect(self, proxy, source=None, receive_buffer=0):
    """A client's connection. A peer that isn't heard of fails the test."""
    client = socket.socket()
    self.addCleanup(client.close)
    client.settimeout(LIMIT_S)
    if receive_buffer:
      client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    if source:
      client.bind((source, 0))
    client.connect(("127.0.0.1", proxy.port))
    return client

  def exchange(self, proxy, request=b"hello", source=None):
    """The response to `request`, to the end of the stream; b"" if the
    connection is reset."""
    with self.connect(proxy, source) as client:
      try:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        return read_all(client)
      except OSError:
        return b""

  def page(self, proxy, path):
    url = f"http://127.0.0.1:{proxy.admin_port}{path}"
    with urllib.request.urlopen(url, timeout=LIMIT_S) as reply:
      return reply.read().decode()

  def statistics(self, proxy):
    return json.loads(self.page(proxy, "/stats.json"))

  def wait_for_statistics(self, proxy, condition, what):
    """The first statistics for which condition(them) is true."""

    def look():
      statistics = self.statistics(proxy)
      return statistics if condition(statistics) else None

    return harness.wait_until(look, f"{what} in the statistics of {proxy}")

  def access_lines(self, count, name="access.log"):
    """The access log, once it has `count` lines: each as a dictionary."""

    def look():
      with contextlib.suppress(FileNotFoundError), open(self.path(name)) as f:
        lines = f.read().splitlines()
        return lines if len(lines) >= count else None

    lines = harness.wait_until(look, f"{count} lines in {name}")
    self.assertEqual(len(lines), count, lines)
    return [dict([("time", line.split(" ")[0])] +
                 [word.split("=", 1) for word in line.split(" ")[1:]])
            for line in lines]

  def run_client(self, *command, stdin=b""):
    """Runs somebody else's program; returns its output and how it
    ended."""
    return subprocess.run(command, input=stdin, capture_output=True,
                          timeout=LIMIT_S, check=False)

  def write_file(self, name, text):
    """Replaces a file at once, as careful programs do."""
    path = self.path(name)
    with open(path + ".new", "w") as f:
      f.write(text)
    os.replace(path + ".new", path)
    return path


def open_descriptors(program):
  return len(os.listdir(f"/proc/{program.pid}/fd"))


def main():
  harness.main()
