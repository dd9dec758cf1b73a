#!/usr/bin/env bash
# The commands of docs/tutorial.md, in the folder in which the tutorial's
# project was built into build/. tutorial_test.py runs them, with other ports.

set -euo pipefail

# Those who type are slower than servers start.
wait_for() {  # <port>
  for ((i = 0; i < 6000; ++i)); do
    if (: < "/dev/tcp/127.0.0.1/$1") 2> /dev/null; then return; fi
    sleep 0.01
  done
  echo "nobody listens on port $1" >&2
  exit 1
}
wait_for_handler() {  # <process>: of SIGTERM, bit 14 of this mask.
  until grep -q '^SigCgt:.*[4-7c-f]...$' "/proc/$1/status"; do sleep 0.01; done
}
trap 'kill -KILL $(jobs -p) 2> /dev/null || true' EXIT

# Step 2: serve.
build/carrier --port=5601 &
wait_for 5601
curl http://127.0.0.1:5601/fares.Carrier/Ask \
  -H 'Content-Type: application/json' -d '{"from": "Oslo", "to": "Rome"}'
echo

# Step 3: call.
build/client --carrier=flare://127.0.0.1:5601
build/client --carrier=flare://127.0.0.1:5601 --from=Rome || true
build/client --carrier=flare://127.0.0.1:5609 || true

# Step 4: fan out.
build/carrier --port=5602 --name=south --cents=3900 &
build/carrier --port=5603 --name=slow --think_ms=60000 &
build/fares --port=5600 --carriers="flare://127.0.0.1:5601 flare://127.0.0.1:5602 flare://127.0.0.1:5603" &
fares="$!"
wait_for 5602
wait_for 5603
wait_for 5600
curl http://127.0.0.1:5600/fares.Fares/Find \
  -H 'Content-Type: application/json' -d '{"from": "Oslo", "to": "Rome"}'
echo
wait_for_handler "$fares"
kill "$fares"
wait "$fares"

# Step 5: observe.
build/fares_server --flagfile=fares.flags 2> fares.log &
fares="$!"
wait_for 5600
curl http://127.0.0.1:5600/fares.Fares/Find \
  -H 'Content-Type: application/json' -d '{"from": "Oslo", "to": "Rome"}'
echo
grep Find fares.log
curl http://127.0.0.1:5600/inspect/methods
curl http://127.0.0.1:5600/inspect/server

# Step 6: deploy.
curl http://127.0.0.1:5600/grpc.health.v1.Health/Check \
  -H 'Content-Type: application/x-proto3-json' -d '{"service": "fares.Fares"}'
echo
wait_for_handler "$fares"
kill -TERM "$fares"
wait "$fares"
echo "stopped with status $?"
