// The client of gRPC's interoperability tests: calls a server of TestService
// and checks how each case goes. docs/testing.md has the commands for servers
// of other languages.
//
//   ./interop_client --server_host=127.0.0.1 --server_port=10000
//                    --test_case=large_unary
//
// Exit status 1 if the case fails; a line names the fault. Several cases are
// separated by commas.

#include <gflags/gflags.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "example/grpc/testing.flare.pb.h"
#include "flare/base/string.h"
#include "flare/init.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/compression_algorithm.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_status.h"

DEFINE_string(server_host, "127.0.0.1", "The server's address.");
DEFINE_int32(server_port, 10000, "The server's port.");
DEFINE_string(test_case, "empty_unary",
              "The cases to run, separated by commas; \"list\" shows them.");

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(minloglevel, 1);

namespace {

namespace pb = grpc::testing;
using flare::rpc::GrpcCode;
using flare::rpc::GrpcFromStatus;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kLargeRequest = 271828;
constexpr int kLargeResponse = 314159;
constexpr seconds kPatience{60};

// The fault of the running case; empty: none.
std::string wrong;

bool Check(bool ok, const std::string& what) {
  if (!ok && wrong.empty()) wrong = what;
  return ok;
}

bool CheckCode(int status, const std::string& text, GrpcCode expected) {
  const GrpcCode code = GrpcFromStatus(status);
  return Check(code == expected,
               "status " + std::string(flare::rpc::GrpcCodeName(code)) + " (" +
                   std::to_string(status) + ", " + text + ") in place of " +
                   std::string(flare::rpc::GrpcCodeName(expected)));
}

template <class T>
bool CheckOk(const T& reply) {
  return Check(static_cast<bool>(reply),
               reply ? "" : "failed: " + reply.error().ToString());
}

// A stream is at its end, and the call went well.
template <class T>
bool CheckEnd(flare::StreamReader<T>* reader) {
  const auto more = reader->Read();
  if (!Check(!more, "more messages than expected")) return false;
  return Check(more.error() == flare::StreamError::EndOfStream,
               "the stream failed: " + reader->status().ToString());
}

// The call isn't over: no write of it may fail.
template <class Request, class Response>
bool CheckWrite(flare::StreamWriter<Request>* writer, const Request& request,
                const flare::StreamReader<Response>& reader) {
  if (writer->Write(request)) return true;
  return Check(false, "a write failed: " + reader.status().ToString());
}

pb::SimpleRequest LargeRequest() {
  pb::SimpleRequest request;
  request.set_response_size(kLargeResponse);
  request.mutable_payload()->set_body(std::string(kLargeRequest, '\0'));
  return request;
}

bool CheckLarge(const flare::Expected<pb::SimpleResponse, flare::Status>& got) {
  return CheckOk(got) &&
         Check(got->payload().body() == std::string(kLargeResponse, '\0'),
               "another payload");
}

pb::StreamingOutputCallRequest OutputRequest(const std::vector<int>& sizes,
                                             int payload) {
  pb::StreamingOutputCallRequest request;
  for (const int size : sizes) {
    request.add_response_parameters()->set_size(size);
  }
  if (payload != 0) {
    request.mutable_payload()->set_body(
        std::string(static_cast<std::size_t>(payload), '\0'));
  }
  return request;
}

const std::vector<int> kResponseSizes{31415, 9, 2653, 58979};
const std::vector<int> kRequestSizes{27182, 8, 1828, 45904};

struct Stubs {
  pb::TestService_SyncStub test;
  pb::UnimplementedService_SyncStub unimplemented;
};

bool CheckSize(flare::StreamReader<pb::StreamingOutputCallResponse>* reader,
               int size) {
  const auto message = reader->Read();
  if (!message) {
    return Check(false, "a message is missing: " + reader->status().ToString());
  }
  return Check(
      message->payload().body().size() == static_cast<std::size_t>(size),
      "a message of another size");
}

void EmptyUnary(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  CheckOk(stubs.test.EmptyCall(pb::Empty(), &controller));
}

void LargeUnary(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  CheckLarge(stubs.test.UnaryCall(LargeRequest(), &controller));
}

void ClientStreaming(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  auto [reader, writer] = stubs.test.StreamingInputCall(&controller);
  int sum = 0;
  for (const int size : kRequestSizes) {
    pb::StreamingInputCallRequest request;
    request.mutable_payload()->set_body(
        std::string(static_cast<std::size_t>(size), '\0'));
    sum += size;
    if (!CheckWrite(&writer, request, reader)) break;
  }
  writer.Close();
  auto reply = reader.Read();
  if (Check(static_cast<bool>(reply),
            "no reply: " + reader.status().ToString())) {
    Check(reply->aggregated_payload_size() == sum, "another sum");
  }
}

void ServerStreaming(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  auto reader = stubs.test.StreamingOutputCall(OutputRequest(kResponseSizes, 0),
                                               &controller);
  for (const int size : kResponseSizes) {
    if (!CheckSize(&reader, size)) break;
  }
  if (wrong.empty()) CheckEnd(&reader);
}

void PingPong(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  auto [reader, writer] = stubs.test.FullDuplexCall(&controller);
  for (std::size_t i = 0; i != kResponseSizes.size(); ++i) {
    if (!CheckWrite(&writer,
                    OutputRequest({kResponseSizes[i]}, kRequestSizes[i]),
                    reader) ||
        !CheckSize(&reader, kResponseSizes[i])) {
      return;
    }
  }
  writer.Close();
  CheckEnd(&reader);
}

void EmptyStream(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  auto [reader, writer] = stubs.test.FullDuplexCall(&controller);
  writer.Close();
  CheckEnd(&reader);
}

void TimeoutOnSleepingServer(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(milliseconds(1));
  auto [reader, writer] = stubs.test.FullDuplexCall(&controller);
  pb::StreamingOutputCallRequest request = OutputRequest({}, kRequestSizes[0]);
  static_cast<void>(writer.Write(request));  // It may be too late already.
  Check(!reader.Read(), "a message, in place of none");
  CheckCode(reader.status().code(), reader.status().message(),
            GrpcCode::kDeadlineExceeded);
  writer.Close();
}

void CancelAfterBegin(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  auto [reader, writer] = stubs.test.StreamingInputCall(&controller);
  {
    const auto dropped = std::move(writer);  // Which cancels the call.
  }
  Check(!reader.Read(), "a reply to a call that was cancelled");
  Check(!reader.status().ok(), "the call went well");
}

void CancelAfterFirstResponse(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  auto [reader, writer] = stubs.test.FullDuplexCall(&controller);
  if (!CheckWrite(&writer, OutputRequest({31415}, 27182), reader) ||
      !CheckSize(&reader, 31415)) {
    return;
  }
  { const auto dropped = std::move(writer); }
  Check(!reader.Read(), "a message of a call that was cancelled");
  Check(!reader.status().ok(), "the call went well");
}

void CheckEchoedStatus(const Stubs& stubs, const std::string& text,
                       bool streams) {
  pb::EchoStatus status;
  status.set_code(static_cast<int>(GrpcCode::kUnknown));
  status.set_message(text);
  {
    flare::RpcClientController controller;
    controller.SetTimeout(kPatience);
    pb::SimpleRequest request;
    *request.mutable_response_status() = status;
    const auto reply = stubs.test.UnaryCall(request, &controller);
    CheckCode(controller.ErrorCode(), controller.ErrorText(),
              GrpcCode::kUnknown);
    Check(controller.ErrorText() == text, "text " + controller.ErrorText());
  }
  if (!streams) return;
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  auto [reader, writer] = stubs.test.FullDuplexCall(&controller);
  pb::StreamingOutputCallRequest request;
  *request.mutable_response_status() = status;
  CheckWrite(&writer, request, reader);
  writer.Close();
  Check(!reader.Read(), "a message in place of a failure");
  CheckCode(reader.status().code(), reader.status().message(),
            GrpcCode::kUnknown);
  Check(reader.status().message() == text, "text " + reader.status().message());
}

void StatusCodeAndMessage(const Stubs& stubs) {
  CheckEchoedStatus(stubs, "test status message", /*streams=*/true);
}

void SpecialStatusMessage(const Stubs& stubs) {
  CheckEchoedStatus(stubs,
                    "\t\ntest with whitespace\r\nand Unicode BMP \xe2\x98\xba "
                    "and non-BMP \xf0\x9f\x98\x88\t\n",
                    /*streams=*/false);
}

void CustomMetadata(const Stubs& stubs) {
  constexpr std::string_view kInitial = "x-grpc-test-echo-initial";
  constexpr std::string_view kTrailing = "x-grpc-test-echo-trailing-bin";
  const std::string text = "test_initial_metadata_value";
  const std::string bytes = "\xab\xab\xab";
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  controller.AddMetadata(kInitial, text);
  controller.AddMetadata(kTrailing, bytes);
  if (!CheckLarge(stubs.test.UnaryCall(LargeRequest(), &controller))) return;
  const flare::Metadata& metadata = controller.GetResponseMetadata();
  Check(metadata.Get(kInitial) == text, "no or another initial value");
  Check(metadata.Get(kTrailing) == bytes, "no or another trailing value");
}

void UnimplementedMethod(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  static_cast<void>(stubs.test.UnimplementedCall(pb::Empty(), &controller));
  CheckCode(controller.ErrorCode(), controller.ErrorText(),
            GrpcCode::kUnimplemented);
}

void UnimplementedService(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  static_cast<void>(
      stubs.unimplemented.UnimplementedCall(pb::Empty(), &controller));
  CheckCode(controller.ErrorCode(), controller.ErrorText(),
            GrpcCode::kUnimplemented);
}

void ClientCompressedUnary(const Stubs& stubs) {
  // A server that looks at it refuses messages that aren't compressed as
  // announced.
  pb::SimpleRequest request = LargeRequest();
  request.mutable_expect_compressed()->set_value(true);
  {
    flare::RpcClientController probe;
    probe.SetTimeout(kPatience);
    static_cast<void>(stubs.test.UnaryCall(request, &probe));
    CheckCode(probe.ErrorCode(), probe.ErrorText(), GrpcCode::kInvalidArgument);
  }
  {
    flare::RpcClientController compressed;
    compressed.SetTimeout(kPatience);
    compressed.SetCompressionAlgorithm(flare::rpc::COMPRESSION_ALGORITHM_GZIP);
    CheckLarge(stubs.test.UnaryCall(request, &compressed));
  }
  flare::RpcClientController plain;
  plain.SetTimeout(kPatience);
  request.mutable_expect_compressed()->set_value(false);
  CheckLarge(stubs.test.UnaryCall(request, &plain));
}

void ClientCompressedStreaming(const Stubs& stubs) {
  const auto message = [](int size, bool compressed) {
    pb::StreamingInputCallRequest request;
    request.mutable_payload()->set_body(
        std::string(static_cast<std::size_t>(size), '\0'));
    request.mutable_expect_compressed()->set_value(compressed);
    return request;
  };
  {
    flare::RpcClientController probe;
    probe.SetTimeout(kPatience);
    auto [reader, writer] = stubs.test.StreamingInputCall(&probe);
    static_cast<void>(writer.WriteLast(message(kRequestSizes[0], true)));
    Check(!reader.Read(), "a reply, though the message wasn't compressed");
    CheckCode(reader.status().code(), reader.status().message(),
              GrpcCode::kInvalidArgument);
  }
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  controller.SetCompressionAlgorithm(flare::rpc::COMPRESSION_ALGORITHM_GZIP);
  auto [reader, writer] = stubs.test.StreamingInputCall(&controller);
  CheckWrite(&writer, message(27182, true), reader);
  writer.SetCompressed(false);
  CheckWrite(&writer, message(45904, false), reader);
  writer.Close();
  const auto reply = reader.Read();
  if (Check(static_cast<bool>(reply),
            "no reply: " + reader.status().ToString())) {
    Check(reply->aggregated_payload_size() == 73086, "another sum");
  }
}

void ServerCompressedUnary(const Stubs& stubs) {
  for (const bool compressed : {true, false}) {
    flare::RpcClientController controller;
    controller.SetTimeout(kPatience);
    pb::SimpleRequest request = LargeRequest();
    request.mutable_response_compressed()->set_value(compressed);
    CheckLarge(stubs.test.UnaryCall(request, &controller));
  }
}

void ServerCompressedStreaming(const Stubs& stubs) {
  pb::StreamingOutputCallRequest request = OutputRequest({31415, 92653}, 0);
  request.mutable_response_parameters(0)->mutable_compressed()->set_value(true);
  request.mutable_response_parameters(1)->mutable_compressed()->set_value(
      false);
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  auto reader = stubs.test.StreamingOutputCall(request, &controller);
  if (CheckSize(&reader, 31415) &&
      Check(reader.compressed(), "the first message wasn't compressed") &&
      CheckSize(&reader, 92653) &&
      Check(!reader.compressed(), "the second message was compressed")) {
    CheckEnd(&reader);
  }
}

// --- cases of our own ---

// More, and larger, than any window: the server sends as much as is read, no
// more.
void LargeStream(const Stubs& stubs) {
  flare::RpcClientController controller;
  controller.SetTimeout(kPatience);
  const std::vector<int> sizes{3'000'000, 1, 0, 2'000'000, 65'536, 100'000};
  auto [reader, writer] = stubs.test.FullDuplexCall(&controller);
  for (const int size : sizes) {
    if (!CheckWrite(&writer, OutputRequest({size}, size), reader)) return;
  }
  writer.Close();
  for (const int size : sizes) {
    if (!CheckSize(&reader, size)) return;
  }
  CheckEnd(&reader);
}

// More of them than a server allows on a connection.
void ManyStreams(const Stubs& stubs) {
  constexpr int kStreams = 300;
  flare::RpcClientController controllers[kStreams];
  std::vector<flare::StreamReader<pb::StreamingOutputCallResponse>> readers;
  for (flare::RpcClientController& controller : controllers) {
    controller.SetTimeout(kPatience);
    readers.push_back(stubs.test.StreamingOutputCall(
        OutputRequest({100, 200}, 0), &controller));
  }
  for (auto& reader : readers) {
    if (!CheckSize(&reader, 100) || !CheckSize(&reader, 200) ||
        !CheckEnd(&reader)) {
      return;
    }
  }
}

// The server sleeps for longer than that (the user agent says so): the call
// ends by its deadline, and the connection goes on.
void UnaryTimeout(const Stubs& stubs) {
  EmptyUnary(stubs);  // So it isn't over before there is a connection.
  {
    flare::RpcClientController controller;
    controller.SetTimeout(milliseconds(50));
    controller.AddMetadata("x-test-wait-for-cancellation", "1");
    static_cast<void>(stubs.test.UnaryCall(LargeRequest(), &controller));
    CheckCode(controller.ErrorCode(), controller.ErrorText(),
              GrpcCode::kDeadlineExceeded);
  }
  EmptyUnary(stubs);
}

using Case = std::function<void(const Stubs&)>;
const std::map<std::string, Case, std::less<>> kCases{
    {"empty_unary", EmptyUnary},
    {"large_unary", LargeUnary},
    {"client_streaming", ClientStreaming},
    {"server_streaming", ServerStreaming},
    {"ping_pong", PingPong},
    {"empty_stream", EmptyStream},
    {"timeout_on_sleeping_server", TimeoutOnSleepingServer},
    {"cancel_after_begin", CancelAfterBegin},
    {"cancel_after_first_response", CancelAfterFirstResponse},
    {"status_code_and_message", StatusCodeAndMessage},
    {"special_status_message", SpecialStatusMessage},
    {"custom_metadata", CustomMetadata},
    {"unimplemented_method", UnimplementedMethod},
    {"unimplemented_service", UnimplementedService},
    {"client_compressed_unary", ClientCompressedUnary},
    {"client_compressed_streaming", ClientCompressedStreaming},
    {"server_compressed_unary", ServerCompressedUnary},
    {"server_compressed_streaming", ServerCompressedStreaming},
    {"large_stream", LargeStream},
    {"many_streams", ManyStreams},
    {"unary_timeout", UnaryTimeout},
};

int Entry(int, char**) {
  if (FLAGS_test_case == "list") {
    for (const auto& [name, run] : kCases) std::cout << name << '\n';
    return 0;
  }
  flare::RpcChannel channel;
  if (!channel.Open("grpc://" + FLAGS_server_host + ":" +
                    std::to_string(FLAGS_server_port))) {
    return 1;
  }
  const Stubs stubs{pb::TestService_SyncStub(&channel),
                    pb::UnimplementedService_SyncStub(&channel)};
  int failed = 0;
  for (const std::string_view name : flare::Split(FLAGS_test_case, ',')) {
    const auto found = kCases.find(name);
    wrong = found == kCases.end() ? "there is no such case" : "";
    if (wrong.empty()) found->second(stubs);
    std::cout << name << ": " << (wrong.empty() ? "passed" : wrong) << '\n';
    failed += wrong.empty() ? 0 : 1;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
