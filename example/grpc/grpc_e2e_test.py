"""gRPC's own client for Python calls our servers."""

import os
import subprocess
import sys
import tempfile
import threading
import unittest

import unittest_xml

# Debian's grpcio is for Debian's Python, which need not be the first one.
sys.path.append('/usr/lib/python3/dist-packages')

import grpc  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE_S = 60
SERVICE = '/grpc.testing.TestService/'
INITIAL = 'x-grpc-test-echo-initial'
TRAILING = 'x-grpc-test-echo-trailing-bin'
WAIT = ('x-test-wait-for-cancellation', '1')
OPTIONS = [('grpc.max_receive_message_length', -1)]


def load_messages(folder):
    """The module that protoc makes of testing.proto."""
    subprocess.run(['protoc', '--proto_path=' + HERE, '--python_out=' + folder,
                    os.path.join(HERE, 'testing.proto')], check=True)
    sys.path.append(folder)
    import testing_pb2
    return testing_pb2


class GrpcTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.pb = load_messages(folder.name)

    def setUp(self):
        self.server = subprocess.Popen(
            [os.path.join(HERE, 'interop_server'), '--port=0'],
            stdout=subprocess.PIPE)
        self.addCleanup(self.server.stdout.close)
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.kill)
        self.target = '127.0.0.1:%d' % int(self.server.stdout.readline())
        self.channel = grpc.insecure_channel(self.target, options=OPTIONS)
        self.addCleanup(self.channel.close)
        pb = self.pb
        self.empty = self.method('unary_unary', 'EmptyCall', pb.Empty)
        self.unary = self.method('unary_unary', 'UnaryCall',
                                 pb.SimpleResponse)
        self.output = self.method('unary_stream', 'StreamingOutputCall',
                                  pb.StreamingOutputCallResponse)
        self.input = self.method('stream_unary', 'StreamingInputCall',
                                 pb.StreamingInputCallResponse)
        self.duplex = self.method('stream_stream', 'FullDuplexCall',
                                  pb.StreamingOutputCallResponse)

    def method(self, kind, name, response, path=None):
        return getattr(self.channel, kind)(
            path or SERVICE + name,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString)

    def failure(self, call):
        with self.assertRaises(grpc.RpcError) as raised:
            call()
        return raised.exception

    def expect_line(self, line):
        self.assertEqual(self.server.stdout.readline().decode(), line + '\n')

    def want(self, *sizes, **more):
        pb = self.pb
        return pb.StreamingOutputCallRequest(
            response_parameters=[pb.ResponseParameters(size=n)
                                 for n in sizes], **more)

    def never_ending(self):
        pb = self.pb
        return pb.StreamingOutputCallRequest(response_parameters=[
            pb.ResponseParameters(size=1),
            pb.ResponseParameters(size=1, interval_us=2_000_000_000)])

    def test_unary(self):
        pb = self.pb
        self.assertEqual(self.empty(pb.Empty(), timeout=PATIENCE_S),
                         pb.Empty())
        for request, response in ((0, 1), (271828, 314159),
                                  (4_000_000, 10_000_000)):
            got = self.unary(
                pb.SimpleRequest(response_size=response,
                                 payload=pb.Payload(body=bytes(request))),
                timeout=PATIENCE_S)
            self.assertEqual(got.payload.body, bytes(response))

    def test_many_calls_share_a_connection(self):
        calls = [self.unary.future(
            self.pb.SimpleRequest(response_size=n), timeout=PATIENCE_S)
            for n in range(500)]
        for n, call in enumerate(calls):
            self.assertEqual(len(call.result().payload.body), n)

    def test_metadata(self):
        binary = bytes(range(256))
        _, call = self.unary.with_call(
            self.pb.SimpleRequest(), timeout=PATIENCE_S,
            metadata=((INITIAL, 'text'), (TRAILING, binary)))
        self.assertEqual(dict(call.initial_metadata())[INITIAL], 'text')
        self.assertNotIn(TRAILING, dict(call.initial_metadata()))
        self.assertEqual(dict(call.trailing_metadata())[TRAILING], binary)
        call = self.duplex(iter([self.want(1)]), timeout=PATIENCE_S,
                           metadata=((INITIAL, 'text'), (TRAILING, binary)))
        self.assertEqual(len(list(call)), 1)
        self.assertEqual(dict(call.initial_metadata())[INITIAL], 'text')
        self.assertEqual(dict(call.trailing_metadata())[TRAILING], binary)

    def test_status_and_message(self):
        pb = self.pb
        for code in grpc.StatusCode:
            number = code.value[0]
            if number == 0:
                continue
            for text in ('test status message', '',
                         '\t\ntest with whitespace\r\nand Unicode BMP \u263a '
                         'and non-BMP \U0001F608 100%\t\n'):
                error = self.failure(lambda: self.unary(
                    pb.SimpleRequest(response_status=pb.EchoStatus(
                        code=number, message=text)), timeout=PATIENCE_S))
                self.assertEqual(error.code(), code)
                self.assertEqual(error.details(), text)
        error = self.failure(lambda: list(self.duplex(
            iter([self.want(5, response_status=pb.EchoStatus(
                code=2, message='no'))]), timeout=PATIENCE_S)))
        self.assertEqual(error.code(), grpc.StatusCode.UNKNOWN)
        self.assertEqual(error.details(), 'no')

    def test_status_details(self):
        details = bytes(range(256))
        error = self.failure(lambda: self.unary(
            self.pb.SimpleRequest(response_status=self.pb.EchoStatus(
                code=9, message='no')), timeout=PATIENCE_S,
            metadata=(('x-test-status-details-bin', details),)))
        self.assertEqual(error.code(), grpc.StatusCode.FAILED_PRECONDITION)
        self.assertEqual(
            dict(error.trailing_metadata())['grpc-status-details-bin'],
            details)

    def test_unimplemented(self):
        for path in (SERVICE + 'UnimplementedCall', SERVICE + 'Nothing',
                     '/grpc.testing.UnimplementedService/UnimplementedCall',
                     '/nothing'):
            call = self.method('unary_unary', '', self.pb.Empty, path)
            error = self.failure(lambda: call(self.pb.Empty(),
                                              timeout=PATIENCE_S))
            self.assertEqual(error.code(), grpc.StatusCode.UNIMPLEMENTED, path)
        # Also while the requests of a stream may still come.
        more = threading.Event()
        self.addCleanup(more.set)

        def requests():
            more.wait()
            yield self.pb.Empty()
        call = self.method('stream_stream', 'Nothing', self.pb.Empty)
        error = self.failure(lambda: list(call(requests(),
                                               timeout=PATIENCE_S)))
        self.assertEqual(error.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_compression(self):
        pb = self.pb
        for algorithm in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            got = self.unary(
                pb.SimpleRequest(response_size=314159,
                                 response_compressed=pb.BoolValue(value=True),
                                 payload=pb.Payload(body=bytes(271828))),
                compression=algorithm, timeout=PATIENCE_S)
            self.assertEqual(len(got.payload.body), 314159)
            got = self.input(
                (pb.StreamingInputCallRequest(
                    payload=pb.Payload(body=bytes(n)))
                 for n in (27182, 45904)),
                compression=algorithm, timeout=PATIENCE_S)
            self.assertEqual(got.aggregated_payload_size, 73086)
            # Their own windows hold all of these, unpacked by far not.
            got = self.input(
                (pb.StreamingInputCallRequest(
                    expect_compressed=pb.BoolValue(value=True),
                    payload=pb.Payload(body=bytes(100_000)))
                 for _ in range(100)),
                compression=algorithm, timeout=PATIENCE_S)
            self.assertEqual(got.aggregated_payload_size, 10_000_000)
        got = self.output(pb.StreamingOutputCallRequest(
            response_parameters=[
                pb.ResponseParameters(size=n, compressed=pb.BoolValue(value=c))
                for n, c in ((31415, True), (92653, False), (0, True))]),
            timeout=PATIENCE_S)
        self.assertEqual([len(m.payload.body) for m in got], [31415, 92653, 0])

    def test_streams(self):
        pb = self.pb
        sizes = (31415, 9, 2653, 58979)
        got = self.input(
            (pb.StreamingInputCallRequest(payload=pb.Payload(body=bytes(n)))
             for n in (27182, 8, 1828, 45904)), timeout=PATIENCE_S)
        self.assertEqual(got.aggregated_payload_size, 74922)
        got = self.output(self.want(*sizes), timeout=PATIENCE_S)
        self.assertEqual([len(m.payload.body) for m in got], list(sizes))
        # One request after each response.
        turns = threading.Semaphore(1)

        def requests():
            for n in sizes:
                turns.acquire()
                yield self.want(n)
        seen = []
        for message in self.duplex(requests(), timeout=PATIENCE_S):
            seen.append(len(message.payload.body))
            turns.release()
        self.assertEqual(seen, list(sizes))
        self.assertEqual(list(self.duplex(iter([]), timeout=PATIENCE_S)), [])

    def test_streams_larger_than_their_windows(self):
        pb = self.pb
        got = self.input(
            (pb.StreamingInputCallRequest(payload=pb.Payload(body=bytes(n)))
             for n in [3_000_000, 10] * 10), timeout=PATIENCE_S)
        self.assertEqual(got.aggregated_payload_size, 30_000_100)
        got = self.output(self.want(*[3_000_000, 10] * 10),
                          timeout=PATIENCE_S)
        self.assertEqual(sum(len(m.payload.body) for m in got), 30_000_100)

    def test_message_too_large(self):
        pb = self.pb
        request = pb.SimpleRequest(payload=pb.Payload(body=bytes(5_000_000)))
        error = self.failure(lambda: self.unary(request, timeout=PATIENCE_S))
        self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn('flare_rpc_server_max_packet_size', error.details())
        self.assertEqual(self.empty(pb.Empty(), timeout=PATIENCE_S),
                         pb.Empty())

    def test_deadline(self):
        error = self.failure(lambda: self.empty(
            self.pb.Empty(), timeout=0.2, metadata=(WAIT,)))
        self.assertEqual(error.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        error = self.failure(lambda: list(self.duplex(
            iter([self.never_ending()]), timeout=0.2)))
        self.assertEqual(error.code(), grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_cancellation_reaches_the_method(self):
        call = self.empty.future(self.pb.Empty(), timeout=PATIENCE_S,
                                 metadata=(WAIT,))
        self.expect_line('waiting')
        call.cancel()
        self.expect_line('cancelled')
        stream = self.output(self.never_ending(), timeout=PATIENCE_S)
        next(stream)
        stream.cancel()
        self.expect_line('cancelled')
        # The connection goes on.
        self.empty(self.pb.Empty(), timeout=PATIENCE_S)

    def test_loss_of_the_connection_cancels(self):
        channel = grpc.insecure_channel(
            self.target, options=[('grpc.use_local_subchannel_pool', 1)])
        call = channel.unary_unary(SERVICE + 'EmptyCall').future(
            b'', timeout=PATIENCE_S, metadata=(WAIT,))
        self.expect_line('waiting')
        channel.close()
        self.expect_line('cancelled')
        del call

    def test_stops_in_order(self):
        self.empty(self.pb.Empty(), timeout=PATIENCE_S)
        self.server.terminate()
        self.assertEqual(self.server.wait(PATIENCE_S), 0)


if __name__ == '__main__':
    unittest_xml.main()
