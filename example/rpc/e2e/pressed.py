"""Servers under the load of a press whose calls are counted: for tests in which
servers, or their names, have a bad day."""

import datetime
import re
import socket
import statistics
import time
import typing
import urllib.request

import harness

REPORT = re.compile(r"(?m)^I(\d+ \S+) .*p99: (\d+)us.*max: \d+us\. "
                    r"QPS: (\d+), failures: (\d+)")
REPORT_S = 0.5
WORK_US = 2000
# So long that a busy machine isn't taken for a lost call.
PATIENT_MS = 20000
# The rate of tests that count failures only.
FEWER_QPS = 100


class Report(typing.NamedTuple):
  """Counts the calls that a press made in half a second."""
  end: float  # In time.time().
  calls: float
  failed: int
  p99_us: int

  @property
  def begin(self):
    return self.end - REPORT_S


class Line:
  """A press, and its reports."""

  def __init__(self, name, press):
    self.name = name
    self.press = press
    self.fault_at = time.time()

  def reports(self):
    found = []
    for end, p99, qps, failures in REPORT.findall(self.press.log()):
      end = datetime.datetime.strptime(end, "%Y%m%d %H:%M:%S.%f")
      failed = int(failures)
      found.append(Report(end.timestamp(), int(qps) * REPORT_S + failed,
                          failed, int(p99)))
    return found

  def await_reports(self, count):
    def look():
      if not self.press.is_running():
        raise harness.GaveUp(f"it has ended: {self.press}")
      return len(self.reports()) >= count

    harness.wait_until(look, f"{count} reports of {self.name}: {self.press}",
                       poll_s=REPORT_S / 5)

  def await_more_reports(self, count):
    self.await_reports(len(self.reports()) + count)


class TestCase(harness.TestCase):

  def start_good(self, *flags, work_us=WORK_US, port=None):
    return self.start_server("--flare_concurrency_hint=1",
                             "--work=sleep_fiber", f"--work_us={work_us}",
                             *flags, port=port)

  def start_at(self, host, port, **options):
    """A good server at another address than start_good() has."""
    server = self.start("server", "--logtostderr", f"--ip={host}",
                        f"--port={port}", "--flare_concurrency_hint=1",
                        "--work=sleep_fiber", f"--work_us={WORK_US}", **options)
    server.host, server.port = host, port

    def answers():
      if not server.is_running():
        raise harness.GaveUp(f"it didn't start: {server}")
      try:
        socket.create_connection((host, port), 1).close()
        return True
      except OSError:
        return False

    harness.wait_until(answers, f"{host}:{port}")
    return server

  def start_line_to(self, name, uri, timeout_ms, *flags, qps=FEWER_QPS):
    return Line(name, self.start(
        "press", f"--server_addr={uri}", "--flare_concurrency_hint=1",
        f"--timeout={timeout_ms}", f"--qps={qps}",
        # Callers that wait for their turn take CPU, too.
        f"--max_pending={qps // 3}", f"--report_interval={REPORT_S}", *flags))

  def check_no_call_failed(self, what, line):
    reports = line.reports()
    failed = sum(report.failed for report in reports)
    p99 = statistics.median(report.p99_us for report in reports)
    print(f"{what}{line.name}: {failed} of "
          f"{sum(report.calls for report in reports):.0f} calls failed, p99 "
          f"{p99 / 1000:.1f} ms", flush=True)
    self.assertEqual(failed, 0)

  @staticmethod
  def calls_of(server):
    host = getattr(server, "host", "127.0.0.1")
    with urllib.request.urlopen(
        f"http://{host}:{server.port}/inspect/methods") as page:
      return int(re.search(r"(?m)^ *(\d+) .*EchoService\.Echo$",
                           page.read().decode()).group(1))

  def await_calls(self, *servers):
    before = [self.calls_of(server) for server in servers]
    harness.wait_until(
        lambda: all(self.calls_of(server) > count + 10
                    for server, count in zip(servers, before)),
        f"calls of {[server.port for server in servers]}",
        poll_s=REPORT_S / 5)
