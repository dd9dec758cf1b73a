"""TestService (testing.proto) served by grpcio, for tests of our client.

    grpc_interop_server.py <folder with testing_pb2.py>

Prints the port that it listens on, then one line for each call of
x-test-wait-for-cancellation that its caller has given up.
"""

import sys
import threading
from concurrent import futures

import grpc

sys.path.insert(0, sys.argv[1])
import testing_pb2 as pb  # noqa: E402: the folder is known only now.

SERVICE = 'grpc.testing.TestService'
INITIAL = 'x-grpc-test-echo-initial'
TRAILING = 'x-grpc-test-echo-trailing-bin'
WAIT = 'x-test-wait-for-cancellation'


def echo_metadata(context):
    metadata = dict(context.invocation_metadata())
    if INITIAL in metadata:
        context.send_initial_metadata(((INITIAL, metadata[INITIAL]),))
    if TRAILING in metadata:
        context.set_trailing_metadata(((TRAILING, metadata[TRAILING]),))
    if WAIT in metadata:
        cancelled = threading.Event()
        context.add_callback(cancelled.set)
        cancelled.wait()
        print('cancelled', flush=True)


def fail_as_asked(request, context):
    if request.HasField('response_status') and request.response_status.code:
        for code in grpc.StatusCode:
            if code.value[0] == request.response_status.code:
                context.abort(code, request.response_status.message)


def payload(size):
    return pb.Payload(body=bytes(size))


def empty_call(request, context):
    return pb.Empty()


def unary_call(request, context):
    echo_metadata(context)
    fail_as_asked(request, context)
    if request.HasField('response_compressed'):
        if request.response_compressed.value:
            context.set_compression(grpc.Compression.Gzip)
        else:
            context.disable_next_message_compression()
    return pb.SimpleResponse(payload=payload(request.response_size))


def streaming_output_call(request, context):
    if any(p.compressed.value for p in request.response_parameters):
        context.set_compression(grpc.Compression.Deflate)
    for parameters in request.response_parameters:
        if not parameters.compressed.value:
            context.disable_next_message_compression()
        yield pb.StreamingOutputCallResponse(payload=payload(parameters.size))


def streaming_input_call(requests, context):
    return pb.StreamingInputCallResponse(
        aggregated_payload_size=sum(len(r.payload.body) for r in requests))


def full_duplex_call(requests, context):
    for request in requests:
        fail_as_asked(request, context)
        for parameters in request.response_parameters:
            yield pb.StreamingOutputCallResponse(
                payload=payload(parameters.size))


def main():
    def handler(make, function, request, response):
        return make(function, request_deserializer=request.FromString,
                    response_serializer=response.SerializeToString)

    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16),
                         options=[('grpc.max_concurrent_streams', 20),
                                  ('grpc.so_reuseport', 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
        SERVICE, {
            'EmptyCall': handler(grpc.unary_unary_rpc_method_handler,
                                 empty_call, pb.Empty, pb.Empty),
            'UnaryCall': handler(grpc.unary_unary_rpc_method_handler,
                                 unary_call, pb.SimpleRequest,
                                 pb.SimpleResponse),
            'StreamingOutputCall': handler(
                grpc.unary_stream_rpc_method_handler, streaming_output_call,
                pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse),
            'StreamingInputCall': handler(
                grpc.stream_unary_rpc_method_handler, streaming_input_call,
                pb.StreamingInputCallRequest, pb.StreamingInputCallResponse),
            'FullDuplexCall': handler(
                grpc.stream_stream_rpc_method_handler, full_duplex_call,
                pb.StreamingOutputCallRequest, pb.StreamingOutputCallResponse),
        }),))
    port = server.add_insecure_port('127.0.0.1:0')
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


main()
