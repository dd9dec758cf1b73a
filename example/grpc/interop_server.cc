// The server of gRPC's interoperability tests, for clients of any language.
//
//   ./interop_server --port=10000
//
// Prints the port that it listens on, by itself on a line. A call with the
// metadata "x-test-wait-for-cancellation" says "waiting" on a line, waits until
// its caller gives it up, and then says "cancelled". So does a stream that is
// given up between two responses.

#include <gflags/gflags.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "example/grpc/testing.flare.pb.h"
#include "flare/base/endpoint.h"
#include "flare/fiber/execution_context.h"
#include "flare/fiber/this_fiber.h"
#include "flare/init.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/metadata.h"
#include "flare/rpc/server.h"
#include "glog/logging.h"

DEFINE_int32(port, 10000, "Where to listen, on all addresses; 0: any port.");

namespace {

using flare::RpcServerController;
using flare::StreamReader;
using flare::StreamWriter;
using flare::rpc::GrpcCode;
using flare::rpc::StatusFromGrpc;
using grpc::testing::BoolValue;
using grpc::testing::EchoStatus;
using grpc::testing::Empty;
using grpc::testing::Payload;
using grpc::testing::SimpleRequest;
using grpc::testing::SimpleResponse;
using grpc::testing::StreamingInputCallRequest;
using grpc::testing::StreamingInputCallResponse;
using grpc::testing::StreamingOutputCallRequest;
using grpc::testing::StreamingOutputCallResponse;

constexpr std::string_view kInitial = "x-grpc-test-echo-initial";
constexpr std::string_view kTrailing = "x-grpc-test-echo-trailing-bin";
// The part of a failed call's request that becomes its status details.
constexpr std::string_view kDetails = "x-test-status-details-bin";
constexpr char kWait[] = "x-test-wait-for-cancellation";
constexpr int kMaxResponse = 64 << 20;

void Print(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

void EchoMetadata(RpcServerController* controller) {
  const flare::Metadata& metadata = controller->GetRequestMetadata();
  if (const auto value = metadata.Get(kInitial)) {
    controller->AddResponseMetadata(kInitial, *value);
  }
  if (const auto value = metadata.Get(kTrailing)) {
    controller->AddResponseTrailer(kTrailing, *value);
  }
}

// The caller has left, or its deadline has passed.
void FailGivenUp(RpcServerController* controller) {
  Print("cancelled");
  const auto cause = flare::fiber::ExecutionContext::Current()->stop_cause();
  // kNone: IsCanceled() has seen the deadline before its timer.
  const bool late = cause == flare::fiber::StopCause::kDeadline ||
                    cause == flare::fiber::StopCause::kNone;
  controller->SetFailed(
      StatusFromGrpc(late ? GrpcCode::kDeadlineExceeded : GrpcCode::kCancelled),
      "The call was given up.");
}

// False: the call is over.
bool WaitAsAsked(RpcServerController* controller) {
  if (!controller->GetRequestMetadata().Contains(kWait)) return true;
  Print("waiting");
  while (!controller->IsCanceled()) {
    if (!flare::this_fiber::SleepFor(controller->GetStopToken(),
                                     std::chrono::hours(1))) {
      break;
    }
  }
  FailGivenUp(controller);
  return false;
}

bool FailAsAsked(const EchoStatus& status, RpcServerController* controller) {
  if (status.code() == 0) return false;
  if (const auto details = controller->GetRequestMetadata().Get(kDetails)) {
    controller->AddResponseMetadata(flare::kGrpcStatusDetails, *details);
  }
  controller->SetFailed(StatusFromGrpc(static_cast<GrpcCode>(status.code())),
                        status.message());
  return true;
}

// Messages came compressed, or not, as their sender says.
bool CheckCompression(const BoolValue* expected, bool compressed,
                      RpcServerController* controller) {
  if (expected == nullptr || expected->value() == compressed) return true;
  controller->SetFailed(StatusFromGrpc(GrpcCode::kInvalidArgument),
                        compressed ? "a compressed message, unexpectedly"
                                   : "a message that isn't compressed");
  return false;
}

template <class T>
const BoolValue* Expected(const T& request) {
  return request.has_expect_compressed() ? &request.expect_compressed()
                                         : nullptr;
}

bool SetPayload(int size, Payload* payload, RpcServerController* controller) {
  if (size < 0 || size > kMaxResponse) {
    controller->SetFailed(StatusFromGrpc(GrpcCode::kInvalidArgument),
                          "a response of " + std::to_string(size) + " bytes");
    return false;
  }
  payload->mutable_body()->assign(static_cast<std::size_t>(size), '\0');
  return true;
}

class TestServiceImpl final : public grpc::testing::SyncTestService {
  void EmptyCall(const Empty&, Empty*,
                 RpcServerController* controller) override {
    static_cast<void>(WaitAsAsked(controller));
  }

  void UnaryCall(const SimpleRequest& request, SimpleResponse* response,
                 RpcServerController* controller) override {
    EchoMetadata(controller);
    if (!WaitAsAsked(controller)) return;
    if (FailAsAsked(request.response_status(), controller)) return;
    if (!CheckCompression(Expected(request), controller->IsRequestCompressed(),
                          controller)) {
      return;
    }
    if (request.response_compressed().value()) {
      controller->SetCompressionAlgorithm(flare::CompressionAlgorithm::kGzip);
    }
    static_cast<void>(SetPayload(request.response_size(),
                                 response->mutable_payload(), controller));
  }

  void StreamingOutputCall(const StreamingOutputCallRequest& request,
                           StreamWriter<StreamingOutputCallResponse> writer,
                           RpcServerController* controller) override {
    if (Answer(request, &writer, controller)) writer.Close();
  }

  void StreamingInputCall(StreamReader<StreamingInputCallRequest> reader,
                          StreamingInputCallResponse* response,
                          RpcServerController* controller) override {
    std::int32_t size = 0;
    for (const StreamingInputCallRequest& request : reader) {
      if (!CheckCompression(Expected(request), reader.compressed(),
                            controller)) {
        return;
      }
      size += static_cast<std::int32_t>(request.payload().body().size());
    }
    response->set_aggregated_payload_size(size);
  }

  void FullDuplexCall(StreamReader<StreamingOutputCallRequest> reader,
                      StreamWriter<StreamingOutputCallResponse> writer,
                      RpcServerController* controller) override {
    EchoMetadata(controller);
    for (const StreamingOutputCallRequest& request : reader) {
      if (!Answer(request, &writer, controller)) return;
    }
    writer.Close();
  }

  void HalfDuplexCall(StreamReader<StreamingOutputCallRequest> reader,
                      StreamWriter<StreamingOutputCallResponse> writer,
                      RpcServerController* controller) override {
    std::vector<StreamingOutputCallRequest> requests;
    for (const StreamingOutputCallRequest& request : reader) {
      requests.push_back(request);
    }
    for (const StreamingOutputCallRequest& request : requests) {
      if (!Answer(request, &writer, controller)) return;
    }
    writer.Close();
  }

  void UnimplementedCall(const Empty&, Empty*,
                         RpcServerController* controller) override {
    controller->SetFailed(StatusFromGrpc(GrpcCode::kUnimplemented),
                          "UnimplementedCall isn't implemented.");
  }

  // False: the call is over.
  static bool Answer(const StreamingOutputCallRequest& request,
                     StreamWriter<StreamingOutputCallResponse>* writer,
                     RpcServerController* controller) {
    if (!WaitAsAsked(controller)) return false;
    if (FailAsAsked(request.response_status(), controller)) return false;
    for (const auto& parameters : request.response_parameters()) {
      if (parameters.interval_us() > 0 &&
          !flare::this_fiber::SleepFor(
              controller->GetStopToken(),
              std::chrono::microseconds(parameters.interval_us()))) {
        FailGivenUp(controller);
        return false;
      }
      if (parameters.has_compressed()) {
        controller->SetCompressionAlgorithm(flare::CompressionAlgorithm::kGzip);
      }
      writer->SetCompressed(parameters.compressed().value());
      StreamingOutputCallResponse response;
      if (!SetPayload(parameters.size(), response.mutable_payload(),
                      controller) ||
          !writer->Write(response)) {
        return false;
      }
    }
    return true;
  }
};

int Entry(int, char**) {
  const auto address =
      flare::EndpointFromString("0.0.0.0:" + std::to_string(FLAGS_port));
  if (!address) {
    LOG(ERROR) << "Bad --port: " << address.error().message();
    return 1;
  }
  // From here on a signal ends this in good order, however early it comes.
  (void)flare::CheckForQuitSignal();
  flare::Server server;
  server.AddProtocols({"grpc", "flare", "http+pb", "http+proto3-json"});
  server.AddService(std::make_unique<TestServiceImpl>());
  server.ListenOn(*address);
  if (!server.Start()) return 1;
  Print(std::to_string(server.endpoint().port()));
  flare::WaitForQuitSignal();
  server.Stop();
  server.Join();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
