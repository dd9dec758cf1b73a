#!/usr/bin/python3
"""server --record and press --replay as people run them."""

import glob
import json
import os
import struct
import subprocess

import harness
import wire

ECHO = "example.protobuf_echo.EchoService.Echo"
BINARY = ("flare", "http+pb", "baidu-std", "trpc", "bolt", "grpc")
TEXT = ("http+proto3-json", "http+pb-text")
WRONG_FLAG = 2


class ReplayTest(harness.TestCase):

  def record(self, calls, *flags, scheme="flare", press=()):
    """Has a server record that many calls; returns the folder."""
    folder = self.path("calls")
    server = self.start_server("--flare_concurrency_hint=1",
                               f"--record={folder}", *flags)
    status, log, _ = self.press(
        f"--server_addr={scheme}://127.0.0.1:{server.port}",
        f"--requests={calls}", "--max_pending=4", *press)
    self.assertEqual(server.stop(), 0, server)
    self.last_server_log = server.log()
    self.press_log = log
    return folder

  def press(self, *flags):
    """Returns (exit status, output, its JSON)."""
    path = self.path("press.json")
    status, log = self.run_to_end(
        "press", "--logtostderr", "--flare_concurrency_hint=1",
        f"--json={path}", *flags)
    with open(path) as f:
      text = f.read()
    return status, log, json.loads(text) if text else None

  def replay(self, server, folder, *flags, scheme="flare", status=0):
    got, log, figures = self.press(
        f"--server_addr={scheme}://127.0.0.1:{server.port}",
        f"--replay={folder}", "--max_pending=4", *flags)
    self.assertEqual(got, status, log)
    return log, figures

  def write_recording(self, *calls):
    """Writes short calls of (method, request) as docs/record_replay.md says."""
    path = self.path("written.calls")
    with open(path, "wb") as f:
      f.write(b"flarecal" + struct.pack("<II", 1, 0))
      for method, request in calls:
        call = (bytes([2 << 3 | 2, len(method)]) + method.encode() +
                bytes([3 << 3 | 2, len(request)]) + request)
        size = struct.pack("<I", len(call))
        f.write(size + struct.pack("<I", wire.crc32c(size + call)) + call)
    return path

  def other_server(self, *flags):
    return self.start_server("--flare_concurrency_hint=1", *flags)

  def print_calls(self, folder, *flags):
    """Returns the calls, and the log in self.print_log."""
    ended = subprocess.run(
        [harness.find_binary("press"), f"--replay={folder}", "--print",
         "--flare_concurrency_hint=1", *flags],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
        timeout=2 * harness.PATIENCE_S)
    self.assertEqual(ended.returncode, 0, ended.stderr)
    self.print_log = ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


class Replays(ReplayTest):

  def test_counts_agree_over_each_protocol(self):
    folder = self.record(20, "--record_replies",
                         press=("--body=hello", "--timeout=20000"))
    self.assertIn("recorded calls: 20; dropped calls: 0 ",
                  self.last_server_log)
    server = self.other_server()
    common = ("--replay_speed=0", "--replay_compare_replies")
    for scheme in BINARY:
      with self.subTest(scheme=scheme):
        log, figures = self.replay(server, folder, *common, scheme=scheme)
        self.assertEqual(figures["requests"], 20, log)
        self.assertEqual(figures["changed_statuses"], {})
        self.assertEqual(figures["changed_replies"], 0)
        self.assertIn("20 call(s) ended as recorded, 0 otherwise", log)
    for scheme in TEXT:
      with self.subTest(scheme=scheme):
        _, figures = self.replay(server, folder, *common,
                                 f"--proto={harness.PROTO_FILE}",
                                 scheme=scheme)
        self.assertEqual(figures["requests"], 20)
        self.assertEqual(figures["changed_replies"], 0)
    self.assertEqual(server.stop(), 0)
    total = 20 * len(BINARY + TEXT)
    self.assertIn(f"Processed {total} request(s) in total.", server.log())

  def test_calls_keep_their_times_or_get_others(self):
    folder = self.record(11, press=("--qps=50", "--timeout=20000"))
    server = self.other_server()
    calls = self.print_calls(folder)
    self.assertEqual(len(calls), 11)
    # About 0.2 s; a replay may be late, but not early.
    log, figures = self.replay(server, folder)
    recorded_s = float(log.split(" call(s) that came in ")[-1].split()[0]
                       if " call(s) that came in " in log else
                       log.split(" that came in ")[1].split()[0])
    self.assertGreaterEqual(figures["duration_s"], recorded_s * 0.99)
    _, figures = self.replay(server, folder, "--replay_speed=2")
    self.assertGreaterEqual(figures["duration_s"], recorded_s * 0.49)
    _, figures = self.replay(server, folder, "--qps=1000", "--replay_times=3")
    self.assertEqual(figures["requests"], 33)
    _, figures = self.replay(server, folder, "--replay_speed=0",
                             "--requests=25")
    self.assertEqual(figures["requests"], 25)
    self.assertEqual(server.stop(), 0)
    self.assertIn(f"Processed {11 + 11 + 33 + 25} request(s) in total.",
                  server.log())

  def test_other_outcomes_are_reported(self):
    folder = self.record(10, "--fail_with=1234", press=("--timeout=20000",))
    # As recorded: failures are well.
    _, figures = self.replay(self.other_server("--fail_with=1234"), folder,
                             "--replay_speed=0")
    self.assertEqual(figures["failures"], 10)
    self.assertEqual(figures["changed_statuses"], {})
    log, figures = self.replay(self.other_server(), folder,
                               "--replay_speed=0", status=1)
    self.assertEqual(figures["failures"], 0)
    self.assertEqual(figures["changed_statuses"], {"1234": {"0": 10}})
    self.assertIn(r"status 1234 (STATUS_USER) became status 0", log)
    self.assertIn("0 call(s) ended as recorded, 10 otherwise", log)

  def test_other_replies_are_reported(self):
    folder = self.record(5, "--record_replies",
                         press=("--body=x", "--timeout=20000"))
    server = self.other_server("--tell_identity")
    self.replay(server, folder, "--replay_speed=0")
    log, figures = self.replay(server, folder, "--replay_speed=0",
                               "--replay_compare_replies", status=1)
    self.assertEqual(figures["changed_replies"], 5)
    times = "|".join(call["time"] for call in self.print_calls(folder))
    self.assertRegex(
        log, f"Call of {ECHO} recorded at ({times}) to flare://127.0.0.1:"
        f"{server.port}: another reply")

  def test_several_targets_share_the_calls(self):
    folder = self.record(9, press=("--timeout=20000",))
    servers = [self.other_server(), self.other_server()]
    addresses = ";".join(f"flare://127.0.0.1:{s.port}" for s in servers)
    status, log, figures = self.press(
        f"--server_addr={addresses}", f"--replay={folder}",
        "--replay_speed=0", "--max_pending=4")
    self.assertEqual(status, 0, log)
    self.assertEqual(figures["requests"], 9)
    for server, calls in zip(servers, (5, 4)):
      self.assertEqual(server.stop(), 0)
      self.assertIn(f"Processed {calls} request(s) in total.", server.log())

  def test_a_killed_server_leaves_what_it_has_written(self):
    folder = self.path("calls")
    server = self.start_server("--flare_concurrency_hint=1",
                               f"--record={folder}")
    self.press(f"--server_addr=flare://127.0.0.1:{server.port}",
               "--requests=10", "--max_pending=4", "--timeout=20000")
    harness.wait_until(lambda: glob.glob(os.path.join(folder, "*.calls")),
                       "a file")
    harness.wait_until(lambda: len(self.print_calls(folder)) == 10,
                       "all calls in it")
    server.kill()
    path, = glob.glob(os.path.join(folder, "*.calls"))
    os.truncate(path, os.path.getsize(path) - 1)
    log, figures = self.replay(self.other_server(), folder, "--replay_speed=0")
    self.assertEqual(figures["requests"], 9)
    self.assertIn("is cut off", log)


class Prints(ReplayTest):

  def test_requests_are_json_where_they_are_described(self):
    folder = self.record(2, scheme="grpc",
                         press=("--body=hello", "--timeout=20000"))
    for call in self.print_calls(folder):
      self.assertEqual(call["method"], ECHO)
      self.assertEqual(call["request_hex"], "0a0568656c6c6f")
    for call in self.print_calls(folder, f"--proto={harness.PROTO_FILE}"):
      self.assertEqual(call["request"], {"body": "hello"})
    server = self.other_server()
    for call in self.print_calls(
        folder, f"--server_addr=flare://127.0.0.1:{server.port}"):
      self.assertEqual(call["request"], {"body": "hello"})
    self.assertEqual(self.print_calls(folder, "--replay_methods=shop."), [])

  def test_requests_are_hexadecimal_where_nobody_describes_them(self):
    echo = (ECHO, b"\x0a\x05hello")
    other = ("shop.Catalog.Get", b"\xff")
    recording = self.write_recording(echo, other, echo, other)
    address = f"--server_addr=flare://127.0.0.1:{self.other_server().port}"
    calls = self.print_calls(recording, address)
    self.assertEqual([call["method"] for call in calls],
                     [ECHO, other[0]] * 2)
    for call in calls[::2]:
      self.assertEqual(call["request"], {"body": "hello"})
    for call in calls[1::2]:
      self.assertEqual(call["request_hex"], "ff")
    self.assertEqual(
        self.print_log.count("Calls of shop.Catalog are printed in hex"), 1,
        self.print_log)

  def test_a_full_disk_is_no_wrong_flag(self):
    folder = self.record(1, press=("--timeout=20000",))
    with open("/dev/full", "w") as full:
      ended = subprocess.run(
          [harness.find_binary("press"), f"--replay={folder}", "--print",
           "--flare_concurrency_hint=1"], stdout=full, stderr=subprocess.PIPE,
          encoding="utf-8", timeout=2 * harness.PATIENCE_S)
    self.assertEqual(ended.returncode, 1, ended.stderr)
    self.assertIn("can't write to stdout: No space left", ended.stderr)
    self.assertNotIn("--help", ended.stderr)

  def test_reflection_isnt_recorded(self):
    folder = self.record(1, press=(f"--method={ECHO}", "--data={}",
                                   "--timeout=20000"))
    call, = self.print_calls(folder)
    self.assertEqual(call["method"], ECHO)


class Mistakes(ReplayTest):

  def refused(self, text, *flags):
    status, log, _ = self.press(*flags)
    self.assertEqual(status, WRONG_FLAG, log)
    self.assertIn(text, log)

  def test_are_told(self):
    folder = self.record(1, press=("--timeout=20000",))
    address = "--server_addr=flare://127.0.0.1:1"
    replay = f"--replay={folder}"
    self.refused("--replay_speed goes with --replay", address,
                 "--replay_speed=2")
    self.refused("--qps and --replay_speed exclude", address, replay,
                 "--qps=1", "--replay_speed=2")
    self.refused("--requests and --replay_times exclude", address, replay,
                 "--requests=1", "--replay_times=2")
    self.refused("--body doesn't go with --replay", address, replay,
                 "--body=x")
    self.refused("--method doesn't go with --replay", address, replay,
                 f"--method={ECHO}")
    self.refused("has 0 calls of the methods asked for", address, replay,
                 "--replay_methods=shop.")
    self.refused("not http://", "--server_addr=http://127.0.0.1:1/x", replay)
    self.refused("No such file", address, f"--replay={folder}/x")
    self.refused("is no recording of calls", address,
                 f"--replay={harness.PROTO_FILE}")
    self.refused("--print goes with --replay", "--print")
    self.refused("fused", "--print", replay, address)  # Refused connection.
    self.refused("give --reflection_addr", replay,
                 "--server_addr=http+proto3-json://127.0.0.1:1")

  def test_of_servers_are_told(self):
    status, log = self.run_to_end(
        "server", "--logtostderr", f"--port={harness.free_port()}",
        f"--record={self.folder}/a/b")
    self.assertEqual(status, WRONG_FLAG, log)
    self.assertIn(f"--record={self.folder}/a/b: can't make the folder", log)
    status, log = self.run_to_end("server", "--record_fraction=2")
    self.assertEqual(status, WRONG_FLAG, log)


if __name__ == "__main__":
  harness.main()
