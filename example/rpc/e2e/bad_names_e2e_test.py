#!/usr/bin/python3
"""Names of servers that have a bad day, by real programs and sockets
(docs/resilience.md)."""

import collections
import os
import random
import signal
import socket
import struct
import threading
import time
import unittest

import harness
import pressed


class Dns:
  """A name server with a time to live of a second."""

  A = 1
  SRV = 33
  NO_SUCH_NAME = 3
  FAILURE = 2

  def __init__(self):
    # (name, type): the data of its records. Replaced, not changed.
    self.names = {}
    self.error = None  # The answer in place of an echo.
    self.silent = False
    self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    self.socket.bind(("127.0.0.1", 0))
    self.address = "127.0.0.1:{}".format(self.socket.getsockname()[1])
    self.asked = collections.Counter()  # By name.
    self.thread = threading.Thread(target=self._serve, daemon=True)
    self.thread.start()

  @staticmethod
  def encode(name):
    return b"".join(bytes([len(label)]) + label.encode()
                    for label in name.split(".")) + b"\0"

  def set_addresses(self, name, *addresses):
    self._set(name, self.A, [socket.inet_aton(a) for a in addresses])

  def set_service(self, name, target, *ports):
    self._set(name, self.SRV, [
        struct.pack(">HHH", 0, 1, port) + self.encode(target)
        for port in ports])

  def _set(self, name, kind, records):
    self.names = {**self.names, (name, kind): records}

  def _serve(self):
    while True:
      query, peer = self.socket.recvfrom(512)
      if not query:
        return
      reply = self._reply(query)
      if not self.silent:
        self.socket.sendto(reply, peer)

  def _reply(self, query):
    labels = []
    at = 12
    while query[at]:
      labels.append(query[at + 1:at + 1 + query[at]].decode())
      at += 1 + query[at]
    end = at + 5
    name = ".".join(labels)
    self.asked[name] += 1
    kind = int.from_bytes(query[at + 1:at + 3], "big")
    names = self.names
    known = any(other == name for other, _ in names)
    error = (self.error if self.error is not None else
             0 if known else self.NO_SUCH_NAME)
    records = [] if error else names.get((name, kind), [])
    answers = b"".join(
        struct.pack(">HHHIH", 0xC00C, kind, 1, 1, len(data)) + data
        for data in records)
    # A response with authority, to a question that may ask for recursion.
    return (query[:2] + struct.pack(">HHHHH", 0x8580 | error, 1, len(records),
                                    0, 0) + query[12:end] + answers)

  def close(self):
    self.socket.sendto(b"", self.socket.getsockname())
    self.thread.join()
    self.socket.close()


class Etcd:
  """A real etcd, at an address of the loopback network that nobody else uses,
  so that its ports are free again when it is started again."""

  PROGRAM = "/usr/bin/etcd"

  def __init__(self, test):
    self.test = test
    self.host = "127.{}.{}.{}".format(*(random.randint(1, 250)
                                        for _ in range(3)))
    self.address = f"{self.host}:2379"
    self.start()

  def start(self):
    peer = f"http://{self.host}:2380"
    client = f"http://{self.address}"
    self.process = self.test.start(
        self.PROGRAM, "--data-dir", self.test.path("etcd"),
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"default={peer}")


class BadNames(pressed.TestCase):
  """A file, a name server and an etcd: no call fails."""

  def test_of_a_file_of_servers(self):
    """It is missing, wrong, and then has other servers: no call fails."""
    one, two, three = (self.start_good() for _ in range(3))
    path = self.path("servers")

    def write(text):
      with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
      os.rename(path + ".new", path)

    write(f"127.0.0.1:{one.port}\n127.0.0.1:{two.port}\n")
    line = self.start_line_to("file", f"flare://{path}", pressed.PATIENT_MS,
                              "--override_nslb=file+rr")
    self.await_calls(one, two)
    os.remove(path)
    line.await_more_reports(4)
    write("nonsense;\n")
    line.await_more_reports(4)
    write(f"127.0.0.1:{two.port}\n127.0.0.1:{three.port}\n")
    self.await_calls(two, three)
    calls = self.calls_of(one)
    line.await_more_reports(2)
    self.assertEqual(self.calls_of(one), calls)
    self.check_no_call_failed("servers change, ", line)

  def test_of_names(self):
    """They have one server, are unknown, fail, get no answer, and then have
    others: no call fails. Once by addresses, once by SRV records."""
    dns = Dns()
    self.addCleanup(dns.close)
    port = harness.free_port()
    hosts = [f"127.0.0.{number}" for number in (2, 3, 4)]
    one, two, three = (self.start_at(host, port) for host in hosts)
    dns.set_addresses("localhost.test", "127.0.0.1")
    services = [self.start_good() for _ in range(3)]
    ports = [server.port for server in services]

    def set_names(first, last):
      dns.set_addresses("echo.test", *hosts[first:last])
      dns.set_service("_echo._tcp.test", "localhost.test", *ports[first:last])

    set_names(0, 2)
    lines = [
        self.start_line_to(name, f"flare://{dns.address}/{name}",
                           pressed.PATIENT_MS, "--override_nslb=dns+rr")
        for name in (f"echo.test:{port}", "_echo._tcp.test")]
    self.await_calls(one, two, *services[:2])

    def await_questions():
      before = dns.asked.copy()
      harness.wait_until(
          lambda: all(dns.asked[name] > before[name]
                      for name in ("echo.test", "_echo._tcp.test")),
          "questions to the name server")
      for line in lines:
        line.await_more_reports(2)

    names, dns.names = dns.names, {}
    await_questions()
    dns.names, dns.error = names, dns.FAILURE
    await_questions()
    dns.error, dns.silent = None, True
    await_questions()
    dns.silent = False
    set_names(1, 3)
    back_at = time.monotonic()
    self.await_calls(two, three, *services[1:])
    recovered_s = time.monotonic() - back_at
    print(f"the names' new servers have calls after {recovered_s:.1f} s",
          flush=True)
    gone = one, services[0]
    calls = [self.calls_of(server) for server in gone]
    for line in lines:
      line.await_more_reports(2)
    self.assertEqual([self.calls_of(server) for server in gone], calls)
    for line in lines:
      self.check_no_call_failed("names change, ", line)

  @unittest.skipUnless(os.access(Etcd.PROGRAM, os.X_OK), "there is no etcd")
  def test_of_etcd(self):
    """It is killed, restarted and cut off, then has another server: no call
    fails."""
    etcd = Etcd(self)
    flag = f"--register=etcd://{etcd.address}/servers/"
    one, two = (self.start_good(flag) for _ in range(2))
    for server in one, two:
      server.wait_for("is registered in etcd")
    line = self.start_line_to(
        "etcd", f"flare://{etcd.address}/servers/", pressed.PATIENT_MS,
        "--override_nslb=etcd+rr")
    self.await_calls(one, two)
    etcd.process.kill()
    line.await_more_reports(4)
    etcd.start()
    line.await_more_reports(4)
    etcd.process.send_signal(signal.SIGSTOP)
    line.await_more_reports(8)
    etcd.process.send_signal(signal.SIGCONT)
    three = self.start_good(flag)
    self.await_calls(one, two, three)
    self.assertEqual(one.stop(), 0)  # It takes itself out of etcd.
    self.await_calls(two, three)
    line.await_more_reports(2)
    self.check_no_call_failed("etcd has a bad day, ", line)


if __name__ == "__main__":
  harness.main()
