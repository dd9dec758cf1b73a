// Calls any method of any service, and lists services.
//
//   flare_call --server_addr=flare://127.0.0.1:5567 --proto=echo_service.proto
//       --method=example.protobuf_echo.EchoService.Echo --data='{"body": "hi"}'
//
// docs/flare_call.md describes its flags, its output and its exit status.

#include <gflags/gflags.h>
#include <google/protobuf/message.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "example/rpc/flag_errors.h"
#include "example/rpc/json_messages.h"
#include "example/rpc/line_reader.h"
#include "example/rpc/method_call.h"
#include "example/rpc/method_flags.h"
#include "example/rpc/method_source.h"
#include "example/rpc/tls_client_flags.h"
#include "flare/base/string.h"
#include "flare/init/override_flag.h"
#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_channel.h"
#include "flare/rpc/rpc_client_controller.h"
#include "flare/rpc/rpc_status.h"
#include "glog/logging.h"

DEFINE_string(server_addr, "",
              "Whom to call: protocol://address:port[,address:port...].");
DEFINE_int32(timeout, 10000,
             "Milliseconds after which the call has failed, a stream as a "
             "whole; 0: never.");
DEFINE_bool(list, false, "Print the names of all services.");
DEFINE_string(describe, "",
              "Print the definition of a service, a method, a message or an "
              "enum of this full name.");
DEFINE_bool(show_metadata, false,
            "Print the metadata of the reply, to stderr.");

FLARE_OVERRIDE_FLAG(logtostderr, true);
FLARE_OVERRIDE_FLAG(logbufsecs, 0);
FLARE_OVERRIDE_FLAG(minloglevel, 2);
FLARE_OVERRIDE_FLAG(flare_fiber_scheduling_optimize_for, "io-heavy");

namespace example {
namespace {

using flare::Status;

// PROGRAM is how it is called: packages have a name of their own for it.
constexpr char kUsage[] =
    R"(calls any method of any service, with JSON in and out

  PROGRAM --server_addr=flare://127.0.0.1:5567 --list
  PROGRAM --server_addr=flare://127.0.0.1:5567 \
      --describe=example.protobuf_echo.EchoService
  PROGRAM --server_addr=flare://127.0.0.1:5567 \
      --method=example.protobuf_echo.EchoService.Echo --data='{"body": "hi"}'

The server says what its services look like, if it has gRPC's reflection;
otherwise --proto or --descriptor_set does.

Replies go to stdout, one line of JSON for each. The requests of a method whose
client streams come from stdin, one line of JSON for each, unless --data has
them.

Exit status: 0 the call has succeeded, 1 it has failed, 2 flags or requests are
wrong, 3 no server could be reached or the connection broke, 4 it timed out.
docs/flare_call.md says more.)";

enum ExitStatus : int {
  kSucceeded = 0,
  kFailed = 1,
  kWrongInput = kBadFlags,
  kNotReached = 3,
  kTimedOut = 4,
};

void Complain(std::string_view text) {
  std::fprintf(stderr, "%s: %.*s\n", google::ProgramInvocationShortName(),
               static_cast<int>(text.size()), text.data());
}

int Refuse(std::string_view text) {
  Complain(text);
  return kWrongInput;
}

int ExitStatusOf(int code) {
  switch (code) {
    case flare::rpc::STATUS_SUCCESS:
      return kSucceeded;
    case flare::rpc::STATUS_TIMEOUT:
      return kTimedOut;
    case flare::rpc::STATUS_FAIL_TO_CONNECT:
    case flare::rpc::STATUS_NO_PEER:
    case flare::rpc::STATUS_IO_ERROR:
    case flare::rpc::STATUS_CHANNEL_SHUTDOWN:
      return kNotReached;
    default:
      return kFailed;
  }
}

Status PrintLine(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  // At once: a stream's next message may be long in coming.
  if (std::fflush(stdout) == 0) return {};
  return flare::StatusFromErrno(errno, "can't write to stdout");
}

int Print(std::string_view text) {
  const Status printed = PrintLine(text);
  if (printed.ok()) return kSucceeded;
  Complain(printed.message());
  return kFailed;
}

Status CheckFlags() {
  const int wishes = (FLAGS_list ? 1 : 0) + (FLAGS_describe.empty() ? 0 : 1) +
                     (MethodFlag().empty() ? 0 : 1);
  if (wishes == 0) {
    return {EINVAL, "--method, --list or --describe is missing"};
  }
  if (wishes > 1) {
    return {EINVAL, "--method, --list and --describe exclude each other"};
  }
  if (FLAGS_timeout < 0) return {EINVAL, "--timeout must not be negative"};
  if (!MethodFlag().empty() && FLAGS_server_addr.empty()) {
    return {EINVAL,
            "--server_addr is missing: whom to call, such as "
            "flare://127.0.0.1:5567"};
  }
  return {};
}

// For a source that can't be made: flags are wrong, or the server doesn't tell.
int RefuseSource(const Status& why) {
  Complain(why.message());
  const bool wrong_flag =
      why.code() == EINVAL || why.code() == flare::rpc::STATUS_NOT_SUPPORTED;
  return wrong_flag ? kWrongInput : ExitStatusOf(why.code());
}

int ListServices(const DescribingServer& server) {
  const auto services = ServicesFromFlags(server);
  if (!services) return RefuseSource(services.error());
  if (services->empty()) return Refuse("there are no services");
  std::string names;
  for (const std::string& name : *services) {
    names += (names.empty() ? "" : "\n") + name;
  }
  return Print(names);
}

int Describe(const MethodSource& source) {
  auto text = source.Describe(FLAGS_describe);
  if (!text) return Refuse(text.error().message());
  text->resize(text->find_last_not_of('\n') + 1);
  return Print(*text);
}

void ShowMetadata(const flare::Metadata& metadata) {
  for (const auto [name, value] : metadata) {
    std::string text(value);
    if (flare::IsBinaryMetadata(name)) {
      text.clear();
      for (const char byte : value) {
        const auto digits = flare::HexOf(static_cast<unsigned char>(byte));
        text.append(digits.data(), digits.size());
      }
    }
    std::fprintf(stderr, "%s: %s\n", std::string(name).c_str(), text.c_str());
  }
}

// The requests of one call: those of --data, or of stdin.
class Requests {
 public:
  // Reads --data. Fails with a text.
  Status Open(const MethodSource& source,
              const google::protobuf::MethodDescriptor* method) {
    if (method->client_streaming() && DataFlag().empty()) {
      line_message_ = source.NewMessage(method->input_type());
      return {};
    }
    auto read = ReadRequests(source, method, DataFlag());
    if (!read) return read.error();
    messages_ = *std::move(read);
    return {};
  }

  // As CallEnds::next_request.
  flare::Expected<const google::protobuf::Message*, Status> Next() {
    if (line_message_ != nullptr) return NextLine();
    return next_ == messages_.size() ? nullptr : messages_[next_++].get();
  }

  void Stop() { lines_.Stop(); }

 private:
  flare::Expected<const google::protobuf::Message*, Status> NextLine() {
    while (true) {
      const auto line = lines_.Next();
      if (!line) return line.error();
      if (!*line) return nullptr;
      if ((*line)->find_first_not_of(" \t\r") == std::string::npos) continue;
      line_message_->Clear();
      if (const Status read = ParseJson(**line, line_message_.get());
          !read.ok()) {
        return Status(EINVAL, "line " + std::to_string(lines_.line()) +
                                  " of stdin " + read.message());
      }
      return line_message_.get();
    }
  }

  LineReader lines_{STDIN_FILENO};
  std::unique_ptr<google::protobuf::Message> line_message_;  // Null: --data.
  Messages messages_;
  std::size_t next_ = 0;
};

// Codes that only gRPC has go by gRPC's names.
std::string NameOf(int code) {
  constexpr int kFirst = flare::rpc::kGrpcStatusBase;
  if (code > kFirst && code < kFirst + 17) {
    return std::string(flare::rpc::GrpcCodeName(
        static_cast<flare::rpc::GrpcCode>(code - kFirst)));
  }
  return std::string(flare::rpc::StatusName(code));
}

int Report(const CallOutcome& outcome) {
  if (!outcome.input.ok()) return Refuse(outcome.input.message());
  if (!outcome.output.ok()) {
    Complain(outcome.output.message());
    return kFailed;
  }
  const int code = outcome.call.code();
  if (code != 0) {
    Complain("the call has failed: " + NameOf(code) + " (" +
             std::to_string(code) + "): " + outcome.call.message());
  }
  return ExitStatusOf(code);
}

int Call(const MethodSource& source, flare::RpcChannel* channel) {
  const auto method = source.FindMethod(MethodFlag());
  if (!method) return Refuse(method.error().message());
  Requests requests;
  if (const Status opened = requests.Open(source, *method); !opened.ok()) {
    return Refuse(opened.message());
  }
  const auto metadata = MetadataFromFlags();
  if (!metadata) return Refuse(metadata.error().message());
  flare::RpcClientController controller;
  *controller.MutableMetadata() = *metadata;
  SetTimeout(std::chrono::milliseconds(FLAGS_timeout), &controller);
  const auto reply = source.NewMessage((*method)->output_type());
  const CallOutcome outcome =
      CallMethod(channel, *method, &controller, reply.get(),
                 {.next_request = [&] { return requests.Next(); },
                  .stop_requests = [&] { requests.Stop(); },
                  .take_reply = [&]() -> Status {
                    const auto json = ToJson(*reply);
                    return json ? PrintLine(*json) : json.error();
                  }});
  if (FLAGS_show_metadata) ShowMetadata(controller.GetResponseMetadata());
  return Report(outcome);
}

int Entry(int argc, char** argv) {
  if (!HasOnlyFlags(argc, argv)) return kBadFlags;
  // Failures are told below, in a line without a time and a thread.
  if (FLAGS_minloglevel == google::GLOG_ERROR) {
    FLAGS_minloglevel = google::GLOG_FATAL;
  }
  if (const Status good = CheckFlags(); !good.ok()) {
    return Refuse(good.message() + "; see --help");
  }
  flare::RpcChannel channel;
  if (!MethodFlag().empty() &&
      !channel.Open(FLAGS_server_addr,
                    {.tls = TlsFromClientFlags(FLAGS_server_addr)})) {
    return Refuse("bad --server_addr: " + channel.status().message());
  }
  const DescribingServer server{FLAGS_server_addr,
                                std::chrono::milliseconds(FLAGS_timeout)};
  if (FLAGS_list) return ListServices(server);
  const auto source = SourceFromFlags(
      server, FLAGS_describe.empty() ? MethodFlag() : FLAGS_describe);
  if (!source) return RefuseSource(source.error());
  if (!FLAGS_describe.empty()) return Describe(**source);
  return Call(**source, &channel);
}

std::string Usage(std::string_view program) {
  constexpr std::string_view kPlace = "PROGRAM";
  program.remove_prefix(program.rfind('/') + 1);  // npos + 1 is 0.
  std::string usage = kUsage;
  for (std::size_t at = 0; (at = usage.find(kPlace, at)) != usage.npos;) {
    usage.replace(at, kPlace.size(), program);
  }
  return usage;
}

}  // namespace
}  // namespace example

int main(int argc, char** argv) {
  const std::string usage = example::Usage(argc > 0 ? argv[0] : "flare_call");
  return example::StartProgram(argc, argv, usage.c_str(), example::Entry);
}
