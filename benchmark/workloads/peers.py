"""The systems that we compare with, started in the roles that they are compared
in.

    nginx = peers.all_peers()['nginx']
    if nginx.missing() is None:
        with nginx.http(body_size=1024, threads=2) as server:
            load(server.address)       # '127.0.0.1:40123'
            cpu_seconds(server.pids)   # Of all its processes.

tools/peers installs them; their configurations are templates in
benchmark/peers/; docs/peers.md says why they look as they do.

A peer has the methods of its `roles`. 'http': a server that answers every GET
with the same bytes, and /long_req/ after a delay that blocks no thread. 'tcp':
a layer-4 proxy that takes some upstreams in turn. 'grpc': an echo server.
'tool': a load generator, which is only a `program`.

The methods are context managers that give a processes.Process which accepts
connections. `threads` is how many work on them; `cpus`, a list, pins them.
Missing is raised if a peer isn't installed, Failure if it doesn't start.
"""

import contextlib
import hashlib
import importlib
import json
import os
import resource
import socket
import sys
import tempfile
import time

from . import processes
from .model import Failure, Missing

TEMPLATES = os.path.join(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))), 'peers')
PATIENCE_S = 30.0
DESCRIPTORS = 65536


def default_folder():
    """Where tools/peers installs by default."""
    return os.environ.get('FLARE_PEERS') or os.path.join(
        os.path.expanduser('~'), '.cache', 'flare_peers')


class Peer:
    """Something that we compare with. `folder` is that of tools/peers."""

    roles = ()

    def __init__(self, name, folder=None):
        self.name = name
        self.folder = os.path.join(folder or default_folder(), name)

    def missing(self):
        """None, or why it can't run, for people."""
        if self.version() is None:
            return '%s is not installed: `tools/peers %s`' % (self.name,
                                                             self.name)
        return None

    def version(self):
        """As text; None if it isn't installed."""
        try:
            with open(os.path.join(self.folder, 'installed.json'),
                      encoding='utf-8') as file:
                return json.load(file)['version']
        except (FileNotFoundError, ValueError):
            return None

    def installation(self):
        """A word that changes with the version, or its source."""
        with open(os.path.join(self.folder, 'installed.json'), 'rb') as file:
            return hashlib.sha1(file.read()).hexdigest()[:6]

    def program(self, name=None):
        """The path of a program of it, by default that of the same name."""
        if self.missing():
            raise Missing(self.missing())
        return os.path.join(self.folder, 'bin', name or self.name)

    @contextlib.contextmanager
    def start(self, make_command, cpus, count=1):
        """make_command(port, folder) gives what to start; `folder` takes its
        files and is deleted in the end. It is ready when `count` processes are
        there and the port answers."""
        with tempfile.TemporaryDirectory(prefix=self.name + '.') as folder:
            port = free_port()
            command = guarded(make_command(port, folder), cpus)
            with processes.started(command, folder) as process:
                process.address = '127.0.0.1:%d' % port
                self._wait_until_ready(process, port, count)
                yield process

    def _wait_until_ready(self, process, port, count):
        deadline = time.monotonic() + PATIENCE_S
        while not (len(process.pids) >= count and answers(port)):
            if not process.running() or time.monotonic() > deadline:
                raise Failure('%s does not listen on %s:\n%s' % (
                    self.name, process.address, process.tail()))
            time.sleep(0.01)


def free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def answers(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(('127.0.0.1', port)) == 0


def guarded(command, cpus):
    """The command, pinned, with descriptors for thousands of connections.

    If this process is killed, it gets SIGTERM: unlike SIGKILL that ends the
    processes that it has started, too.
    """
    prefix = ['setpriv', '--pdeathsig', 'TERM',
              'prlimit', '--nofile=%d:' % descriptors()]
    if cpus is not None:
        prefix += ['taskset', '-c', ','.join(map(str, cpus))]
    return prefix + command


def descriptors():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return DESCRIPTORS
    return min(DESCRIPTORS, hard)


def fill_in(template, folder, **values):
    """Writes benchmark/peers/TEMPLATE into `folder`, each @NAME@ replaced.

    Returns the path.
    """
    with open(os.path.join(TEMPLATES, template), encoding='utf-8') as file:
        text = file.read()
    values.update(FOLDER=folder, DESCRIPTORS=descriptors())
    for name, value in values.items():
        text = text.replace('@%s@' % name, str(value))
    path = os.path.join(folder, template)
    write_file(path, text)
    return path


def write_file(path, text):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(text)


class Nginx(Peer):
    """A process for each thread, and one that starts them."""

    roles = ('http', 'tcp')
    # Up to here answers out of the configuration are faster than files.
    MAX_TEXT_BYTES = 16384

    def http(self, body_size, threads=1, cpus=None, delay_ms=5):
        def write_config(folder, **values):
            if body_size <= self.MAX_TEXT_BYTES:
                whole, rest = divmod(body_size, 1024)
                answer = fill_in('nginx_answer_text.conf', folder,
                                 KILOBYTE='x' * 1024,
                                 BODY='x' * rest + '$kilobyte' * whole)
            else:
                answer = fill_in('nginx_answer_file.conf', folder)
                write_file(os.path.join(folder, 'body.txt'), 'x' * body_size)
            return fill_in(
                'nginx_http.conf', folder, ANSWER=answer,
                ECHO_MODULE=self._module('ngx_http_echo_module.so'),
                DELAY_S=delay_ms / 1000, **values)

        return self._run(write_config, threads, cpus)

    def tcp(self, upstreams, threads=1, cpus=None):
        def write_config(folder, **values):
            return fill_in(
                'nginx_tcp.conf', folder,
                STREAM_MODULE=self._module('ngx_stream_module.so'),
                SERVERS=' '.join('server %s;' % address
                                 for address in upstreams), **values)

        return self._run(write_config, threads, cpus)

    def _module(self, name):
        # The system's, if that had the package when nginx was installed.
        path = 'usr/lib/nginx/modules/' + name
        inside = os.path.join(self.folder, path)
        return inside if os.path.exists(inside) else '/' + path

    def _run(self, write_config, threads, cpus):
        def make_command(port, folder):
            # Started by root, its workers are somebody else.
            os.chmod(folder, 0o755)
            config = write_config(
                folder, PORT=port, THREADS=threads,
                LISTEN_OPTIONS='reuseport' if threads > 1 else '')
            return [self.program(), '-p', folder, '-e', 'stderr', '-c', config]

        return self.start(make_command, cpus, count=1 + threads)


class Haproxy(Peer):
    roles = ('tcp',)

    def tcp(self, upstreams, threads=1, cpus=None):
        def make_command(port, folder):
            servers = '\n  '.join('server server%d %s' % item
                                  for item in enumerate(upstreams))
            # Two descriptors each, and some for other purposes.
            connections = min(8192, descriptors() // 2 - 100)
            config = fill_in('haproxy_tcp.cfg', folder, PORT=port,
                             THREADS=threads, SERVERS=servers,
                             CONNECTIONS=connections)
            return [self.program(), '-db', '-f', config]

        return self.start(make_command, cpus)


class Envoy(Peer):
    roles = ('tcp',)

    def tcp(self, upstreams, threads=1, cpus=None):
        def make_command(port, folder):
            servers = '\n        '.join(
                '- endpoint: {address: {socket_address: '
                '{address: %s, port_value: %s}}}' % tuple(
                    address.rsplit(':', 1)) for address in upstreams)
            config = fill_in('envoy_tcp.yaml', folder, PORT=port,
                             SERVERS=servers)
            # Hot restart needs shared memory, where other Envoys are met.
            return [self.program(), '-c', config, '--concurrency', str(threads),
                    '--disable-hot-restart', '--log-level', 'error']

        return self.start(make_command, cpus)


class Mosn(Peer):
    roles = ('tcp',)

    def tcp(self, upstreams, threads=1, cpus=None):
        def make_command(port, folder):
            servers = ', '.join('{"address": "%s"}' % address
                                for address in upstreams)
            config = fill_in('mosn_tcp.json', folder, PORT=port,
                             THREADS=threads, SERVERS=servers)
            return ['env', 'GOMAXPROCS=%d' % threads, self.program(), 'start',
                    '-c', config]

        return self.start(make_command, cpus)


class HttpProgram(Peer):
    """Our small server on others' HTTP library: benchmark/peers/http_*."""

    roles = ('http',)

    def http(self, body_size, threads=1, cpus=None, delay_ms=5):
        def make_command(port, folder):
            del folder
            return [self.program(), '--port=%d' % port,
                    '--threads=%d' % threads, '--body_size=%d' % body_size,
                    '--delay_ms=%d' % delay_ms]

        return self.start(make_command, cpus)


class Grpc(Peer):
    """Takes no number of threads, but looks at the machine: `threads` pins it
    to the first so many CPUs, unless `cpus` says which."""

    roles = ('grpc',)

    def grpc(self, threads=1, cpus=None):
        mine = sorted(os.sched_getaffinity(0))
        if cpus is None and threads < len(mine):
            cpus = mine[:threads]

        def make_command(port, folder):
            del folder
            return [self.program('grpc_echo_server'), '--port=%d' % port]

        return self.start(make_command, cpus)

    def client(self):
        """The path of the load generator; docs/peers.md tells its flags."""
        return self.program('grpc_echo_client')


class Tool(Peer):
    roles = ('tool',)


def all_peers(folder=None):
    """{name: Peer}, installed or not. `folder` is that of tools/peers."""
    kinds = {'nginx': Nginx, 'haproxy': Haproxy, 'envoy': Envoy, 'mosn': Mosn,
             'grpc': Grpc, 'go_http': HttpProgram, 'hyper': HttpProgram,
             'wrk': Tool, 'ab': Tool, 'h2load': Tool}
    return {name: kind(name, folder) for name, kind in kinds.items()}


def import_matplotlib(folder=None):
    """The module, from the system or from tools/peers; None without either."""
    path = os.path.join(folder or default_folder(), 'matplotlib', 'python')
    for place in (None, path):
        if place is not None and place not in sys.path:
            sys.path.append(place)
        with contextlib.suppress(ImportError):
            return importlib.import_module('matplotlib')
    return None
