#!/usr/bin/python3
"""tcp_proxy's settings: the documented file, those that would lead back to
the proxy, and reading them from where they never come."""

import contextlib
import os
import re
import signal
import socket

import proxy_harness
from proxy_harness import harness

DOCUMENT = os.path.join(harness.SOURCE_TREE, "docs", "proxy.md")


class TheDocumentedFile(proxy_harness.ProxyTest):

  def documented(self):
    """The file, with this test's ports, folders and servers in place of the
    example's, and its port."""
    with open(DOCUMENT) as f:
      text = re.search(r"^```\n(# proxy\.yaml\n.*?)^```$", f.read(),
                       re.MULTILINE | re.DOTALL)[1]
    port = harness.free_port()
    self.upstream(address=self.path("app.sock"))
    for theirs, ours in (
        ("app-1.example:8080", self.upstream().address),
        ("10.0.0.2:8080", self.upstream().address),
        (":8080", f":{port}"),
        ("127.0.0.1:9090", "127.0.0.1:0"),
        ("/run/", self.folder + "/"),
        ("/var/log/proxy/", self.folder + "/"),
    ):
      self.assertIn(theirs, text)
      text = text.replace(theirs, ours)
    return text, port

  def test_it_starts(self):
    with socket.socket(socket.AF_INET6) as probe:
      try:
        probe.bind(("::1", 0))
      except OSError as error:
        self.skipTest(f"no IPv6: {error}")
    text, port = self.documented()
    proxy = self.start(proxy_harness.PROXY, "--flare_concurrency_hint=2",
                       "--config=" + self.write_file("proxy.yaml", text))
    for address in (f"0.0.0.0:{port}", f"[::]:{port}",
                    "unix:" + self.path("proxy.sock")):
      proxy.wait_for("Proxy listens on " + re.escape(address) + r"\.$")
    for family, address in (
        (socket.AF_INET, ("127.0.0.1", port)),
        (socket.AF_INET6, ("::1", port)),
        (socket.AF_UNIX, self.path("proxy.sock")),
    ):
      with socket.socket(family) as client:
        client.settimeout(proxy_harness.LIMIT_S)
        client.connect(address)
        client.sendall(b"hello")
        self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
    self.assertEqual(proxy.stop(), 0, proxy)


class FewDescriptors(proxy_harness.ProxyTest):
  """Fewer than the workers take, each four, or than clients may need."""

  def start_with(self, limit, *flags, listen="127.0.0.1:0"):
    proxy = harness.Program(
        proxy_harness.PROXY, "--flare_concurrency_hint=16",
        f"--listen={listen}", "--upstreams=127.0.0.1:1", *flags,
        prefix=("sh", "-c", f'{limit} && exec "$0" "$@"'))
    self.addCleanup(proxy.kill)
    return proxy

  def test_by_the_soft_limit(self):
    proxy = self.start_with("ulimit -Sn 48")
    proxy.wait_for(r"Proxy listens on 127\.0\.0\.1:\d+\.$")
    self.assertEqual(proxy.stop(), 0, proxy)

  def test_by_the_hard_limit(self):
    proxy = self.start_with("ulimit -n 48")
    self.assertEqual(proxy.wait(), 1, proxy)
    self.assertRegex(
        proxy.log(), r"can't start the fiber runtime: the poller of scheduling "
        r"group \d+: create an (epoll instance|eventfd): Too many open files; "
        r"raise the limit of descriptors \(ulimit -n\)")

  def test_for_all_that_listens(self):
    """There are enough for the workers alone."""
    proxy = self.start_with(
        "ulimit -n 100", listen=",".join(f"127.0.0.{i}:0" for i in range(1, 5)))
    self.assertEqual(proxy.wait(), 1, proxy)
    self.assertRegex(
        proxy.log(), r"--listen: listen on 127\.0\.0\.\d:0: .*: Too many open "
        r"files; raise the limit of descriptors \(ulimit -n\)")

  def test_for_all_clients(self):
    """Each of the 16 workers listens on each address."""
    addresses = [f"127.0.0.{i}:0" for i in range(1, 5)]
    for clients, is_warned in ((60, True), (1, False)):
      proxy = self.start_with("ulimit -n 250", f"--max_connections={clients}",
                              listen=",".join(addresses))
      proxy.wait_for(r"Proxy listens on 127\.0\.0\.4:\d+\.$")
      self.assertEqual(proxy.stop(), 0, proxy)
      self.assertEqual(f"{clients} connections, and" in proxy.log(), is_warned,
                       proxy)


class FewThreads(proxy_harness.ProxyTest):
  """Fewer than the proxy takes. Their stacks are so large that memory is left
  when there is no address space for another one."""

  def start_with(self, stacks):
    proxy = harness.Program(
        proxy_harness.PROXY, "--flare_concurrency_hint=1",
        "--listen=127.0.0.1:0", "--upstreams=127.0.0.1:1",
        f"--access_log={self.path('access.log')}",
        prefix=("sh", "-c", f"ulimit -s 1000000 && ulimit -v {stacks}000000 "
                '&& exec "$0" "$@"'))
    self.addCleanup(proxy.kill)
    harness.wait_until(
        lambda: "Proxy listens" in proxy.log() or not proxy.is_running(),
        f"the start of {proxy}")
    return proxy

  def test_are_said(self):
    logs = []
    for stacks in range(2, 40):
      proxy = self.start_with(stacks)
      if "Sanitizer" in proxy.log():
        self.skipTest("sanitizers take terabytes of address space")
      if "Proxy listens" in proxy.log():
        break
      self.assertEqual(proxy.wait(), 1, proxy)
      logs.append(proxy.log())
    self.assertIn("Proxy listens", proxy.log())
    self.assertRegex("".join(logs),
                     r"--access_log: can't start the thread of the access log: "
                     r"Resource temporarily unavailable; raise ")


class SettingsThatNeverCome(proxy_harness.ProxyTest):
  """The file is a FIFO, which somebody has opened but doesn't write to."""

  def fifo(self):
    path = self.path("settings")
    os.mkfifo(path)
    return path

  def hold_open(self, path):
    """Returns a file to write to when somebody reads it."""

    def look():
      with contextlib.suppress(OSError):  # ENXIO: nobody.
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    return self.keep(open(harness.wait_until(look, f"a reader of {path}"), "w"))

  def test_at_the_start(self):
    path = self.fifo()
    proxy = self.start(proxy_harness.PROXY, "--flare_concurrency_hint=1",
                       f"--config={path}")
    self.hold_open(path)
    self.assertEqual(proxy.stop(), -signal.SIGTERM, proxy)

  def test_in_a_reload(self):
    path = self.fifo()
    upstream = self.upstream()
    proxy = self.start(proxy_harness.PROXY, "--flare_concurrency_hint=1",
                       f"--config={path}")
    with self.hold_open(path) as settings:
      settings.write(
          f"listen: 127.0.0.1:0\nupstreams: ['{upstream.address}']\n")
    found = proxy.wait_for(r"Proxy listens on 127\.0\.0\.1:(\d+)\.$")
    proxy.port = int(found[1])
    proxy.send_signal(signal.SIGHUP)
    self.hold_open(path)
    self.assertEqual(self.exchange(proxy), b"hello")
    self.assertEqual(proxy.stop(), 0, proxy)
    self.assertIn("Drained: 1 clients", proxy.log())
    self.assertNotIn("Not reloaded", proxy.log())


class TheProxyItself(proxy_harness.ProxyTest):
  """A connection to itself would be followed by another one, for ever."""

  REFUSAL = (r"'%s' is an address that the proxy listens on itself \(%s\): it "
             r"would connect to itself for ever")

  def check(self, listen, upstream):
    status, log = self.run_to_end(
        proxy_harness.PROXY, "--flare_concurrency_hint=1", f"--listen={listen}",
        f"--upstreams={upstream}")
    self.assertEqual(status, 2, log)
    self.assertRegex(log, "--upstreams: " + self.REFUSAL % (
        re.escape(upstream), "--listen"))

  def test_is_no_upstream(self):
    port = harness.free_port()
    self.check(f"0.0.0.0:{port}", f"127.0.0.1:{port}")
    self.check(f"[::]:{port}", f"[::1]:{port}")
    self.check(f"0.0.0.0:{port}", f"[::ffff:127.0.0.1]:{port}")
    self.check(f"unix:{self.path('x')}", f"unix:{self.folder}/../"
               f"{os.path.basename(self.folder)}/x")

  def test_nor_after_a_reload(self):
    port = harness.free_port()
    text = f"listen: 0.0.0.0:{port}\nupstreams: ['%s']\n"
    proxy = self.start(
        proxy_harness.PROXY, "--flare_concurrency_hint=1", "--config=" +
        self.write_file("proxy.yaml", text % self.upstream().address))
    proxy.wait_for(rf"Proxy listens on 0\.0\.0\.0:{port}\.$")
    proxy.port = port
    self.write_file("proxy.yaml", text % f"127.1:{port}")
    proxy.send_signal(signal.SIGHUP)
    proxy.wait_for(
        r"Not reloaded, going on as before: .*proxy\.yaml:2: upstreams\[0\]: " +
        self.REFUSAL % (r"127\.1:\d+(@.*)?", r".*proxy\.yaml:1: listen"))
    self.assertEqual(self.exchange(proxy), b"hello")


class StatisticsOverReloads(proxy_harness.ProxyTest):

  def accepted(self, proxy):
    """How many clients each line of statistics in the log tells of."""
    return [int(n) for n in re.findall(
        r"sessions; in \d+\.\d s: (\d+) accepted", proxy.log())]

  def test_no_time_is_left_out(self):
    upstream = self.upstream().address
    text = (f"listen: 127.0.0.1:0\nupstreams: ['{upstream}']\n"
            "statistics_interval: %s\n")
    proxy = self.start_proxy(
        "--config=" + self.write_file("proxy.yaml", text % "1h"), listen=None)
    generation = 1

    def reload():
      nonlocal generation
      generation += 1
      proxy.send_signal(signal.SIGHUP)
      self.wait_for_statistics(
          proxy, lambda s: s["generation"] == generation, "a reload")

    self.assertEqual(self.exchange(proxy), b"hello")
    reload()
    self.assertEqual(self.accepted(proxy), [])  # In an hour.
    self.assertEqual(self.exchange(proxy), b"hello")
    self.write_file("proxy.yaml", text % "2h")
    reload()
    self.assertEqual(self.accepted(proxy), [2])
    for _ in range(3):
      self.assertEqual(self.exchange(proxy), b"hello")
    self.write_file("proxy.yaml", text % "0")
    reload()
    self.assertEqual(self.accepted(proxy), [2, 3])
    self.assertEqual(self.exchange(proxy), b"hello")
    self.write_file("proxy.yaml", text % "1h")
    reload()
    for _ in range(4):
      self.assertEqual(self.exchange(proxy), b"hello")
    self.assertEqual(proxy.stop(), 0, proxy)
    self.assertEqual(self.accepted(proxy), [2, 3, 4])


if __name__ == "__main__":
  proxy_harness.main()
