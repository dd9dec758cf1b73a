#!/usr/bin/python3
"""Peers in their roles: replacements for all of them, and the real ones where
tools/peers has installed them (in $FLARE_PEERS, or its default folder)."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.append(os.path.join(HERE, '..', '..', 'tools'))

import unittest_xml
from workloads import peers
from workloads.model import Failure, Missing

UPSTREAMS = ['127.0.0.1:1001', '127.0.0.1:1002']
PATIENCE_S = 30

# Listens where its configuration or flags say, with a child if it is nginx, and
# keeps its arguments beside itself.
STAND_IN = r'''#!%s -IS
import json, os, re, socket, sys
text = ' '.join(sys.argv)
for word in sys.argv[1:]:
    if os.path.isfile(word):
        text += '\n' + open(word).read()
        for name in re.findall(r'include (.*);', text):
            text += '\n' + open(name).read()
with open(sys.argv[0] + '.seen', 'w') as file:
    json.dump({'text': text, 'cpus': sorted(os.sched_getaffinity(0))}, file)
if 'stream {' in text or 'http {' in text:
    workers = int(re.search(r'worker_processes (\d+)', text)[1])
    for _ in range(workers):
        os.spawnlp(os.P_NOWAIT, 'sleep', 'sleep', '1000000')
port = re.search(r'(?:listen 127.0.0.1:|bind 127.0.0.1:|port_value: |--port=|'
                 r'"address": "127.0.0.1:)(\d+)', text)[1]
listener = socket.create_server(('127.0.0.1', int(port)))
while True:
    listener.accept()
''' % sys.executable


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError('not within %d s: %s' % (PATIENCE_S, what))
        time.sleep(0.005)


def is_running(pid):
    try:
        with open('/proc/%d/stat' % pid, encoding='ascii',
                  errors='replace') as file:
            return file.read().rpartition(')')[2].split()[0] not in 'ZX'
    except OSError:
        return False


def get(address, path='/'):
    """Status and body."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request('GET', path)
        answer = connection.getresponse()
        return answer.status, answer.read()


class StandIns(unittest.TestCase):

    def setUp(self):
        top = tempfile.TemporaryDirectory()
        self.addCleanup(top.cleanup)
        self.folder = top.name
        self.peers = peers.all_peers(self.folder)

    def install(self, peer, program=None, text=STAND_IN):
        folder = os.path.join(self.folder, peer)
        os.makedirs(os.path.join(folder, 'bin'))
        with open(os.path.join(folder, 'installed.json'), 'w',
                  encoding='utf-8') as file:
            json.dump({'version': '1.0', 'recipe': 'x'}, file)
        path = os.path.join(folder, 'bin', program or peer)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        os.chmod(path, 0o755)
        return path

    @staticmethod
    def seen(path):
        with open(path + '.seen', encoding='utf-8') as file:
            return json.load(file)

    def test_not_installed(self):
        for name, peer in self.peers.items():
            with self.subTest(name):
                self.assertIn('tools/peers ' + name, peer.missing())
                self.assertIsNone(peer.version())
                with self.assertRaisesRegex(Missing, 'not installed'):
                    peer.program()
        with self.assertRaisesRegex(Missing, 'nginx is not installed'):
            with self.peers['nginx'].http(64):
                self.fail('started')

    def test_installed(self):
        path = self.install('wrk')
        self.assertIsNone(self.peers['wrk'].missing())
        self.assertEqual(self.peers['wrk'].version(), '1.0')
        self.assertEqual(self.peers['wrk'].program(), path)

    def test_proxies_know_their_upstreams(self):
        for name, peer in self.peers.items():
            if 'tcp' not in peer.roles:
                continue
            with self.subTest(name):
                path = self.install(name)
                with peer.tcp(UPSTREAMS, threads=1, cpus=[0]) as proxy:
                    seen = self.seen(path)
                self.assertNotRegex(seen['text'], '@[A-Z_]+@')
                for address in UPSTREAMS:
                    port = address.partition(':')[2]
                    self.assertRegex(seen['text'],
                                     r'127\.0\.0\.1(:|, port_value: )' + port)
                self.assertEqual(seen['cpus'], [0])
                self.assertFalse(is_running(proxy.pid))

    def test_http_servers_know_size_and_threads(self):
        for name, peer in self.peers.items():
            if 'http' not in peer.roles:
                continue
            with self.subTest(name):
                path = self.install(name)
                with peer.http(2050, threads=3, delay_ms=7) as server:
                    text = self.seen(path)['text']
                    self.assertEqual(len(server.pids),
                                     4 if name == 'nginx' else 1)
                self.assertNotRegex(text, '@[A-Z_]+@')
                self.assertRegex(text, 'worker_processes 3;|--threads=3')
                self.assertRegex(text, 'echo_sleep 0.007;|--delay_ms=7')
                self.assertRegex(
                    text, r'"xx\$kilobyte\$kilobyte";|--body_size=2050')

    def test_long_answers_of_nginx_come_from_a_file(self):
        path = self.install('nginx')
        with self.peers['nginx'].http(20000) as server:
            text = self.seen(path)['text']
            self.assertNotRegex(text, '@[A-Z_]+@')
            self.assertIn('try_files /body.txt', text)
            folder = os.path.dirname(server.command[-1])
            self.assertEqual(
                os.path.getsize(os.path.join(folder, 'body.txt')), 20000)
            self.assertIn('root %s;' % folder, text)

    def test_grpc(self):
        path = self.install('grpc', 'grpc_echo_server')
        with self.peers['grpc'].grpc(threads=1):
            self.assertEqual(len(self.seen(path)['cpus']), 1)
        self.assertTrue(self.peers['grpc'].client().endswith(
            'grpc/bin/grpc_echo_client'))

    def test_all_processes_end_and_files_go(self):
        self.install('nginx')
        with self.assertRaises(ZeroDivisionError):
            with self.peers['nginx'].tcp(UPSTREAMS, threads=2) as proxy:
                pids = proxy.pids
                config = proxy.command[-1]
                self.assertTrue(os.path.exists(config))
                raise ZeroDivisionError
        self.assertEqual(len(pids), 3)
        # The children were killed; somebody else reaps them.
        for pid in pids:
            wait_until(lambda pid=pid: not is_running(pid), 'the end of it')
        self.assertFalse(os.path.exists(config))

    def test_ends_with_a_killed_parent(self):
        self.install('haproxy')
        script = (
            'import sys; sys.path.insert(0, %r)\n'
            'from workloads import peers\n'
            'peer = peers.all_peers(%r)["haproxy"]\n'
            'with peer.tcp(["127.0.0.1:1"]) as proxy:\n'
            '    print(proxy.pid, flush=True)\n'
            '    sys.stdin.read()\n') % (os.path.dirname(HERE), self.folder)
        with subprocess.Popen([sys.executable, '-c', script],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              text=True) as parent:
            pid = int(parent.stdout.readline())
            self.assertTrue(is_running(pid))
            parent.send_signal(signal.SIGKILL)
            wait_until(lambda: not is_running(pid), 'the end of the peer')

    def test_one_that_ends_at_once_says_why(self):
        self.install('haproxy', text='#!/bin/sh\necho bad weather\nexit 3\n')
        with self.assertRaisesRegex(Failure, 'bad weather'):
            with self.peers['haproxy'].tcp(UPSTREAMS):
                self.fail('started')

    def test_matplotlib_from_the_folder(self):
        if peers.import_matplotlib('/nowhere') is not None:
            self.skipTest('the system has matplotlib')
        package = os.path.join(self.folder, 'matplotlib', 'python',
                               'matplotlib')
        os.makedirs(package)
        with open(os.path.join(package, '__init__.py'), 'w',
                  encoding='utf-8') as file:
            file.write('here = True\n')
        self.addCleanup(sys.modules.pop, 'matplotlib', None)
        self.addCleanup(sys.path.remove, os.path.dirname(package))
        self.assertTrue(peers.import_matplotlib(self.folder).here)


class RealPeers(unittest.TestCase):

    def setUp(self):
        self.peers = peers.all_peers()

    def each(self, role):
        """Installed peers with that role."""
        for name, peer in self.peers.items():
            if role in peer.roles:
                with self.subTest(name):
                    if peer.missing():
                        self.skipTest(peer.missing())
                    yield peer

    def test_http_servers_answer(self):
        for peer in self.each('http'):
            for size in (0, 1, 1023, 1024, 16384, 16385, 65536):
                with peer.http(size, threads=2) as server:
                    self.assertEqual(get(server.address), (200, b'x' * size))
                    begin = time.monotonic()
                    self.assertEqual(get(server.address, '/long_req/'),
                                     (200, b'x' * size))
                    self.assertGreaterEqual(time.monotonic() - begin, 0.0049)

    def test_proxies_pass_on_by_turns(self):
        for peer in self.each('tcp'):
            with contextlib.ExitStack() as stack:
                upstreams = [stack.enter_context(
                    socket.create_server(('127.0.0.1', 0))) for _ in range(2)]
                addresses = ['127.0.0.1:%d' % upstream.getsockname()[1]
                             for upstream in upstreams]
                proxy = stack.enter_context(peer.tcp(addresses, cpus=[0]))
                host, port = proxy.address.split(':')
                for upstream in upstreams:
                    upstream.settimeout(PATIENCE_S)
                # The probe for readiness has taken a turn, too.
                clients = [stack.enter_context(
                    socket.create_connection((host, int(port)), PATIENCE_S))
                           for _ in range(3)]
                self.assertEqual(len(clients), 3)
                for upstream in upstreams:
                    upstream.accept()[0].close()

    def test_grpc_answers(self):
        for peer in self.each('grpc'):
            with peer.grpc(threads=1) as server:
                done = subprocess.run(
                    [peer.client(), '--server_addr=' + server.address,
                     '--connections=2', '--max_pending=8', '--body_size=100',
                     '--warmup=0.1', '--duration=0.3', '--json=-'],
                    capture_output=True, text=True, timeout=PATIENCE_S,
                    check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(done.stdout)
            self.assertGreater(report['qps'], 0)
            self.assertEqual(report['failures'], 0)
            self.assertGreater(report['p999_us'], 0)

    def test_grpc_client_reports_failures(self):
        for peer in self.each('grpc'):
            done = subprocess.run(
                [peer.client(), '--server_addr=127.0.0.1:1', '--duration=0.2',
                 '--json=-'], capture_output=True, text=True,
                timeout=PATIENCE_S, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertGreater(json.loads(done.stdout)['failures'], 0)
            self.assertEqual(subprocess.run(
                [peer.client(), '--max_pending=0'], capture_output=True,
                timeout=PATIENCE_S, check=False).returncode, 2)

    def test_tools_start(self):
        for peer in self.each('tool'):
            done = subprocess.run(
                [peer.program(), '-h'], capture_output=True, text=True,
                timeout=PATIENCE_S, check=False)
            self.assertRegex(done.stdout + done.stderr, '(?i)usage')


if __name__ == '__main__':
    unittest_xml.main()
