#include "example/rpc/method_source.h"

#include <google/protobuf/any.pb.h>
#include <google/protobuf/compiler/importer.h>
#include <google/protobuf/duration.pb.h>
#include <google/protobuf/empty.pb.h>
#include <google/protobuf/field_mask.pb.h>
#include <google/protobuf/struct.pb.h>
#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/wrappers.pb.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "example/rpc/descriptor_errors.h"
#include "flare/base/read_file.h"
#include "flare/rpc/rpc_options.pb.h"

namespace example {
namespace {

using flare::Status;
using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using google::protobuf::compiler::DiskSourceTree;
using google::protobuf::compiler::MultiFileErrorCollector;
using google::protobuf::compiler::SourceTreeDescriptorDatabase;

constexpr std::size_t kMaxFileBytes = 256 << 20;

Status BadSource(std::string text) { return {EINVAL, std::move(text)}; }

// The linker leaves files out of a static libprotobuf to which nothing refers.
void LinkWellKnownFiles() {
  for (const auto* type : {google::protobuf::Any::descriptor(),
                           google::protobuf::Duration::descriptor(),
                           google::protobuf::Empty::descriptor(),
                           google::protobuf::FieldMask::descriptor(),
                           google::protobuf::Struct::descriptor(),
                           google::protobuf::Timestamp::descriptor(),
                           google::protobuf::StringValue::descriptor()}) {
    static_cast<void>(type);
  }
  static_cast<void>(flare::max_ongoing_requests.number());
}

// Files that everybody may import. Other files of this program, which has
// services of its own, stay hidden.
class WellKnownFiles final : public google::protobuf::DescriptorDatabase {
 public:
  WellKnownFiles() : compiled_in_(*DescriptorPool::generated_pool()) {
    LinkWellKnownFiles();
  }

  bool FindFileByName(const std::string& name,
                      FileDescriptorProto* file) override {
    return (name.starts_with("google/protobuf/") ||
            name == "flare/rpc/rpc_options.proto") &&
           compiled_in_.FindFileByName(name, file);
  }
  bool FindFileContainingSymbol(const std::string&,
                                FileDescriptorProto*) override {
    return false;
  }
  bool FindFileContainingExtension(const std::string&, int,
                                   FileDescriptorProto*) override {
    return false;
  }

 private:
  google::protobuf::DescriptorPoolDatabase compiled_in_;
};

// A SourceTreeDescriptorDatabase with its files and the errors in them.
class ProtoFiles final : public google::protobuf::DescriptorDatabase,
                         private MultiFileErrorCollector {
 public:
  explicit ProtoFiles(google::protobuf::DescriptorDatabase* others)
      : parsed_(&tree_, others) {
    parsed_.RecordErrorsTo(this);
  }

  DiskSourceTree* tree() { return &tree_; }
  DescriptorPool::ErrorCollector* collector() {
    return parsed_.GetValidationErrorCollector();
  }
  // The first one; later ones mostly follow from it.
  const std::string& error() const { return error_; }

  bool FindFileByName(const std::string& name,
                      FileDescriptorProto* file) override {
    return parsed_.FindFileByName(name, file);
  }
  bool FindFileContainingSymbol(const std::string& symbol,
                                FileDescriptorProto* file) override {
    return parsed_.FindFileContainingSymbol(symbol, file);
  }
  bool FindFileContainingExtension(const std::string& type, int number,
                                   FileDescriptorProto* file) override {
    return parsed_.FindFileContainingExtension(type, number, file);
  }

 private:
#if GOOGLE_PROTOBUF_VERSION < 4022000
  void AddError(const std::string& file, int line, int column,
                const std::string& text) override {
#else
  void RecordError(std::string_view file, int line, int column,
                   std::string_view text) override {
#endif
    if (!error_.empty()) return;
    error_ = file;
    // Counted from 0; -1: of the file as a whole.
    if (line >= 0) {
      error_ +=
          ':' + std::to_string(line + 1) + ':' + std::to_string(column + 1);
    }
    error_.append(": ").append(text);
    if (error_.ends_with('.')) error_.pop_back();
  }

  DiskSourceTree tree_;
  SourceTreeDescriptorDatabase parsed_;
  std::string error_;
};

std::string FolderOf(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// The name under which `tree` has the file at `path`, whose folder is added to
// it if need be.
std::string NameIn(DiskSourceTree* tree, const std::string& path) {
  std::string name;
  std::string shadowing;
  if (tree->DiskFileToVirtualFile(path, &name, &shadowing) ==
      DiskSourceTree::SUCCESS) {
    return name;
  }
  tree->MapPath("", FolderOf(path));
  return path.substr(path.rfind('/') + 1);
}

template <class Container>
std::string Listed(const Container& names, std::string_view none) {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? std::string(none) : text;
}

std::string MethodsOf(const ServiceDescriptor* service) {
  std::vector<std::string> names;
  for (int i = 0; i != service->method_count(); ++i) {
    names.push_back(service->method(i)->name());
  }
  return Listed(names, "none");
}

}  // namespace

MethodSource::MethodSource() {
  databases_.push_back(std::make_unique<WellKnownFiles>());
}

MethodSource::~MethodSource() = default;

MethodSource::Made MethodSource::FromProtoFiles(
    const std::vector<std::string>& files,
    const std::vector<std::string>& folders) {
  std::unique_ptr<MethodSource> source(new MethodSource());
  if (auto loaded = source->LoadProtoFiles(files, folders); !loaded.ok()) {
    return loaded;
  }
  return source;
}

Status MethodSource::LoadProtoFiles(const std::vector<std::string>& files,
                                    const std::vector<std::string>& folders) {
  auto database = std::make_unique<ProtoFiles>(databases_.front().get());
  ProtoFiles* const protos = database.get();
  databases_.push_back(std::move(database));
  pool_ = std::make_unique<DescriptorPool>(protos, protos->collector());
  for (const std::string& folder : folders) {
    protos->tree()->MapPath("", folder);
  }
  if (folders.empty()) protos->tree()->MapPath("", ".");
  for (const std::string& path : files) {
    // For the system's word on it, which protobuf's parser doesn't have.
    if (auto text = flare::ReadFile(path, kMaxFileBytes); !text) {
      return text.error();
    }
    const FileDescriptor* const file =
        pool_->FindFileByName(NameIn(protos->tree(), path));
    if (file == nullptr) {
      return BadSource("can't use " + path + ": " + protos->error() +
                       "; --proto_path says where imports are");
    }
    files_.push_back(file);
  }
  return {};
}

MethodSource::Made MethodSource::FromDescriptorSet(const std::string& file) {
  const auto bytes = flare::ReadFile(file, kMaxFileBytes);
  if (!bytes) return bytes.error();
  google::protobuf::FileDescriptorSet set;
  if (!set.ParseFromString(*bytes) || set.file_size() == 0) {
    return BadSource(file +
                     " is no descriptor set; make one by `protoc "
                     "--include_imports --descriptor_set_out=FILE x.proto`");
  }
  return FromDescriptions(set, file);
}

MethodSource::Made MethodSource::FromDescriptions(
    const google::protobuf::FileDescriptorSet& set, const std::string& origin) {
  std::unique_ptr<MethodSource> source(new MethodSource());
  if (auto loaded = source->LoadDescriptions(set, origin); !loaded.ok()) {
    return loaded;
  }
  return source;
}

Status MethodSource::LoadDescriptions(
    const google::protobuf::FileDescriptorSet& set, const std::string& origin) {
  auto given = std::make_unique<google::protobuf::SimpleDescriptorDatabase>();
  for (const FileDescriptorProto& file : set.file()) {
    if (!given->Add(file)) {
      return BadSource(origin + " describes " + file.name() +
                       " twice, or names of it that another file has, too");
    }
  }
  auto all = std::make_unique<google::protobuf::MergedDescriptorDatabase>(
      given.get(), databases_.front().get());
  auto errors = std::make_unique<FirstDescriptorError>();
  const FirstDescriptorError* const first_error = errors.get();
  pool_ = std::make_unique<DescriptorPool>(all.get(), errors.get());
  errors_ = std::move(errors);
  databases_.push_back(std::move(given));
  databases_.push_back(std::move(all));
  for (const FileDescriptorProto& file : set.file()) {
    files_.push_back(pool_->FindFileByName(file.name()));
    if (files_.back() == nullptr) {
      return BadSource("can't use " + origin + ": " + first_error->text() +
                       "; it must have all imports (--include_imports)");
    }
  }
  return {};
}

std::vector<std::string> MethodSource::Services() const {
  std::vector<std::string> names;
  for (const FileDescriptor* file : files_) {
    for (int i = 0; i != file->service_count(); ++i) {
      names.push_back(file->service(i)->full_name());
    }
  }
  std::ranges::sort(names);
  return names;
}

std::string MethodSource::KnownServices() const {
  return Listed(Services(), "none");
}

MethodSource::Result<const MethodDescriptor*> MethodSource::FindMethod(
    std::string_view name) const {
  std::string full(name);
  std::ranges::replace(full, '/', '.');
  if (full.starts_with('.')) full.erase(0, 1);
  const auto dot = full.rfind('.');
  if (dot == full.npos) {
    return BadSource("'" + std::string(name) +
                     "' is no method; write package.Service.Method");
  }
  const auto* const service = pool_->FindServiceByName(full.substr(0, dot));
  if (service == nullptr) {
    return BadSource("there is no service " + full.substr(0, dot) +
                     "; known are: " + KnownServices());
  }
  const auto* const method = service->FindMethodByName(full.substr(dot + 1));
  if (method == nullptr) {
    return BadSource(service->full_name() + " has no method " +
                     full.substr(dot + 1) + "; it has: " + MethodsOf(service));
  }
  return method;
}

MethodSource::Result<std::string> MethodSource::Describe(
    std::string_view name) const {
  std::string full(name);
  std::ranges::replace(full, '/', '.');
  if (const auto* service = pool_->FindServiceByName(full)) {
    return service->DebugString();
  }
  if (const auto* method = pool_->FindMethodByName(full)) {
    std::string text =
        method->DebugString() + '\n' + method->input_type()->DebugString();
    if (method->output_type() != method->input_type()) {
      text += '\n' + method->output_type()->DebugString();
    }
    return text;
  }
  if (const auto* type = pool_->FindMessageTypeByName(full)) {
    return type->DebugString();
  }
  if (const auto* type = pool_->FindEnumTypeByName(full)) {
    return type->DebugString();
  }
  return BadSource("there is nothing called " + full +
                   "; known services are: " + KnownServices());
}

std::unique_ptr<google::protobuf::Message> MethodSource::NewMessage(
    const google::protobuf::Descriptor* type) const {
  return std::unique_ptr<google::protobuf::Message>(
      messages_.GetPrototype(type)->New());
}

}  // namespace example
