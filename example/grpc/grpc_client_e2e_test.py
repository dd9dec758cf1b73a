"""Our client calls servers by grpcio and gRPC C++, and ours, which a client by
gRPC C++ calls, too: gRPC's interoperability cases, and some of our own."""

import os
import select
import subprocess
import tempfile
import time
import unittest

import unittest_xml

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 120
# A Python without grpcio may come first in PATH: Debian's has it.
PYTHON = '/usr/bin/python3'

CASES = """
    empty_unary large_unary client_streaming server_streaming ping_pong
    empty_stream timeout_on_sleeping_server cancel_after_begin
    cancel_after_first_response status_code_and_message special_status_message
    custom_metadata unimplemented_method unimplemented_service
    server_compressed_unary server_compressed_streaming
    large_stream many_streams
    """.split()
# By grpcio a server can't see whether a request was compressed.
COMPRESSED_CASES = ['client_compressed_unary', 'client_compressed_streaming']
# gRPC C++'s server doesn't have what these need.
OUR_CASES = ['large_stream', 'many_streams']
OFFICIAL_CASES = [case for case in CASES + COMPRESSED_CASES
                  if case not in OUR_CASES]
OUR_SERVER = [os.path.join(HERE, 'interop_server'), '--port=0', '--logtostderr']


class InteropTest:
    cases = CASES

    def run_cases(self, cases):
        done = subprocess.run(
            [*self.client(), '--test_case=' + ','.join(cases)],
            stdout=subprocess.PIPE, timeout=PATIENCE_S)
        said = done.stdout.decode()
        self.assertEqual(said, ''.join(c + ': passed\n' for c in cases))
        self.assertEqual(done.returncode, 0)

    def client(self):
        return [os.path.join(HERE, 'interop_client'),
                '--server_port=%d' % self.port]

    @classmethod
    def start(cls, command):
        cls.server = subprocess.Popen(command, stdout=subprocess.PIPE)
        cls.addClassCleanup(cls.server.stdout.close)
        cls.addClassCleanup(cls.server.wait)
        cls.addClassCleanup(cls.server.kill)
        cls.port = int(cls.server.stdout.readline())

    def test_each_case(self):
        for case in self.cases:
            with self.subTest(case):
                self.run_cases([case])

    def test_all_cases_on_one_connection(self):
        self.run_cases(self.cases * 2)


class TimeoutTest:

    def test_server_hears_of_a_call_that_has_timed_out(self):
        said = b''
        os.set_blocking(self.server.stdout.fileno(), False)
        deadline = time.monotonic() + PATIENCE_S
        # Again, as the time may be over before the server begins the call.
        while b'cancelled\n' not in said:
            self.assertLess(time.monotonic(), deadline)
            self.assertIsNone(self.server.poll())
            self.run_cases(['unary_timeout'])
            select.select([self.server.stdout], [], [], 5)
            said += self.server.stdout.read() or b''


class GrpcioServerTest(InteropTest, TimeoutTest, unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        subprocess.run(['protoc', '--proto_path=' + HERE,
                        '--python_out=' + folder.name,
                        os.path.join(HERE, 'testing.proto')], check=True)
        cls.start([PYTHON, os.path.join(HERE, 'grpc_interop_server.py'),
                   folder.name])


class GrpcCppServerTest(InteropTest, unittest.TestCase):
    cases = OFFICIAL_CASES

    @classmethod
    def setUpClass(cls):
        cls.start([os.path.join(HERE, 'grpc_cpp_interop'), '--serve',
                   '--port=0'])


class OurServerTest(InteropTest, TimeoutTest, unittest.TestCase):
    cases = CASES + COMPRESSED_CASES

    @classmethod
    def setUpClass(cls):
        cls.start(OUR_SERVER)


class GrpcCppClientTest(InteropTest, unittest.TestCase):
    cases = OFFICIAL_CASES

    @classmethod
    def setUpClass(cls):
        cls.start(OUR_SERVER)

    def client(self):
        return [os.path.join(HERE, 'grpc_cpp_interop'), '--port=%d' % self.port]


if __name__ == '__main__':
    unittest_xml.main()
