#!/usr/bin/python3
"""fiber_table for moments: its output, and its list of missing rows."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.join(HERE, "..", "..")
PROGRAM = os.path.join(TREE, "tools", "fiber_table")


def find_benchmark():
  for folder in (HERE, os.path.join(TREE, "bazel-bin", "benchmark", "fiber")):
    program = os.path.join(folder, "fiber_benchmark")
    if os.access(program, os.X_OK):
      return program
  raise FileNotFoundError("no fiber_benchmark")


def load_program():
  loader = importlib.machinery.SourceFileLoader("fiber_table", PROGRAM)
  spec = importlib.util.spec_from_loader(loader.name, loader)
  module = importlib.util.module_from_spec(spec)
  loader.exec_module(module)
  return module


TABLE = load_program()


def run(*arguments, **environment):
  return subprocess.run(
      [sys.executable, PROGRAM, *arguments], capture_output=True, text=True,
      timeout=240, check=False, env={**os.environ, **environment})


def run_quickly(*arguments, **environment):
  """(the finished process, its output as JSON)"""
  with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "table.json")
    done = run("--quick", f"--ours={find_benchmark()}", f"--json={file}",
               *arguments, **environment)
    if done.returncode != 0:
      raise AssertionError(done.stderr)
    with open(file, encoding="utf-8") as opened:
      return done, json.load(opened)


def row_named(name):
  return next(row for row in TABLE.ROWS if row.name == name)


class FiberTable(unittest.TestCase):

  def test_our_rows(self):
    done, report = run_quickly("--peers=none")
    cpus = len(os.sched_getaffinity(0))
    self.assertEqual([row["row"] for row in report["rows"]],
                     [row.name for row in TABLE.ROWS if row.cpus <= cpus])
    for row in report["rows"]:
      self.assertEqual(list(row["sides"]), ["flare"], row)
      self.assertGreater(row["sides"]["flare"]["median"], 0.1, row)
      self.assertEqual(len(row["sides"]["flare"]["samples"]), 1, row)
      self.assertIsNone(row["ratio"], row)
      self.assertIn(row["title"], done.stdout)
    self.assertGreater(report["machine"]["cpus"], 0)

  def test_a_peer(self):
    done, report = run_quickly("--peers=threads", "--filter=^SpawnJoin$")
    if "threads left out" in done.stderr:
      self.skipTest(done.stderr)
    (row,) = report["rows"]
    sides = row["sides"]
    self.assertEqual(list(sides), ["flare", "threads"])
    self.assertAlmostEqual(
        row["ratio"], sides["threads"]["median"] / sides["flare"]["median"])
    self.assertIn("| flare | threads | ratio |", done.stdout)

  def test_missing_peers_are_named(self):
    with tempfile.TemporaryDirectory() as empty:
      done, report = run_quickly("--peers=boost,threads",
                                 "--filter=^Yield$", PATH=empty)
    self.assertIn("boost left out: no g++", done.stderr)
    self.assertIn("threads left out: no g++", done.stderr)
    self.assertEqual(list(report["rows"][0]["sides"]), ["flare"])

  def test_missing_benchmark(self):
    done = run("--ours=/nowhere/x", "--peers=none")
    self.assertEqual(done.returncode, 1)
    self.assertIn("/nowhere/x", done.stderr)

  def test_what_is_not_allowed_is_said(self):
    with mock.patch.object(TABLE.os, "sched_setscheduler",
                           side_effect=PermissionError):
      with self.assertRaisesRegex(TABLE.Failure, "realtime priority"):
        TABLE.run_program(["true"], 1, True)
    with mock.patch.object(TABLE, "PATIENCE_S", 0.01):
      with self.assertRaisesRegex(TABLE.Failure, "sleep 9: not done after"):
        TABLE.run_program(["sleep", "9"], 1, False)

  def test_what_cannot_be_written_is_said_first(self):
    done = run("--ours=/bin/false", "--peers=none", "--json=/nowhere/x")
    self.assertEqual(done.returncode, 1)
    # On one CPU it tells before which rows it can't measure.
    self.assertRegex(done.stderr, r"^([^ ]+ left out: .*\n)*"
                                  r"fiber_table: .*/nowhere/x'\n$")

  def test_wrong_flags(self):
    for arguments in (["--peers=python"], ["--repetitions=0"],
                      ["--min_time=-1"], ["--min_time=soon"]):
      self.assertEqual(run(*arguments).returncode, 2, arguments)

  def test_output_of_google_benchmark(self):
    text = json.dumps({"benchmarks": [
        {"name": "BM_Yield/process_time", "cpu_time": 2.5, "real_time": 3.0,
         "time_unit": "us"}]})
    read = TABLE.GoogleBenchmark.read
    self.assertEqual(read(text, row_named("Yield")), 2500)
    self.assertEqual(read(text, row_named("StartStop/1")), 3000)
    self.assertIsNone(read("Failed to match any benchmarks", row_named("Yield")))
    text = json.dumps({"benchmarks": [
        {"name": "BM_IdleFiberMemory/7", "bytes": 4096.0, "cpu_time": 1,
         "real_time": 1, "time_unit": "ns"}]})
    self.assertEqual(read(text, row_named("IdleFiberMemory")), 4096)
    text = json.dumps({"benchmarks": [
        {"name": "BM_Yield", "error_occurred": True, "error_message": "lost"}]})
    with self.assertRaisesRegex(TABLE.Failure, "lost"):
      read(text, row_named("Yield"))

  def test_output_of_go(self):
    text = ("goos: linux\n"
            "BenchmarkYield-2  \t  303274\t  212.5 ns/op\t  100.8 cpu-ns/op\n"
            "PASS\n")
    read = TABLE.GoBenchmark.read
    self.assertEqual(read(text, row_named("Yield")), 100.8)
    self.assertEqual(read(text, row_named("MutexContended/2")), 212.5)
    self.assertIsNone(read("goos: linux\nPASS\n", row_named("Yield")))

  def test_summary(self):
    summary = TABLE.summarise(
        row_named("Yield"),
        {"flare": [30.0, 20.0, 25.0], "boost": [60.0, 50.0, 80.0],
         "go": [100.0]})
    self.assertEqual(summary["sides"]["flare"]["median"], 25)
    self.assertEqual(summary["sides"]["flare"]["spread"], 5)
    self.assertEqual(summary["ratio"], 60 / 25)
    with self.assertRaisesRegex(TABLE.Failure, "no row Yield"):
      TABLE.summarise(row_named("Yield"), {"go": [1.0]})

  def test_cells(self):
    self.assertEqual(TABLE.format_cell(None), "-")
    self.assertEqual(TABLE.format_cell({"median": 8.04, "spread": 0.4}),
                     "8.0 ±5%")
    self.assertEqual(TABLE.format_cell({"median": 12345.6, "spread": 0}),
                     "12,346 ±0%")


if __name__ == "__main__":
  sys.path[:0] = [os.path.join(TREE, "tools")]
  import unittest_xml
  unittest_xml.main()
