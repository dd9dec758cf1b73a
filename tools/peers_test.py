#!/usr/bin/python3
"""tools/peers, with peers that need no registry, and its parts."""

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import unittest_xml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import peer_recipes
from load_script import load


def write_program(path, text):
  os.makedirs(os.path.dirname(path), exist_ok=True)
  peer_recipes.write_script(path, text)


class FakePeer:
  """Installs a program that says its version, or is unavailable."""

  def __init__(self, version, reason=None):
    self.version = version
    self.reason = reason
    self.installs = 0

  def recipe(self):
    return f"fake {self.version}"

  def install(self, root, apt):
    del apt
    write_program(f"{root}/bin/fake", f"echo fake {self.version}\n")
    if self.reason:
      raise peer_recipes.Unavailable(self.reason)
    self.installs += 1
    return self.version


class PeersTest(unittest.TestCase):

  def setUp(self):
    self.program = load("peers")
    self.top = tempfile.TemporaryDirectory()
    self.addCleanup(self.top.cleanup)
    self.folder = os.path.join(self.top.name, "peers")
    self.peers = {"good": FakePeer("1.2"),
                  "bad": FakePeer("3", reason="the registry has no bad")}

  def run_program(self, *arguments):
    """Exit status and output."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(
        output), mock.patch.object(
            self.program, "PEERS", self.peers), mock.patch.object(
                sys, "argv",
                ["peers", f"--folder={self.folder}", *arguments]):
      try:
        status = self.program.main()
      except SystemExit as end:
        status = end.code
    return status, output.getvalue()

  def test_what_cannot_be_had_is_named_and_left_out(self):
    status, said = self.run_program()
    self.assertEqual(status, 0, said)
    self.assertEqual(said, "good: 1.2, installed\n"
                     "bad: left out: the registry has no bad\n")
    self.assertEqual(sorted(os.listdir(self.folder)), ["bin", "good"])
    self.assertEqual(
        subprocess.run([f"{self.folder}/bin/fake"], capture_output=True,
                       text=True, check=True).stdout, "fake 1.2\n")

  def test_what_was_asked_for_by_name_must_be_had(self):
    self.assertEqual(self.run_program("good")[0], 0)
    self.assertEqual(self.run_program("good", "bad")[0], 1)

  def test_installs_only_what_is_not_up_to_date(self):
    self.run_program("good")
    self.assertEqual(self.run_program("good"), (0, "good: 1.2, is there\n"))
    self.assertEqual(self.peers["good"].installs, 1)
    newer = self.peers["good"] = FakePeer("1.3")
    self.assertEqual(self.run_program("--list", "good"), (
        0, "good: 1.2, out of date: `tools/peers good`\n"))
    self.assertEqual(newer.installs, 0)
    self.assertEqual(self.run_program("good"), (0, "good: 1.3, installed\n"))
    self.assertEqual(self.run_program("--list", "good"), (0, "good: 1.3\n"))

  def test_failing_leaves_what_was_there(self):
    self.run_program("good")
    self.peers["good"] = FakePeer("1.3", reason="gone")
    self.assertEqual(self.run_program("good"),
                     (1, "good: left out: gone\n"))
    self.assertIn("good: 1.2", self.run_program("--list")[1])

  def test_what_the_disk_refuses_is_left_out_too(self):
    self.peers["good"].install = mock.Mock(side_effect=OSError(28, "full"))
    status, said = self.run_program()
    self.assertEqual(status, 0)
    self.assertIn("good: left out: [Errno 28] full", said)

  def test_list_installs_nothing(self):
    self.assertEqual(self.run_program("--list"),
                     (0, "good: not installed\nbad: not installed\n"))
    self.assertFalse(os.path.exists(self.folder))

  def test_damaged_state_is_no_state(self):
    self.run_program("good")
    with open(f"{self.folder}/good/installed.json", "w",
              encoding="utf-8") as file:
      file.write("{")
    self.assertEqual(self.run_program("good"), (0, "good: 1.2, installed\n"))

  def test_wrong_arguments(self):
    status, said = self.run_program("nobody")
    self.assertEqual(status, 2)
    self.assertIn("no peer 'nobody': there are good, bad", said)
    self.assertEqual(self.run_program("--nothing")[0], 2)
    self.folder = "/dev/null/peers"
    status, said = self.run_program("good")
    self.assertEqual(status, 2)
    self.assertIn("can't make /dev/null/peers", said)
    self.assertEqual(self.run_program("--list", "good"),
                     (0, "good: not installed\n"))


class RecipesTest(unittest.TestCase):

  def setUp(self):
    self.top = tempfile.TemporaryDirectory()
    self.addCleanup(self.top.cleanup)
    self.root = os.path.join(self.top.name, "root")
    os.mkdir(self.root)

  def test_every_recipe_finds_its_sources(self):
    for name, peer in peer_recipes.PEERS.items():
      with self.subTest(name):
        self.assertEqual(peer.recipe(), peer.recipe())
    self.assertEqual(
        len({peer.recipe() for peer in peer_recipes.PEERS.values()}),
        len(peer_recipes.PEERS))

  def test_recipe_of_grpc_knows_what_its_client_shares(self):
    files = ["example/rpc/report.cc", "example/rpc/report.h",
             "base/histogram.cc", *peer_recipes.GrpcPeer.PROTOS]
    recipes = set()
    with mock.patch.object(peer_recipes, "TOP", self.root):
      for text in ("old", "new"):
        for file in files:
          path = os.path.join(self.root, file)
          os.makedirs(os.path.dirname(path), exist_ok=True)
          with open(path, "w", encoding="utf-8") as opened:
            opened.write(text)
          if text == "new" or file == files[-1]:
            recipes.add(peer_recipes.PEERS["grpc"].recipe())
    self.assertEqual(len(recipes), 1 + len(files))

  def test_failures_say_what_failed(self):
    with self.assertRaisesRegex(peer_recipes.Unavailable,
                                "no nowhere_to_be_found .*package x"):
      peer_recipes.run(["nowhere_to_be_found"], need=" (package x)")
    with self.assertRaisesRegex(peer_recipes.Unavailable,
                                "`sh -c echo why >&2; exit 3` failed: why"):
      peer_recipes.run(["sh", "-c", "echo why >&2; exit 3"])
    with self.assertRaisesRegex(peer_recipes.Unavailable, "says no version"):
      peer_recipes.program_version("echo", "hello", r"version (\S+)")

  def test_starter_sets_libraries_and_may_be_moved(self):
    write_program(f"{self.root}/usr/sbin/thing",
                  'echo "$LD_LIBRARY_PATH" "$@"\n')
    os.makedirs(f"{self.root}/usr/lib/x86_64-linux-gnu")
    peer_recipes.write_starter(self.root, "thing", "usr/sbin/thing")
    moved = os.path.join(self.top.name, "elsewhere")
    os.rename(self.root, moved)
    said = subprocess.run(
        [f"{moved}/bin/thing", "a b"], capture_output=True, text=True,
        env={**os.environ, "LD_LIBRARY_PATH": "/more"}, check=True).stdout
    self.assertEqual(said, f"{moved}/bin/../usr/lib/x86_64-linux-gnu:"
                     f"{moved}/bin/../usr/lib:/more a b\n")

  def test_starter_of_a_program_that_the_system_has(self):
    peer_recipes.write_starter(self.root, "sh", "usr/bin/sh")
    said = subprocess.run([f"{self.root}/bin/sh", "-c", "echo hello"],
                          capture_output=True, text=True, check=True).stdout
    self.assertEqual(said, "hello\n")
    with self.assertRaisesRegex(peer_recipes.Unavailable, "no usr/bin/nothing"):
      peer_recipes.write_starter(self.root, "nothing_of_the_system",
                                 "usr/bin/nothing")

  def test_links_to_libraries_of_the_system(self):
    folder = f"{self.root}/etc"
    os.mkdir(folder)
    os.symlink("passwd", f"{folder}/here")       # Only the system has that.
    os.symlink("nobody has this", f"{folder}/nowhere")
    os.symlink("here", f"{folder}/fine")
    peer_recipes.repair_links(self.root)
    self.assertEqual(os.readlink(f"{folder}/here"), "/etc/passwd")
    self.assertEqual(os.readlink(f"{folder}/nowhere"), "nobody has this")

  def test_module_that_the_system_has(self):
    peer = peer_recipes.PipPeer("matplotlib")
    with mock.patch("importlib.util.find_spec"), mock.patch(
        "importlib.metadata.version", return_value="3.0"):
      self.assertEqual(peer.install(self.root, None), "3.0, the system's")
    self.assertEqual(os.listdir(self.root), [])

  def test_plan_of_packages_is_unpacked(self):
    apt = peer_recipes.Apt(os.path.join(self.top.name, "scratch"))
    ran = []

    def fake_run(command, **options):
      ran.append(command)
      if "--simulate" in command:
        return ("NOTE: This is only a simulation!\n"
                "Inst libthing1 (1:2.0-3+b1 Debian:12/stable [amd64])\n"
                "Inst thing [1.0] (2.0-3 Debian:12/stable [amd64]) []\n"
                "Conf thing (2.0-3 Debian:12/stable [amd64])\n")
      if "download" in command:
        for name in ("libthing1.deb", "thing.deb"):
          with open(os.path.join(options["cwd"], name), "wb"):
            pass
      return "user"

    with mock.patch.object(peer_recipes, "run", fake_run):
      apt.unpack(["thing"], self.root)
      apt.unpack(["other"], self.root)
    downloads = [command for command in ran if "download" in command]
    self.assertEqual(downloads[0][-2:],
                     ["libthing1=1:2.0-3+b1", "thing=2.0-3"])
    unpacked = [os.path.basename(command[2]) for command in ran
                if command[0] == "dpkg"]
    self.assertEqual(unpacked, 2 * ["libthing1.deb", "thing.deb"])
    self.assertEqual(sum(command[-1] == "update" for command in ran), 1)


if __name__ == "__main__":
  unittest_xml.main()
