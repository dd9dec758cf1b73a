// gRPC C++ at either end of gRPC's interoperability cases, as far as they need
// no credentials: serves and calls TestService. docs/testing.md has the
// commands.
//
//   grpc_cpp_interop --serve --port=10000
//   grpc_cpp_interop --port=10000 --test_case=empty_unary,large_unary
//
// As a server: prints its port. As a client: a line for each case, and exit
// status 1 if one has failed. Without --test_case all run.

#include <gflags/gflags.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "example/grpc/grpc_cpp/testing.grpc.pb.h"
#include "grpcpp/grpcpp.h"

DEFINE_bool(serve, false, "be the server");
DEFINE_string(host, "127.0.0.1", "address of the server");
DEFINE_int32(port, 10000, "its port; 0 in a server: any");
DEFINE_string(test_case, "", "cases, separated by commas; empty: all");

// gRPC's own tests ask for these, too: there is no other way to see how a
// message came.
std::uint32_t grpc_call_test_only_get_message_flags(grpc_call* call);

namespace grpc::testing {

constexpr std::uint32_t kWasCompressed = 0x40000000U;

class InteropServerContextInspector {
 public:
  static bool IsCompressed(ServerContext* context) {
    return (grpc_call_test_only_get_message_flags(context->c_call()) &
            kWasCompressed) != 0;
  }
};
class InteropClientContextInspector {
 public:
  static bool IsCompressed(const ClientContext& context) {
    return (grpc_call_test_only_get_message_flags(context.call_) &
            kWasCompressed) != 0;
  }
};

}  // namespace grpc::testing

namespace {

namespace pb = grpc::testing;
using grpc::ClientContext;
using grpc::ServerContext;
using grpc::Status;
using grpc::StatusCode;

constexpr char kInitial[] = "x-grpc-test-echo-initial";
constexpr char kTrailing[] = "x-grpc-test-echo-trailing-bin";

std::string Zeros(int size) {
  return std::string(static_cast<std::size_t>(size), '\0');
}

// --- the server --------------------------------------------------------------

template <class Request>
Status CheckCompression(ServerContext* context, const Request& request) {
  if (!request.has_expect_compressed() ||
      request.expect_compressed().value() ==
          pb::InteropServerContextInspector::IsCompressed(context)) {
    return Status::OK;
  }
  return Status(StatusCode::INVALID_ARGUMENT, "not compressed as announced");
}

void EchoMetadata(ServerContext* context) {
  const auto& metadata = context->client_metadata();
  if (const auto it = metadata.find(kInitial); it != metadata.end()) {
    context->AddInitialMetadata(kInitial,
                                {it->second.data(), it->second.size()});
  }
  if (const auto it = metadata.find(kTrailing); it != metadata.end()) {
    context->AddTrailingMetadata(kTrailing,
                                 {it->second.data(), it->second.size()});
  }
}

class TestService final : public pb::TestService::Service {
  Status EmptyCall(ServerContext* context, const pb::Empty*,
                   pb::Empty*) override {
    EchoMetadata(context);
    return Status::OK;
  }

  Status UnaryCall(ServerContext* context, const pb::SimpleRequest* request,
                   pb::SimpleResponse* response) override {
    EchoMetadata(context);
    if (Status s = CheckCompression(context, *request); !s.ok()) return s;
    if (request->response_status().code() != 0) {
      return Status(static_cast<StatusCode>(request->response_status().code()),
                    request->response_status().message());
    }
    if (request->response_compressed().value()) {
      context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    }
    response->mutable_payload()->set_body(Zeros(request->response_size()));
    return Status::OK;
  }

  Status StreamingOutputCall(
      ServerContext* context, const pb::StreamingOutputCallRequest* request,
      grpc::ServerWriter<pb::StreamingOutputCallResponse>* writer) override {
    context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    return Answer(*request, writer);
  }

  Status StreamingInputCall(
      ServerContext* context,
      grpc::ServerReader<pb::StreamingInputCallRequest>* reader,
      pb::StreamingInputCallResponse* response) override {
    std::size_t sum = 0;
    pb::StreamingInputCallRequest request;
    while (reader->Read(&request)) {
      if (Status s = CheckCompression(context, request); !s.ok()) return s;
      sum += request.payload().body().size();
    }
    response->set_aggregated_payload_size(static_cast<int>(sum));
    return Status::OK;
  }

  Status FullDuplexCall(
      ServerContext* context,
      grpc::ServerReaderWriter<pb::StreamingOutputCallResponse,
                               pb::StreamingOutputCallRequest>* stream)
      override {
    EchoMetadata(context);
    pb::StreamingOutputCallRequest request;
    while (stream->Read(&request)) {
      if (request.response_status().code() != 0) {
        return Status(static_cast<StatusCode>(request.response_status().code()),
                      request.response_status().message());
      }
      if (Status s = Answer(request, stream); !s.ok()) return s;
    }
    return Status::OK;
  }

  template <class Writer>
  static Status Answer(const pb::StreamingOutputCallRequest& request,
                       Writer* writer) {
    for (const pb::ResponseParameters& wanted : request.response_parameters()) {
      pb::StreamingOutputCallResponse response;
      response.mutable_payload()->set_body(Zeros(wanted.size()));
      grpc::WriteOptions options;
      if (!wanted.compressed().value()) options.set_no_compression();
      if (!writer->Write(response, options)) return Status::CANCELLED;
    }
    return Status::OK;
  }
};

int Serve() {
  TestService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(FLAGS_host + ":" + std::to_string(FLAGS_port),
                           grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) return 2;
  std::printf("%d\n", port);
  std::fflush(stdout);
  server->Wait();
  return 0;
}

// --- the client --------------------------------------------------------------

// The fault of the running case; empty: none.
std::string wrong;

bool Check(bool ok, const std::string& what) {
  if (!ok && wrong.empty()) wrong = what;
  return ok;
}

void CheckStatus(const Status& status, StatusCode code) {
  Check(status.error_code() == code, "status " +
                                         std::to_string(status.error_code()) +
                                         ", " + status.error_message());
}

void SetPatience(ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::seconds(60));
}

struct Stubs {
  std::unique_ptr<pb::TestService::Stub> test;
  std::unique_ptr<pb::UnimplementedService::Stub> unimplemented;
};

pb::SimpleRequest LargeRequest() {
  pb::SimpleRequest request;
  request.set_response_size(314159);
  request.mutable_payload()->set_body(Zeros(271828));
  return request;
}

pb::StreamingOutputCallRequest OutputRequest(const std::vector<int>& sizes,
                                             int payload) {
  pb::StreamingOutputCallRequest request;
  for (const int size : sizes) {
    request.add_response_parameters()->set_size(size);
  }
  request.mutable_payload()->set_body(Zeros(payload));
  return request;
}

template <class Reader>
bool CheckSize(Reader* reader, int size) {
  pb::StreamingOutputCallResponse message;
  return Check(reader->Read(&message), "a message is missing") &&
         Check(message.payload().body() == Zeros(size), "another message");
}

const std::vector<int> kResponseSizes{31415, 9, 2653, 58979};
const std::vector<int> kRequestSizes{27182, 8, 1828, 45904};

void CallLarge(const Stubs& stubs, const pb::SimpleRequest& request,
               ClientContext* context) {
  SetPatience(context);
  pb::SimpleResponse response;
  CheckStatus(stubs.test->UnaryCall(context, request, &response),
              StatusCode::OK);
  Check(response.payload().body() == Zeros(314159), "another payload");
}

void EmptyUnary(const Stubs& stubs) {
  ClientContext context;
  SetPatience(&context);
  pb::Empty response;
  CheckStatus(stubs.test->EmptyCall(&context, {}, &response), StatusCode::OK);
}

void LargeUnary(const Stubs& stubs) {
  ClientContext context;
  CallLarge(stubs, LargeRequest(), &context);
}

void ClientStreaming(const Stubs& stubs) {
  ClientContext context;
  SetPatience(&context);
  pb::StreamingInputCallResponse response;
  const auto writer = stubs.test->StreamingInputCall(&context, &response);
  for (const int size : kRequestSizes) {
    pb::StreamingInputCallRequest request;
    request.mutable_payload()->set_body(Zeros(size));
    Check(writer->Write(request), "a write failed");
  }
  writer->WritesDone();
  CheckStatus(writer->Finish(), StatusCode::OK);
  Check(response.aggregated_payload_size() == 74922, "another sum");
}

void ServerStreaming(const Stubs& stubs) {
  ClientContext context;
  SetPatience(&context);
  const auto reader = stubs.test->StreamingOutputCall(
      &context, OutputRequest(kResponseSizes, 0));
  for (const int size : kResponseSizes) CheckSize(reader.get(), size);
  pb::StreamingOutputCallResponse more;
  Check(!reader->Read(&more), "more messages than expected");
  CheckStatus(reader->Finish(), StatusCode::OK);
}

void PingPong(const Stubs& stubs) {
  ClientContext context;
  SetPatience(&context);
  const auto stream = stubs.test->FullDuplexCall(&context);
  for (std::size_t i = 0; i != kResponseSizes.size(); ++i) {
    Check(stream->Write(OutputRequest({kResponseSizes[i]}, kRequestSizes[i])),
          "a write failed");
    if (!CheckSize(stream.get(), kResponseSizes[i])) context.TryCancel();
  }
  stream->WritesDone();
  pb::StreamingOutputCallResponse more;
  Check(!stream->Read(&more), "more messages than expected");
  CheckStatus(stream->Finish(), StatusCode::OK);
}

void EmptyStream(const Stubs& stubs) {
  ClientContext context;
  SetPatience(&context);
  const auto stream = stubs.test->FullDuplexCall(&context);
  stream->WritesDone();
  pb::StreamingOutputCallResponse more;
  Check(!stream->Read(&more), "a message, in place of none");
  CheckStatus(stream->Finish(), StatusCode::OK);
}

void TimeoutOnSleepingServer(const Stubs& stubs) {
  ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(1));
  const auto stream = stubs.test->FullDuplexCall(&context);
  stream->Write(OutputRequest({}, 27182));
  CheckStatus(stream->Finish(), StatusCode::DEADLINE_EXCEEDED);
}

void CancelAfterBegin(const Stubs& stubs) {
  ClientContext context;
  pb::StreamingInputCallResponse response;
  const auto writer = stubs.test->StreamingInputCall(&context, &response);
  context.TryCancel();
  CheckStatus(writer->Finish(), StatusCode::CANCELLED);
}

void CancelAfterFirstResponse(const Stubs& stubs) {
  ClientContext context;
  const auto stream = stubs.test->FullDuplexCall(&context);
  Check(stream->Write(OutputRequest({31415}, 27182)), "a write failed");
  CheckSize(stream.get(), 31415);
  context.TryCancel();
  CheckStatus(stream->Finish(), StatusCode::CANCELLED);
}

void CheckEchoed(const Status& status, const std::string& text) {
  CheckStatus(status, StatusCode::UNKNOWN);
  Check(status.error_message() == text, "text " + status.error_message());
}

void EchoUnaryStatus(const Stubs& stubs, const std::string& text) {
  ClientContext context;
  SetPatience(&context);
  pb::SimpleRequest request;
  request.mutable_response_status()->set_code(StatusCode::UNKNOWN);
  request.mutable_response_status()->set_message(text);
  pb::SimpleResponse response;
  CheckEchoed(stubs.test->UnaryCall(&context, request, &response), text);
}

void StatusCodeAndMessage(const Stubs& stubs) {
  const std::string text = "test status message";
  EchoUnaryStatus(stubs, text);
  ClientContext context;
  SetPatience(&context);
  const auto stream = stubs.test->FullDuplexCall(&context);
  pb::StreamingOutputCallRequest request;
  request.mutable_response_status()->set_code(StatusCode::UNKNOWN);
  request.mutable_response_status()->set_message(text);
  stream->Write(request);
  stream->WritesDone();
  CheckEchoed(stream->Finish(), text);
}

void SpecialStatusMessage(const Stubs& stubs) {
  EchoUnaryStatus(stubs,
                  "\t\ntest with whitespace\r\nand Unicode BMP \xe2\x98\xba "
                  "and non-BMP \xf0\x9f\x98\x88\t\n");
}

void CheckMetadata(const ClientContext& context) {
  const auto& initial = context.GetServerInitialMetadata();
  const auto& trailing = context.GetServerTrailingMetadata();
  const auto first = initial.find(kInitial);
  const auto last = trailing.find(kTrailing);
  Check(
      first != initial.end() && first->second == "test_initial_metadata_value",
      "no or another initial value");
  Check(last != trailing.end() && last->second == "\xab\xab\xab",
        "no or another trailing value");
}

void CustomMetadata(const Stubs& stubs) {
  const auto prepare = [](ClientContext* context) {
    SetPatience(context);
    context->AddMetadata(kInitial, "test_initial_metadata_value");
    context->AddMetadata(kTrailing, "\xab\xab\xab");
  };
  ClientContext unary;
  prepare(&unary);
  CallLarge(stubs, LargeRequest(), &unary);
  CheckMetadata(unary);
  ClientContext context;
  prepare(&context);
  const auto stream = stubs.test->FullDuplexCall(&context);
  Check(stream->Write(OutputRequest({314159}, 271828)), "a write failed");
  stream->WritesDone();
  CheckSize(stream.get(), 314159);
  CheckStatus(stream->Finish(), StatusCode::OK);
  CheckMetadata(context);
}

void UnimplementedMethod(const Stubs& stubs) {
  ClientContext context;
  SetPatience(&context);
  pb::Empty response;
  CheckStatus(stubs.test->UnimplementedCall(&context, {}, &response),
              StatusCode::UNIMPLEMENTED);
}

void UnimplementedService(const Stubs& stubs) {
  ClientContext context;
  SetPatience(&context);
  pb::Empty response;
  CheckStatus(stubs.unimplemented->UnimplementedCall(&context, {}, &response),
              StatusCode::UNIMPLEMENTED);
}

// A server that looks at it refuses messages that aren't compressed as
// announced.
void ClientCompressedUnary(const Stubs& stubs) {
  pb::SimpleRequest request = LargeRequest();
  request.mutable_expect_compressed()->set_value(true);
  ClientContext probe;
  SetPatience(&probe);
  pb::SimpleResponse response;
  CheckStatus(stubs.test->UnaryCall(&probe, request, &response),
              StatusCode::INVALID_ARGUMENT);
  ClientContext compressed;
  compressed.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  CallLarge(stubs, request, &compressed);
  request.mutable_expect_compressed()->set_value(false);
  ClientContext plain;
  CallLarge(stubs, request, &plain);
}

pb::StreamingInputCallRequest InputRequest(int size, bool compressed) {
  pb::StreamingInputCallRequest request;
  request.mutable_payload()->set_body(Zeros(size));
  request.mutable_expect_compressed()->set_value(compressed);
  return request;
}

void ClientCompressedStreaming(const Stubs& stubs) {
  pb::StreamingInputCallResponse response;
  {
    ClientContext probe;
    SetPatience(&probe);
    const auto writer = stubs.test->StreamingInputCall(&probe, &response);
    writer->Write(InputRequest(27182, true));
    writer->WritesDone();
    CheckStatus(writer->Finish(), StatusCode::INVALID_ARGUMENT);
  }
  ClientContext context;
  SetPatience(&context);
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  const auto writer = stubs.test->StreamingInputCall(&context, &response);
  Check(writer->Write(InputRequest(27182, true)), "a write failed");
  grpc::WriteOptions plain;
  Check(writer->Write(InputRequest(45904, false), plain.set_no_compression()),
        "a write failed");
  writer->WritesDone();
  CheckStatus(writer->Finish(), StatusCode::OK);
  Check(response.aggregated_payload_size() == 73086, "another sum");
}

void ServerCompressedUnary(const Stubs& stubs) {
  for (const bool compressed : {true, false}) {
    pb::SimpleRequest request = LargeRequest();
    request.mutable_response_compressed()->set_value(compressed);
    ClientContext context;
    CallLarge(stubs, request, &context);
    Check(
        pb::InteropClientContextInspector::IsCompressed(context) == compressed,
        "not compressed as asked");
  }
}

void ServerCompressedStreaming(const Stubs& stubs) {
  pb::StreamingOutputCallRequest request = OutputRequest({31415, 92653}, 0);
  request.mutable_response_parameters(0)->mutable_compressed()->set_value(true);
  request.mutable_response_parameters(1)->mutable_compressed()->set_value(
      false);
  ClientContext context;
  SetPatience(&context);
  const auto reader = stubs.test->StreamingOutputCall(&context, request);
  CheckSize(reader.get(), 31415);
  Check(pb::InteropClientContextInspector::IsCompressed(context),
        "the first message wasn't compressed");
  CheckSize(reader.get(), 92653);
  Check(!pb::InteropClientContextInspector::IsCompressed(context),
        "the second message was compressed");
  CheckStatus(reader->Finish(), StatusCode::OK);
}

const std::map<std::string, std::function<void(const Stubs&)>> kCases{
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
};

// False: it has failed.
bool Run(const std::string& name, const Stubs& stubs) {
  const auto found = kCases.find(name);
  wrong = found == kCases.end() ? "there is no such case" : "";
  if (wrong.empty()) found->second(stubs);
  std::printf("%s: %s\n", name.c_str(),
              wrong.empty() ? "passed" : wrong.c_str());
  return wrong.empty();
}

int Call() {
  const auto channel =
      grpc::CreateChannel(FLAGS_host + ":" + std::to_string(FLAGS_port),
                          grpc::InsecureChannelCredentials());
  const Stubs stubs{pb::TestService::NewStub(channel),
                    pb::UnimplementedService::NewStub(channel)};
  bool fine = true;
  if (FLAGS_test_case.empty()) {
    for (const auto& [name, run] : kCases) fine &= Run(name, stubs);
  }
  std::stringstream names(FLAGS_test_case);
  for (std::string name; std::getline(names, name, ',');) {
    fine &= Run(name, stubs);
  }
  return fine ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  gflags::SetUsageMessage("gRPC's interoperability cases; docs/testing.md");
  gflags::SetVersionString("gRPC " + grpc::Version());
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return FLAGS_serve ? Serve() : Call();
}
