#!/usr/bin/python3
"""What loads may be made of: the long tail, synchronous callers, sizes, plain
HTTP, several targets, histogram files; and servers that take their time."""

import contextlib
import json
import os
import socket
import subprocess
import threading

import harness
import wire

MERGE = os.path.join(harness.SOURCE_TREE, "tools", "press_merge")
SCHEMES = ("flare", "baidu-std", "trpc", "bolt", "http+pb", "http+pb-text",
           "http+proto3-json")
QUICKLY = ("--requests=400", "--max_pending=8", "--timeout=20000")


class LoadTest(harness.TestCase):

  def press(self, address, *arguments, expected=0):
    """Runs press to its end; returns (output, its JSON)."""
    json_file = self.path("press.json")
    # No call is to end by its time-out, however busy the machine is.
    status, log = self.run_to_end("press", f"--server_addr={address}",
                                  "--timeout=20000", f"--json={json_file}",
                                  *arguments)
    self.assertEqual(status, expected, log)
    with open(json_file) as f:
      return log, json.load(f)

  def address(self, scheme, port, path=""):
    return f"{scheme}://127.0.0.1:{port}{path}"


class LongTail(LoadTest):

  def check(self, figures, requests=400):
    tail = figures["tail"]
    self.assertEqual(tail["failures"], 0)
    self.assertEqual(figures["requests"] + tail["requests"], requests)
    self.assertGreater(figures["requests"], 0)
    self.assertGreater(tail["requests"], 0)
    for part in (figures, tail):
      self.assertEqual(sum(count for _, _, count in part["histogram_ns"]),
                       part["requests"])

  def test_is_reported_apart_over_every_protocol(self):
    server = self.start_server("--flare_concurrency_hint=2")
    for scheme in SCHEMES:
      for rate in ((), ("--qps=100000",)):
        with self.subTest(scheme=scheme, rate=rate):
          log, figures = self.press(
              self.address(scheme, server.port), *QUICKLY, *rate, "--verify",
              "--tail_ratio=0.2", "--tail_us=3000", "--body_size=50")
          self.check(figures)
          # The server did the requested work.
          self.assertGreater(figures["tail"]["p50_us"], 2900)
          self.assertIn("Tail: ", log)

  def test_every_kind_of_work(self):
    server = self.start_server("--flare_concurrency_hint=1")
    for kind in ("sleep_thread", "sleep_fiber", "spin"):
      with self.subTest(kind=kind):
        _, figures = self.press(
            self.address("flare", server.port), *QUICKLY, "--tail_ratio=0.05",
            "--tail_us=2000", f"--tail_work={kind}")
        self.check(figures)
        self.assertGreater(figures["tail"]["p50_us"], 1900)

  def test_a_client_of_nothing_but_the_tail(self):
    server = self.start_server()
    _, figures = self.press(
        self.address("flare", server.port), "--requests=20", "--max_pending=4",
        "--tail_ratio=1", "--tail_us=100")
    self.assertEqual(figures["requests"], 0)
    self.assertEqual(figures["tail"]["requests"], 20)

  def test_failures_of_the_tail_set_the_exit_status(self):
    server = self.start_server("--fail_with=1234")
    _, figures = self.press(
        self.address("flare", server.port), "--requests=20", "--max_pending=4",
        "--tail_ratio=1", expected=1)
    self.assertEqual(figures["failures"], 0)
    self.assertEqual(figures["tail"]["failures_by_status"], {"1234": 20})

  def test_plain_http_asks_for_another_path(self):
    server = self.start_server()
    _, figures = self.press(
        self.address("http", server.port, "/"), *QUICKLY, "--tail_ratio=0.2",
        "--tail_path=/nowhere", expected=1)
    self.assertEqual(figures["failures"], 0)
    self.assertEqual(figures["tail"]["failures_by_status"],
                     {"404": figures["tail"]["requests"]})

  def test_server_refuses_what_is_too_much(self):
    server = self.start_server()
    with wire.FlareConnection(server.port) as connection:
      echo = wire.messages()[0].EchoRequest(body="x", work=3,
                                            work_us=10_000_001)
      reply = connection.call(wire.frame(wire.request_meta(1),
                                         echo.SerializeToString()))
      self.assertNotEqual(reply.status, 0)
      echo.work = 77
      echo.work_us = 1
      reply = connection.call(wire.frame(wire.request_meta(2),
                                         echo.SerializeToString()))
      self.assertNotEqual(reply.status, 0)
      self.assertIn("77", reply.meta.response_meta.description)
    self.assertTrue(wire.echo_works(server.port))


class Callers(LoadTest):

  def test_synchronous_callers(self):
    server = self.start_server("--flare_concurrency_hint=2")
    for kind in ("fiber", "thread"):
      for address in (self.address("flare", server.port),
                      self.address("http+pb", server.port),
                      self.address("http", server.port, "/echo")):
        with self.subTest(kind=kind, address=address):
          _, figures = self.press(
              address, "--callers=7", f"--caller_kind={kind}",
              "--requests=1000", "--body_size=10", "--verify",
              "--timeout=20000")
          self.assertEqual(figures["requests"], 1000)

  def connections(self, server):
    """How many are established to it."""
    state_established = "01"
    with open(f"/proc/{server.pid}/net/tcp") as f:
      rows = [line.split() for line in f.readlines()[1:]]
    return sum(1 for row in rows if row[3] == state_established and
               row[1].endswith(f":{server.port:04X}"))

  def await_connections(self, server, *counts):
    # The kernel goes through all sockets of the machine for it.
    harness.wait_until(lambda: self.connections(server) in counts,
                       f"{counts} connection(s)", poll_s=0.05)

  def test_single_and_pooled_connections(self):
    server = self.start_server("--flare_concurrency_hint=2")
    for kind, expected in (("single", (1,)), ("pooled", (6,)), ("short", (6,))):
      with self.subTest(kind=kind):
        press = self.start(
            "press", f"--server_addr=flare://127.0.0.1:{server.port}",
            "--callers=6", f"--connections={kind}", "--timeout=20000",
            # Calls take so long that all are under way together.
            "--tail_ratio=1", "--tail_us=300000", "--flare_concurrency_hint=2")
        self.await_connections(server, *expected)
        self.assertEqual(press.stop(), 0, press)
        self.await_connections(server, 0)

  def test_connections_of_scheduling_groups(self):
    server = self.start_server("--flare_concurrency_hint=2")
    for kind, caller, expected in (("single", "fiber", 3),
                                   ("pooled", "fiber", 4),
                                   ("pooled", "thread", 4)):
      with self.subTest(kind=kind, caller=caller):
        press = self.start(
            "press", f"--server_addr=flare://127.0.0.1:{server.port}",
            "--callers=4", f"--caller_kind={caller}", f"--connections={kind}",
            "--timeout=20000", "--tail_ratio=1", "--tail_us=300000",
            # Three groups; tasks of one aren't taken by another.
            "--flare_concurrency_hint=3", "--flare_scheduling_group_size=1",
            "--flare_work_stealing_ratio=0")
        self.await_connections(server, expected)
        self.assertEqual(press.stop(), 0, press)
        self.await_connections(server, 0)


class SizesAndTargets(LoadTest):

  def test_sizes_are_drawn(self):
    server = self.start_server()
    for sizes in ("0-3000", "16:9,100000:1", "5"):
      with self.subTest(sizes=sizes):
        _, figures = self.press(
            self.address("flare", server.port), *QUICKLY, "--verify",
            f"--body_size={sizes}")
        self.assertEqual(figures["requests"], 400)

  def test_several_targets_side_by_side(self):
    first, second = self.start_server(), self.start_server()
    addresses = [self.address("flare", first.port),
                 self.address("http+pb", second.port),
                 self.address("http", second.port, "/")]
    log, figures = self.press(
        ";".join(addresses), "--requests=1000", "--max_pending=10",
        "--tail_ratio=0.1", "--tail_us=10", "--tail_path=/")
    self.assertEqual([target["server_addr"] for target in figures["targets"]],
                     addresses)
    counts = [target["requests"] + target["tail"]["requests"]
              for target in figures["targets"]]
    self.assertEqual(counts, [334, 333, 333], log)
    self.assertEqual(figures["requests"] + figures["tail"]["requests"], 1000)
    self.assertEqual(
        sum(count for _, _, count in figures["histogram_ns"]),
        figures["requests"])

  def test_the_rate_of_a_target_is_that_until_it_was_done(self):
    fast = self.start_server()
    slow = self.start_server("--work=sleep_fiber", "--work_us=100000")
    _, figures = self.press(
        f"flare://127.0.0.1:{fast.port};flare://127.0.0.1:{slow.port}",
        "--requests=40", "--max_pending=2")
    first, last = figures["targets"]
    self.assertLess(first["duration_s"], last["duration_s"])
    self.assertLessEqual(last["duration_s"], figures["duration_s"])
    for load, requests in (first, 20), (last, 20), (figures, 40):
      self.assertAlmostEqual(load["qps"] * load["duration_s"], requests,
                             delta=0.1)

  def test_a_dead_target_does_not_delay_the_others(self):
    server = self.start_server()
    dead = harness.free_port()
    _, figures = self.press(
        f"flare://127.0.0.1:{dead};flare://127.0.0.1:{server.port}",
        "--requests=20", "--max_pending=4", expected=1)
    self.assertEqual([target["failures"] for target in figures["targets"]],
                     [10, 0])

  def test_many_addresses_of_one_target_take_turns(self):
    servers = [self.start_server() for _ in range(3)]
    addresses = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    # One call at a time: while a server is being connected to, the calls that
    # come then go to the others.
    self.press("flare://" + addresses, "--requests=999", "--max_pending=1",
               "--override_nslb=list+rr")
    for server in servers:
      self.assertEqual(server.stop(), 0)
      self.assertIn("Processed 333 request(s) in total.", server.log())


class HistogramFiles(LoadTest):

  def run_twice(self):
    """Two presses side by side; returns [(JSON file, log file)]."""
    server = self.start_server("--flare_concurrency_hint=2")
    files = [(self.path(f"{i}.json"), self.path(f"{i}.hdr")) for i in "ab"]
    presses = [
        self.start("press", f"--server_addr=flare://127.0.0.1:{server.port}",
                   "--duration=1.2", "--max_pending=4", "--qps=1000",
                   f"--json={json_file}",
                   f"--hdr_log={hdr_file}", "--report_interval=0.5",
                   "--tail_ratio=0.1", "--tail_us=100", "--timeout=20000")
        for json_file, hdr_file in files]
    for press in presses:
      self.assertEqual(press.wait(), 0, press)
    return files

  def merge(self, *files, expected=0):
    done = subprocess.run([MERGE, *files], capture_output=True, text=True,
                          timeout=harness.PATIENCE_S)
    self.assertEqual(done.returncode, expected, done.stderr)
    return json.loads(done.stdout) if expected == 0 else done.stderr

  def test_merging_keeps_every_call(self):
    files = self.run_twice()
    originals = []
    for json_file, _ in files:
      with open(json_file) as f:
        originals.append(json.load(f))
    from_json = self.merge(*(json_file for json_file, _ in files))
    from_logs = self.merge(*(hdr_file for _, hdr_file in files))
    for part in (lambda figures: figures, lambda figures: figures["tail"]):
      counts = {}
      for original in originals:
        for lower, upper, count in part(original)["histogram_ns"]:
          counts[lower, upper] = counts.get((lower, upper), 0) + count
      expected = [[*bounds, count] for bounds, count in sorted(counts.items())]
      for merged in (from_json, from_logs):
        self.assertEqual(part(merged)["histogram_ns"], expected)
        self.assertEqual(part(merged)["requests"],
                         sum(part(o)["requests"] for o in originals))
        self.assertEqual(part(merged)["max_us"],
                         max(part(o)["max_us"] for o in originals))
      self.assertAlmostEqual(part(from_json)["qps"],
                             sum(part(o)["qps"] for o in originals), delta=0.1)

  def test_one_file_merged_is_the_same(self):
    (json_file, hdr_file), _ = self.run_twice()
    with open(json_file) as f:
      original = json.load(f)
    for merged in (self.merge(json_file), self.merge(hdr_file)):
      for key in original:
        if key.endswith("_us") and key != "avg_us":
          self.assertAlmostEqual(merged[key], original[key], delta=0.002,
                                 msg=key)
    merged = self.merge(json_file)
    for key in original.keys() - {"command_line", "tail", "avg_us"}:
      self.assertEqual(merged[key], original[key], key)

  def test_rates_of_logs_are_those_of_press(self):
    # Calls take so long that some end behind the window.
    server = self.start_server("--work=sleep_fiber", "--work_us=300000")
    hdr_file = self.path("press.hdr")
    for interval in ("0.4", "10"):
      with self.subTest(interval=interval):
        _, figures = self.press(
            self.address("flare", server.port), "--max_pending=8",
            "--duration=1", f"--report_interval={interval}",
            "--tail_ratio=0.5", "--tail_us=300000", f"--hdr_log={hdr_file}")
        merged = self.merge(hdr_file)
        for of_log, of_press in ((merged, figures),
                                 (merged["tail"], figures["tail"])):
          self.assertEqual(of_log["requests"], of_press["requests"])
          self.assertAlmostEqual(of_log["duration_s"], of_press["duration_s"],
                                 delta=0.01)
          self.assertAlmostEqual(of_log["qps"], of_press["qps"],
                                 delta=0.01 * of_press["qps"])

  def test_bad_files_are_named(self):
    (json_file, hdr_file), _ = self.run_twice()
    with open(hdr_file) as f:
      log = f.read()
    with open(json_file) as f:
      report = json.load(f)
    lost = dict(report, requests=report["requests"] + 1)
    without = {key: report[key] for key in report if key != "qps"}
    bad = {
        "empty": "", "text": "hello\n", "cut": log[:-10], "json": "{",
        "list": "[]", "number": '{"qps": []}', "lost": json.dumps(lost),
        "without": json.dumps(without),
        "encoding": log.replace("HISTFAAA", "HISTEwAA"),
        "base64": log.replace("HISTFAAA", "HISTF!AA"),
        "tag": log.replace("Tag=tail", "Tag=head"),
    }
    for name, text in bad.items():
      with self.subTest(name=name):
        with open(self.path(name), "w") as f:
          f.write(text)
        said = self.merge(self.path(name), expected=1)
        self.assertIn(self.path(name), said)
        self.assertEqual(said.count("\n"), 1, said)
        if name in ("text", "list"):
          self.assertIn("neither JSON nor an HdrHistogram log", said)
    self.merge(json_file, hdr_file, expected=1)
    self.merge("/nowhere/x.json", expected=1)


class SlowServers(LoadTest):

  def test_work_of_every_call(self):
    for kind in ("sleep_thread", "sleep_fiber", "spin"):
      with self.subTest(kind=kind):
        server = self.start_server(f"--work={kind}", "--work_us=3000",
                                   "--flare_concurrency_hint=2")
        _, figures = self.press(self.address("flare", server.port),
                                "--requests=20", "--max_pending=2")
        self.assertGreater(figures["histogram_ns"][0][1], 3_000_000)

  def test_published_jitter(self):
    server = self.start_server(
        "--work=sleep_thread", "--work_us=50", "--work_dist=poisson",
        "--flare_concurrency_hint=10", "--flare_scheduling_group_size=10")
    _, figures = self.press(
        self.address("http+pb", server.port), "--gdt_stub", "--logtostderr",
        "--flare_rpc_client_max_connections_per_server=10",
        "--max_pending=1000", "--flare_concurrency_hint=20",
        "--flare_scheduling_group_size=10", "--override_nslb=list+rr",
        "--flare_numa_aware", "--requests=5000", "--timeout=20000")
    self.assertEqual(figures["failures"], 0)

  def test_impossible_work_is_refused_with_2(self):
    for flag in ("--work=sleep", "--work_us=-1", "--work_dist=normal"):
      status, log = self.run_to_end("server", "--port=0", flag)
      self.assertEqual(status, 2, log)
      self.assertIn(flag.split("=")[0], log)

  def test_relay_speaks_every_protocol(self):
    server = self.start_server()
    for flags in [], ["--callbacks"]:
      relay = self.start_server(
          f"--forward_to=flare://127.0.0.1:{server.port}", *flags,
          name="relay_server")
      for scheme in SCHEMES:
        with self.subTest(scheme=scheme, flags=flags):
          _, figures = self.press(
              self.address(scheme, relay.port), *QUICKLY, "--relay_stub",
              "--verify", "--body_size=100", "--tail_ratio=0.1",
              "--tail_us=2000")
          self.assertGreater(figures["tail"]["p50_us"], 1900)

  def test_relay_blocks_at_most_its_fiber(self):
    # A backend that answers only once all calls have arrived: they do, over
    # a relay with a single worker, if none of them holds it.
    calls = 64
    for flags in [], ["--callbacks"]:
      with self.subTest(flags=flags), Hoarder(calls) as backend:
        relay = self.start_server(
            f"--forward_to=flare://127.0.0.1:{backend.port}",
            "--flare_concurrency_hint=1", *flags, name="relay_server")
        self.press(self.address("flare", relay.port), "--relay_stub",
                   f"--requests={calls}", f"--max_pending={calls}",
                   "--timeout=50000")


class Hoarder:
  """An echo server that reads `calls` requests before it answers one."""

  def __init__(self, calls):
    wire.messages()  # For one thread at a time.
    self._calls = calls
    self._listener = socket.create_server(("127.0.0.1", 0))
    self._listener.settimeout(harness.PATIENCE_S)
    self.port = self._listener.getsockname()[1]
    self._connections = []
    self._lock = threading.Lock()
    self._replies = []
    self._threads = [threading.Thread(target=self._accept)]
    self._threads[0].start()

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    # This, unlike closing, wakes who is blocked in them.
    sockets = [self._listener] + [c.socket for c in self._connections]
    for end in sockets:
      with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    for thread in self._threads:
      thread.join()
    for end in sockets:
      end.close()

  def _accept(self):
    while True:
      try:
        end, _ = self._listener.accept()
      except OSError:
        return
      connection = wire.FlareConnection.over(end)
      self._connections.append(connection)
      thread = threading.Thread(target=self._serve, args=(connection,))
      self._threads.append(thread)
      thread.start()

  def _serve(self, connection):
    while (request := connection.receive()) is not None:
      with self._lock:
        self._replies.append((connection, request))
        if len(self._replies) < self._calls:
          continue
        for asker, asked in self._replies:
          asker.send(wire.echo_reply_frame(asked))


class BadFlags(LoadTest):

  def test_are_refused_with_2_and_one_line(self):
    flare = "--server_addr=flare://127.0.0.1:1"
    plain = "--server_addr=http://127.0.0.1:1/"
    wrong = {
        "--tail_ratio": [[flare, f"--tail_ratio={ratio}"]
                         for ratio in ("2", "-0.1", "nan")],
        "--tail_us": [[flare, "--tail_us=-1"]],
        "--tail_work": [[flare, "--tail_work=none"], [flare, "--tail_work=x"]],
        "--tail_path": [[plain, "--tail_path=x"]],
        "--body_size": [[flare, f"--body_size={sizes}"] for sizes in (
            "x", "-1", "5-3", "1:0", "1,,2", "1e3", "2000000000")],
        "--callers": [[flare, "--callers=-1"],
                      [flare, "--callers=5", "--max_pending=5"],
                      [flare, "--callers=10001", "--caller_kind=thread"]],
        "--caller_kind": [[flare, "--callers=5", "--caller_kind=process"],
                          [flare, "--caller_kind=thread"],
                          [flare, "--max_pending=5", "--caller_kind=fiber"]],
        "--connections": [
            [flare, "--connections=many"], [plain, "--connections=single"],
            [plain, "--connections=short"],
            [flare, "--connections=single",
             "--flare_rpc_client_max_connections_per_server=2"]],
        "--override_nslb": [[plain, "--override_nslb=list+rr"]],
        "--gdt_stub": [[flare, "--gdt_stub"], [plain, "--gdt_stub"],
                       ["--server_addr=http+pb://127.0.0.1:1", "--gdt_stub",
                        "--relay_stub"]],
        "--hdr_log": [[flare, "--hdr_log=/nowhere/x.hdr"],
                      [flare, "--hdr_log=-"]],
        "targets": [["--server_addr=flare://127.0.0.1:1;flare://127.0.0.1:2",
                     "--max_pending=1"]],
        "plain HTTP": [[plain, "--relay_stub"], [plain, "--attachment_size=1"],
                       [plain, "--compression_algorithm=gzip"]],
        "there is no port": [["--server_addr=http://127.0.0.1/"]],
        "protocol://address": [["--server_addr=flare://127.0.0.1:1;"]],
    }
    for said, command_lines in wrong.items():
      for flags in command_lines:
        with self.subTest(flags=flags):
          status, log = self.run_to_end("press", *flags)
          self.assertEqual(status, 2, log)
          errors = [line for line in log.splitlines()
                    if line.startswith("E") and "press.cc" in line]
          self.assertEqual(len(errors), 1, log)
          self.assertIn(said, errors[0])


if __name__ == "__main__":
  harness.main()
