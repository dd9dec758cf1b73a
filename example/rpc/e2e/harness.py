"""Shared by the end-to-end tests: running the real programs, with bounds.

Every wait here is for a condition (a line in a log, a port that answers, the
end of a process) and has a limit; nothing waits for time to pass. Programs
that a test has started are gone when it ends, however it ends.

The programs are looked for among the test's run files when Bazel runs it, else
under bazel-bin/; the environment variable FLARE_BINARIES names another folder.
They are those of example/rpc, or, with a folder in their name ("http/server"),
those of another example.
(Not beside this file: Python has followed Bazel's link to it by now, and
bazel-bin/ may still be that of another configuration.)
"""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

# Generous, because the machine may be busy and the build a sanitizer's: a
# test that passes never waits this long.
PATIENCE_S = 60.0
POLL_S = 0.01

LIBC = ctypes.CDLL(None)

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE_TREE = os.path.join(HERE, "..", "..", "..")

sys.path.append(os.path.join(SOURCE_TREE, "tools"))
import unittest_xml  # noqa: E402
from free_ports import free_port  # noqa: E402, F401 (for the tests)

PROTO_FILE = os.path.join(HERE, "..", "echo_service.proto")


class GaveUp(AssertionError):
  """A condition did not come true in time."""


def find_binary(name):
  bazel_run_files = os.path.join(os.environ.get("TEST_SRCDIR", ""),
                                 os.environ.get("TEST_WORKSPACE", ""))
  root = (bazel_run_files if "TEST_SRCDIR" in os.environ else
          os.path.join(SOURCE_TREE, "bazel-bin"))
  folders = [
      os.environ.get("FLARE_BINARIES", ""),
      os.path.join(root, "example", "" if "/" in name else "rpc"),
      root,
  ]
  for folder in filter(None, folders):
    path = os.path.join(folder, name)
    if os.path.isfile(path) and os.access(path, os.X_OK):
      return os.path.abspath(path)
  raise FileNotFoundError(f"no program `{name}` in {folders}: build it with "
                          f"`bazel build //example/...`")


def wait_until(condition, what, limit_s=PATIENCE_S, poll_s=POLL_S):
  """Returns the first true value of `condition()`."""
  deadline = time.monotonic() + limit_s
  while True:
    value = condition()
    if value:
      return value
    if time.monotonic() > deadline:
      raise GaveUp(f"waited {limit_s:g} s for {what}")
    time.sleep(poll_s)


def can_connect(port):
  try:
    socket.create_connection(("127.0.0.1", port), 1).close()
    return True
  except OSError:
    return False


def die_with_parent():
  """Run in a child before it becomes a program: that ends, too, when the test
  is killed before it can clean up."""
  pr_set_pdeathsig = 1
  LIBC.prctl(pr_set_pdeathsig, signal.SIGKILL)


def expects_signal(pid, number):
  """Whether the process has a handler for the signal, or holds it back."""
  with open(f"/proc/{pid}/status") as f:
    masks = dict(re.findall(r"^Sig(Cgt|Blk):\s*(\w+)$", f.read(), re.M))
  return any(int(mask, 16) >> (number - 1) & 1 for mask in masks.values())


class Pipe:
  """In the place of a program's stderr; nobody reads unless the test does."""

  def __init__(self):
    self.reader, self.writer = os.pipe()

  def fileno(self):
    return self.writer

  def fill(self):
    """Leaves no room for a single byte."""
    own = os.open(f"/proc/self/fd/{self.writer}", os.O_WRONLY | os.O_NONBLOCK)
    for size in (4096, 1):
      try:
        while True:
          os.write(own, b"x" * size)
      except BlockingIOError:
        pass
    os.close(own)
    return self

  def read_until(self, pattern, limit_s=PATIENCE_S):
    """Reads up to the first match of `pattern`; returns that."""
    text = ""
    os.set_blocking(self.reader, False)

    def look():
      nonlocal text
      try:
        text += os.read(self.reader, 1 << 16).decode(errors="replace")
      except BlockingIOError:
        pass
      return re.search(pattern, text)

    return wait_until(look, f"/{pattern}/ from a pipe", limit_s)

  def close(self):
    os.close(self.reader)
    os.close(self.writer)


class Program:
  """A running program whose output (both streams) goes to a file, unless
  something else is given for one of them. It inherits the descriptors
  `pass_fds`."""

  def __init__(self, name, *arguments, prefix=(), stdout=None,
               stderr=subprocess.STDOUT, pass_fds=()):
    self.name = name
    self.arguments = [str(argument) for argument in arguments]
    self._log = tempfile.NamedTemporaryFile(
        prefix=os.path.basename(name) + ".", suffix=".log")
    command = [*prefix, find_binary(name), *self.arguments]
    self.process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout or self._log,
        stderr=stderr, pass_fds=pass_fds, preexec_fn=die_with_parent)

  @property
  def pid(self):
    return self.process.pid

  def log(self):
    with open(self._log.name, errors="replace") as f:
      return f.read()

  def is_running(self):
    return self.process.poll() is None

  def wait_for(self, pattern, after=0, limit_s=PATIENCE_S):
    """Returns the first match of `pattern` in the log from offset `after`."""
    regex = re.compile(pattern, re.MULTILINE)

    def look():
      running = self.is_running()  # Before reading, or its last words are lost.
      match = regex.search(self.log(), after)
      if match is None and not running:
        raise GaveUp(f"{self} ended with {self.process.returncode} without "
                     f"saying /{pattern}/")
      return match

    return wait_until(look, f"/{pattern}/ from {self}", limit_s)

  def wait(self, limit_s=PATIENCE_S):
    """Waits for its end; returns the exit status, -N if signal N ended it."""
    try:
      return self.process.wait(limit_s)
    except subprocess.TimeoutExpired:
      raise GaveUp(f"waited {limit_s:g} s for the end of {self}") from None

  def send_signal(self, number):
    self.process.send_signal(number)

  def stop(self, number=signal.SIGTERM, limit_s=PATIENCE_S):
    """Asks it to end and returns its exit status."""
    self.send_signal(number)
    return self.wait(limit_s)

  def kill(self):
    if self.is_running():
      self.process.kill()
    self.process.wait()

  def cpu_seconds(self):
    with open(f"/proc/{self.pid}/stat") as f:
      fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

  def resident_bytes(self):
    with open(f"/proc/{self.pid}/statm") as f:
      return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

  def __str__(self):
    return f"`{self.name} {' '.join(self.arguments)}`; its log:\n{self.log()}"


class TestCase(unittest.TestCase):
  """Starts programs, and ends those that are left when the test ends."""

  def setUp(self):
    self.folder = tempfile.mkdtemp(prefix="flare_e2e_")
    self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

  def start(self, name, *arguments, **options):
    program = Program(name, *arguments, **options)
    self.addCleanup(program.kill)
    return program

  def start_server(self, *arguments, port=None, name="server", **options):
    """Starts a server that, when this returns, accepts connections and ends in
    order if asked to. It has its port as `.port`."""
    port = port or free_port()
    server = self.start(name, "--logtostderr", f"--port={port}", *arguments,
                        **options)
    server.port = port

    def answers():
      if not server.is_running():
        raise GaveUp(f"it didn't start: {server}")
      return can_connect(port) and expects_signal(server.pid, signal.SIGTERM)

    wait_until(answers, f"port {port} of {name}")
    return server

  def run_to_end(self, name, *arguments, limit_s=PATIENCE_S):
    """Returns (exit status, everything it printed)."""
    program = self.start(name, *arguments)
    status = program.wait(limit_s)
    return status, program.log()

  def path(self, name):
    return os.path.join(self.folder, name)


def main():
  unittest_xml.main()
