#!/usr/bin/python3
"""tcp_proxy's configuration, its errors and exit statuses, reload and drain."""

import fcntl
import os
import re
import signal
import socket
import subprocess
import time

import proxy_harness
from proxy_harness import harness, needs

BAD_CONFIGURATION = 2


class Mistakes(proxy_harness.ProxyTest):

  def check(self, pattern, *flags, status=BAD_CONFIGURATION):
    """It ends with `status` and one line that matches."""
    actual, log = self.run_to_end(proxy_harness.PROXY,
                                  "--flare_concurrency_hint=1", *flags)
    self.assertEqual(actual, status, log)
    self.assertEqual(len(re.findall(pattern, log)), 1, log)
    return log

  def config(self, text):
    return "--config=" + self.write_file("proxy.yaml", text)

  def test_flags(self):
    self.check(r"unknown command line flag 'color'", "--color=red")
    self.check(r"--listen: there is no address to listen on; give --listen=")
    self.check(r"--upstreams: there is no server to pass connections to",
               "--listen=127.0.0.1:0")
    self.check(r"--lb: 'random' is not known; there are round_robin, ",
               "--lb=random")
    self.check(r"--connect_timeout: '5' has no unit", "--connect_timeout=5")
    self.check(r"'loose' is no flag; write --name=value", "loose")
    # It takes no other word for its value.
    self.check(r"--listen: there is no address", "--accept_proxy_protocol")
    self.check(r"'true' is no flag; write --name=value",
               "--accept_proxy_protocol", "true")
    self.check(r"illegal value 'maybe' specified for bool flag",
               "--accept_proxy_protocol=maybe")

  def test_files(self):
    self.check(r"--config: can't read '/no/such\.yaml': No such file",
               "--config=/no/such.yaml")
    self.check(r"proxy\.yaml:3: this is no YAML: ",
               self.config("listen: 127.0.0.1:0\nupstreams: [1\n  - }"))
    self.check(r"proxy\.yaml:2: conect_timeout: there is no such setting",
               self.config("listen: 127.0.0.1:0\nconect_timeout: 1s\n"))
    self.check(
        r"proxy\.yaml:3: health_check\.interval: '1us' is out of range",
        self.config("health_check:\n  type: tcp\n  interval: 1us\n"))
    self.check(r"proxy\.yaml:2: upstreams\[1\]: can't resolve 'no\.invalid:1'",
               self.config("listen: 127.0.0.1:0\n"
                           "upstreams: [127.0.0.1:1, no.invalid:1]\n"))
    # One line, whatever a value holds.
    self.check(r"proxy\.yaml:1: lb: 'a\\x0aE1 b' is not known; there are",
               self.config('lb: "a\\nE1 b"\n'))

  def test_port_in_use(self):
    with socket.socket() as other:
      other.bind(("127.0.0.1", 0))
      other.listen()
      port = other.getsockname()[1]
      self.check(
          rf"proxy\.yaml:1: listen: .*127\.0\.0\.1:{port}: bind: Address "
          r"already in use \(is another server running\?",
          self.config(f"listen: 127.0.0.1:{port}\nupstreams: 127.0.0.1:1\n"))
      self.check(rf"--admin: .*127\.0\.0\.1:{port}: bind: Address already",
                 "--listen=127.0.0.1:0", "--upstreams=127.0.0.1:1",
                 f"--admin=127.0.0.1:{port}")

  def test_no_socket_files(self):
    upstreams = "--upstreams=127.0.0.1:1"
    long = "unix:/" + "x" * 107
    self.check(rf"--listen: can't resolve '{long}': a path of 1 to 107 bytes "
               r"must follow 'unix:'", f"--listen={long}", upstreams)
    for path in (self.folder, self.write_file("file", "")):
      self.check(rf"--listen: listen on unix:{path}: bind: Address already in "
                 r"use \(there is a file that is no socket",
                 f"--listen=unix:{path}", upstreams)

  def test_port_in_use_by_another_proxy(self):
    proxy = self.start_proxy(upstreams=["127.0.0.1:1"])
    self.check(r"--listen: .*: Address already in use",
               f"--listen=127.0.0.1:{proxy.port}", "--upstreams=127.0.0.1:1")

  @needs("setpriv")
  def test_privileged_port(self):
    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start") as f:
      if int(f.read()) <= 1 or os.getuid() != 0:
        self.skipTest("this user may listen on any port, or can't become one "
                      "who may not")
    proxy = harness.Program(
        proxy_harness.PROXY, "--flare_concurrency_hint=1",
        "--listen=127.0.0.1:1", "--upstreams=127.0.0.1:2",
        prefix=("setpriv", "--bounding-set=-net_bind_service",
                "--inh-caps=-net_bind_service"))
    self.addCleanup(proxy.kill)
    self.assertEqual(proxy.wait(), BAD_CONFIGURATION, proxy)
    self.assertRegex(
        proxy.log(), r"--listen: .*127\.0\.0\.1:1: bind: Permission denied; "
        r"ports below 1024 need root or the capability CAP_NET_BIND_SERVICE")

  def test_access_log_in_no_folder(self):
    self.check(
        r"--access_log: can't open the access log '/no/such/log': No such file "
        r"or directory; name a file in a folder that exists",
        "--listen=127.0.0.1:0", "--upstreams=127.0.0.1:1",
        "--access_log=/no/such/log")

  def test_check_config(self):
    dead = self.keep(proxy_harness.DeadAddress())
    upstream = self.upstream()
    good = ("--check_config", "--listen=127.0.0.1:0")
    self.check(r"The settings are right, and all upstreams can be reached",
               *good, f"--upstreams={upstream.address}", status=0)
    self.check(
        rf"proxy\.yaml:2: upstreams\[0\]: upstream '{dead.address}' can't be "
        r"reached: .*Connection refused; check the address",
        "--check_config",
        self.config(f"listen: 127.0.0.1:0\n"
                    f"upstreams: ['{dead.address}', '{upstream.address}']\n"),
        status=1)
    self.check(r"--listen: can't resolve 'x'", "--check_config", "--listen=x")


class Reloads(proxy_harness.ProxyTest):

  def start_configured(self, text):
    path = self.write_file("proxy.yaml", text)
    proxy = self.start_proxy(f"--config={path}", listen=None)
    self.generation = 1
    return proxy

  def reload(self, proxy, text=None):
    """Replaces the file and has it read; returns the new statistics."""
    if text is not None:
      self.write_file("proxy.yaml", text)
    self.generation += 1
    proxy.send_signal(signal.SIGHUP)
    return self.wait_for_statistics(
        proxy, lambda s: s["generation"] == self.generation, "a reload")

  def refuse(self, proxy, text, pattern):
    """Has a file read that is wrong."""
    refused = self.statistics(proxy)["reloads_refused"]
    self.write_file("proxy.yaml", text)
    proxy.send_signal(signal.SIGHUP)
    statistics = self.wait_for_statistics(
        proxy, lambda s: s["reloads_refused"] > refused, "a refusal")
    self.assertRegex(statistics["last_reload_error"], pattern)
    proxy.wait_for("Not reloaded, going on as before: .*" + pattern)
    self.assertEqual(statistics["generation"], self.generation)

  def test_new_upstreams_for_new_clients(self):
    old = self.upstream(lambda c: c.sendall(c.recv(100) and b"old"))
    new = self.upstream(lambda c: c.sendall(c.recv(100) and b"new"))
    text = "listen: 127.0.0.1:0\nupstreams: [%s]\n"
    proxy = self.start_configured(text % old.address)
    port = proxy.port
    before = self.connect(proxy)
    harness.wait_until(lambda: old.visitors, "the first session")
    self.assertEqual(self.exchange(proxy), b"old")
    self.reload(proxy, text % new.address)
    self.assertEqual(self.exchange(proxy), b"new")
    # A client that was there before goes on as it began, and is counted on.
    before.sendall(b"?")
    self.assertEqual(proxy_harness.read_all(before), b"old")
    statistics = self.statistics(proxy)
    self.assertEqual(statistics["accepted"], 3)
    self.assertEqual([u["name"] for u in statistics["upstreams"]],
                     [new.address])
    self.assertEqual(statistics["listening"], [f"127.0.0.1:{port}"])

  def test_limits(self):
    text = ("listen: 127.0.0.1:0\nupstreams: [%s]\nmax_connections: %%d\n" %
            self.upstream().address)
    proxy = self.start_configured(text % 1)
    held = self.connect(proxy)
    held.sendall(b"x")
    self.assertEqual(held.recv(1), b"x")
    self.assertEqual(self.exchange(proxy), b"")
    self.reload(proxy, text % 2)
    self.assertEqual(self.exchange(proxy), b"hello")
    held.sendall(b"x")
    self.assertEqual(held.recv(1), b"x")

  def test_listeners_come_and_go(self):
    upstream = self.upstream().address
    text = "listen: [127.0.0.1:%d%s]\nupstreams: [" + upstream + "]\n"
    first, second = harness.free_port(), harness.free_port()
    proxy = self.start_configured(text % (first, ""))
    self.reload(proxy, text % (first, f", 127.0.0.1:{second}"))
    for port in (first, second):
      proxy.port = port
      self.assertEqual(self.exchange(proxy), b"hello")
    self.reload(proxy, text % (second, ""))
    self.assertEqual(self.exchange(proxy), b"hello")
    harness.wait_until(lambda: not harness.can_connect(first),
                       "the first listener's end")

  def test_what_is_wrong_changes_nothing(self):
    upstream = self.upstream().address
    text = f"listen: 127.0.0.1:0\nupstreams: ['{upstream}']\n"
    proxy = self.start_configured(text)
    self.refuse(proxy, "listen: [", r"proxy\.yaml:\d: this is no YAML")
    self.refuse(proxy, text + "lb: best\n", r"proxy\.yaml:3: lb: 'best' is")
    self.refuse(proxy, text + 'lb: "a\\nidle 7"\n',
                r"proxy\.yaml:3: lb: 'a\\x0aidle 7' is not known; there are")
    self.assertEqual(self.page(proxy, "/stats").count("\nidle "), 1)
    with socket.socket() as other:
      other.bind(("127.0.0.1", 0))
      other.listen()
      port = other.getsockname()[1]
      self.refuse(proxy,
                  f"listen: 127.0.0.1:{port}\nupstreams: 127.0.0.1:1\n",
                  r"proxy\.yaml:1: listen: .*Address already in use")
      # The other way round it would be the same.
      self.refuse(proxy,
                  f"listen: 0.0.0.0:{proxy.port}\nupstreams: 127.0.0.1:1\n",
                  r"Address already in use .*; it is this proxy, which listens "
                  rf"on 127\.0\.0\.1:{proxy.port}: it can't have both")
    self.refuse(proxy, text + "drain_deadline: soon\n",
                r"proxy\.yaml:3: drain_deadline: 'soon' is not a duration")
    self.assertEqual(self.exchange(proxy), b"hello")
    self.reload(proxy, text + "max_connections: 5\n")
    self.assertEqual(self.statistics(proxy)["last_reload_error"], "")
    self.assertEqual(self.exchange(proxy), b"hello")

  def test_the_access_log_is_opened_anew(self):
    upstream = self.upstream().address
    proxy = self.start_configured(
        f"listen: 127.0.0.1:0\nupstreams: ['{upstream}']\n")
    self.assertEqual(self.exchange(proxy), b"hello")
    self.access_lines(1)
    os.rename(self.path("access.log"), self.path("access.log.1"))
    self.assertEqual(self.exchange(proxy), b"hello")
    self.access_lines(2, "access.log.1")
    self.reload(proxy)
    self.assertEqual(self.exchange(proxy), b"hello")
    self.access_lines(1)
    self.access_lines(2, "access.log.1")

  def test_an_access_log_with_a_lease_is_refused(self):
    upstream = self.upstream().address
    proxy = self.start_configured(
        f"listen: 127.0.0.1:0\nupstreams: ['{upstream}']\n")
    os.rename(self.path("access.log"), self.path("access.log.1"))
    self.write_file("access.log", "")
    # That somebody wants the file comes as a signal, too.
    self.addCleanup(signal.signal, signal.SIGIO,
                    signal.signal(signal.SIGIO, signal.SIG_IGN))
    holder = self.keep(open(self.path("access.log")))
    try:
      fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
      self.skipTest(f"no leases: {error}")
    proxy.send_signal(signal.SIGHUP)
    harness.wait_until(
        lambda: fcntl.fcntl(holder, fcntl.F_GETLEASE) == fcntl.F_UNLCK,
        "somebody who wants the file")
    self.assertEqual(self.exchange(proxy), b"hello")
    proxy.wait_for(r"Not reloaded, going on as before: .*another program holds "
                   r"a lease")
    # It has been tried once more.
    proxy.wait_for(r"\] can't open the access log .*another program holds a "
                   r"lease")
    self.assertEqual(self.exchange(proxy), b"hello")
    self.access_lines(2, "access.log.1")
    fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    self.reload(proxy)
    self.assertEqual(self.exchange(proxy), b"hello")
    self.access_lines(1)

  @needs("ab")
  def test_under_load_no_request_fails(self):
    servers = [self.start_server("--flare_concurrency_hint=1")
               for _ in range(3)]
    addresses = [f"127.0.0.1:{server.port}" for server in servers]
    port = harness.free_port()
    text = (f"listen: 127.0.0.1:{port}\nupstreams: [%s]\nlb: %s\n"
            "connect_timeout: 30s\n")  # Servers wait for their CPUs, too.
    proxy = self.start_configured(text % (addresses[0], "round_robin"))
    press = self.start(
        "press", f"--server_addr=flare://127.0.0.1:{port}",
        "--flare_concurrency_hint=1", "--max_pending=20", "--qps=500",
        "--timeout=30000")
    # A connection for each request, and one for many.
    clients = [
        subprocess.Popen(["ab", "-q", *keep, "-c5", "-t1", "-n10000000",
                          f"http://127.0.0.1:{port}/"],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for keep in ([], ["-k"])
    ]
    for client in clients:
      self.addCleanup(client.stdout.close)
      self.addCleanup(client.wait)
      self.addCleanup(client.kill)
    # As long as the clients run, and often enough on a busy machine.
    reloads = 0
    while reloads < 6 or any(client.poll() is None for client in clients):
      chosen = addresses[reloads % 3:] or addresses
      lb = ("round_robin", "least_connections", "source_hash")[reloads % 3]
      self.reload(proxy, text % (", ".join(chosen), lb))
      reloads += 1
    self.assertEqual(press.stop(signal.SIGINT), 0, press)
    for client in clients:
      output, _ = client.communicate(timeout=proxy_harness.LIMIT_S)
      self.assertRegex(output, rb"Failed requests: +0\n")
    statistics = self.statistics(proxy)
    self.assertEqual(statistics["unserved"], 0)
    self.assertEqual(statistics["connect_failures"], 0)


class Drains(proxy_harness.ProxyTest):

  def test_sessions_come_to_their_ends(self):
    proxy = self.start_proxy(upstreams=[self.upstream()])
    client = self.connect(proxy)
    client.sendall(b"before")
    self.assertEqual(client.recv(100), b"before")
    self.assertEqual(self.page(proxy, "/ready"), "ready\n")
    proxy.send_signal(signal.SIGTERM)
    proxy.wait_for(r"Draining: 1 sessions have 30s to come to their ends")
    harness.wait_until(lambda: not harness.can_connect(proxy.port),
                       "the listener's end")
    with self.assertRaises(proxy_harness.urllib.request.HTTPError) as error:
      self.page(proxy, "/ready")
    self.assertEqual(error.exception.code, 503)
    error.exception.close()
    client.sendall(b"after")
    self.assertEqual(client.recv(100), b"after")
    proxy.send_signal(signal.SIGHUP)  # Too late for a reload.
    client.close()
    self.assertEqual(proxy.wait(), 0, proxy)
    self.access_lines(1)

  def test_those_that_do_not_end_are_cut(self):
    proxy = self.start_proxy("--drain_deadline=200ms",
                             upstreams=[self.upstream()])
    client = self.connect(proxy)
    client.sendall(b"x")
    self.assertEqual(client.recv(1), b"x")
    self.assertEqual(proxy.stop(), 1, proxy)
    self.assertIn("Cutting 1 sessions", proxy.log())
    try:
      self.assertEqual(client.recv(1), b"")
    except ConnectionResetError:
      pass
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "cut")

  def test_a_second_signal_aborts(self):
    proxy = self.start_proxy("--drain_deadline=1h",
                             upstreams=[self.upstream()])
    client = self.connect(proxy)
    client.sendall(b"x")
    self.assertEqual(client.recv(1), b"x")
    proxy.send_signal(signal.SIGTERM)
    proxy.wait_for("Draining: 1 sessions")
    # Signals within 200 ms of the first are taken for the same request.
    while proxy.is_running():
      proxy.send_signal(signal.SIGTERM)
      time.sleep(harness.POLL_S)
    self.assertEqual(proxy.wait(), -signal.SIGABRT, proxy)

  def test_under_load_no_request_fails(self):
    # So that fifty callers don't take all of the CPU.
    servers = [self.start_server("--flare_concurrency_hint=1",
                                 "--work=sleep_fiber", "--work_us=20000")
               for _ in range(2)]
    proxy = self.start_proxy(
        upstreams=[f"127.0.0.1:{server.port}" for server in servers])
    press = self.start(
        "press", f"--server_addr=http+pb://127.0.0.1:{proxy.port}",
        "--report_interval=0.2", "--flare_concurrency_hint=1",
        "--max_pending=50", "--timeout=30000",
        "--flare_rpc_client_max_connections_per_server=50")
    traffic = r"QPS: [1-9]\d*, failures: 0\."
    self.wait_for_statistics(proxy, lambda s: s["active"] == 50,
                             "50 sessions")
    press.wait_for(traffic)
    proxy.send_signal(signal.SIGTERM)
    proxy.wait_for("Draining: 50 sessions")
    for _ in range(2):  # The second one began after the drain.
      press.wait_for(traffic, after=len(press.log()))
    self.assertEqual(press.stop(), 0, press)
    self.assertEqual(proxy.wait(), 0, proxy)


if __name__ == "__main__":
  proxy_harness.main()
