#include "flare/rpc/services/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flare/rpc/grpc/grpc_status.h"
#include "flare/rpc/rpc_server_controller.h"
#include "flare/rpc/stream_reader.h"
#include "flare/rpc/stream_writer.h"
#include "rpc/services/reflection.flare.pb.h"
#include "rpc/services/reflection_v1alpha.flare.pb.h"

namespace flare {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::ServiceDescriptor;

// Descriptions of a server's services, and of all that their files import or
// extend. An index of its own, since a DescriptorPool remembers each name that
// it was asked for in vain, and clients may ask for any. Constant once the
// server has started.
class Descriptions final : public Server::Listener {
 public:
  const std::set<std::string>& services() const { return services_; }

  // Null: there is none.
  const FileDescriptor* FileNamed(const std::string& name) const {
    return Find(files_, name);
  }
  const FileDescriptor* FileOf(const std::string& symbol) const {
    return Find(symbols_, symbol);
  }
  // By their numbers. Null: there is no message of that name.
  using Extensions = std::map<int, const FileDescriptor*>;
  const Extensions* ExtensionsOf(const std::string& type) const {
    const auto found = extensions_.find(type);
    return found == extensions_.end() ? nullptr : &found->second;
  }

 private:
  using Index = std::unordered_map<std::string, const FileDescriptor*>;

  static const FileDescriptor* Find(const Index& index,
                                    const std::string& name) {
    const auto found = index.find(name);
    return found == index.end() ? nullptr : found->second;
  }

  void OnStart(const std::vector<const ServiceDescriptor*>& services) override {
    for (const ServiceDescriptor* const service : services) {
      services_.emplace(service->full_name());
      AddFile(service->file());
    }
  }

  void AddFile(const FileDescriptor* file) {
    if (!files_.try_emplace(std::string(file->name()), file).second) return;
    for (int i = 0; i != file->dependency_count(); ++i) {
      AddFile(file->dependency(i));
    }
    AddSymbols(file);
    for (int i = 0; i != file->service_count(); ++i) {
      const ServiceDescriptor& service = *file->service(i);
      AddSymbol(service);
      for (int k = 0; k != service.method_count(); ++k) {
        AddSymbol(*service.method(k));
      }
    }
  }

  // Those that a file or a message has inside.
  template <class Scope>
  void AddSymbols(const Scope* scope) {
    for (int i = 0; i != scope->enum_type_count(); ++i) {
      const auto& type = *scope->enum_type(i);
      AddSymbol(type);
      for (int k = 0; k != type.value_count(); ++k) AddSymbol(*type.value(k));
    }
    for (int i = 0; i != scope->extension_count(); ++i) {
      AddSymbol(*scope->extension(i));
    }
    for (int i = 0; i != MessageCount(scope); ++i)
      AddMessage(MessageOf(scope, i));
  }
  static int MessageCount(const FileDescriptor* file) {
    return file->message_type_count();
  }
  static int MessageCount(const Descriptor* message) {
    return message->nested_type_count();
  }
  static const Descriptor* MessageOf(const FileDescriptor* file, int i) {
    return file->message_type(i);
  }
  static const Descriptor* MessageOf(const Descriptor* message, int i) {
    return message->nested_type(i);
  }

  void AddMessage(const Descriptor* message) {
    AddSymbol(*message);
    for (int i = 0; i != message->field_count(); ++i) {
      AddSymbol(*message->field(i));
    }
    for (int i = 0; i != message->oneof_decl_count(); ++i) {
      AddSymbol(*message->oneof_decl(i));
    }
    AddSymbols(message);
    Extensions& numbers = extensions_[std::string(message->full_name())];
    if (message->extension_range_count() == 0) return;
    std::vector<const FieldDescriptor*> all;
    message->file()->pool()->FindAllExtensions(message, &all);
    for (const FieldDescriptor* const extension : all) {
      numbers.emplace(extension->number(), extension->file());
    }
    for (const FieldDescriptor* const extension : all) {
      AddFile(extension->file());
    }
  }

  template <class Symbol>
  void AddSymbol(const Symbol& symbol) {
    symbols_.try_emplace(std::string(symbol.full_name()), symbol.file());
  }

  std::set<std::string> services_;
  Index files_;
  Index symbols_;
  std::unordered_map<std::string, Extensions> extensions_;
};

// `file` and, behind it, all files that it imports, each once.
void AddWithImports(const FileDescriptor* file,
                    std::set<const FileDescriptor*>* seen,
                    std::vector<const FileDescriptor*>* files) {
  if (!seen->insert(file).second) return;
  files->push_back(file);
  for (int i = 0; i != file->dependency_count(); ++i) {
    AddWithImports(file->dependency(i), seen, files);
  }
}

template <class Response>
void SetError(rpc::GrpcCode code, std::string text, Response* response) {
  auto* const error = response->mutable_error_response();
  error->set_error_code(static_cast<int>(code));
  error->set_error_message(std::move(text));
}

// Answers with the file, or that there is no `what`.
template <class Response>
void SetFile(const FileDescriptor* file, const std::string& what,
             Response* response) {
  if (file == nullptr) {
    return SetError(rpc::GrpcCode::kNotFound, "there is no " + what, response);
  }
  std::set<const FileDescriptor*> seen;
  std::vector<const FileDescriptor*> files;
  AddWithImports(file, &seen, &files);
  for (const FileDescriptor* const each : files) {
    google::protobuf::FileDescriptorProto proto;
    each->CopyTo(&proto);
    response->mutable_file_descriptor_response()->add_file_descriptor_proto(
        proto.SerializeAsString());
  }
}

// The two versions have messages of the same fields.
template <class Request, class Response>
Response Answer(const Descriptions& descriptions, const Request& request) {
  Response response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename: {
      const std::string& name = request.file_by_filename();
      SetFile(descriptions.FileNamed(name), "file " + name, &response);
      break;
    }
    case Request::kFileContainingSymbol: {
      const std::string& name = request.file_containing_symbol();
      SetFile(descriptions.FileOf(name), "symbol " + name, &response);
      break;
    }
    case Request::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      const std::string& type = asked.containing_type();
      const int number = asked.extension_number();
      const auto* const numbers = descriptions.ExtensionsOf(type);
      const bool known = numbers != nullptr && numbers->contains(number);
      SetFile(known ? numbers->at(number) : nullptr,
              "extension " + std::to_string(number) + " of " + type, &response);
      break;
    }
    case Request::kAllExtensionNumbersOfType: {
      const std::string& type = request.all_extension_numbers_of_type();
      const auto* const numbers = descriptions.ExtensionsOf(type);
      if (numbers == nullptr) {
        SetError(rpc::GrpcCode::kNotFound, "there is no message " + type,
                 &response);
        break;
      }
      auto* const all = response.mutable_all_extension_numbers_response();
      all->set_base_type_name(type);
      for (const auto& [number, file] : *numbers) {
        all->add_extension_number(number);
      }
      break;
    }
    case Request::kListServices: {
      auto* const all = response.mutable_list_services_response();
      for (const std::string& name : descriptions.services()) {
        all->add_service()->set_name(name);
      }
      break;
    }
    case Request::MESSAGE_REQUEST_NOT_SET:
      SetError(rpc::GrpcCode::kInvalidArgument,
               "a reflection request that asks for nothing known", &response);
      break;
  }
  return response;
}

template <class Base, class Request, class Response>
class ReflectionService final : public Base {
 public:
  explicit ReflectionService(std::shared_ptr<const Descriptions> descriptions)
      : descriptions_(std::move(descriptions)) {}

  void ServerReflectionInfo(StreamReader<Request> reader,
                            StreamWriter<Response> writer,
                            RpcServerController*) override {
    for (const Request& request : reader) {
      if (!writer.Write(Answer<Request, Response>(*descriptions_, request))) {
        return;
      }
    }
    writer.Close();
  }

 private:
  const std::shared_ptr<const Descriptions> descriptions_;
};

namespace v1 = grpc::reflection::v1;
namespace v1alpha = grpc::reflection::v1alpha;
using ReflectionV1 =
    ReflectionService<v1::SyncServerReflection, v1::ServerReflectionRequest,
                      v1::ServerReflectionResponse>;
using ReflectionV1Alpha = ReflectionService<v1alpha::SyncServerReflection,
                                            v1alpha::ServerReflectionRequest,
                                            v1alpha::ServerReflectionResponse>;

}  // namespace

bool AddReflection(Server* server) {
  auto descriptions = std::make_shared<Descriptions>();
  server->AddListener(descriptions);
  return server->AddService(std::make_unique<ReflectionV1>(descriptions)) &&
         server->AddService(std::make_unique<ReflectionV1Alpha>(descriptions));
}

}  // namespace flare
