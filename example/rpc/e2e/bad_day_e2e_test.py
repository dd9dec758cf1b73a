#!/usr/bin/python3
"""Servers that have a bad day: the first table of docs/resilience.md, by real
programs and sockets.

Each line of the table has a server of its own that goes wrong, and a press that
loads it together with four good servers. All lines run side by side. A press
with five good servers, the control, is compared with the others, at the same
time: a busy machine delays its calls, too."""

import ctypes
import os
import random
import signal
import socket
import statistics
import struct
import subprocess
import threading
import time

import harness
import pressed

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


class Namespace:
  """A network of its own, with one link to ours: 10.x.y.1 here, `address`
  there. Needs CAP_NET_ADMIN; OSError without it."""

  def __init__(self, test):
    net = "10.{}.{}.".format(random.randint(128, 254), random.randint(1, 254))
    self.ours, self.address = net + "1", net + "2"
    link = f"fl{os.getpid() % 100000}"
    self._process = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec sleep 600"],
        stdout=subprocess.PIPE, preexec_fn=harness.die_with_parent)
    test.addCleanup(self._end)
    if not self._process.stdout.readline():
      raise OSError("unshare failed")
    pid = str(self._process.pid)
    self.prefix = ("nsenter", "-t", pid, "-n")
    self._ip((), "link", "add", link, "type", "veth", "peer", "name", "there",
             "netns", pid)
    # Before the process: connections that the server has left keep the
    # namespace, and so the link, for minutes.
    test.addCleanup(subprocess.run, ["ip", "link", "del", link],
                    capture_output=True, check=False)
    self._ip((), "addr", "add", self.ours + "/30", "dev", link)
    self._ip((), "link", "set", link, "up")
    self._ip(self.prefix, "addr", "add", self.address + "/30", "dev", "there")
    self._ip(self.prefix, "link", "set", "there", "up")

  @staticmethod
  def _ip(prefix, *arguments):
    done = subprocess.run([*prefix, "ip", *arguments], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
      raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

  def drop_all_packets(self):
    """Whatever it sends to us is lost, acknowledgements included."""
    self._ip(self.prefix, "route", "add", "blackhole", self.ours)

  def _end(self):
    self._process.kill()
    self._process.wait()
    self._process.stdout.close()


class BadDay(pressed.TestCase):
  """From two seconds after the fault on at most 0.5% of the calls fail, and the
  rest isn't slower than 1.5 times its time without the fault.

  A server that fails a tenth of its calls may cost 1%, of the 2% that it would
  cost: it has to fail some before it is found out, each time that it comes
  back.
  """

  QPS = 300
  TIMEOUT_MS = 500
  # Reports that count: ten seconds, whose median a busy moment doesn't move.
  WINDOWS = 20
  MOST_FAILED = 0.005
  MOST_FAILED_AT_RANDOM = 0.01
  # By then a server that has failed must have been left alone.
  SETTLED_AFTER_S = 2
  # If five good servers fail a call, or are slower than this, the machine is too
  # busy to tell anything of others at that time.
  QUIET_US = 20000
  MOST_REPORTS = 180
  # So much more than 1.5 times may be the machine's.
  NOISE_US = 5000

  def start_line(self, name, servers, protocol="flare", timeout_ms=TIMEOUT_MS,
                 qps=QPS):
    """Servers on this machine by their ports."""
    addresses = ",".join(f"127.0.0.1:{server}" if isinstance(server, int)
                         else server for server in servers)
    return self.start_line_to(name, f"{protocol}://{addresses}", timeout_ms,
                              qps=qps)

  # Each starts a server, and returns its port, or its address, and the function
  # that makes it fail: None if it fails from the beginning. OSError: not here.

  def slow(self):
    return self.start_good(work_us=pressed.WORK_US * TIMES_SLOWER).port, None

  def failing(self):
    return self.start_good("--fail_with=11", "--fail_percent=10").port, None

  def resetting(self):
    resetting = Resetter()
    self.addCleanup(resetting.close)
    return resetting.port, None

  def stopped(self):
    server = self.start_good()
    # It couldn't end otherwise.
    self.addCleanup(server.send_signal, signal.SIGCONT)
    return server.port, lambda: server.send_signal(signal.SIGSTOP)

  def vanishing(self):
    vanishing = Vanishing(self.start_good().port)
    self.addCleanup(vanishing.close)
    return vanishing.port, vanishing.vanish

  def unreachable(self):
    """Behind a link: the client's kernel meets silence by itself."""
    namespace = Namespace(self)
    server = self.start_at(namespace.address, harness.free_port(),
                           prefix=namespace.prefix)
    return f"{server.host}:{server.port}", namespace.drop_all_packets

  def refusing(self):
    server = self.start_good()
    return server.port, server.kill

  FAULTS = {
      "stopped (SIGSTOP)": stopped,
      f"{TIMES_SLOWER} times slower": slow,
      "fails 10% of its calls": failing,
      "resets connections within a reply": resetting,
      "its packets are dropped (socket filter)": vanishing,
      "its packets are dropped (network namespace)": unreachable,
      "killed, refuses connections": refusing,
  }

  def start_lines(self):
    """Starts the lines, then their faults. Returns the lines, but not those
    whose faults can't be made here."""
    lines = []
    faults = []
    for name, make in self.FAULTS.items():
      try:
        server, fault = make(self)
      except OSError as error:
        print(f"{name}: skipped, as this machine can't: {error}", flush=True)
        continue
      lines.append(self.start_line(name, [*self.good, server]))
      if fault is not None:
        faults.append((lines[-1], fault))
    for line, _ in faults:
      line.await_reports(2)
    for line, fault in faults:
      line.fault_at = time.time()
      try:
        fault()
      except OSError as error:
        print(f"{line.name}: skipped, as this machine can't: {error}",
              flush=True)
        lines.remove(line)
    return lines

  def most_failed(self, line):
    return (self.MOST_FAILED_AT_RANDOM
            if self.FAULTS[line.name] is BadDay.failing else self.MOST_FAILED)

  def quiet_windows(self, line, control):
    """Pairs of reports of the same time, from two seconds after the fault on:
    of the line, and of the control, whose calls were well. A press that reports
    late has been kept from the CPU itself."""
    pairs = []
    others = control.reports()
    reports = line.reports()
    for before, report in zip(reports, reports[1:]):
      if (report.begin < line.fault_at + self.SETTLED_AFTER_S or
          report.begin > before.end + 0.1):
        continue
      same = [other for other in others
              if other.begin < report.end and report.begin < other.end]
      if same and same[-1].end >= report.end and all(
          other.failed == 0 and other.p99_us <= self.QUIET_US
          for other in same):
        pairs.append((report, same[-1]))
    return pairs

  def judge(self, line, control):
    """Whether it is as it shall be in ten quiet seconds. None: there are none,
    as the machine is too busy."""
    def has_enough():
      return (len(self.quiet_windows(line, control)) >= self.WINDOWS or
              len(line.reports()) >= self.MOST_REPORTS)

    harness.wait_until(has_enough, f"the reports of {line.press}",
                       3 * self.MOST_REPORTS * pressed.REPORT_S,
                       poll_s=pressed.REPORT_S / 2)
    pairs = self.quiet_windows(line, control)[:self.WINDOWS]
    if len(pairs) < self.WINDOWS:
      print(f"{line.name}: skipped, as this machine is too busy for five good "
            "servers", flush=True)
      return None
    calls = sum(report.calls for report, _ in pairs)
    failed = sum(report.failed for report, _ in pairs)
    p99, usual = (statistics.median(report.p99_us for report in reports)
                  for reports in zip(*pairs))
    at_first = [report for report in line.reports()
                if 0 < report.end - line.fault_at <= self.SETTLED_AFTER_S]
    bad = [report.end for report in at_first
           if report.failed > self.MOST_FAILED * report.calls]
    print(f"{line.name}: {sum(report.failed for report in at_first)} of "
          f"{sum(report.calls for report in at_first):.0f} calls failed at "
          f"first, for {max(bad, default=line.fault_at) - line.fault_at:.1f} "
          f"s; then {failed} of {calls:.0f}, p99 {p99 / 1000:.1f} ms, of five "
          f"good servers {usual / 1000:.1f} ms", flush=True)
    return (calls >= self.QPS * self.WINDOWS * pressed.REPORT_S / 2 and
            failed <= self.most_failed(line) * calls and
            p99 <= 1.5 * usual + self.NOISE_US)

  def test_of_one_of_five(self):
    self.good = [self.start_good().port for _ in range(4)]
    control = self.start_line("five good servers",
                              [*self.good, self.start_good().port])
    lines = self.start_lines()
    verdicts = {line: self.judge(line, control) for line in lines}
    for line, verdict in verdicts.items():
      self.assertIsNot(verdict, False, f"{line.name}: {line.reports()}, and of "
                       f"five good servers {control.reports()}")
    if None in verdicts.values():
      self.skipTest("the machine is too busy")

  def test_of_all_five_in_turn(self):
    """Each is told to quit and started again, under load: no call fails."""
    # Servers hold as many calls as if each took 2 ms at the full rate.
    work_us = pressed.WORK_US * self.QPS // pressed.FEWER_QPS
    servers = [self.start_good(work_us=work_us) for _ in range(5)]
    ports = [server.port for server in servers]
    lines = [self.start_line(protocol, ports, protocol, pressed.PATIENT_MS,
                             pressed.FEWER_QPS)
             for protocol in ("flare", "grpc", "http+pb")]
    for line in lines:
      line.await_reports(2)
    for server in servers:
      self.assertEqual(server.stop(), 0)
      self.start_good(work_us=work_us, port=server.port)
      # The channel has found it again, or has had time to.
      for line in lines:
        line.await_more_reports(2)
    for line in lines:
      self.check_no_call_failed("five servers restarted in turn, ", line)

if __name__ == "__main__":
  harness.main()
