#!/usr/bin/python3
"""Five servers behind one channel, of which one has a bad day: the table of
docs/resilience.md, by real programs and sockets.

Each line of the table has a server of its own that goes wrong, and a press
that loads it together with four good servers. All lines run side by side. A
press with five good servers is what the others are compared with."""

import ctypes
import re
import signal
import socket
import statistics
import struct
import threading

import harness

REPORT = re.compile(r"p99: (\d+)us.*max: \d+us\. QPS: (\d+), "
                    r"failures: (\d+)")
REPORT_S = 0.5
WORK_US = 2000
TIMES_SLOWER = 50

# <linux/filter.h>, which Python doesn't have.
SO_ATTACH_FILTER = 26
BPF_RETURN = 0x06


def drop_all_packets(sock):
  """From now on the kernel drops whatever comes for the socket, before TCP sees
  it: nothing is acknowledged, as if the host were gone."""
  drop = struct.pack("HBBI", BPF_RETURN, 0, 0, 0)
  program = ctypes.create_string_buffer(drop)
  sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER,
                  struct.pack("HP", 1, ctypes.addressof(program)))


class Listener:
  """Serves each connection by a thread."""

  def __init__(self):
    self.socket = socket.create_server(("127.0.0.1", 0))
    self.port = self.socket.getsockname()[1]
    threading.Thread(target=self._accept, daemon=True).start()

  def _accept(self):
    while True:
      try:
        peer, _ = self.socket.accept()
      except OSError:
        return
      threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

  def _serve(self, peer):
    try:
      self.serve(peer)
    except OSError:
      pass

  def close(self):
    self.socket.shutdown(socket.SHUT_RDWR)
    self.socket.close()


class Resetter(Listener):
  """Answers a request with the beginning of a frame, and a reset."""

  def serve(self, peer):
    peer.recv(1)
    peer.sendall(b"\x00" * 4)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                    struct.pack("ii", 1, 0))
    peer.close()


class Vanishing(Listener):
  """Passes bytes on to a server, until packets don't arrive any more."""

  def __init__(self, port):
    self.server_port = port
    self.peers = []
    super().__init__()

  def serve(self, peer):
    self.peers.append(peer)
    server = socket.create_connection(("127.0.0.1", self.server_port))
    for one in (peer, server):
      one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=self._pump, args=(server, peer), daemon=True)
    back.start()
    self._pump(peer, server)

  @staticmethod
  def _pump(source, sink):
    try:
      while data := source.recv(1 << 16):
        sink.sendall(data)
    except OSError:
      pass

  def vanish(self):
    for one in (self.socket, *self.peers):
      drop_all_packets(one)


class Line:
  """One line of the table: a press, and what it reports."""

  def __init__(self, name, press):
    self.name = name
    self.press = press
    self.fault_at = 0  # The number of the first report that shows the fault.
    self.good_at = None  # That of the first report of a good window.
    self.row = None  # Its failures, its 99th percentile, and the usual one.

  def reports(self):
    """(calls, failures, 99th percentile in microseconds) of each."""
    found = []
    for p99, qps, failures in REPORT.findall(self.press.log()):
      failed = int(failures)
      found.append((int(qps) * REPORT_S + failed, failed, int(p99)))
    return found

  def await_reports(self, count):
    def look():
      if not self.press.is_running():
        raise harness.GaveUp(f"it has ended: {self.press}")
      return len(self.reports()) >= count

    harness.wait_until(look, f"{count} reports of {self.name}: {self.press}")

  def recovery_s(self):
    """From the fault to the end of the last report that has more failures than
    0.5%, of those of the first window that was good."""
    last = self.fault_at
    for number in range(self.fault_at, self.good_at):
      calls, failed, _ = self.reports()[number]
      if failed > 0.005 * calls:
        last = number + 1
    return (last - self.fault_at) * REPORT_S


class BadDay(harness.TestCase):
  """At most 0.5% of the calls fail after two seconds, and the rest isn't slower
  than 1.5 times what it was."""

  QPS = 300
  TIMEOUT_MS = 500
  REPORTS_IN_WINDOW = 4
  # The time in which a server that has failed must have been left alone.
  SETTLED_AFTER = 4
  # A machine that is busy for half a second makes calls late whatever the
  # channel does; in a later window it may not be. A channel that went on with a
  # bad server would have failures, or slow calls, in all of them.
  WINDOWS = 12
  # So much more than 1.5 times may be the machine's.
  NOISE_US = 5000

  def start_good(self, *flags, work_us=WORK_US):
    return self.start_server("--flare_concurrency_hint=1",
                             "--work=sleep_fiber", f"--work_us={work_us}",
                             *flags)

  def start_line(self, name, port):
    addresses = ",".join(f"127.0.0.1:{p}" for p in [*self.good, port])
    return Line(name, self.start(
        "press", f"--server_addr=flare://{addresses}",
        "--flare_concurrency_hint=1", f"--timeout={self.TIMEOUT_MS}",
        f"--qps={self.QPS}", f"--max_pending={self.QPS}",
        f"--report_interval={REPORT_S}"))

  def is_good(self, line, plain, begin):
    """Whether a window of reports is as it shall be."""
    window = line.reports()[begin:begin + self.REPORTS_IN_WINDOW]
    calls = sum(report[0] for report in window)
    failed = sum(report[1] for report in window)
    p99 = statistics.median(report[2] for report in window)
    usual = statistics.median(
        report[2] for report in plain.reports()[-2 * len(window):])
    line.row = (failed, p99, usual)
    return (calls >= self.QPS * len(window) * REPORT_S / 2 and
            failed <= 0.005 * calls and p99 <= 1.5 * usual + self.NOISE_US)

  def check(self, line, plain):
    """Waits for a good window, not before the time is over."""
    begin = line.fault_at + self.SETTLED_AFTER
    for _ in range(self.WINDOWS):
      line.await_reports(begin + self.REPORTS_IN_WINDOW)
      if self.is_good(line, plain, begin):
        line.good_at = begin
        return
      begin += self.REPORTS_IN_WINDOW
    self.fail(f"{line.name}: no window of reports is good, the last one has "
              f"(failures, p99, usual p99) {line.row}; all: {line.reports()}")

  def describe(self, line):
    reports = line.reports()[line.fault_at:line.good_at]
    failed, p99, usual = line.row
    print(f"{line.name}: {sum(r[1] for r in reports)} of "
          f"{sum(r[0] for r in reports):.0f} calls failed at first, for "
          f"{line.recovery_s():g} s; then {failed} in "
          f"{self.REPORTS_IN_WINDOW * REPORT_S:g} s, p99 {p99 / 1000:.1f} ms, "
          f"of five good servers {usual / 1000:.1f} ms", flush=True)

  def test_of_one_of_five(self):
    self.good = [self.start_good().port for _ in range(4)]
    stopped, refusing, fifth = (self.start_good() for _ in range(3))
    slow = self.start_good(work_us=WORK_US * TIMES_SLOWER)
    failing = self.start_good("--fail_with=11", "--fail_percent=10")
    resetting = Resetter()
    self.addCleanup(resetting.close)
    vanishing = Vanishing(fifth.port)
    self.addCleanup(vanishing.close)

    plain = self.start_line("five good servers", fifth.port)
    # Of these the fault is there from the beginning.
    lines = [
        self.start_line(f"{TIMES_SLOWER} times slower", slow.port),
        self.start_line("fails 10% of its calls", failing.port),
        self.start_line("resets connections within a reply", resetting.port),
    ]
    sudden = [
        self.start_line("stopped (SIGSTOP)", stopped.port),
        self.start_line("its packets are dropped", vanishing.port),
        self.start_line("killed, refuses connections", refusing.port),
    ]
    for line in (plain, *sudden):
      line.await_reports(2)
    for line in sudden:
      line.fault_at = len(line.reports())
    stopped.send_signal(signal.SIGSTOP)
    try:
      vanishing.vanish()
    except OSError as error:
      print(f"{sudden.pop(1).name}: skipped, as sockets can't have filters "
            f"here: {error}", flush=True)
    refusing.kill()
    for line in lines + sudden:
      self.check(line, plain)
    for line in lines + sudden:
      self.describe(line)
    stopped.send_signal(signal.SIGCONT)


if __name__ == "__main__":
  harness.main()
