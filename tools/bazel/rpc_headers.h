// Headers of flare that tests of //rpc include, compiled in advance with those
// of others (precompiled.bzl).
#include "flare/fiber/testing/eventually.h"
#include "flare/rpc/http_handler.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "flare/rpc/testing/client_fixture.h"
#include "flare/rpc/testing/logged_lines.h"
#include "flare/rpc/testing/raw_server_fixture.h"
#include "flare/rpc/testing/server_fixture.h"
#include "flare/rpc/testing/streamer_fixture.h"
#include "tools/bazel/common_headers.h"
