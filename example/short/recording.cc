// Recordings: a server that records its calls, and a reader of its files. The
// argument is a folder for them.
//
//   bazel-bin/example/short/recording /tmp/calls

#include <iostream>
#include <memory>
#include <string>

#include "example/rpc/echo_service.flare.pb.h"
#include "flare/init.h"
#include "flare/rpc/recording/call_recorder.h"
#include "flare/rpc/recording/recording_reader.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/server.h"

namespace echo = example::protobuf_echo;

namespace {

class EchoServiceImpl : public echo::SyncEchoService {
  void Echo(const echo::EchoRequest& request, echo::EchoResponse* response,
            flare::RpcServerController* controller) override {
    if (request.body().empty()) return controller->SetFailed(1001, "no body");
    response->set_body(request.body());
  }
};

int Fail(const flare::Status& why) {
  std::cerr << why.message() << '\n';
  return 1;
}

int PrintCalls(const std::string& path) {
  const auto reader = flare::RecordingReader::Open(path);
  if (!reader) return Fail(reader.error());
  while (true) {
    const auto call = (*reader)->Next();
    if (!call) return Fail(call.error());
    if (!*call) break;
    std::cout << (*call)->method << ": status " << (*call)->status << ", "
              << (*call)->request.size() << " bytes\n";
  }
  if ((*reader)->cut_off()) std::cout << "the end is missing\n";
  return 0;
}

int Entry(int argc, char** argv) {
  if (argc != 2) return Fail(flare::Status(2, "usage: recording FOLDER"));
  // Before servers are started.
  auto recorder = flare::CallRecorder::Install({.folder = argv[1]});
  if (!recorder) return Fail(recorder.error());
  {
    flare::Server server;
    server.AddProtocol("flare");
    server.AddService(std::make_unique<EchoServiceImpl>());
    server.ListenOn(flare::EndpointFromIpv4("127.0.0.1", 0));
    if (!server.Start()) return 1;
    flare::RpcChannel channel("flare://" + server.endpoint().ToString());
    for (const char* body : {"hello", ""}) {
      echo::EchoRequest request;
      request.set_body(body);
      (void)echo::EchoService_SyncStub(&channel).Echo(request);
    }
  }
  recorder->reset();  // All calls are in files now.
  const auto files = flare::ListRecordings(argv[1]);
  if (!files) return Fail(files.error());
  for (const std::string& path : *files) {
    if (PrintCalls(path) != 0) return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return flare::Start(argc, argv, Entry); }
