#!/usr/bin/python3
"""Servers that are offered more than they can do, and that are told to quit
while they are busy, all with default settings."""

import json
import os
import signal
import subprocess
import sys
import time

import harness


class Overload(harness.TestCase):

  # Two workers that each take 4 ms for a call; more would hide the overload.
  WORKERS = ("--flare_concurrency_hint=2", "--flare_fiber_reserve_workers=0",
             "--work=sleep_thread", "--work_us=4000")
  # They can answer 500 calls a second; fewer, and the machine is busy.
  FULL_CAPACITY = 470

  def figures(self, server, *arguments):
    json_file = self.path("press.json")
    _, log = self.run_to_end("press",
                             f"--server_addr=flare://127.0.0.1:{server.port}",
                             f"--json={json_file}", *arguments)
    with open(json_file) as f:
      figures = json.load(f)
    self.assertGreater(figures["requests"], 0, log)
    del figures["histogram_ns"]  # Too long for messages.
    return figures

  def capacity(self, server):
    return self.figures(server, "--max_pending=8", "--duration=2",
                        "--timeout=20000")["qps"]

  def test_goodput_stays_near_capacity(self):
    server = self.start_server(*self.WORKERS)
    capacity = self.capacity(server)
    for times in (2, 5):
      with self.subTest(times=times):
        for attempt in range(3):
          if attempt != 0:  # The machine may have become busier.
            capacity = self.capacity(server)
          figures = self.figures(server, f"--qps={times * capacity}",
                                 # All that come before a call's time-out.
                                 "--max_pending=3000", "--warmup=2",
                                 "--duration=2.5", "--timeout=1000")
          if figures["qps"] > capacity / 2 and figures["p50_us"] < 60_000:
            break
        # Without a limit of the time in queue it is next to nothing. Where two
        # workers can't sleep 470 times a second, they have no CPU to refuse
        # the other calls with, either.
        share = 2 if capacity > self.FULL_CAPACITY else 20
        self.assertGreater(figures["qps"], capacity / share, figures)
        # Alone on the machine it is 15 ms, and was 90 while calls waited for a
        # tenth of their time.
        if capacity > self.FULL_CAPACITY:
          self.assertLess(figures["p50_us"], 60_000, figures)

  def test_a_burst_is_served(self):
    server = self.start_server(*self.WORKERS, "--work_us=1000")
    json_file = self.path("press.json")
    status, log = self.run_to_end(
        "press", f"--server_addr=flare://127.0.0.1:{server.port}",
        "--max_pending=1500", "--requests=1500", "--timeout=20000",
        f"--json={json_file}")
    self.assertEqual(status, 0, log)
    with open(json_file) as f:
      self.assertEqual(json.load(f)["failures"], 0, log)


  def test_rules_of_admission_keep_the_queue_short(self):
    for flag, rule in (("adaptive_limit", "limit"),
                       ("queue_shedding", "queue")):
      with self.subTest(flag=flag):
        json_file = self.path(flag)
        for _ in range(3):
          done = subprocess.run(
              [sys.executable,
               os.path.join(harness.SOURCE_TREE, "benchmark", "overload"),
               "--bin=" + os.path.dirname(harness.find_binary("server")),
               # Two workers that sleep 1 ms can't do more.
               "--capacity=2000", "--times=5", "--rounds=1", "--warmup=1",
               "--seconds=1",
               "--json=" + json_file, "--",
               f"--flare_rpc_server_{flag}=refuse"],
              capture_output=True, text=True, timeout=harness.PATIENCE_S)
          self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
          self.assertIn("| 5 x: 10,000 |", done.stdout)
          with open(json_file) as f:
            (row,) = json.load(f)
          if row["answered"] > 300:
            break  # Else it was kept from the CPU, perhaps.
        self.assertGreater(row["answered"], 300, row)
        self.assertGreater(row["failed"], 0, row)
        self.assertGreater(row["refused_by"].get(rule, 0), 0, row)


class Quit(harness.TestCase):

  def test_queued_calls_are_not_begun(self):
    server = self.start_server(
        "--flare_concurrency_hint=2", "--work=sleep_thread",
        "--work_us=3000000", "--flare_rpc_server_drain_timeout_ms=500")
    json_file = self.path("press.json")
    press = self.start("press", f"--server_addr=flare://127.0.0.1:{server.port}",
                       "--max_pending=60", "--requests=60", "--timeout=60000",
                       f"--json={json_file}")
    # A thread of its own says so.
    server.wait_for("a task holds worker")
    server.send_signal(signal.SIGTERM)
    began = time.monotonic()
    self.assertEqual(server.wait(), 0)
    took = time.monotonic() - began
    self.assertIn("begins none of the queued calls", server.log())
    press.wait()
    with open(json_file) as f:
      figures = json.load(f)
    # Those that had begun by then: two, or ten with all of the reserve.
    self.assertLessEqual(figures["requests"] - figures["failures"], 20)
    self.assertGreaterEqual(figures["failures"], 40)
    # Sixty would take it 18 s.
    self.assertLess(took, 15)


if __name__ == "__main__":
  harness.main()
