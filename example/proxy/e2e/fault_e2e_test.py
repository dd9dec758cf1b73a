#!/usr/bin/python3
"""What tcp_proxy does when upstreams or clients fail, are slow, or stop
halfway."""

import contextlib
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time

import proxy_harness
from proxy_harness import harness, needs


def most_in_buffers():
  """More than all buffers of a session hold, the system's and the proxy's."""

  def highest(name):
    with open(f"/proc/sys/net/ipv4/{name}") as f:
      return int(f.read().split()[2])

  # From the sender into the proxy; from there to one whose buffer is small.
  return 2 * highest("tcp_wmem") + highest("tcp_rmem") + (4 << 20)


def pattern(size):
  """Bytes that show when something is lost, doubled or swapped."""
  block = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(251))
  return (block * (size // len(block) + 1))[:size]


class UnreadLog(proxy_harness.ProxyTest):

  def start_unread(self, *flags, **options):
    """A proxy whose stderr is a pipe that is full."""
    pipe = self.keep(harness.Pipe().fill())
    port, admin = harness.free_port(), harness.free_port()
    proxy = self.start_proxy(f"--admin=127.0.0.1:{admin}", *flags, admin=False,
                             listen=f"127.0.0.1:{port}", stderr=pipe,
                             **options)
    proxy.port, proxy.admin_port = port, admin
    harness.wait_until(lambda: harness.can_connect(admin), f"port {admin}")
    return proxy, pipe

  def check_clients(self, proxy):
    """Half of them are sent to the dead upstream first, which is logged."""
    for _ in range(12):
      self.assertEqual(self.exchange(proxy), b"hello")

  def test_sessions_go_on_and_it_ends(self):
    dead = self.keep(proxy_harness.DeadAddress())
    proxy, pipe = self.start_unread(
        "--max_failures=0", "--statistics_interval=10ms",
        upstreams=[dead, self.upstream()])
    self.check_clients(proxy)
    self.assertEqual(self.statistics(proxy)["log_lines_lost"], 0)  # Yet.
    pipe.read_until("Can't connect to upstream")
    pipe.fill()
    self.assertEqual(proxy.stop(), 0)

  def test_nor_is_its_access_log_read(self):
    dead = self.keep(proxy_harness.DeadAddress())
    proxy, _ = self.start_unread(
        "--max_failures=0", access_log="-",
        stdout=self.keep(harness.Pipe().fill()),
        upstreams=[dead, self.upstream()])
    self.check_clients(proxy)
    self.assertEqual(proxy.stop(), 0)


class PeersThatGo(proxy_harness.ProxyTest):

  def wait_for_no_session(self, proxy):
    self.wait_for_statistics(proxy, lambda s: s["active"] == 0, "no session")

  def fill(self, connection):
    """Sends until nobody takes anything any more."""
    connection.setblocking(False)
    piece = b"x" * (1 << 16)
    full_since = None
    # A proxy that has stopped reading stays so; one that hasn't is seen soon.
    while full_since is None or time.monotonic() - full_since < 0.3:
      try:
        connection.send(piece)
        full_since = None
      except BlockingIOError:
        full_since = full_since or time.monotonic()
        select.select([], [connection], [], 0.05)

  def test_a_client_that_is_reset_while_it_is_not_read(self):
    for mode in ("copy", "splice", "auto"):
      with self.subTest(mode=mode):
        server = self.keep(socket.create_server(("127.0.0.1", 0)))
        proxy = self.start_proxy(
            f"--copy_mode={mode}", "--idle_timeout=0", "--max_connections=1",
            f"--access_log={self.path(mode)}",
            upstreams=["127.0.0.1:%d" % server.getsockname()[1]])
        client = self.connect(proxy)
        with server.accept()[0]:
          self.fill(client)
          proxy_harness.reset(client)
          self.wait_for_no_session(proxy)
          (line,) = self.access_lines(1, mode)
          self.assertEqual(line["end"], "client-aborted")
          self.assertEqual(line["error"], "ECONNRESET")
          # Its place is free.
          self.connect(proxy)
          server.accept()[0].close()

  def test_an_upstream_that_is_reset_while_it_is_not_read(self):
    server = self.keep(socket.create_server(("127.0.0.1", 0)))
    proxy = self.start_proxy(
        "--idle_timeout=0",
        upstreams=["127.0.0.1:%d" % server.getsockname()[1]])
    self.connect(proxy)
    upstream = server.accept()[0]
    self.fill(upstream)
    proxy_harness.reset(upstream)
    self.wait_for_no_session(proxy)
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "upstream-aborted")
    self.assertEqual(line["error"], "ECONNRESET")

  def test_a_client_that_goes_while_its_upstream_is_connected_to(self):
    silent = self.keep(proxy_harness.SilentAddress())
    proxy = self.start_proxy("--connect_timeout=1h", upstreams=[silent])
    for count, go in enumerate((proxy_harness.reset, socket.socket.close), 1):
      client = self.connect(proxy)
      self.wait_for_statistics(proxy, lambda s: s["active"] == 1, "a session")
      go(client)
      self.wait_for_no_session(proxy)
      line = self.access_lines(count)[-1]
      self.assertEqual(line["end"], "client-aborted")
    self.assertEqual(self.statistics(proxy)["connect_failures"], 0)

  def test_a_client_that_only_wants_to_listen(self):
    upstream = self.upstream(lambda connection: connection.sendall(b"news"))
    proxy = self.start_proxy(upstreams=[upstream])
    self.assertEqual(self.exchange(proxy, b""), b"news")

  def start_checked(self, *flags):
    """A proxy in front of a server that `answers` checks as long as it is set,
    and otherwise says nothing."""
    answers = threading.Event()
    answers.set()

    def serve(connection):
      data = connection.recv(1 << 16)
      if not data.startswith(b"GET /"):
        connection.sendall(data)
        proxy_harness.echo(connection)
      elif answers.is_set():
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
      else:
        connection.recv(1)

    proxy = self.start_proxy("--idle_timeout=0", "--health_check=http",
                             "--health_check_interval=10ms",
                             "--health_check_timeout=500ms", *flags,
                             upstreams=[self.upstream(serve)])
    return proxy, answers

  def wait_for_health(self, proxy, healthy):
    self.wait_for_statistics(
        proxy, lambda s: s["upstreams"][0]["healthy"] == healthy,
        f"healthy: {healthy}")

  def test_an_upstream_that_checks_find_silent(self):
    proxy, answers = self.start_checked()
    client = self.connect(proxy)
    client.sendall(b"hello")
    self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
    answers.clear()
    with self.assertRaises(ConnectionResetError):
      client.recv(1)
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "upstream-aborted")
    self.assertEqual(line["error"], "ETIMEDOUT")
    answers.set()
    self.wait_for_health(proxy, True)
    self.assertEqual(self.exchange(proxy), b"hello")

  def test_sessions_of_a_silent_upstream_may_be_kept(self):
    proxy, answers = self.start_checked("--health_check_cut_sessions=false")
    client = self.connect(proxy)
    client.sendall(b"hello")
    self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
    answers.clear()
    self.wait_for_health(proxy, False)
    client.sendall(b"again")
    self.assertEqual(proxy_harness.read_exactly(client, 5), b"again")

  def timers(self, proxy):
    """The kernel's timers on the proxy's connections: 2 is the next
    question of keep-alive, 0 nothing."""
    timers = set()
    with open(f"/proc/{proxy.pid}/net/tcp") as f:
      sockets = {
          row[9]: (row[3], int(row[5].split(":")[0], 16))
          for row in map(str.split, f.read().splitlines()[1:])
      }
    for number in os.listdir(f"/proc/{proxy.pid}/fd"):
      with contextlib.suppress(FileNotFoundError):
        link = os.readlink(f"/proc/{proxy.pid}/fd/{number}")
        state, timer = sockets.get(link.removeprefix("socket:[")[:-1], "  ")
        if state == "01":
          timers.add(timer)
    return timers

  def test_both_sides_are_asked_whether_they_are_there(self):
    for flags, expected in (([], {2}), (["--tcp_keepalive=0"], {0})):
      upstream = self.upstream()
      proxy = self.start_proxy(*flags, upstreams=[upstream], admin=False)
      client = self.connect(proxy)
      client.sendall(b"hello")
      self.assertEqual(proxy_harness.read_exactly(client, 5), b"hello")
      harness.wait_until(lambda: self.timers(proxy) == expected,
                         f"the timers {expected}")


class UpstreamFailures(proxy_harness.ProxyTest):

  def test_one_that_refuses_costs_no_client_anything(self):
    dead = self.keep(proxy_harness.DeadAddress())
    proxy = self.start_proxy("--max_failures=0",
                             upstreams=[dead, self.upstream()])
    for _ in range(20):
      self.assertEqual(self.exchange(proxy, b"x" * 1000), b"x" * 1000)
    statistics = self.statistics(proxy)
    self.assertGreaterEqual(statistics["retries"], 5)
    self.assertEqual(statistics["unserved"], 0)
    refused, served = statistics["upstreams"]
    self.assertEqual(refused["failures"], statistics["connect_failures"])
    self.assertEqual(served["connections"], 20)

  def test_one_that_refuses_is_left_alone_for_a_while(self):
    dead = self.keep(proxy_harness.DeadAddress())
    proxy = self.start_proxy("--max_failures=2", "--failure_pause=1h",
                             upstreams=[dead, self.upstream()])
    for _ in range(20):
      self.assertEqual(self.exchange(proxy), b"hello")
    row = self.statistics(proxy)["upstreams"][0]
    self.assertTrue(row["paused"])
    self.assertEqual(row["failures"], 2)

  def test_none_that_can_be_connected(self):
    dead = [self.keep(proxy_harness.DeadAddress()) for _ in range(2)]
    proxy = self.start_proxy(upstreams=dead)
    self.assertEqual(self.exchange(proxy), b"")
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "no-upstream")
    self.assertEqual(line["attempts"], "2")
    self.assertEqual(line["error"], "ECONNREFUSED")
    self.assertEqual(line["connect_ms"], "-")
    proxy.wait_for("was turned away: no-upstream, last tried .*: Connection "
                   "refused")
    self.assertEqual(proxy.stop(), 0, proxy)

  def test_one_that_does_not_answer_is_given_up_for_another(self):
    silent = self.keep(proxy_harness.SilentAddress())
    proxy = self.start_proxy("--connect_timeout=1s", "--max_failures=0",
                             upstreams=[silent, self.upstream()])
    for _ in range(2):
      self.assertEqual(self.exchange(proxy), b"hello")
    self.assertGreaterEqual(self.statistics(proxy)["retries"], 1)

  def test_one_that_breaks_off_breaks_the_client_off(self):
    sent = pattern(300_000)

    def send_and_reset(connection):
      connection.recv(1)
      connection.sendall(sent)
      connection.recv(1)  # The client has got it all.
      proxy_harness.reset(connection)

    proxy = self.start_proxy(upstreams=[self.upstream(send_and_reset)])
    client = self.connect(proxy)
    client.sendall(b"?")
    self.assertEqual(proxy_harness.read_exactly(client, len(sent)), sent)
    client.sendall(b"!")
    # A reset, or at least the end: never silence.
    try:
      self.assertEqual(client.recv(1), b"")
    except ConnectionResetError:
      pass
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "upstream-aborted")
    self.assertEqual(line["error"], "ECONNRESET")
    self.assertEqual(line["to_client"], str(len(sent)))

  @needs("curl")
  def test_one_that_is_killed_in_the_middle_of_a_download(self):
    size = 64 << 20  # More than all buffers on the way hold.
    servers = [
        self.start(proxy_harness.HTTP_SERVER, "--port=0",
                   f"--body_size={size}", "--flare_concurrency_hint=1")
        for _ in range(2)
    ]
    addresses = [
        server.wait_for(r"listens on (127\.0\.0\.1:\d+)")[1]
        for server in servers
    ]
    proxy = self.start_proxy(upstreams=addresses)
    url = f"http://127.0.0.1:{proxy.port}/"
    client = subprocess.Popen(
        ["curl", "-sS", "--limit-rate", "8M", "-o", self.path("body"), url],
        stderr=subprocess.PIPE)
    self.addCleanup(client.wait)
    self.addCleanup(client.kill)
    harness.wait_until(
        lambda: os.path.exists(self.path("body")) and os.path.getsize(
            self.path("body")) > 1 << 20, "the download's first megabyte")
    row = self.wait_for_statistics(
        proxy, lambda s: any(u["active"] for u in s["upstreams"]), "a session")
    busy = 0 if row["upstreams"][0]["active"] else 1
    servers[busy].kill()
    # 18: partial file; 56: reset.
    self.assertIn(client.wait(proxy_harness.LIMIT_S), (18, 56))
    client.stderr.close()
    # The next one gets it from the other.
    done = self.run_client("curl", "-sS", "-o", self.path("body"), url)
    self.assertEqual(done.returncode, 0, done)
    self.assertEqual(os.path.getsize(self.path("body")), size)


class OddNetworks(proxy_harness.ProxyTest):
  """The proxy in a network of its own, which nobody else has to live with; it
  is reached by a Unix socket."""

  def start_in_network(self, setup, *flags):
    prefix = ("unshare", "--map-root-user", "--net", "sh", "-c",
              f'{setup} && ip link set lo up && exec "$@"', "sh")
    probe = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    if probe.returncode != 0:
      self.skipTest(f"no such network can be made: {probe.stderr.decode()}")
    proxy = harness.Program(
        proxy_harness.PROXY, "--flare_concurrency_hint=1",
        f"--access_log={self.path('access.log')}",
        f"--listen=unix:{self.path('proxy')}", *flags, prefix=prefix)
    self.addCleanup(proxy.kill)
    proxy.wait_for("Proxy listens on unix:")

  def exchange_by_path(self):
    with socket.socket(socket.AF_UNIX) as client:
      client.settimeout(proxy_harness.LIMIT_S)
      client.connect(self.path("proxy"))
      try:
        client.sendall(b"hello")
        client.shutdown(socket.SHUT_WR)
        return proxy_harness.read_all(client)
      except OSError:
        return b""

  def test_a_connection_to_itself_is_refused(self):
    """With a port to which nobody listens as the one the kernel picks."""
    ports = "/proc/sys/net/ipv4/ip_local_port_range"
    self.start_in_network(
        f"ip addr add 192.0.2.1/32 dev lo && echo 40000 40001 >{ports}",
        "--upstreams=192.0.2.1:40000")
    self.assertEqual(self.exchange_by_path(), b"")
    (line,) = self.access_lines(1)
    self.assertEqual(line["error"], "ECONNREFUSED")

  def test_an_upstream_without_a_route_costs_no_client_anything(self):
    upstream = self.upstream(address=self.path("upstream"))
    self.start_in_network(
        "echo 1 >/proc/sys/net/ipv6/conf/lo/disable_ipv6",
        "--max_failures=0", f"--upstreams=[::1]:80,{upstream.address}")
    for _ in range(4):
      self.assertEqual(self.exchange_by_path(), b"hello")
    attempts = [line["attempts"] for line in self.access_lines(4)]
    self.assertIn("2", attempts)


class SlowPeers(proxy_harness.ProxyTest):

  def check_stalls_and_goes_on(self, proxy, sender, receiver, size):
    """The sender's bytes pile up while nobody receives, until the proxy
    takes no more; then all of it arrives."""
    data = pattern(size)
    sent = [0]

    def send():
      view = memoryview(data)
      while view:
        n = sender.send(view[:1 << 16])
        sent[0] += n
        view = view[n:]
      sender.shutdown(socket.SHUT_WR)

    before = proxy.resident_bytes()
    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    last = [-1, 0]  # The bytes sent at the last look, and how often it was so.

    def stalled():
      last[1] = last[1] + 1 if sent[0] == last[0] else 0
      last[0] = sent[0]
      return sent[0] > 0 and last[1] > 30

    harness.wait_until(stalled, "the sender to be held up")
    self.assertLess(sent[0], size, "the proxy takes whatever it is given")
    if proxy_harness.IS_MEMORY_MEANINGFUL:
      self.assertLess(proxy.resident_bytes() - before, 16 << 20)
    received = hashlib.sha256(proxy_harness.read_all(receiver)).digest()
    self.assertEqual(received, hashlib.sha256(data).digest())
    thread.join()

  def connected_pair(self, receive_buffers, *flags):
    """(proxy, client, upstream's end) of one session."""
    ends = []
    arrived = threading.Event()
    done = threading.Event()
    self.addCleanup(done.set)

    def hand_over(connection):
      ends.append(connection)
      arrived.set()
      done.wait()

    upstream = self.upstream(hand_over, receive_buffer=receive_buffers)
    proxy = self.start_proxy(*flags, upstreams=[upstream])
    client = self.connect(proxy, receive_buffer=receive_buffers)
    self.assertTrue(arrived.wait(proxy_harness.LIMIT_S))
    return proxy, client, ends[0]

  def test_slow_client(self):
    for mode in ("copy", "splice"):
      with self.subTest(mode=mode):
        proxy, client, upstream = self.connected_pair(
            64 << 10, f"--copy_mode={mode}")
        self.check_stalls_and_goes_on(proxy, upstream, client,
                                      most_in_buffers())

  def test_slow_upstream(self):
    for mode in ("copy", "splice"):
      with self.subTest(mode=mode):
        proxy, client, upstream = self.connected_pair(
            64 << 10, f"--copy_mode={mode}")
        self.check_stalls_and_goes_on(proxy, client, upstream,
                                      most_in_buffers())

  def test_one_direction_stalls_and_the_other_does_not(self):
    proxy, client, upstream = self.connected_pair(64 << 10)
    stalled = threading.Event()
    stop = threading.Event()

    def flood():
      while not stop.is_set():
        # send() by itself would wait, as the socket has a time-out.
        if select.select([], [upstream], [], harness.POLL_S)[1]:
          upstream.send(b"x" * 65536, socket.MSG_DONTWAIT)
        else:
          stalled.set()

    flooder = threading.Thread(target=flood)
    flooder.start()
    self.addCleanup(stop.set)
    self.assertTrue(stalled.wait(proxy_harness.LIMIT_S))
    data = pattern(1 << 20)
    thread = threading.Thread(target=client.sendall, args=(data,))
    thread.start()
    self.assertEqual(proxy_harness.read_exactly(upstream, len(data)), data)
    stop.set()
    thread.join()
    flooder.join()
    self.assertEqual(self.statistics(proxy)["active"], 1)

  def test_sessions_are_idle_only_when_nothing_moves(self):
    # Again if this process itself was idle for so long.
    while not self.idle_only_when_nothing_moves():
      os.remove(self.path("access.log"))

  def idle_only_when_nothing_moves(self):
    proxy, client, upstream = self.connected_pair(0, "--idle_timeout=2s")
    # Bytes in one direction only, for longer than the time-out.
    until = time.monotonic() + 3
    while time.monotonic() < until:
      began = time.monotonic()
      upstream.sendall(b".")
      received = client.recv(1)
      time.sleep(0.02)
      if time.monotonic() - began > 1.5:
        self.assertEqual(proxy.stop(), 0, proxy)
        return False
      self.assertEqual(received, b".")
    self.assertEqual(self.statistics(proxy)["active"], 1)
    self.assertEqual(client.recv(1), b"")  # Now nobody says anything.
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "idle")
    self.assertGreater(float(line["total_ms"]), 4900)
    self.assertEqual(self.statistics(proxy)["idle"], 1)
    return True


class HalfClose(proxy_harness.ProxyTest):

  @needs("nc")
  def test_the_client_ends_first(self):
    def digest(connection):
      data = proxy_harness.read_all(connection)
      connection.sendall(hashlib.sha256(data).hexdigest().encode())

    data = pattern(5_000_000)
    proxy = self.start_proxy(upstreams=[self.upstream(digest)])
    done = self.run_client("nc", "-N", "127.0.0.1", str(proxy.port),
                           stdin=data)
    self.assertEqual(done.stdout.decode(), hashlib.sha256(data).hexdigest())
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "finished")
    self.assertEqual(line["to_upstream"], str(len(data)))
    self.assertEqual(line["to_client"], "64")
    self.assertEqual(line["error"], "-")

  def test_the_upstream_ends_first(self):
    received = []
    complete = threading.Event()

    def speak_then_listen(connection):
      connection.sendall(b"that is all")
      connection.shutdown(socket.SHUT_WR)
      received.append(proxy_harness.read_all(connection))
      complete.set()

    proxy = self.start_proxy(upstreams=[self.upstream(speak_then_listen)])
    client = self.connect(proxy)
    self.assertEqual(proxy_harness.read_all(client), b"that is all")
    data = pattern(2_000_000)
    client.sendall(data)
    client.shutdown(socket.SHUT_WR)
    self.assertTrue(complete.wait(proxy_harness.LIMIT_S))
    self.assertEqual(received, [data])
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "finished")

  def test_a_client_that_resets(self):
    ended = threading.Event()

    def wait_for_end(connection):
      try:
        connection.sendall(b"go on")
        proxy_harness.read_all(connection)
      finally:
        ended.set()

    proxy = self.start_proxy(upstreams=[self.upstream(wait_for_end)])
    client = self.connect(proxy)
    self.assertEqual(client.recv(5), b"go on")
    proxy_harness.reset(client)
    self.assertTrue(ended.wait(proxy_harness.LIMIT_S))
    (line,) = self.access_lines(1)
    self.assertEqual(line["end"], "client-aborted")
    self.assertEqual(line["error"], "ECONNRESET")


class ManyClients(proxy_harness.ProxyTest):

  def start_echo_servers(self, count, *arguments):
    servers = [self.start_server("--flare_concurrency_hint=1", *arguments)
               for _ in range(count)]
    return [f"127.0.0.1:{server.port}" for server in servers]

  def test_a_thousand_idle_ones_and_two_hundred_busy_ones(self):
    proxy_harness.want_descriptors(4096)
    # Calls that take their time: all 200 are busy, however fast the machine is.
    slow = self.start_echo_servers(2, "--work=sleep_fiber", "--work_us=20000")
    proxy = self.start_proxy(upstreams=slow)
    idle = [self.connect(proxy) for _ in range(1000)]
    press = self.start(
        "press", f"--server_addr=http+pb://127.0.0.1:{proxy.port}",
        "--flare_concurrency_hint=1", "--max_pending=200",
        "--report_interval=0.5",
        "--flare_rpc_client_max_connections_per_server=200", "--timeout=30000",
        f"--json={self.path('press.json')}")
    busy = self.wait_for_statistics(proxy, lambda s: s["active"] >= 1200,
                                    "1200 sessions")
    self.assertEqual(sum(busy["sessions_per_group"]), busy["active"])
    press.wait_for("QPS: [1-9]", after=len(press.log()))
    self.assertEqual(press.stop(signal.SIGINT), 0, press)
    with open(self.path("press.json")) as f:
      result = json.load(f)
    self.assertEqual(result["failures"], 0)
    self.assertGreater(result["requests"], 200)
    # Those that had nothing to say are still served.
    for client in idle:
      client.sendall(b"GET /nowhere HTTP/1.0\r\n\r\n")
    for client in idle:
      reply = proxy_harness.read_all(client)
      self.assertTrue(reply.startswith(b"HTTP/1.1 404 "), reply)
      client.close()
    statistics = self.wait_for_statistics(proxy, lambda s: s["active"] == 0,
                                          "the end of all sessions")
    self.assertEqual(statistics["accepted"], 1200)
    self.assertEqual(statistics["aborted"], 0)

  @needs("ab")
  def test_ab(self):
    upstreams = self.start_echo_servers(2)
    proxy = self.start_proxy(upstreams=upstreams)
    for arguments in (("-c50", "-n1000"), ("-k", "-c50", "-n5000")):
      done = self.run_client("ab", "-q", *arguments,
                             f"http://127.0.0.1:{proxy.port}/")
      self.assertEqual(done.returncode, 0, done)
      self.assertRegex(done.stdout, rb"Failed requests: +0\n")
      count = arguments[-1][2:].encode()
      self.assertRegex(done.stdout, rb"Complete requests: +%s\n" % count)

  def test_limit(self):
    proxy = self.start_proxy("--max_connections=3",
                             upstreams=[self.upstream()])
    clients = [self.connect(proxy) for _ in range(3)]
    for client in clients:
      client.sendall(b"a")
      self.assertEqual(client.recv(1), b"a")
    self.assertEqual(self.exchange(proxy), b"")
    proxy.wait_for("was turned away: over-limit")
    clients.pop().close()
    self.wait_for_statistics(proxy, lambda s: s["active"] == 2, "a free place")
    self.assertEqual(self.exchange(proxy), b"hello")
    self.assertEqual(self.statistics(proxy)["refused"], 1)


if __name__ == "__main__":
  proxy_harness.main()
