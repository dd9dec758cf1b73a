#include "example/rpc/reflection_client.h"

#include <algorithm>
#include <set>
#include <utility>

#include "flare/rpc/open_stream.h"
#include "flare/rpc/rpc_status.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "rpc/services/reflection.pb.h"
#include "rpc/services/reflection_v1alpha.pb.h"

namespace example {
namespace {

using flare::Status;
using google::protobuf::FileDescriptorProto;
using google::protobuf::FileDescriptorSet;
using google::protobuf::MethodDescriptor;

// The only method of the version that has `Request`. Messages of both versions
// have the same bytes.
template <class Request>
const MethodDescriptor* ReflectionMethod() {
  return Request::descriptor()->file()->service(0)->method(0);
}

bool IsUnknownMethod(const Status& status) {
  return status.code() == flare::rpc::STATUS_SERVICE_NOT_FOUND ||
         status.code() == flare::rpc::STATUS_METHOD_NOT_FOUND;
}

Status Explained(const Status& why) {
  std::string text = "can't ask the server for its services: " + why.message();
  if (why.code() == flare::rpc::STATUS_NOT_SUPPORTED) {
    text +=
        "; reflection goes over flare, baidu-std, trpc and grpc, so give "
        "--reflection_addr, --proto or --descriptor_set";
  } else if (IsUnknownMethod(why)) {
    text +=
        "; it has no reflection, so give --reflection_addr, --proto or "
        "--descriptor_set";
  }
  return {why.code(), std::move(text)};
}

}  // namespace

// A stream, in which the server gives a response to each request.
class ReflectionClient::Conversation {
 public:
  Conversation(flare::RpcChannel* channel, const MethodDescriptor* method,
               flare::RpcClientController* controller)
      : stream_(flare::rpc::OpenStream(channel, method, controller, nullptr)),
        reader_(stream_),
        writer_(stream_) {}

  Result<Response> Ask(const Request& request) {
    writer_.Write(request);  // If it can't be sent, the read says why.
    auto response = reader_.Read();
    if (response) return *std::move(response);
    Status why = reader_.status();
    if (!why.ok()) return why;
    return Status(flare::rpc::STATUS_MALFORMED_DATA,
                  "it has ended the stream without an answer");
  }

 private:
  const flare::RefPtr<flare::rpc::CallStream> stream_;
  flare::StreamReader<Response> reader_;
  flare::StreamWriter<Request> writer_;
};

ReflectionClient::ReflectionClient(flare::RpcChannel* channel,
                                   flare::RpcClientController* controller)
    : channel_(channel), controller_(controller) {}

ReflectionClient::~ReflectionClient() = default;

ReflectionClient::Result<ReflectionClient::Response> ReflectionClient::Ask(
    const Request& request) {
  if (conversation_ != nullptr) {
    auto response = conversation_->Ask(request);
    return response ? response : Explained(response.error());
  }
  conversation_ = std::make_unique<Conversation>(
      channel_, ReflectionMethod<Request>(), controller_);
  auto response = conversation_->Ask(request);
  if (response || !IsUnknownMethod(response.error())) {
    return response ? response : Explained(response.error());
  }
  conversation_ = std::make_unique<Conversation>(
      channel_,
      ReflectionMethod<grpc::reflection::v1alpha::ServerReflectionRequest>(),
      controller_);
  response = conversation_->Ask(request);
  return response ? response : Explained(response.error());
}

ReflectionClient::Result<std::vector<std::string>>
ReflectionClient::ListServices() {
  Request request;
  request.set_list_services("*");
  const auto response = Ask(request);
  if (!response) return response.error();
  std::vector<std::string> names;
  for (const auto& service : response->list_services_response().service()) {
    names.push_back(service.name());
  }
  std::ranges::sort(names);
  return names;
}

// Adds the files that the server gives for `request`.
Status ReflectionClient::AddFiles(const Request& request,
                                  FileDescriptorSet* set) {
  const auto response = Ask(request);
  if (!response) return response.error();
  if (response->has_error_response()) {
    return {flare::rpc::STATUS_FROM_USER,
            response->error_response().error_message()};
  }
  std::set<std::string> known;
  for (const FileDescriptorProto& file : set->file()) known.insert(file.name());
  for (const std::string& bytes :
       response->file_descriptor_response().file_descriptor_proto()) {
    FileDescriptorProto file;
    if (!file.ParseFromString(bytes)) {
      return {flare::rpc::STATUS_MALFORMED_DATA,
              "the server has sent a description that can't be read"};
    }
    if (known.insert(file.name()).second) *set->add_file() = std::move(file);
  }
  return {};
}

// Adds imports of files of `set` until none is missing.
Status ReflectionClient::AddImports(FileDescriptorSet* set) {
  std::set<std::string> asked;
  // Files are added meanwhile.
  for (int i = 0; i != set->file_size(); ++i) {
    asked.insert(set->file(i).name());
    const std::vector<std::string> imports(set->file(i).dependency().begin(),
                                           set->file(i).dependency().end());
    for (const std::string& name : imports) {
      const auto is_it = [&](const auto& file) { return file.name() == name; };
      if (!asked.insert(name).second || std::ranges::any_of(set->file(), is_it))
        continue;
      Request request;
      request.set_file_by_filename(name);
      // A file that the server doesn't have may be one of protobuf's own.
      const Status added = AddFiles(request, set);
      if (!added.ok() && added.code() != flare::rpc::STATUS_FROM_USER) {
        return added;
      }
    }
  }
  return {};
}

ReflectionClient::Result<FileDescriptorSet> ReflectionClient::Fetch(
    const std::string& symbol) {
  FileDescriptorSet set;
  Request request;
  request.set_file_containing_symbol(symbol);
  if (Status added = AddFiles(request, &set); !added.ok()) return added;
  if (Status added = AddImports(&set); !added.ok()) return added;
  return set;
}

}  // namespace example
