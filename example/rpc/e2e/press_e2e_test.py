#!/usr/bin/python3
"""press and server as people run them: the published command lines, and what
press promises about its figures, files and exit status."""

import json
import os
import pty
import re
import resource
import signal
import time

import harness

# "avg: 5us, p90: 7us, ...": the line that scripts in the field parse.
LATENCY_LINE = (r"avg: \d+us, p90: \d+us, p95: \d+us, p99: \d+us, "
                r"p995: \d+us, p999: \d+us, p9999: \d+us, max: \d+us\.")
LATENCY_KEYS = ("avg_us", "p50_us", "p90_us", "p95_us", "p99_us", "p995_us",
                "p999_us", "p9999_us", "max_us")
ONE_MORE = ("--flare_concurrency_hint=1", "--max_pending=4")


class PressTest(harness.TestCase):

  def press(self, port, *arguments, scheme="flare"):
    """Runs press to its end; returns (exit status, output, its JSON)."""
    json_file = self.path("press.json")
    status, log = self.run_to_end(
        "press", f"--server_addr={scheme}://127.0.0.1:{port}", "--logtostderr",
        # No call ends by its time-out where a test doesn't want that.
        "--timeout=20000", f"--json={json_file}", *arguments)
    figures = None
    if os.path.exists(json_file):
      with open(json_file) as f:
        figures = json.load(f)
    return status, log, figures

  def press_cleanly(self, port, *arguments, **options):
    """Runs it where no call may fail; returns (output, JSON)."""
    status, log, figures = self.press(port, *arguments, **options)
    self.assertEqual(status, 0, log)
    self.assertEqual(figures["failures"], 0, log)
    self.assertEqual(figures["failures_by_status"], {})
    self.assertGreater(figures["requests"], 0, log)
    return log, figures


class PublishedCommandLines(PressTest):

  def check(self, scheme, server_flags, press_flags):
    server = self.start_server(*server_flags)
    # Short, since it keeps all CPUs busy; the server counts to the next second.
    log, _ = self.press_cleanly(server.port, *press_flags, "--duration=0.5",
                                scheme=scheme)
    self.assertRegex(log, LATENCY_LINE)
    server.wait_for(r"Processed [1-9]\d* request\(s\) in 1 second\.")
    self.assertEqual(server.stop(), 0, server)

  def test_two_threads_over_flare(self):
    self.check("flare", ["--flare_concurrency_hint=2"],
               ["--flare_rpc_client_max_connections_per_server=2",
                "--max_pending=20", "--flare_concurrency_hint=2"])

  def test_two_threads_over_http(self):
    self.check("http+pb", ["--flare_concurrency_hint=2"],
               ["--flare_rpc_client_max_connections_per_server=2",
                "--max_pending=20", "--flare_concurrency_hint=2"])

  def check_in_groups(self, threads):
    flags = ["--flare_numa_aware", "--flare_scheduling_group_size=10",
             f"--flare_concurrency_hint={threads}"]
    for scheme in ("flare", "http+pb"):
      with self.subTest(scheme=scheme, threads=threads):
        self.check(
            scheme, ["--ip=0.0.0.0", *flags],
            [*flags, "--override_nslb=list+rr",
             f"--flare_rpc_client_max_connections_per_server={threads}",
             f"--max_pending={10 * threads}"])

  def test_1_thread_in_groups_of_10(self):
    self.check_in_groups(1)

  def test_10_threads_in_groups_of_10(self):
    self.check_in_groups(10)

  def test_40_threads_in_groups_of_10(self):
    self.check_in_groups(40)


class Figures(PressTest):

  def setUp(self):
    super().setUp()
    self.server = self.start_server("--flare_concurrency_hint=2")

  def test_json_says_everything(self):
    _, figures = self.press_cleanly(self.server.port, "--duration=0.5",
                                    "--max_pending=4")
    for key in LATENCY_KEYS:
      self.assertGreater(figures[key], 0, key)
    in_order = [figures[key] for key in LATENCY_KEYS if key != "avg_us"]
    self.assertEqual(in_order, sorted(in_order))
    self.assertGreaterEqual(figures["duration_s"], 0.5)
    # Longer only on a busy machine.
    self.assertLess(figures["duration_s"], 10)
    # Calls under way at the end don't count in the rate.
    self.assertAlmostEqual(figures["qps"] * figures["duration_s"],
                           figures["requests"], delta=2 * 4)
    self.assertIn("--max_pending=4", figures["command_line"])

  def test_requests_are_counted_exactly(self):
    log, figures = self.press_cleanly(self.server.port, "--requests=12345")
    self.assertEqual(figures["requests"], 12345, log)
    self.assertEqual(self.server.stop(), 0)
    self.assertIn("Processed 12345 request(s) in total.", self.server.log())

  def test_fixed_rate_is_not_exceeded(self):
    # That calls aren't late either, no busy machine can promise: the times of
    # calls are tested with schedules.
    begin = time.monotonic()
    self.press_cleanly(self.server.port, "--qps=2000", "--requests=4001")
    self.assertGreaterEqual(time.monotonic() - begin, 2)

  def test_tiny_rate_is_no_flood_and_ends_in_time(self):
    _, _, figures = self.press(self.server.port, "--qps=1e-12",
                               "--duration=0.3")
    self.assertLessEqual(figures["requests"], 1)

  def test_rate_beyond_reach_shows_in_the_latency(self):
    # One call at a time, and intended send times that run away from it: a
    # tool that measures from the actual send time would report microseconds.
    # Here half of the calls come 2000 round trips late, of 2 us at the least.
    _, figures = self.press_cleanly(
        self.server.port, "--qps=1e9", "--max_pending=1", "--requests=4001")
    self.assertGreater(figures["p50_us"], 4000)

  def test_calls_that_are_never_sent_are_counted(self):
    # One loop whose calls take 100 ms at least, at 1000 a second.
    server = self.start_server("--work=sleep_fiber", "--work_us=100000")
    status, log, figures = self.press(
        server.port, "--qps=1000", "--max_pending=1", "--duration=0.3",
        "--timeout=2000")
    self.assertEqual(status, 1, log)
    self.assertEqual(figures["failures"], 0, log)
    due = figures["duration_s"] * 1000
    # More only by those that a busy machine adds after it has noted the
    # duration.
    self.assertAlmostEqual(figures["requests"] + figures["unsent"], due,
                           delta=200)
    self.assertGreater(figures["unsent"], due - 200)
    # For as long as the time-out they are sent late, and show it. A busy
    # machine ends that late.
    self.assertLessEqual(figures["requests"], due / 100 + 20 + 30)
    self.assertIn(f"{figures['unsent']} call(s) were due and never sent", log)

  def test_calls_that_are_due_at_the_end_are_sent(self):
    # Two loops for 40 calls that take 10 ms at least and are due at once.
    server = self.start_server("--work=sleep_fiber", "--work_us=10000")
    log, figures = self.press_cleanly(
        server.port, "--qps=400", "--max_pending=2", "--duration=0.1",
        "--timeout=20000")
    self.assertEqual(figures["unsent"], 0, log)
    self.assertAlmostEqual(figures["requests"], figures["duration_s"] * 400,
                           delta=40)
    self.assertGreaterEqual(figures["requests"], 39)

  def test_warm_up_is_not_counted(self):
    for flags in ["--max_pending=4"], ["--max_pending=200", "--qps=2000"]:
      with self.subTest(flags=flags):
        server = self.start_server()
        _, figures = self.press_cleanly(server.port, "--warmup=0.7",
                                        "--requests=500", *flags)
        # Calls under way at the end of the warm-up count besides.
        self.assertGreaterEqual(figures["requests"], 500)
        self.assertGreater(figures["warmup_requests"], 0)
        self.assertEqual(server.stop(), 0)
        self.assertIn(
            "Processed %d request(s) in total." %
            (figures["requests"] + figures["warmup_requests"]), server.log())

  def test_default_pending_stays_below_the_servers_limit(self):
    self.press_cleanly(self.server.port, "--duration=0.5", "--warmup=1.2",
                       "--timeout=20000")

  def test_bodies_attachments_and_compression_come_back_whole(self):
    for algorithm in ("", "none", "gzip", "lz4-frame", "snappy", "zstd"):
      with self.subTest(algorithm=algorithm):
        self.press_cleanly(
            self.server.port, "--requests=500", "--max_pending=4", "--verify",
            "--body_size=3000", "--attachment_size=5000",
            f"--compression_algorithm={algorithm}")

  def test_large_messages(self):
    self.press_cleanly(
        self.server.port, "--requests=100", "--max_pending=4", "--verify",
        "--body_size=300000", "--attachment_size=2000000", "--timeout=30000")

  def test_other_schemes(self):
    for scheme in ("http", "http+pb", "http+pb-text", "http+proto3-json",
                   "bolt"):
      with self.subTest(scheme=scheme):
        self.press_cleanly(self.server.port, "--requests=500", "--verify",
                           "--body=Grüße", "--max_pending=4", scheme=scheme)


class Endings(PressTest):

  def test_signal_ends_it_with_a_summary(self):
    server = self.start_server()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
      with self.subTest(signal=number):
        json_file = self.path(f"{number}.json")
        press = self.start(
            "press", f"--server_addr=flare://127.0.0.1:{server.port}",
            "--max_pending=4", f"--json={json_file}", "--report_interval=0.2",
            "--timeout=20000")
        press.wait_for(LATENCY_LINE + r" QPS: [1-9]")  # Some have ended.
        self.assertEqual(press.stop(number), 0, press)
        self.assertRegex(press.log(), r"Finished: [1-9]\d* call\(s\)")
        with open(json_file) as f:
          self.assertGreater(json.load(f)["requests"], 0)

  def test_signal_during_the_warm_up_leaves_no_figures(self):
    for targets in 1, 2:
      with self.subTest(targets=targets):
        server = self.start_server()
        json_file, hdr_file = self.path("press.json"), self.path("press.hdr")
        address = f"flare://127.0.0.1:{server.port}"
        press = self.start(
            "press", f"--server_addr={';'.join([address] * targets)}",
            "--max_pending=4", "--warmup=1000", "--duration=1",
            f"--json={json_file}", f"--hdr_log={hdr_file}", "--timeout=20000")
        server.wait_for(r"Processed [1-9]\d* request\(s\) in 1 second\.")
        self.assertEqual(press.stop(signal.SIGINT), 1, press)
        self.assertIn("Interrupted during the warm-up: nothing was measured.",
                      press.log())
        self.assertNotRegex(press.log(), LATENCY_LINE)
        self.assertNotIn("Failed", press.log())
        with open(json_file) as f:
          self.assertEqual(f.read(), "")
        with open(hdr_file) as f:
          self.assertNotRegex(f.read(), r"(?m)^[^#\"]")

  def test_failures_are_counted_by_status_and_set_the_exit_status(self):
    server = self.start_server("--fail_with=1234")
    status, log, figures = self.press(server.port, "--requests=100",
                                      "--max_pending=4")
    self.assertEqual(status, 1, log)
    self.assertEqual(figures["failures"], 100)
    self.assertEqual(figures["failures_by_status"], {"1234": 100})
    self.assertIn("Failed with configured error.", log)

  def test_frozen_server_means_timeouts_not_a_hang(self):
    server = self.start_server()
    server.send_signal(signal.SIGSTOP)
    try:
      status, log, figures = self.press(server.port, "--requests=40",
                                        "--max_pending=20", "--timeout=200")
    finally:
      server.send_signal(signal.SIGCONT)
    self.assertEqual(status, 1, log)
    self.assertEqual(figures["failures_by_status"], {"3": 40}, log)

  def test_bad_flags_are_refused_with_2(self):
    wrong = {
        "needs an address": [],
        "lz4-frame": ["--compression_algorithm=lzma"],
        "no-such-flag": ["--no-such-flag"],
        "max_pending": ["--max_pending=0"],
        "--max_pending must be": ["--max_pending=2147483647"],
        "--callers must be": ["--callers=2147483647"],
        "timeout": ["--timeout=0"],
        "qps": ["--qps=-1"],
        "--qps must be a number": ["--qps=inf"],
        "duration": ["--duration=-1"],
        "--duration must be a number": ["--duration=nan"],
        "body_size": ["--body_size=-1"],
        "illegal value": ["--max_pending=many"],
        "concurrency_hint": ["--flare_concurrency_hint=-1"],
        "accessible_cpus": ["--flare_fiber_worker_accessible_cpus=zero"],
        "/nonexistent: No such file": ["--flagfile=/nonexistent"],
        "a folder": ["--flagfile=/"],
    }
    for said, flags in wrong.items():
      with self.subTest(flags=flags):
        if flags:
          flags = ["--server_addr=flare://127.0.0.1:1", *flags]
        status, log = self.run_to_end("press", *flags)
        self.assertEqual(status, 2, log)
        self.assertIn(said, log)

  def test_what_a_flagfile_has_in_vain_is_said(self):
    name = self.path("flags")
    with open(name, "w") as f:
      f.write("--port=0\n--flare_concurency_hint=3\n")
    server = self.start("server", f"--flagfile={name}")
    server.wait_for(r"flags: passed over, .*line 2 \(--flare_concurency_hint\)")
    server.wait_for(r"listens on")
    self.assertEqual(server.stop(), 0, server)

  def start_with_files(self, limits, name, *arguments):
    """Starts a program after these commands of `ulimit`."""
    program = harness.Program(name, *arguments,
                              prefix=("sh", "-c", f'{limits} && exec "$0" "$@"'))
    self.addCleanup(program.kill)
    return program

  def test_open_files_are_limited_by_the_hard_limit_only(self):
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = self.start_with_files("ulimit -S -n 300", "server", "--port=0")
    server.wait_for(r"listens on")
    with open(f"/proc/{server.pid}/limits") as f:
      limit = re.search(r"Max open files +(\S+) ", f.read())[1]
    self.assertIn(limit, (str(hard), "unlimited"))

  def test_too_few_open_files_are_said_at_the_start(self):
    server = self.start_with_files("ulimit -n 300", "server", "--port=0")
    port = int(server.wait_for(r"listens on 127\.0\.0\.1:(\d+)")[1])
    server.wait_for(r"10000 connections .*allows only 300;")
    for address, warned in ((f"http://127.0.0.1:{port}/", True),
                            (f"flare://127.0.0.1:{port}", False)):
      with self.subTest(address=address):
        press = self.start_with_files(
            "ulimit -n 300", "press", "--max_pending=300", "--requests=1",
            "--timeout=60000", f"--server_addr={address}")
        self.assertEqual(press.wait(), 0, press)
        self.assertEqual("may be 300 connections" in press.log(), warned, press)

  def skip_if_sanitized(self, program):
    if "Sanitizer" in program.log():
      self.skipTest("sanitizers take terabytes of address space")

  def test_too_few_threads_for_callers_are_said(self):
    server = self.start_with_files("ulimit -n 300", "server", "--port=0")
    port = int(server.wait_for(r"listens on 127\.0\.0\.1:(\d+)")[1])
    # Stacks are so large that memory is left when there is none for another.
    press = self.start_with_files(
        "ulimit -s 1000000 && ulimit -v 30000000", "press", "--callers=500",
        "--caller_kind=thread", f"--server_addr=flare://127.0.0.1:{port}")
    status = press.wait()
    self.skip_if_sanitized(press)
    self.assertEqual(status, 2, press)
    self.assertRegex(press.log(), r"thread for caller \d+ of 500: Resource "
                     r"temporarily unavailable\. Lower --callers, ")

  def test_too_little_address_space_is_said_at_the_start(self):
    server = self.start_with_files(
        "ulimit -s 1000000 && ulimit -v 3000000", "server", "--port=0",
        "--flare_concurrency_hint=4")
    status = server.wait()
    self.skip_if_sanitized(server)
    self.assertEqual(status, 1, server)
    self.assertRegex(server.log(), r"no \d+ MiB of address space for 8 threads")

  def test_help_is_no_mistake(self):
    for flag in "--help", "--helpshort", "--helpmatch=press", "--version":
      with self.subTest(flag=flag):
        status, log = self.run_to_end("press", flag)
        self.assertEqual(status, 0, log)
        self.assertNotIn("never called", log)  # SetUsageMessage()

  def test_json_that_cannot_be_written_is_said_before_the_run(self):
    status, log = self.run_to_end(
        "press", "--server_addr=flare://127.0.0.1:1", "--json=/nowhere/x.json")
    self.assertEqual(status, 2, log)
    self.assertIn("/nowhere/x.json", log)

  def test_results_that_cannot_be_written_are_a_failure(self):
    server = self.start_server()
    for flags, prefix in (
        (["--json=/dev/full"], []),
        (["--hdr_log=/dev/full", "--json=/dev/full"], []),
        (["--json=-"], ["/bin/sh", "-c", 'exec "$@" > /dev/full', "sh"])):
      with self.subTest(flags=flags):
        press = harness.Program(
            "press", f"--server_addr=flare://127.0.0.1:{server.port}",
            "--requests=10", "--max_pending=1", "--timeout=20000", *flags,
            prefix=prefix)
        self.addCleanup(press.kill)
        self.assertEqual(press.wait(), 1, press)
        for flag in flags:
          self.assertIn(f"Can't write to {flag}.", press.log())

  def test_progress_line_on_a_terminal_only(self):
    server = self.start_server()
    flags = [f"--server_addr=flare://127.0.0.1:{server.port}",
             "--max_pending=4", "--duration=1.5"]
    _, log = self.run_to_end("press", *flags)
    self.assertNotIn("\r", log)
    self.assertRegex(run_on_terminal("press", *flags), r"\r.* QPS")


def run_on_terminal(name, *arguments):
  """Runs a program on a terminal of its own; returns its output."""
  command = [harness.find_binary(name), *arguments]
  child, terminal = pty.fork()
  if child == 0:
    os.execv(command[0], command)
  shown = b""
  try:
    while data := os.read(terminal, 4096):
      shown += data
  except OSError:  # The way a terminal says that its program has ended.
    pass
  os.close(terminal)
  os.waitpid(child, 0)
  return shown.decode(errors="replace")


class OtherPrograms(harness.TestCase):

  def test_words_that_are_no_flags_are_refused_with_2(self):
    for program in "press", "client", "server", "relay_server":
      with self.subTest(program=program):
        status, log = self.run_to_end(program, "8080", "--port=0"
                                      if "server" in program else "--body=x")
        self.assertEqual(status, 2, log)
        self.assertIn("'8080' is no flag", log)
        status, log = self.run_to_end(program, "--no-such-flag")
        self.assertEqual(status, 2, log)

  def test_client(self):
    server = self.start_server()
    status, log = self.run_to_end(
        "client", f"--server_addr=flare://127.0.0.1:{server.port}",
        "--body=Hello, fibers.",
        "--flare_rpc_client_default_rpc_timeout_ms=20000")
    self.assertEqual(status, 0, log)
    self.assertIn("Received: Hello, fibers.", log)

  def test_client_says_why_it_failed(self):
    port = harness.free_port()
    status, log = self.run_to_end(
        "client", f"--server_addr=flare://127.0.0.1:{port}")
    self.assertEqual(status, 1, log)
    self.assertRegex(log, r"Failed: .*127\.0\.0\.1")

  def relay(self, *arguments):
    return self.start_server(*arguments, name="relay_server")

  def test_relay_passes_on_body_attachment_and_reply(self):
    for flags in [], ["--callbacks"]:
      with self.subTest(flags=flags):
        server = self.start_server()
        relay = self.relay(
            f"--forward_to=flare://127.0.0.1:{server.port}", *flags)
        status, log = self.run_to_end(
            "press", f"--server_addr=flare://127.0.0.1:{relay.port}",
            "--relay_stub", "--requests=2000", "--max_pending=50", "--verify",
            "--body_size=100", "--attachment_size=100", "--timeout=20000")
        self.assertEqual(status, 0, log)
        self.assertEqual(relay.stop(), 0)
        self.assertIn("Processed 2000 request(s) in total.", relay.log())
        self.assertEqual(server.stop(), 0)
        self.assertIn("Processed 2000 request(s) in total.", server.log())

  def test_relay_passes_on_errors_unless_told_otherwise(self):
    server = self.start_server("--fail_with=1234")
    forward = f"--forward_to=flare://127.0.0.1:{server.port}"
    for how in [], ["--callbacks"]:
      for flags, expected in ([], 1), (["--always_succeed"], 0):
        with self.subTest(how=how, flags=flags):
          relay = self.relay(forward, *how, *flags)
          status, log = self.run_to_end(
              "press", f"--server_addr=flare://127.0.0.1:{relay.port}",
              "--relay_stub", "--requests=10", "--max_pending=2",
              "--timeout=20000")
          self.assertEqual(status, expected, log)
          self.assertEqual("status 1234 (STATUS_USER): 10" in log,
                           expected == 1, log)

  def test_relay_fails_calls_whose_attachment_it_cannot_pass_on(self):
    server = self.start_server()
    for protocol in "http+pb", "bolt":
      with self.subTest(protocol=protocol):
        relay = self.relay(
            f"--forward_to={protocol}://127.0.0.1:{server.port}")
        status, log = self.run_to_end(
            "press", f"--server_addr=flare://127.0.0.1:{relay.port}",
            "--relay_stub", "--requests=10", "--max_pending=2",
            "--attachment_size=16", "--timeout=20000")
        self.assertEqual(status, 1, log)
        self.assertIn("status 101 (STATUS_NOT_SUPPORTED): 10", log)


class AnyMethod(PressTest):
  """Methods of any service, found by .proto files."""

  ECHO = (f"--proto={harness.PROTO_FILE}",
          "--method=example.protobuf_echo.EchoService.Echo")
  DEMO = "--proto=" + os.path.join(harness.HERE, "..", "..", "streaming",
                                   "demo.proto")

  def start_streaming_server(self):
    port = harness.free_port()
    self.start("streaming/server", "--logtostderr",
               f"--address=127.0.0.1:{port}").wait_for("listens on")
    return port

  def test_over_all_protocols(self):
    server = self.start_server()
    protocols = ("flare", "http+pb", "http+proto3-json", "http+pb-text",
                 "baidu-std", "trpc", "bolt", "grpc")
    for scheme in protocols:
      with self.subTest(scheme=scheme):
        log, figures = self.press_cleanly(
            server.port, *self.ECHO, '--data={"body": "hi"}',
            "--requests=200", "--max_pending=8", scheme=scheme)
        self.assertEqual(figures["requests"], 200)
        self.assertRegex(log, LATENCY_LINE)
    self.assertEqual(server.stop(), 0)
    self.assertIn(f"Processed {200 * len(protocols)} request(s) in total.",
                  server.log())

  def test_by_reflection(self):
    server = self.start_server()
    for scheme, more in (("grpc", ()), ("bolt", (
        f"--reflection_addr=flare://127.0.0.1:{server.port}",))):
      with self.subTest(scheme=scheme):
        _, figures = self.press_cleanly(
            server.port, self.ECHO[1], '--data={"body": "hi"}',
            "--requests=200", *more, scheme=scheme)
        self.assertEqual(figures["requests"], 200)
    status, log, _ = self.press(server.port, self.ECHO[1], "--requests=1",
                                scheme="bolt")
    self.assertEqual(status, 2, log)
    self.assertIn("bolt has no streaming calls; reflection goes over", log)

  def test_requests_are_those_of_data(self):
    """The server works for as long as the request says."""
    server = self.start_server()
    _, figures = self.press_cleanly(
        server.port, *self.ECHO, "--requests=3", "--max_pending=1",
        '--data={"work": "SLEEP_FIBER", "workUs": 20000}')
    self.assertGreaterEqual(figures["p50_us"], 20000)

  def test_failures_of_the_service(self):
    server = self.start_server("--fail_with=1234")
    status, _, figures = self.press(server.port, *self.ECHO, "--requests=10")
    self.assertEqual(status, 1)
    self.assertEqual(figures["failures_by_status"], {"1234": 10})

  def test_streams(self):
    port = self.start_streaming_server()
    numbers = "".join(f'{{"value": {n}}}' for n in range(1, 11))
    texts = "".join(f'{{"text": "{n}"}}' for n in range(200))
    for method, data, sent, received in (
        ("Echo", '{"text": "x"}', None, None), ("Sum", numbers, 10, 1),
        ("Count", '{"value": 10}', 1, 10), ("Chat", texts, 200, 200)):
      for callers in (["--max_pending=4"], ["--callers=4"],
                      ["--callers=4", "--caller_kind=thread"]):
        with self.subTest(method=method, callers=callers):
          log, figures = self.press_cleanly(
              port, self.DEMO, f"--method=example.streaming.Demo/{method}",
              f"--data={data}", "--requests=50", *callers)
          self.assertEqual(figures["requests"], 50)
          if sent is None:
            self.assertNotIn("essages", log)
            self.assertNotIn("messages_sent", figures)
            continue
          self.assertEqual((figures["messages_sent"],
                            figures["messages_received"]),
                           (50 * sent, 50 * received))
          self.assertAlmostEqual(figures["messages_per_second"],
                                 figures["qps"] * (sent + received), delta=1)
          self.assertRegex(log, rf"Messages: {50 * sent} sent, "
                                rf"{50 * received} received, \d+ per second")

  def test_streams_that_fail(self):
    port = self.start_streaming_server()
    status, log, figures = self.press(
        port, self.DEMO, "--method=example.streaming.Demo/Count",
        '--data={"value": -1}', "--requests=10")
    self.assertEqual(status, 1, log)
    self.assertEqual(figures["failures_by_status"], {"1001": 10})
    self.assertIn("There is nothing to count.", log)

  def test_bad_flags(self):
    count = (self.DEMO, "--method=example.streaming.Demo.Count")
    for pattern, *flags in (
        ("--data goes with --method only", "--data={}"),
        ("-H goes with --method or --replay only", "-H", "a: b"),
        ("--body is of calls to the echo service", *self.ECHO, "--body=x"),
        ("--verify is of calls to the echo", *self.ECHO, "--verify"),
        ("EchoService has no method Ecko; it has: Echo", self.ECHO[0],
         "--method=example.protobuf_echo.EchoService.Ecko"),
        ("no field 'bod'", *self.ECHO, '--data={"bod": 1}'),
        ("takes one request", *count, "--data={} {}"),
        ("Count streams", *count, "--attachment_size=1")):
      with self.subTest(pattern=pattern):
        status, log, _ = self.press(1, "--requests=1", *flags)
        self.assertEqual(status, 2, log)
        self.assertIn(pattern, log)

  def test_plain_http_has_no_methods(self):
    status, log = self.run_to_end(
        "press", "--server_addr=http://127.0.0.1:1/echo", "--requests=1",
        *self.ECHO)
    self.assertEqual(status, 2, log)
    self.assertIn("has no methods; use http+pb://", log)


if __name__ == "__main__":
  harness.main()
