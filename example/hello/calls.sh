#!/usr/bin/env bash
# Calls the server of this folder by curl: docs/http_calls.md.

set -euo pipefail

service=http://127.0.0.1:5570/rpc/example.protobuf_echo.EchoService

# JSON. Prints {"body":"Hello, fibers."}
curl -sS -H 'Content-Type: application/x-proto3-json' -H 'Rpc-Timeout: 5000' \
  -d '{"body": "Hello, fibers."}' "$service.Echo"
echo

# Protobuf: in the request field 1, of 14 bytes; in the reply field 2.
printf '\n\016Hello, fibers.' |
  curl -sS -H 'Content-Type: application/x-protobuf' --data-binary @- \
    "$service.Echo"
echo

# A method that isn't there.
curl -sS -i -H 'Content-Type: application/x-proto3-json' -d '{}' \
  "$service.Nothing"
