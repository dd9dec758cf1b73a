#!/usr/bin/python3
"""Each program tells its purpose, its flags and which version it
is, and the tools leave nothing behind in the folder for temporary files."""

import os
import re
import subprocess

import harness

# A flag of each program's own.
PROGRAMS = {
    "example/rpc/server": "work_us",
    "example/rpc/relay_server": "forward_to",
    "example/rpc/client": "server_addr",
    "example/rpc/press": "max_pending",
    "example/rpc/flare_call": "describe",
    "example/http/server": "long_req_us",
    "example/proxy/tcp_proxy": "upstreams",
    "example/proxy/rpc_proxy": "routes",
    "benchmark/baseline/epoll_limit_client": "threads",
    "benchmark/baseline/epoll_limit_proxy": "threads",
    "benchmark/baseline/epoll_limit_server": "threads",
    "benchmark/baseline/gdt_server": "threads",
    "benchmark/baseline/merge_server": "threads",
}


class Programs(harness.TestCase):

  def ask(self, program, *flags, **environment):
    ended = subprocess.run([harness.find_binary(program), *flags],
                           stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, timeout=harness.PATIENCE_S,
                           env={**os.environ, **environment})
    return ended.returncode, ended.stdout, ended.stderr

  def test_help_shows_the_own_flags(self):
    for program, own in PROGRAMS.items():
      for flag in "--help", "-h", "-help":
        with self.subTest(program=program, flag=flag):
          status, text, errors = self.ask(program, flag)
          self.assertEqual((status, errors), (0, ""))
          name = os.path.basename(program)
          # Before the flags there may be examples and explanations.
          self.assertRegex(text, rf"^{name}: \w.*\n\n((  )?\S.*\n|"
                                 r"      \S.*\n|\n)*    -")
          flags = re.findall(r"^    -(\w+) \(", text, re.M)
          self.assertIn(own, flags)
          self.assertEqual(flags, sorted(flags))
          others = {"logtostderr", "v", "flagfile", "help", "h", "version"}
          self.assertFalse(others & set(flags), flags)
          self.assertFalse([f for f in flags if f.startswith("flare_")])
          self.assertIn("--helpfull", text)

  def test_helpfull_shows_the_libraries_flags_too(self):
    for program, own in PROGRAMS.items():
      with self.subTest(program=program):
        status, text, _ = self.ask(program, "--helpfull")
        self.assertEqual(status, 0)
        for flag in own, "flare_concurrency_hint", "logtostderr", "flagfile":
          self.assertTrue(f"\n    -{flag} (" in text, flag)

  def test_h_may_be_a_value(self):
    # A word behind a flag that wants one is its value, whatever it looks like.
    status, text, errors = self.ask("example/rpc/client", "--server_addr", "-h")
    self.assertEqual((status, text), (2, ""), errors)
    self.assertIn("-h", errors)

  def test_version(self):
    versions = set()
    for program in PROGRAMS:
      with self.subTest(program=program):
        status, text, errors = self.ask(program, "--version")
        self.assertEqual((status, errors), (0, ""))
        match = re.match(r"(\w+) version (\d+\.\d+\.\d+)\n", text)
        self.assertTrue(match, text)
        self.assertEqual(match[1], os.path.basename(program))
        versions.add(match[2])
    self.assertEqual(len(versions), 1, versions)

  def test_a_program_without_a_version_tells_that_of_flare(self):
    status, text, _ = self.ask("example/hello/server", "--version")
    self.assertEqual(status, 0)
    self.assertRegex(text, r"^server version unknown, with flare \d+\.\d+\.\d+")

  def test_tools_leave_no_files(self):
    folder = self.path("temporary")
    os.mkdir(folder)
    nobody = f"flare://127.0.0.1:{harness.free_port()}"
    calls = [("example/hello/client", [])]
    calls.append(("example/rpc/client", ["--server_addr=" + nobody]))
    calls.append(("example/rpc/press",
                  ["--server_addr=" + nobody, "--requests=3"]))
    calls.append(("example/hello/calls", []))  # Wants an address.
    # glog takes the first of these that is set.
    temporary = dict.fromkeys(["TEST_TMPDIR", "TMPDIR", "TMP"], folder)
    for program, flags in calls:
      with self.subTest(program=program):
        status, _, errors = self.ask(program, *flags, **temporary)
        self.assertEqual(status, 1, errors)  # Nobody answers.
        self.assertEqual(os.listdir(folder), [])

  def test_press_has_no_figures_when_nothing_succeeded(self):
    nobody = f"flare://127.0.0.1:{harness.free_port()}"
    status, _, log = self.ask("example/rpc/press", "--server_addr=" + nobody,
                              "--requests=3", "--report_interval=0.001")
    self.assertEqual(status, 1, log)
    self.assertNotIn("avg", log)
    self.assertRegex(log, r"No call has succeeded\.\n")


if __name__ == "__main__":
  harness.main()
