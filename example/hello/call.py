"""Calls example/rpc/server over the flare protocol, from Python.

    protoc --python_out=. flare_meta.proto
    protoc -I ../rpc --python_out=. echo_service.proto
    python3 call.py 5567 'Hello, fibers.'

docs/wire_format.md explains it.
"""

import socket
import struct
import sys

import echo_service_pb2
import flare_meta_pb2

# The magic, and how long meta, body and attachment are; little-endian.
HEADER = struct.Struct('<4sIII')


class CallError(Exception):
    """The server's failure of a call: status and description."""


def receive(connection, size):
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError('the server closed the connection')
        data += piece
    return bytes(data)


def call(connection, correlation_id, method, request, response,
         attachment=b'', timeout_ms=1000):
    """Fills in the response; returns the reply's attachment."""
    meta = flare_meta_pb2.Meta(correlation_id=correlation_id, method_type=1)
    meta.request_meta.method_name = method
    meta.request_meta.timeout = timeout_ms
    parts = [meta.SerializeToString(), request.SerializeToString(), attachment]
    sizes = [len(part) for part in parts]
    connection.sendall(HEADER.pack(b'CPRF', *sizes) + b''.join(parts))

    # With several calls under way, replies come in any order: by their
    # correlation_id. Here there is one at a time.
    magic, *sizes = HEADER.unpack(receive(connection, HEADER.size))
    if magic != b'CPRF':
        raise ConnectionError('that is not the flare protocol')
    meta_bytes, body, attachment = [receive(connection, n) for n in sizes]
    meta = flare_meta_pb2.Meta.FromString(meta_bytes)
    if meta.response_meta.status != 0:
        raise CallError(meta.response_meta.status,
                        meta.response_meta.description)
    response.ParseFromString(body)
    return attachment


def main():
    port, body = sys.argv[1:]
    request = echo_service_pb2.EchoRequest(body=body)
    response = echo_service_pb2.EchoResponse()
    with socket.create_connection(('127.0.0.1', port)) as connection:
        attachment = call(connection, 1,
                          'example.protobuf_echo.EchoService.Echo', request,
                          response, attachment=b'beside it')
        print(response.body, attachment)
        try:
            call(connection, 2, 'example.protobuf_echo.EchoService.Nothing',
                 request, response)
        except CallError as error:
            print(*error.args)


if __name__ == '__main__':
    main()
