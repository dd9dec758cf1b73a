#!/usr/bin/env python3
"""Health checks and reflection of example/rpc/server, by gRPC's own client.

The messages of both protocols are written down here once more, as they are
published: a wrong number in our .proto files would otherwise go unnoticed.
"""

import signal
import sys
import harness

# Debian's grpcio is for Debian's Python, which need not be the first one.
sys.path.append("/usr/lib/python3/dist-packages")

import grpc  # noqa: E402
from google.protobuf import descriptor_pb2  # noqa: E402
from google.protobuf import descriptor_pool  # noqa: E402
from google.protobuf import message_factory  # noqa: E402

FIELD = descriptor_pb2.FieldDescriptorProto
ECHO = "example.protobuf_echo.EchoService"
UNKNOWN, SERVING, NOT_SERVING, SERVICE_UNKNOWN = range(4)

# Each message's fields: name, number, type, and whether it is repeated.
HEALTH = {
    "HealthCheckRequest": [("service", 1, str, False)],
    # An enum is an int32 on the wire.
    "HealthCheckResponse": [("status", 1, int, False)],
}
REFLECTION = {
    "ServerReflectionRequest": [
        ("host", 1, str, False),
        ("file_by_filename", 3, str, False),
        ("file_containing_symbol", 4, str, False),
        ("file_containing_extension", 5, "ExtensionRequest", False),
        ("all_extension_numbers_of_type", 6, str, False),
        ("list_services", 7, str, False)],
    "ExtensionRequest": [
        ("containing_type", 1, str, False),
        ("extension_number", 2, int, False)],
    "ServerReflectionResponse": [
        ("valid_host", 1, str, False),
        ("original_request", 2, "ServerReflectionRequest", False),
        ("file_descriptor_response", 4, "FileDescriptorResponse", False),
        ("all_extension_numbers_response", 5, "ExtensionNumberResponse",
         False),
        ("list_services_response", 6, "ListServiceResponse", False),
        ("error_response", 7, "ErrorResponse", False)],
    "FileDescriptorResponse": [("file_descriptor_proto", 1, bytes, True)],
    "ExtensionNumberResponse": [
        ("base_type_name", 1, str, False),
        ("extension_number", 2, int, True)],
    "ListServiceResponse": [("service", 1, "ServiceResponse", True)],
    "ServiceResponse": [("name", 1, str, False)],
    "ErrorResponse": [
        ("error_code", 1, int, False),
        ("error_message", 2, str, False)],
}


def make_file(package, messages):
  file = descriptor_pb2.FileDescriptorProto(
      name=package + ".proto", package=package, syntax="proto3")
  types = {str: FIELD.TYPE_STRING, bytes: FIELD.TYPE_BYTES,
           int: FIELD.TYPE_INT32}
  for message, fields in messages.items():
    added = file.message_type.add(name=message)
    for name, number, kind, repeated in fields:
      field = added.field.add(
          name=name, number=number,
          label=FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL)
      if isinstance(kind, str):
        field.type = FIELD.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"
      else:
        field.type = types[kind]
  return file


class Messages:
  """Messages of files that are known only as the program runs."""

  def __init__(self, *files):
    self.pool = descriptor_pool.DescriptorPool()
    for file in files:
      self.pool.Add(file)
    self.factory = message_factory.MessageFactory(self.pool)

  def __getitem__(self, name):
    return self.factory.GetPrototype(self.pool.FindMessageTypeByName(name))


class ServicesTest(harness.TestCase):

  def setUp(self):
    super().setUp()
    self.server = self.start_server()
    self.channel = grpc.insecure_channel(f"127.0.0.1:{self.server.port}")
    self.addCleanup(self.channel.close)

  def method(self, kind, path, request, response):
    return getattr(self.channel, kind)(
        path, request_serializer=request.SerializeToString,
        response_deserializer=response.FromString)


class HealthTest(ServicesTest):

  def setUp(self):
    super().setUp()
    package = "grpc.health.v1"
    messages = Messages(make_file(package, HEALTH))
    self.request = messages[package + ".HealthCheckRequest"]
    response = messages[package + ".HealthCheckResponse"]
    path = f"/{package}.Health/"
    self.check = self.method("unary_unary", path + "Check", self.request,
                             response)
    self.watch = self.method("unary_stream", path + "Watch", self.request,
                             response)

  def test_check(self):
    for service in ("", ECHO, "grpc.health.v1.Health",
                    "grpc.reflection.v1.ServerReflection"):
      got = self.check(self.request(service=service),
                       timeout=harness.PATIENCE_S)
      self.assertEqual(got.status, SERVING, service)
    with self.assertRaises(grpc.RpcError) as raised:
      self.check(self.request(service="nobody"), timeout=harness.PATIENCE_S)
    self.assertEqual(raised.exception.code(), grpc.StatusCode.NOT_FOUND)
    self.assertEqual(raised.exception.details(),
                     'the health of service "nobody" is unknown')

  def test_watch_until_the_server_stops(self):
    watches = [self.watch(self.request(service=service),
                          timeout=harness.PATIENCE_S)
               for service in ("", ECHO)]
    unknown = self.watch(self.request(service="nobody"),
                         timeout=harness.PATIENCE_S)
    for watch in watches:
      self.assertEqual(next(watch).status, SERVING)
    self.assertEqual(next(unknown).status, SERVICE_UNKNOWN)
    self.server.send_signal(signal.SIGTERM)
    for watch in watches:
      self.assertEqual(next(watch).status, NOT_SERVING)
      with self.assertRaises(grpc.RpcError) as raised:
        next(watch)
      self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)
      self.assertEqual(raised.exception.details(), "the server stops")
    self.assertEqual(self.server.wait(), 0)


class ReflectionTest(ServicesTest):

  def ask(self, version, *requests):
    """The responses to requests, each of one field, of one call."""
    package = "grpc.reflection." + version
    messages = Messages(make_file(package, REFLECTION))
    request = messages[package + ".ServerReflectionRequest"]
    call = self.method(
        "stream_stream", f"/{package}.ServerReflection/ServerReflectionInfo",
        request, messages[package + ".ServerReflectionResponse"])
    responses = list(call(iter([request(**fields) for fields in requests]),
                          timeout=harness.PATIENCE_S))
    self.assertEqual(len(responses), len(requests))
    for response, fields in zip(responses, requests):
      self.assertEqual(response.original_request, request(**fields))
    return responses

  def test_a_method_is_called_as_it_is_described(self):
    for version in ("v1", "v1alpha"):
      listed, described = self.ask(
          version, {"list_services": "*"}, {"file_containing_symbol": ECHO})
      self.assertEqual(
          [service.name for service in listed.list_services_response.service],
          [ECHO, "grpc.health.v1.Health",
           "grpc.reflection.v1.ServerReflection",
           "grpc.reflection.v1alpha.ServerReflection"])
      files = [descriptor_pb2.FileDescriptorProto.FromString(file) for file in
               described.file_descriptor_response.file_descriptor_proto]
      # Imports come behind the files that need them.
      messages = Messages(*reversed(files))
      method = messages.pool.FindServiceByName(ECHO).FindMethodByName("Echo")
      request = messages[method.input_type.full_name]
      call = self.method("unary_unary", f"/{ECHO}/Echo", request,
                         messages[method.output_type.full_name])
      got = call(request(body="hello"), timeout=harness.PATIENCE_S)
      self.assertEqual(got.body, "hello")

  def test_other_questions(self):
    method, file, none, numbers = self.ask(
        "v1", {"file_containing_symbol": ECHO + ".Echo"},
        {"file_by_filename": "example/rpc/echo_service.proto"},
        {"file_containing_symbol": "no.such.Thing"},
        {"all_extension_numbers_of_type":
         "example.protobuf_echo.EchoRequest"})
    self.assertEqual(method.file_descriptor_response,
                     file.file_descriptor_response)
    self.assertEqual(none.error_response.error_code,
                     grpc.StatusCode.NOT_FOUND.value[0])
    self.assertEqual(none.error_response.error_message,
                     "there is no symbol no.such.Thing")
    self.assertEqual(
        numbers.all_extension_numbers_response.base_type_name,
        "example.protobuf_echo.EchoRequest")


if __name__ == "__main__":
  harness.main()
