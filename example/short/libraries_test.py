"""Examples of clients' libraries on fibers, with the servers themselves.

tools/setup installs Redis' server. PostgreSQL's takes a minute to install, so
its test runs where somebody has installed it.
"""

import glob
import os
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

import unittest_xml
from free_ports import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 120


def find(program, folders):
    return shutil.which(program, path=os.pathsep.join(
        [os.environ['PATH'], *folders]))


POSTGRES = find('postgres', sorted(glob.glob('/usr/lib/postgresql/*/bin')))
REDIS = find('redis-server', ['/usr/bin'])
REDIS_CLI = find('redis-cli', ['/usr/bin'])
REDIS_BENCHMARK = find('redis-benchmark', ['/usr/bin'])


def wait_until(done):
    end = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError('the server does not answer')
        time.sleep(0.05)


class LibraryTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir='/tmp')
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    # One worker: if a fiber held it, the others would never run.
    def run_example(self, name, *arguments):
        done = subprocess.run(
            [os.path.join(HERE, name), '--flare_concurrency_hint=1',
             *arguments],
            stdout=subprocess.PIPE, timeout=PATIENCE_S)
        return done.returncode, done.stdout.decode()

    def start(self, command, **options):
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL, **options)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        return server

    def start_redis(self, *arguments):
        port = str(free_port())
        self.start([REDIS, '--port', port, '--bind', '127.0.0.1', '--save', '',
                    '--dir', self.folder, *arguments])

        def answers():
            with socket.socket() as client:
                return client.connect_ex(('127.0.0.1', int(port))) == 0

        wait_until(answers)
        return port

    def test_redis(self):
        self.assertEqual(
            self.run_example('redis', '127.0.0.1', self.start_redis()),
            (0, 'news\nnews\n'))

    def test_redis_that_refuses(self):
        port = self.start_redis('--requirepass', 'secret')
        said = 'NOAUTH Authentication required.\n'
        self.assertEqual(self.run_example('redis', '127.0.0.1', port),
                         (1, 'push: ' + said + said + said))

    def test_without_redis(self):
        with socket.socket() as taken:  # Doesn't listen.
            taken.bind(('127.0.0.1', 0))
            port = str(taken.getsockname()[1])
            self.assertEqual(self.run_example('redis', '127.0.0.1', port),
                             (1, 'push: Connection refused\n'
                                 'Connection refused\nConnection refused\n'))

    def test_redis_client(self):
        uri = 'redis://127.0.0.1:' + self.start_redis()
        self.assertEqual(
            self.run_example('redis_client', uri),
            (0, 'visits: "1000"\n'
                'balances: [-30, 30]\n'
                'job: ["jobs", "sweep"]\n'
                'news: ["subscribe", "news", 1]\n'
                'news: ["message", "news", "it rains"]\n'))

    def test_redis_client_that_is_refused(self):
        port = self.start_redis('--requirepass', 'secret')
        self.assertEqual(
            self.run_example('redis_client', 'redis://127.0.0.1:' + port),
            (1, 'ping: error: NOAUTH Authentication required.\n'))
        self.assertEqual(
            self.run_example('redis_client', 'redis://:no@127.0.0.1:' + port),
            (1, 'ping: REDIS_REFUSED\n'))
        uri = f'redis://127.0.0.1:{free_port()}'
        self.assertEqual(self.run_example('redis_client', uri),
                         (1, 'ping: REDIS_FAIL_TO_CONNECT\n'))

    def start_redis_server(self, *arguments):
        port = str(free_port())
        self.redis_server = self.start(
            [os.path.join(HERE, 'redis_server'), '127.0.0.1:' + port,
             *arguments])
        wait_until(lambda: self.redis_cli(port, 'QUIT') == 'OK\n')
        return port

    # Redis' own client, which is hiredis.
    def redis_cli(self, port, *arguments, commands=None):
        return subprocess.run(
            [REDIS_CLI, '-p', port, '--no-auth-warning', *arguments],
            input=commands, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=PATIENCE_S, text=True).stdout

    def test_redis_server(self):
        port = self.start_redis_server()
        waiting = subprocess.Popen(
            [REDIS_CLI, '-p', port, 'WAITFOR', 'greeting', '100'],
            stdout=subprocess.PIPE, text=True)
        self.assertEqual(self.redis_cli(port, 'SET', 'greeting', 'hello'),
                         'OK\n')
        self.assertEqual(waiting.communicate(timeout=PATIENCE_S)[0], '1\n')
        self.assertEqual(self.redis_cli(port, 'GET', 'greeting'), 'hello\n')
        self.assertEqual(self.redis_cli(port, 'NO'),
                         "ERR unknown command 'NO', with args beginning with: "
                         '\n\n')
        self.assertEqual(
            self.redis_cli(port, '-3', commands='MULTI\nINCR n\nINCR n\n'
                           'EXEC\nWAITFOR n 1\nGET none\n'),
            'OK\nQUEUED\nQUEUED\n1\n2\n(true)\n\n')
        # Byte by byte, as redis-cli reads a file of commands.
        self.assertIn('errors: 0, replies: 1000\n', self.redis_cli(
            port, '--pipe', commands='INCR m\r\n' * 1000))
        self.assertEqual(self.redis_cli(port, 'GET', 'm'), '1000\n')

    def send(self, port, commands):
        client = socket.create_connection(('127.0.0.1', int(port)))
        self.addCleanup(client.close)
        client.settimeout(PATIENCE_S)
        client.sendall(commands)
        return client

    # The reply to the first command tells that the second one has come.
    def test_redis_server_wakes_those_that_wait(self):
        port = self.start_redis_server()
        client = self.send(port, b'PING\r\nWAITFOR n 1000\r\n')
        self.assertEqual(client.recv(7), b'+PONG\r\n')
        self.assertEqual(self.redis_cli(port, 'INCR', 'n'), '1\n')
        self.assertEqual(client.recv(4), b':1\r\n')

    def test_redis_server_stops_while_a_command_waits(self):
        port = self.start_redis_server(
            '', '--flare_rpc_server_drain_timeout_ms=1000')
        client = self.send(port, b'PING\r\nWAITFOR n 1000\r\n')
        self.assertEqual(client.recv(7), b'+PONG\r\n')
        self.redis_server.terminate()
        self.assertEqual(client.recv(4), b':0\r\n')
        self.assertEqual(self.redis_server.wait(PATIENCE_S), 0)

    def test_redis_server_with_a_password(self):
        port = self.start_redis_server('secret')
        self.assertEqual(self.redis_cli(port, 'GET', 'key'),
                         'NOAUTH Authentication required.\n\n')
        self.assertEqual(self.redis_cli(port, '-a', 'secret', 'GET', 'key'),
                         '\n')

    def test_redis_benchmark(self):
        said = subprocess.run(
            [REDIS_BENCHMARK, '-p', self.start_redis_server(), '--csv', '-n',
             '2000', '-P', '16', '-t', 'ping,set,get,incr'],
            check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=PATIENCE_S, text=True).stdout
        self.assertEqual(
            [line.split(',')[0] for line in said.splitlines()[1:]],
            ['"PING_INLINE"', '"PING_MBULK"', '"SET"', '"GET"', '"INCR"'])

    @unittest.skipUnless(POSTGRES, 'PostgreSQL is not installed')
    def test_postgres(self):
        tools = os.path.dirname(os.path.realpath(POSTGRES))
        # It doesn't run as root.
        owner = {'user': 'nobody'} if os.geteuid() == 0 else {}
        if owner:
            shutil.chown(self.folder, 'nobody')
        data = os.path.join(self.folder, 'data')
        subprocess.run([os.path.join(tools, 'initdb'), '--no-sync',
                        '--auth=trust', '--username=test', '--locale=C', data],
                       check=True, stdout=subprocess.DEVNULL, cwd=self.folder,
                       **owner)
        self.start([POSTGRES, '-D', data, '-k', self.folder,
                    '-c', 'listen_addresses=', '-c', 'fsync=off'], **owner)
        ready = [os.path.join(tools, 'pg_isready'), '-q', '-h', self.folder]
        wait_until(lambda: subprocess.run(ready).returncode == 0)
        self.assertEqual(
            self.run_example('postgres', 'host=%s user=test dbname=postgres'
                             % self.folder),
            (0, 'locked\nblocking\nwaiting\n'))

    def test_without_postgres(self):
        code, said = self.run_example('postgres', 'host=%s' % self.folder)
        self.assertEqual(code, 1)
        self.assertIn('No such file or directory', said)

    # A server takes connections and says nothing.
    def test_silent_postgres(self):
        path = os.path.join(self.folder, '.s.PGSQL.5432')
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path)
            server.listen()
            code, said = self.run_example(
                'postgres', 'host=%s connect_timeout=2' % self.folder)
        self.assertEqual(code, 1)
        self.assertIn('timeout expired', said)


if __name__ == '__main__':
    unittest_xml.main()
