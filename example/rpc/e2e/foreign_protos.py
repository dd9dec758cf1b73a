"""The protobuf messages in frames of baidu-std and trpc, as they are
documented; for foreign_wire.py. protoc makes the modules on first use."""

import functools
import importlib
import os
import subprocess
import sys
import tempfile

PROTOS = {
    "foreign_brpc.proto": """
syntax = "proto2";
package foreign_brpc;
message RpcRequestMeta {
  required string service_name = 1;
  required string method_name = 2;
  optional int64 log_id = 3;
  optional int64 trace_id = 4;
  optional int64 span_id = 5;
  optional int64 parent_span_id = 6;
  optional string request_id = 7;
  optional int32 timeout_ms = 8;
}
message RpcResponseMeta {
  optional int32 error_code = 1;
  optional string error_text = 2;
}
message StreamSettings {
  required int64 stream_id = 1;
  optional bool need_feedback = 2;
  optional bool writable = 3;
}
message RpcMeta {
  optional RpcRequestMeta request = 1;
  optional RpcResponseMeta response = 2;
  optional int32 compress_type = 3;
  optional int64 correlation_id = 4;
  optional int32 attachment_size = 5;
  optional bytes authentication_data = 7;
  optional StreamSettings stream_settings = 8;
  map<string, string> user_fields = 9;
  optional int32 content_type = 10;
  optional int32 checksum_type = 11;
  optional bytes checksum_value = 12;
  optional bool checksum_with_attachment = 13;
  optional int64 of_an_extension = 100;
}
""",
    "foreign_trpc.proto": """
syntax = "proto3";
package foreign_trpc;
message RequestProtocol {
  uint32 version = 1;
  uint32 call_type = 2;
  uint32 request_id = 3;
  uint32 timeout = 4;
  bytes caller = 5;
  bytes callee = 6;
  bytes func = 7;
  uint32 message_type = 8;
  map<string, bytes> trans_info = 9;
  uint32 content_type = 10;
  uint32 content_encoding = 11;
  uint32 attachment_size = 12;
}
message ResponseProtocol {
  uint32 version = 1;
  uint32 call_type = 2;
  uint32 request_id = 3;
  int32 ret = 4;
  int32 func_ret = 5;
  bytes error_msg = 6;
  uint32 message_type = 7;
  map<string, bytes> trans_info = 8;
  uint32 content_type = 9;
  uint32 content_encoding = 10;
  uint32 attachment_size = 12;
}
message StreamCloseMeta {
  int32 close_type = 1;
  int32 ret = 2;
  bytes msg = 3;
}
""",
}


@functools.lru_cache(maxsize=None)
def _modules():
  folder = tempfile.mkdtemp(prefix="flare_e2e_pb_")
  for name, text in PROTOS.items():
    with open(os.path.join(folder, name), "w") as f:
      f.write(text)
  subprocess.run(
      ["protoc", f"-I{folder}", f"--python_out={folder}", *PROTOS],
      cwd=folder, check=True)
  sys.path.insert(0, folder)
  return [importlib.import_module(name[:-len(".proto")] + "_pb2")
          for name in PROTOS]


def brpc():
  return _modules()[0]


def trpc():
  return _modules()[1]
