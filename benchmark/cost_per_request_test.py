#!/usr/bin/python3
"""cost_per_request on a few requests: its output, and its leftovers. CI's step
"tables and costs" compares with the record."""

import argparse
import importlib.machinery
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.join(HERE, "..")
PROGRAM = os.path.join(HERE, "cost_per_request")


def find_binaries():
  folders = [os.path.join(TREE, "example", "rpc"),
             os.path.join(TREE, "bazel-bin", "example", "rpc")]
  for folder in folders:
    if os.access(os.path.join(folder, "press"), os.X_OK):
      return folder
  raise FileNotFoundError(f"no press in {folders}")


def load_program():
  loader = importlib.machinery.SourceFileLoader("cost_per_request", PROGRAM)
  spec = importlib.util.spec_from_loader(loader.name, loader)
  module = importlib.util.module_from_spec(spec)
  loader.exec_module(module)
  return module


def run(*arguments):
  return subprocess.run([sys.executable, PROGRAM, *arguments],
                        capture_output=True, text=True, timeout=240)


class CostPerRequest(unittest.TestCase):

  def test_instructions_by_file(self):
    profile = """fl=(1) /proc/self/cwd/./rpc/server.cc
fn=(1) Serve()
10 5
fi=(2) bazel-out/bin/base/_virtual_includes/base/flare/base/clock.h
+1 7
cfi=(3) /proc/self/cwd/./io/fd.cc
cfn=(2) Close()
calls=1 3
* 100
fe=(1)
-1 2
fl=(3)
fn=(2)
3 100
fl=(4) /usr/include/string.h
4 9
fl=(5) ./io/../sysdeps/unix/sysv/linux/write.c
4 9
"""
    self.assertEqual(
        dict(load_program().instructions_by_file(profile.splitlines(True))),
        {"rpc/server.cc": 7, "base/clock.h": 7, "io/fd.cc": 100})

  def test_rows(self):
    with tempfile.TemporaryDirectory() as folder:
      file = os.path.join(folder, "cost.json")
      done = run(f"--json={file}", "--protocols=flare", "--requests=20000",
                 f"--binaries={find_binaries()}")
      said = done.stdout + done.stderr
      with open(file) as f:
        rows = json.load(f)
    self.assertEqual([(row["protocol"], row["side"]) for row in rows],
                     [("flare", "server"), ("flare", "client")], said)
    missing = False
    for row in rows:
      self.assertEqual(list(row), ["protocol", "side", "syscalls",
                                   "instructions", "allocations"])
      for figure, least in (("syscalls", 0.01), ("instructions", 100),
                            ("allocations", 0)):
        missing = missing or row[figure] is None
        if row[figure] is not None:
          self.assertGreaterEqual(row[figure], least, said)
    self.assertEqual(done.returncode, 1 if missing else 0, said)
    self.assertIn("instructions", done.stdout)

  def test_what_is_divided_by_is_what_was_made(self):
    meter_class = load_program().Meter
    for requests in (1000, 1010, 1999, 20000):
      for share in (1.0, 0.05):
        meter = meter_class(argparse.Namespace(requests=requests), "")
        meter.share = share
        # As replay() makes them: in whole batches.
        meter.run = lambda protocol, side, count: {
            "calls": 70 * (count // 10)}
        self.assertEqual(meter.measure("calls", "flare", "server"),
                         {"calls": 7}, (requests, share))

  def test_of_repeated_measurements_the_nearest_counts(self):
    old = {"syscalls": 0.3, "instructions": 1000, "allocations": None}
    row = {"syscalls": 0.5, "instructions": 990, "allocations": 1}
    again = {"syscalls": 0.28, "instructions": None, "allocations": 2}
    load_program().keep_nearest(row, again, old)
    self.assertEqual(row, {"syscalls": 0.28, "instructions": 990,
                           "allocations": 1})

  def test_what_is_off_is_said(self):
    compare = load_program().compare
    old = {"protocol": "flare", "side": "server", "syscalls": 0.3,
           "instructions": 1000, "allocations": 0}
    self.assertEqual(compare([old], [old]), [])
    self.assertEqual(compare([dict(old, syscalls=0.31, instructions=1029,
                                   allocations=0.01)], [old]), [])
    worse, = compare([dict(old, instructions=1031)], [old])
    self.assertRegex(worse, "flare server: 1,031 instructions, recorded 1,000")
    better, = compare([dict(old, syscalls=0.2)], [old])
    self.assertRegex(better, "0.2 syscalls, recorded 0.3; record it")
    more, = compare([dict(old, allocations=1)], [old])
    self.assertIn("allocations", more)
    # Tools that are missing are main()'s business.
    self.assertEqual(compare([dict(old, instructions=None)], [old]), [])
    gone, = compare([], [old])
    self.assertEqual(gone, "flare server: not measured")

  def test_lockstep_waits_for_all_replies(self):
    lockstep = load_program().lockstep
    received = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

      def serve():
        connection, _ = listener.accept()
        with connection:
          while data := connection.recv(65536):
            received.append(data)
            for _ in range(len(data) // 3):
              connection.sendall(b"rep")
              connection.sendall(b"ly")

      server = threading.Thread(target=serve)
      server.start()
      lockstep.replay(listener.getsockname()[1],
                      lockstep.Requests(b"", b"ask"), 30)
      server.join()
    self.assertEqual(received, [b"ask"] + [b"ask" * 10] * 3)

  def test_lockstep_notices_a_server_that_gives_up(self):
    lockstep = load_program().lockstep
    requests = lockstep.Requests(b"", b"ask")
    with socket.create_server(("127.0.0.1", 0)) as listener:

      def serve():
        connection, _ = listener.accept()
        with connection:
          connection.recv(3)
          connection.sendall(b"reply")
          connection.recv(3)

      server = threading.Thread(target=serve)
      server.start()
      with self.assertRaisesRegex(ValueError, "15 requests"):
        lockstep.replay(listener.getsockname()[1], requests, 15)
      with self.assertRaisesRegex(lockstep.Broken, "50 of 50 bytes"):
        lockstep.replay(listener.getsockname()[1], requests, 10)
      server.join()

  def test_lockstep_numbers_the_requests_of_http2(self):
    lockstep = load_program().lockstep
    # Frames of two and of three bytes, of the stream 33.
    request = (b"\0\0\2\1\4\0\0\0\x21ab" + b"\0\0\3\0\1\0\0\0\x21cde")
    begin = lockstep.HTTP2_PREFACE + b"more"
    requests = lockstep.Requests(begin, request)
    self.assertTrue(requests.ahead.startswith(begin))
    batch = requests.take(2)
    self.assertEqual(batch[:len(request)], request)
    self.assertEqual(batch[len(request):], request.replace(b"\x21", b"\x23"))
    self.assertEqual(requests.take(1), request.replace(b"\x21", b"\x25"))
    with self.assertRaisesRegex(lockstep.Broken, "no stream"):
      lockstep.Requests(begin, b"\0\0\0\4\1\0\0\0\0" + request)
    other = lockstep.Requests(b"GET /", request)
    self.assertEqual((other.ahead, other.take(2)), (b"", request * 2))

  def test_what_is_recorded_is_measured(self):
    parse = load_program().parse_arguments
    record = os.path.join(HERE, "recorded_costs.json")
    self.assertEqual(parse([f"--check={record}"]).protocols,
                     ["flare", "http+pb", "grpc"])
    self.assertEqual(parse([]).protocols, ["flare", "http+pb"])

  def test_calls_that_fail_are_not_measured(self):
    binaries = find_binaries()
    for flags in ([], ["--lockstep"]):
      done = run(*flags, "--server=server --fail_with=5", "--requests=1000",
                 "--protocols=flare", f"--binaries={binaries}")
      self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
      self.assertIn("status 5", done.stderr)

  def test_plain_http_is_asked_for_by_a_path(self):
    program = load_program()
    port = program.free_port()
    with tempfile.TemporaryDirectory() as folder:
      options = argparse.Namespace(binaries=find_binaries(), concurrency=2)
      server = program.Meter(options, folder).start("server", None,
                                                    f"--port={port}")
      with server:
        server.wait_for("listens on")
        for size, start in ((10, b"POST /echo HTTP/1.1"),
                            (0, b"GET / HTTP/1.1")):
          options.body_size = size
          meter = program.Meter(options, folder)
          self.assertTrue(
              meter.captured("http", port).request.startswith(start))
          self.assertIn(
              b"/rpc/",
              meter.captured("http+pb", port).request.split(b"\r\n")[0])

  def test_missing_programs_are_named(self):
    done = run("--binaries=/nowhere")
    self.assertEqual(done.returncode, 1)
    self.assertIn("/nowhere/server", done.stderr)
    done = run("--server=/elsewhere/gdt_server --threads=1")
    self.assertEqual(done.returncode, 1)
    self.assertIn("/elsewhere/gdt_server", done.stderr)

  def test_wrong_flags(self):
    self.assertEqual(run("--requests=1").returncode, 2)
    self.assertEqual(run("--requests=many").returncode, 2)
    self.assertEqual(run("--server=").returncode, 2)
    self.assertEqual(run("--sides=left").returncode, 2)

  def test_files_are_looked_at_first(self):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as other:
      other.write('[{"protocol": "flare"}]')
      other.flush()
      for flag, text in (("--json=/nowhere/cost.json", "/nowhere/cost.json"),
                         ("--check=/nowhere/cost.json", "/nowhere/cost.json"),
                         (f"--check={PROGRAM}", PROGRAM),
                         (f"--check={other.name}", "not what --json writes")):
        done = run(flag, "--requests=1000", f"--binaries={find_binaries()}")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(done.stdout, "")

  def test_output_of_perf(self):
    counts = load_program().SyscallMeter.read_perf(
        "# started on Sat\n\n"
        "1234,,raw_syscalls:sys_enter,99,100.00,,\n"
        "56,,syscalls:sys_enter_readv,99,100.00,,\n"
        "<not counted>,,syscalls:sys_enter_futex,0,0.00,,\n")
    self.assertEqual(counts, {"syscalls": 1234, "readv": 56})

  def test_output_of_strace(self):
    counts = load_program().SyscallMeter.read_strace(
        "% time     seconds  usecs/call     calls    errors syscall\n"
        "------ ----------- ----------- --------- --------- ----------------\n"
        " 60.00    0.000600           1       600         5 futex\n"
        " 40.00    0.000400           2       200           readv\n"
        "------ ----------- ----------- --------- --------- ----------------\n"
        "100.00    0.001000           1       800         5 total\n")
    self.assertEqual(counts, {"syscalls": 800, "futex": 600, "readv": 200})


# Sleeps for a minute, unless a signal comes; prints the result of nanosleep().
INTERRUPTED_SLEEP = """
import ctypes, errno, signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
minute = (ctypes.c_long * 2)(60, 0)
result = ctypes.CDLL(None, use_errno=True).nanosleep(minute, None)
print(result, errno.errorcode.get(ctypes.get_errno()))
"""


class TimeAsleep(unittest.TestCase):

  def test_interrupted_sleeps_say_so(self):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
      self.skipTest("no C compiler")
    with tempfile.TemporaryDirectory() as folder:
      library = os.path.join(folder, "time_asleep.so")
      subprocess.run([compiler, "-O2", "-shared", "-fPIC",
                      os.path.join(HERE, "time_asleep.c"), "-o", library,
                      "-ldl"], check=True)
      done = subprocess.run([sys.executable, "-c", INTERRUPTED_SLEEP],
                            env={**os.environ, "LD_PRELOAD": library},
                            capture_output=True, text=True, timeout=60)
    self.assertEqual(done.stdout, "-1 EINTR\n", done.stderr)
    self.assertIn("1 sleeps of", done.stderr)


if __name__ == "__main__":
  sys.path.append(os.path.join(TREE, "tools"))
  import unittest_xml
  unittest_xml.main()
