#!/usr/bin/python3
"""Clients that come and go in every way, while the configuration is reloaded:
neither memory nor descriptors may grow.

FLARE_STRESS_SECONDS sets for how long (2 by default); a line every ten seconds
then shows the figures.
"""

import contextlib
import os
import random
import signal
import socket
import threading
import time

import proxy_harness
from proxy_harness import harness

SECONDS = float(os.environ.get("FLARE_STRESS_SECONDS", "2"))
CLIENTS = 16
VISITS = 100  # At least, in each part of the test.
# Memory that allocators and stacks of a busy program may still take after the
# warm-up. A leak of a hundred bytes per session is more than that in ten
# minutes; so is a leak of a buffer per session in two seconds.
SLACK_BYTES = 16 << 20


def misbehave(connection):
  """An upstream: does something else with each visitor."""
  what = random.randrange(6)
  if what == 0:
    proxy_harness.reset(connection)
  elif what == 1:
    # Long streams are passed on in another way than short ones.
    connection.sendall(b"x" * random.choice([1, 1000, 200_000, 5_000_000]))
  elif what == 2:
    connection.recv(1 << 16)
    proxy_harness.reset(connection)
  elif what == 3:
    connection.shutdown(socket.SHUT_WR)
    proxy_harness.read_all(connection)
  else:
    proxy_harness.echo(connection)


class Churn(proxy_harness.ProxyTest):

  def setUp(self):
    super().setUp()
    self.stop = threading.Event()
    self.visits = [0] * CLIENTS

  def visit(self, port, header):
    """A client: does something else each time."""
    with socket.create_connection(("127.0.0.1", port), 5) as client:
      what = random.randrange(6)
      client.sendall(header if what else b"no header at all")
      if what == 1:
        return
      if what == 2:
        client.sendall(b"y" * 10_000)
        proxy_harness.reset(client)
        return
      client.sendall(b"y" * random.randrange(1, 100_000))
      if what == 3:
        client.recv(1)
        return
      client.shutdown(socket.SHUT_WR)
      proxy_harness.read_all(client)

  def keep_visiting(self, number, port):
    header = b"PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\r\n"
    while not self.stop.is_set():
      with contextlib.suppress(OSError):
        self.visit(port, header)
      self.visits[number] += 1

  def observe(self, proxy, seconds, text):
    """Reloads now and then; returns the figures at the end. It lasts longer
    where the machine is too busy for a fair number of visits in that time."""
    end = time.monotonic() + seconds
    give_up = end + proxy_harness.LIMIT_S
    report = time.monotonic() + 10
    enough = sum(self.visits) + VISITS
    while time.monotonic() < end or sum(self.visits) < enough:
      self.assertLess(time.monotonic(), give_up, f"{self.visits} visits")
      self.write_file("proxy.yaml",
                      text % random.choice(["round_robin", "source_hash",
                                            "least_connections"]))
      proxy.send_signal(signal.SIGHUP)
      self.assertTrue(proxy.is_running(), proxy)
      self.stop.wait(0.1)
      if time.monotonic() > report:
        report += 10
        print(f"{sum(self.visits)} visits: "
              f"{proxy.resident_bytes() >> 10} KiB, "
              f"{proxy_harness.open_descriptors(proxy)} descriptors",
              flush=True)
    return proxy.resident_bytes()

  def settle(self, proxy):
    """Waits for the ends of all sessions; returns the number of descriptors,
    without those that the pages' own connections and the health checks take for
    a moment."""
    self.wait_for_statistics(proxy, lambda s: s["active"] == 0,
                             "the ends of all sessions")
    counts = []

    def enough():
      counts.append(proxy_harness.open_descriptors(proxy))
      return len(counts) > 20

    harness.wait_until(enough, "descriptors")
    return min(counts)

  def test_no_growth(self):
    upstreams = [self.upstream(misbehave) for _ in range(3)]
    dead = self.keep(proxy_harness.DeadAddress())
    text = ("listen: [127.0.0.1:%d]\n" % harness.free_port() +
            "upstreams: [%s]\n" % ", ".join(u.address
                                            for u in [*upstreams, dead]) +
            "accept_proxy_protocol: true\nsend_proxy_protocol: v2\n"
            "idle_timeout: 2s\nconnect_timeout: 500ms\n"
            "health_check: {type: tcp, interval: 50ms}\nlb: %s\n")
    proxy = self.start_proxy(
        "--config=" + self.write_file("proxy.yaml", text % "round_robin"),
        listen=None)
    descriptors_idle = self.settle(proxy)

    threads = [threading.Thread(target=self.keep_visiting,
                                args=(i, proxy.port), daemon=True)
               for i in range(CLIENTS)]
    for thread in threads:
      thread.start()
    warm = self.observe(proxy, max(1.0, SECONDS / 4), text)
    in_the_end = self.observe(proxy, SECONDS, text)
    self.stop.set()
    for thread in threads:
      thread.join(proxy_harness.LIMIT_S)

    # The last sockets may be closed after the ends of their sessions.
    few = descriptors_idle + 5

    def settled():
      descriptors = self.settle(proxy)
      return descriptors if descriptors < few else None

    descriptors = harness.wait_until(settled, f"less than {few} descriptors")
    print(f"{sum(self.visits)} visits; resident: {warm >> 10} KiB after the "
          f"warm-up, {in_the_end >> 10} KiB at the end; descriptors: "
          f"{descriptors_idle} before, {descriptors} after")
    if proxy_harness.IS_MEMORY_MEANINGFUL:
      self.assertLess(in_the_end - warm, SLACK_BYTES)
    self.assertGreater(descriptors, descriptors_idle - 5)
    statistics = self.statistics(proxy)
    self.assertEqual(statistics["reloads_refused"], 0)
    self.assertEqual(proxy.stop(), 0, proxy)


if __name__ == "__main__":
  proxy_harness.main()
