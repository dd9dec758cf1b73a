#!/usr/bin/python3
"""Servers that die, stop and come back while calls are under way."""

import json
import os
import re
import signal
import threading
import time
import urllib.request

import harness
import wire

# One report of press: its latency line with rate and failures behind it.
REPORT = r"(?:max: \d+us|No call has succeeded)\. QPS: (\d+), failures: (\d+)"


class KilledServer(harness.TestCase):

  def start_press(self, port, *arguments):
    return self.start(
        "press", f"--server_addr=flare://127.0.0.1:{port}",
        "--flare_concurrency_hint=2", "--report_interval=0.25",
        f"--json={self.path('press.json')}", *arguments)

  def next_report(self, press, is_wanted, what, after=0):
    """Waits for a report with is_wanted(qps, failures); returns the offset
    behind it."""

    def look():
      for match in re.finditer(REPORT, press.log()[after:]):
        if is_wanted(int(match[1]), int(match[2])):
          return after + match.end()
      self.assertTrue(press.is_running(), press)
      return None

    return harness.wait_until(look, f"{what} in the reports of {press}")

  def test_press_outlives_the_server_and_goes_on_with_the_next(self):
    for scheme in ("flare", "http+pb"):
      with self.subTest(scheme=scheme):
        self.check_kill_and_restart(scheme)

  def check_kill_and_restart(self, scheme):
    server = self.start_server()
    press = self.start_press(
        server.port, f"--server_addr={scheme}://127.0.0.1:{server.port}",
        "--max_pending=50", "--timeout=500")
    seen = self.next_report(press, lambda qps, bad: qps > 0 and bad == 0,
                            "calls that succeed")
    server.kill()
    seen = self.next_report(press, lambda qps, bad: qps == 0 and bad > 0,
                            "nothing but failures", seen)

    # While nobody answers, 50 loops must not spin: two reports' worth of time
    # may cost a fraction of one core only.
    before = press.cpu_seconds()
    for _ in range(2):
      seen = self.next_report(press, lambda qps, bad: True, "a report", seen)
    self.assertLess(press.cpu_seconds() - before, 0.25, press)

    self.start_server(port=server.port)
    seen = self.next_report(press, lambda qps, bad: qps > 0 and bad == 0,
                            "calls that succeed again", seen)
    self.assertEqual(press.stop(signal.SIGINT), 1, press)
    with open(self.path("press.json")) as f:
      figures = json.load(f)
    self.assertGreater(figures["requests"], 0)
    self.assertGreater(figures["failures"], 0)
    self.assertEqual(sum(figures["failures_by_status"].values()),
                     figures["failures"])

  def test_no_call_hangs_when_the_server_is_killed(self):
    # The run ends when its last call has ended. With an hour as time-out, the
    # calls under way can only end because the connection did.
    server = self.start_server()
    press = self.start_press(server.port, "--max_pending=200",
                             "--timeout=3600000")
    self.next_report(press, lambda qps, bad: qps > 0, "calls that succeed")
    server.kill()
    self.next_report(press, lambda qps, bad: bad > 0, "failures")
    self.assertEqual(press.stop(signal.SIGINT), 1, press)

  def test_calls_end_at_their_timeout_when_the_server_just_falls_silent(self):
    server = self.start_server()
    press = self.start_press(server.port, "--max_pending=20",
                             "--timeout=300")
    seen = self.next_report(press, lambda qps, bad: qps > 0,
                            "calls that succeed")
    server.send_signal(signal.SIGSTOP)
    try:
      seen = self.next_report(press, lambda qps, bad: qps == 0 and bad > 0,
                              "nothing but failures", seen)
    finally:
      server.send_signal(signal.SIGCONT)
    self.next_report(press, lambda qps, bad: qps > 0 and bad == 0,
                     "calls that succeed again", seen)
    self.assertEqual(press.stop(signal.SIGINT), 1, press)
    with open(self.path("press.json")) as f:
      self.assertEqual(list(json.load(f)["failures_by_status"]), ["3"])


class KilledCallers(harness.TestCase):
  """Callers that are killed (SIGKILL) in the middle of calls of nine seconds."""

  CALLERS = 50

  def running(self, port):
    """How many calls run, the one that asks included."""
    url = f"http://127.0.0.1:{port}/inspect/server"
    with urllib.request.urlopen(url, timeout=harness.PATIENCE_S) as page:
      return int(re.search(r"^calls_running (\d+)$", page.read().decode(),
                           re.M)[1])

  def start_caller(self, port):
    """A process that has sent a call, and waits for its reply."""
    pid = os.fork()
    if pid != 0:
      return pid
    try:
      harness.die_with_parent()
      with wire.FlareConnection(port) as connection:
        connection.send(wire.echo_frame(1, "anyone?", timeout=3_600_000))
        connection.receive()
    finally:
      os._exit(0)

  def test_leave_no_call_running(self):
    # They take a second at most, unless the machine is busy. By themselves they
    # would end after nine.
    self.assertTrue(any(self.time_of_calls() < 8 for _ in range(3)))

  def time_of_calls(self):
    """Seconds from the first call of the callers to the end of the last."""
    server = self.start_server("--work=sleep_fiber", "--work_us=9000000")
    wire.messages()
    began = time.monotonic()
    callers = [self.start_caller(server.port) for _ in range(self.CALLERS)]
    try:
      harness.wait_until(
          lambda: (self.running(server.port) == self.CALLERS + 1 or
                   time.monotonic() - began > 8), "all calls")
    finally:
      for pid in callers:
        os.kill(pid, signal.SIGKILL)
      for pid in callers:
        os.waitpid(pid, 0)
    harness.wait_until(lambda: self.running(server.port) == 1,
                       "the end of all calls")
    return time.monotonic() - began


class PipeliningClient:
  """Keeps several batches of requests under way on one connection, and sends
  on until the connection ends; collects all replies. Unlike a client that
  never stops sending, nor reads, it gives a server the chance to leave in good
  order."""

  BATCH = 100
  BATCHES_UNDER_WAY = 5

  def __init__(self, port):
    self.connection = wire.FlareConnection(port)
    self.replies = []
    self.thread = threading.Thread(target=self._run, daemon=True)
    self.thread.start()

  def _run(self):
    batch = b"".join(
        wire.echo_frame(i + 1, "x" * 20) for i in range(self.BATCH))
    self.connection.send(batch * self.BATCHES_UNDER_WAY)
    while (reply := self.connection.receive()) is not None:
      self.replies.append(reply)
      if len(self.replies) % self.BATCH == 0:
        try:
          self.connection.send(batch)
        except OSError:
          pass  # The server has left; its earlier bytes are still there to
                # read.
    self.connection.socket.close()

  def join(self):
    self.thread.join(harness.PATIENCE_S)
    if self.thread.is_alive():
      raise harness.GaveUp("a connection outlived its server")


class StoppedServer(harness.TestCase):
  """SIGTERM under load. The criterion: every call that the server says
  it has processed has been answered, and that nothing of an answer is lost
  because the peer was still sending."""

  def processed(self, server):
    return int(server.wait_for(
        r"Processed (\d+) request\(s\) in total\.")[1])

  def test_every_call_it_took_is_answered(self):
    server = self.start_server("--flare_concurrency_hint=2")
    wire.messages()
    clients = [PipeliningClient(server.port) for _ in range(3)]
    server.wait_for(r"Processed [1-9]\d* request")
    self.assertEqual(server.stop(), 0, server)
    for client in clients:
      client.join()
    replies = [reply for client in clients for reply in client.replies]
    succeeded = sum(reply.status == 0 for reply in replies)
    self.assertEqual(succeeded, self.processed(server))

  def test_press_loses_none_either(self):
    for scheme in ("flare", "http+pb"):
      with self.subTest(scheme=scheme):
        server = self.start_server("--flare_concurrency_hint=2")
        json_file = self.path(f"{scheme}.json")
        press = self.start(
            "press", f"--server_addr={scheme}://127.0.0.1:{server.port}",
            "--max_pending=100", f"--json={json_file}", "--timeout=10000")
        server.wait_for(r"Processed [1-9]\d* request")
        self.assertEqual(server.stop(), 0, server)
        press.wait_for("Call failed")
        self.assertEqual(press.stop(signal.SIGINT), 1, press)
        with open(json_file) as f:
          figures = json.load(f)
        self.assertEqual(figures["requests"] - figures["failures"],
                         self.processed(server))
        self.assertNotIn("3", figures["failures_by_status"], "time-outs")

  # Longer than tests wait for the end.
  DRAINS_LONG = "--flare_rpc_server_drain_timeout_ms=600000"

  def test_idle_server_stops_at_once(self):
    server = self.start_server(self.DRAINS_LONG)
    with wire.FlareConnection(server.port) as idle:
      self.assertEqual(server.stop(), 0, server)
      self.assertIsNone(idle.receive())

  def test_other_quit_signals(self):
    for number in (signal.SIGINT, signal.SIGQUIT):
      with self.subTest(signal=number):
        server = self.start_server()
        self.assertEqual(server.stop(number), 0, server)

  def test_half_a_request_does_not_hold_up_the_stop(self):
    server = self.start_server(self.DRAINS_LONG,
                               "--flare_rpc_server_message_timeout=600")
    with wire.FlareConnection(server.port) as connection:
      connection.send(wire.echo_frame(1, "cut short")[:-3])
      self.assertTrue(wire.echo_works(server.port))
      self.assertEqual(server.stop(), 0, server)

  def test_port_is_free_again_afterwards(self):
    server = self.start_server()
    self.assertTrue(wire.echo_works(server.port))
    self.assertEqual(server.stop(), 0, server)
    second = self.start_server(port=server.port)
    self.assertTrue(wire.echo_works(second.port))


class Connections(harness.TestCase):

  def test_clients_that_vanish_leave_nothing_behind(self):
    server = self.start_server()
    for i in range(100):
      with wire.FlareConnection(server.port) as connection:
        connection.send(wire.echo_frame(i + 1, "x" * 1000) * 20)
    descriptors = f"/proc/{server.pid}/fd"

    def only_its_own_are_left():
      return not any(is_connection(os.path.join(descriptors, fd), server.port)
                     for fd in list_folder(descriptors))

    harness.wait_until(only_its_own_are_left, "closed connections to be freed")
    self.assertTrue(wire.echo_works(server.port))


def list_folder(path):
  try:
    return os.listdir(path)
  except FileNotFoundError:
    return []


def is_connection(link, port):
  """Is this descriptor an established or half-closed connection of `port`?"""
  try:
    name = os.readlink(link)
  except FileNotFoundError:
    return False
  if not name.startswith("socket:["):
    return False
  return name[len("socket:["):-1] in connection_inodes(port)


def connection_inodes(port):
  listening = "0A"
  inodes = set()
  with open("/proc/net/tcp") as f:
    for line in f.readlines()[1:]:
      fields = line.split()
      if (int(fields[1].split(":")[1], 16) == port and
          fields[3] != listening):
        inodes.add(fields[9])
  return inodes


if __name__ == "__main__":
  harness.main()
