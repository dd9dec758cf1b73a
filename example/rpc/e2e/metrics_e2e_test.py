#!/usr/bin/env python3
"""The page /metrics of example/rpc/server, read by Prometheus' own parser."""

import os
import sys
import urllib.error
import urllib.request

import harness
import wire

# As in grpc_services_e2e_test.py.
sys.path.append("/usr/lib/python3/dist-packages")

from prometheus_client import parser  # noqa: E402

ECHO = "example.protobuf_echo.EchoService.Echo"


def get(url, data=None):
  with urllib.request.urlopen(url, data, harness.PATIENCE_S) as reply:
    return reply.read().decode(), reply.headers["Content-Type"]


class Metrics:
  """The parser's results: families by name, samples by name and
  labels."""

  def __init__(self, text):
    self.families = {}
    self.samples = {}
    for family in parser.text_string_to_metric_families(text):
      assert family.name not in self.families, family.name
      self.families[family.name] = family
      for sample in family.samples:
        key = (sample.name, *sorted(sample.labels.items()))
        assert key not in self.samples, key
        self.samples[key] = sample.value

  def value(self, name, **labels):
    return self.samples[(name, *sorted(labels.items()))]


class MetricsPage(harness.TestCase):

  def metrics_of(self, server, address=None):
    address = address or f"127.0.0.1:{server.port}"
    text, content_type = get(f"http://{address}/metrics")
    self.assertEqual(content_type, "text/plain; version=0.0.4; charset=utf-8")
    return Metrics(text)

  def test_a_parser_reads_all_of_it(self):
    server = self.start_server()
    for _ in range(3):
      self.assertTrue(wire.echo_works(server.port))
    get(f"http://127.0.0.1:{server.port}/echo", b"hello")
    metrics = self.metrics_of(server)

    self.assertEqual(
        metrics.value("flare_server_method_calls_total", method=ECHO), 3)
    self.assertEqual(
        metrics.value("flare_server_method_calls_failed_total", method=ECHO), 0)
    # Three calls, a page, and this one.
    self.assertEqual(metrics.value("flare_server_calls_total"), 5)
    self.assertEqual(metrics.value("flare_server_calls_running"), 1)
    self.assertEqual(metrics.value("flare_server_connections_closed_total",
                                   reason="malformed"), 0)
    self.check_histogram(metrics, "flare_server_method_latency_seconds", 3,
                         method=ECHO)
    self.assertGreater(metrics.value("flare_scheduler_tasks_total"), 0)
    self.assertGreaterEqual(
        metrics.value("flare_scheduler_workers_per_group"), 1)
    self.assertEqual(metrics.families["flare_scheduler_ready_delay_seconds"]
                     .type, "histogram")

    # The program's own.
    self.assertEqual(metrics.value("echo_pages_total", page="/echo"), 1)
    self.assertEqual(metrics.value("echo_pages_total", page="/"), 0)
    self.assertEqual(metrics.families["echo_pages"].documentation,
                     "Plain HTTP requests, by their page.")

    for family in metrics.families.values():
      self.assertIn(family.type, ("counter", "gauge", "histogram"), family.name)
      self.assertTrue(family.documentation, family.name)

  def check_histogram(self, metrics, name, count, **labels):
    buckets = [(float(dict(key[1:])["le"]), value)
               for key, value in metrics.samples.items()
               if key[0] == name + "_bucket" and
               set(labels.items()) <= set(key[1:])]
    self.assertEqual(buckets, sorted(buckets))
    values = [value for _, value in buckets]
    self.assertEqual(values, sorted(values))
    self.assertEqual(buckets[-1], (float("inf"), count))
    self.assertEqual(metrics.value(name + "_count", **labels), count)
    self.assertGreater(metrics.value(name + "_sum", **labels), 0)

  def test_it_counts_by_handler_status_and_handshake(self):
    server = self.start_server("--fail_with=1234")
    self.assertFalse(wire.echo_works(server.port))
    url = f"http://127.0.0.1:{server.port}"
    for _ in range(2):
      get(url + "/echo", b"hello")
    for path, status in ("/echo", 405), ("/nowhere", 404):
      with self.assertRaisesRegex(urllib.error.HTTPError, str(status)):
        get(url + path)
    metrics = self.metrics_of(server)
    self.assertEqual(
        metrics.value("flare_server_method_failures_total", method=ECHO,
                      status="1234"), 1)
    requests = "flare_server_http_requests_total"
    for handler, status, count in (("/echo", 200, 2), ("/echo", 405, 1),
                                   ("(none)", 404, 1), ("/", 200, 0)):
      self.assertEqual(
          metrics.value(requests, handler=handler, status=str(status)), count)
    self.check_histogram(metrics, "flare_server_http_latency_seconds", 3,
                         handler="/echo")
    for outcome in "full", "resumed", "failed", "abandoned", "refused":
      self.assertEqual(
          metrics.value("flare_tls_handshakes_total", side="server",
                        outcome=outcome), 0)

  def test_it_counts_calls_of_clients(self):
    server = self.start_server()
    backend = f"flare://127.0.0.1:{server.port}"
    relay = self.start_server(f"--forward_to={backend}", name="relay_server")
    url = (f"http://127.0.0.1:{relay.port}"
           "/rpc/example.protobuf_echo.RelayService.Relay")

    def call():
      request = urllib.request.Request(
          url, b'{"body": "x"}',
          {"Content-Type": "application/x-proto3-json"})
      with urllib.request.urlopen(request, timeout=harness.PATIENCE_S) as reply:
        reply.read()

    for _ in range(3):
      call()
    self.assertEqual(server.stop(), 0)
    with self.assertRaises(urllib.error.HTTPError):
      call()
    metrics = self.metrics_of(relay)
    calls = {dict(key[1:])["status"]: count
             for key, count in metrics.samples.items()
             if key[0] == "flare_client_calls_total"}
    self.assertEqual(calls.pop("0"), 3)
    self.assertEqual(list(calls.values()), [1])  # Calls with one failure or
                                                 # another.
    self.assertEqual(
        metrics.value("flare_client_calls_total", channel=backend, method=ECHO,
                      status="0"), 3)
    self.check_histogram(metrics, "flare_client_call_latency_seconds", 4,
                         channel=backend, method=ECHO)
    self.assertEqual(metrics.value("flare_client_retries_total"), 0)
    self.assertGreater(metrics.value("flare_client_retry_budget_tokens"), 0)

  def test_an_admin_address_has_it_instead(self):
    server = self.start_server("--flare_rpc_server_admin_address=127.0.0.1:0")
    address = server.wait_for(r"Pages are on (\S+)\.$").group(1)
    self.assertTrue(wire.echo_works(server.port))
    metrics = self.metrics_of(server, address)
    self.assertEqual(
        metrics.value("flare_server_method_calls_total", method=ECHO), 1)
    with self.assertRaisesRegex(urllib.error.HTTPError, "404"):
      self.metrics_of(server)
    self.assertEqual(server.stop(), 0)

  def test_callers_behind_a_proxy_are_told_how_to_open_it(self):
    server = self.start_server()
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/metrics",
        headers={"X-Forwarded-For": "192.0.2.1"})
    with self.assertRaises(urllib.error.HTTPError) as refusal:
      urllib.request.urlopen(request, timeout=harness.PATIENCE_S)
    with refusal.exception as reply:
      self.assertEqual(reply.code, 403)
      self.assertIn("--flare_rpc_server_pages=everyone", reply.read().decode())

  def test_it_tells_of_the_process(self):
    server = self.start_server()
    metrics = self.metrics_of(server)
    with open(f"/proc/{server.pid}/stat") as f:
      ticks = int(f.read().rsplit(")", 1)[1].split()[19])
    started = metrics.value("process_start_time_seconds")
    with open("/proc/stat") as f:
      boot = int(next(line for line in f if line.startswith("btime")).split()[1])
    self.assertAlmostEqual(started - boot,
                           ticks / os.sysconf("SC_CLK_TCK"), delta=1)
    self.assertGreater(metrics.value("process_cpu_seconds_total"), 0)
    self.assertGreater(metrics.value("process_resident_memory_bytes"), 1 << 20)
    self.assertGreater(metrics.value("process_open_fds"), 5)
    self.assertLess(metrics.value("process_open_fds"),
                    metrics.value("process_max_fds"))


if __name__ == "__main__":
  harness.main()
