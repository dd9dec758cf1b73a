#include "tools/protoc_plugin/service_code.h"

#include <google/protobuf/compiler/cpp/names.h>
#include <google/protobuf/descriptor.pb.h>

#include <map>
#include <set>
#include <string>

namespace flare::protoc_plugin {
namespace {

namespace pb = google::protobuf;
using Variables = std::map<std::string, std::string>;

// protobuf has a list for itself, without those that are new since C++11 for
// the most part, and in a header that isn't installed completely.
bool IsKeyword(const std::string& name) {
  static const std::set<std::string> kKeywords{
      "alignas",       "alignof",     "and",
      "and_eq",        "asm",         "auto",
      "bitand",        "bitor",       "bool",
      "break",         "case",        "catch",
      "char",          "char16_t",    "char32_t",
      "char8_t",       "class",       "co_await",
      "co_return",     "co_yield",    "compl",
      "concept",       "const",       "const_cast",
      "consteval",     "constexpr",   "constinit",
      "continue",      "decltype",    "default",
      "delete",        "do",          "double",
      "dynamic_cast",  "else",        "enum",
      "explicit",      "export",      "extern",
      "false",         "float",       "for",
      "friend",        "goto",        "if",
      "inline",        "int",         "long",
      "mutable",       "namespace",   "new",
      "noexcept",      "not",         "not_eq",
      "nullptr",       "operator",    "or",
      "or_eq",         "private",     "protected",
      "public",        "register",    "reinterpret_cast",
      "requires",      "return",      "short",
      "signed",        "sizeof",      "static",
      "static_assert", "static_cast", "struct",
      "switch",        "template",    "this",
      "thread_local",  "throw",       "true",
      "try",           "typedef",     "typeid",
      "typename",      "union",       "unsigned",
      "using",         "virtual",     "void",
      "volatile",      "wchar_t",     "while",
      "xor",           "xor_eq"};
  return kKeywords.contains(name);
}

// In C++. As protoc does it for fields, "_" is appended to keywords.
std::string NameOf(const pb::ServiceDescriptor& service) {
  const std::string name(service.name());
  return IsKeyword(name) ? name + "_" : name;
}

Variables VariablesOf(const pb::ServiceDescriptor& service) {
  return {{"Service", NameOf(service)},
          {"full_name", std::string(service.full_name())}};
}

// The two styles of services and stubs that are more than the stock ones.
enum class Style { kSync, kAsync };

// The parts of the code of X and X_Stub that depend on which sides of a method
// stream.
void AddStockVariables(const pb::MethodDescriptor& method, Variables* to) {
  const bool streams = method.client_streaming() || method.server_streaming();
  Variables& v = *to;
  v["response"] = streams ? "" : " response";
  v["StubCall"] = streams
                      ? "::flare::rpc::OpenStreamInController(\n"
                        "      channel_, DescriptorOf" +
                            v["Service"] + "()->method(" + v["index"] +
                            "), controller,\n      request, done)"
                      : "channel_->CallMethod(DescriptorOf" + v["Service"] +
                            "()->method(" + v["index"] +
                            "), controller,\n                       request, "
                            "response, done)";
}

// The variables for services and stubs in one of the styles.
void AddStyleVariables(const pb::MethodDescriptor& method, Style style,
                       Variables* to) {
  const bool async = style == Style::kAsync;
  const bool client = method.client_streaming();
  const bool server = method.server_streaming();
  Variables& v = *to;
  const auto stream = [&](const char* side, const std::string& message) {
    return std::string("::flare::") + (async ? "Async" : "") + "Stream" + side +
           "<" + message + ">";
  };
  const std::string& request = v["Request"];
  const std::string& response = v["Response"];

  // A service's.
  v["Style"] = async ? "Async" : "Sync";
  v["Ended"] = async ? "::flare::Future<>" : "void";
  v["ended"] = async ? "ended = " : "";
  v["Input"] = client ? stream("Reader", request) : "const " + request + "&";
  v["input"] = client ? "reader" : "request";
  v["Output"] = server ? stream("Writer", response) : response + "*";
  v["output"] = server ? "writer" : "response";
  const std::string get = async ? "server->GetAsync" : "server->Get";
  v["GetInput"] = client ? get + "StreamReader<" + request + ">()"
                         : "*static_cast<const " + request + "*>(request)";
  v["GetOutput"] = server ? get + "StreamWriter<" + response + ">()"
                          : "static_cast<" + response + "*>(response)";

  // A stub's.
  const std::string reader = stream("Reader", response);
  const std::string writer = stream("Writer", request);
  if (!client && !server) {
    v["Result"] = "::flare::Expected<" + response + ", ::flare::Status>";
    if (async) v["Result"] = "::flare::Future<" + v["Result"] + ">";
    v["Call"] = (async ? "CallWithFuture<" : "CallAndWait<") + response + ">";
  } else if (!client) {
    v["Result"] = reader;
    v["Call"] = "OpenReader<" + reader + ">";
  } else {
    v["Result"] = "std::pair<\n      " + reader + ",\n      " + writer + ">";
    v["Call"] =
        "OpenReaderAndWriter<\n      " + reader + ",\n      " + writer + ">";
  }
  const std::string parameter = "const " + request + "& request";
  v["OnlyParameter"] = client ? "" : "\n      " + parameter;
  v["FirstOfTwo"] = client ? "" : parameter + ",\n      ";
  v["argument"] = client ? "" : ", request";
}

Variables VariablesOf(const pb::MethodDescriptor& method, Style style) {
  using pb::compiler::cpp::QualifiedClassName;
  Variables variables{{"Service", NameOf(*method.service())},
                      {"Method", NameInCpp(method)},
                      {"full_name", std::string(method.full_name())},
                      {"index", std::to_string(method.index())},
                      {"Request", QualifiedClassName(method.input_type())},
                      {"Response", QualifiedClassName(method.output_type())}};
  AddStockVariables(method, &variables);
  AddStyleVariables(method, style, &variables);
  return variables;
}

// Prints `text` once, with the service's variables.
void PrintOnce(const pb::ServiceDescriptor& service, const char* text,
               pb::io::Printer* out) {
  out->Print(VariablesOf(service), text);
}

// Prints `text` for each method, with the method's variables.
void PrintPerMethod(const pb::ServiceDescriptor& service, const char* text,
                    pb::io::Printer* out, Style style = Style::kSync) {
  for (int i = 0; i != service.method_count(); ++i) {
    out->Print(VariablesOf(*service.method(i), style), text);
  }
}

bool HasStockService(const pb::ServiceDescriptor& service) {
  return service.file()->options().cc_generic_services();
}

// The overrides of google::protobuf::Service, which X and SyncX share.
constexpr auto kServiceOverrides = R"(
  static const ::google::protobuf::ServiceDescriptor* descriptor();

  const ::google::protobuf::ServiceDescriptor* GetDescriptor() override;
  void CallMethod(const ::google::protobuf::MethodDescriptor* method,
                  ::google::protobuf::RpcController* controller,
                  const ::google::protobuf::Message* request,
                  ::google::protobuf::Message* response,
                  ::google::protobuf::Closure* done) override;
  const ::google::protobuf::Message& GetRequestPrototype(
      const ::google::protobuf::MethodDescriptor* method) const override;
  const ::google::protobuf::Message& GetResponsePrototype(
      const ::google::protobuf::MethodDescriptor* method) const override;
};
)";

void DeclareStockService(const pb::ServiceDescriptor& service,
                         pb::io::Printer* out) {
  PrintOnce(service, R"(
class $Service$_Stub;

// The service in the protobuf library's own style: a method answers by running
// `done`, then or later. The controller has its streams.
class $Service$ : public ::google::protobuf::Service {
 public:
  using Stub = $Service$_Stub;

)",
            out);
  PrintPerMethod(service,
                 R"(  virtual void $Method$(
      ::google::protobuf::RpcController* controller,
      const $Request$* request,
      $Response$* response,
      ::google::protobuf::Closure* done);
)",
                 out);
  out->PrintRaw(kServiceOverrides);

  PrintOnce(service, R"(
// Calls in the protobuf library's own style. The controller has the streams of
// a streaming method once that has returned.
class $Service$_Stub : public $Service$ {
 public:
  explicit $Service$_Stub(::google::protobuf::RpcChannel* channel);
  $Service$_Stub(::google::protobuf::RpcChannel* channel,
      ::google::protobuf::Service::ChannelOwnership ownership);
  ~$Service$_Stub() override;

  $Service$_Stub(const $Service$_Stub&) = delete;
  $Service$_Stub& operator=(const $Service$_Stub&) = delete;

  ::google::protobuf::RpcChannel* channel() { return channel_; }

)",
            out);
  PrintPerMethod(service,
                 R"(  void $Method$(
      ::google::protobuf::RpcController* controller,
      const $Request$* request,
      $Response$* response,
      ::google::protobuf::Closure* done) override;
)",
                 out);
  out->Print(R"(
 private:
  ::google::protobuf::RpcChannel* channel_;
  bool owns_channel_;
};
)");
}

constexpr auto kSyncServiceHeading = R"(
// The service in blocking style: override the methods; the reply is sent when
// they return. They run on fibers and may block them. A method that is not
// overridden, or throws, fails its calls with status 99.
class Sync$Service$ : public ::google::protobuf::Service {
 public:
)";

constexpr auto kAsyncServiceHeading = R"(
// The service with futures: override the methods; the reply is sent when the
// future is ready. Until then their arguments live. A method that is not
// overridden, throws, or drops the promise, fails its calls with status 99.
class Async$Service$ : public ::google::protobuf::Service {
 public:
)";

void DeclareService(const pb::ServiceDescriptor& service, const char* heading,
                    Style style, pb::io::Printer* out) {
  PrintOnce(service, heading, out);
  PrintPerMethod(service,
                 R"(  virtual $Ended$ $Method$(
      $Input$ $input$,
      $Output$ $output$,
      ::flare::RpcServerController* controller);
)",
                 out, style);
  out->PrintRaw(kServiceOverrides);
}

// Each call has two forms, with and without a controller.
void DeclareStub(const pb::ServiceDescriptor& service, const char* heading,
                 Style style, pb::io::Printer* out) {
  PrintOnce(service, heading, out);
  out->Print("  using StubBase::StubBase;\n\n");
  PrintPerMethod(service,
                 R"(  $Result$ $Method$(
      $FirstOfTwo$::flare::RpcClientController* controller) const;
  $Result$ $Method$($OnlyParameter$) const;
)",
                 out, style);
  out->Print("};\n");
}

// By the published names.
void DeclareBasicNames(const pb::ServiceDescriptor& service,
                       pb::io::Printer* out) {
  PrintOnce(service, R"(
using Basic$Service$ = $Service$;
using $Service$_BasicStub = $Service$_Stub;
)",
            out);
}

void DefineDescriptor(const pb::ServiceDescriptor& service,
                      pb::io::Printer* out) {
  PrintOnce(service, R"(
static const ::google::protobuf::ServiceDescriptor* DescriptorOf$Service$() {
  static const ::google::protobuf::ServiceDescriptor* const kDescriptor =
      ::flare::rpc::FindGeneratedService("$full_name$");
  return kDescriptor;
}
)",
            out);
}

// Defines all of kServiceOverrides for `class_name`. `dispatch` is printed for
// each method as the body of its case; `prologue` and `epilogue` around the
// switch.
void DefineServiceOverrides(const pb::ServiceDescriptor& service,
                            const std::string& class_name, const char* prologue,
                            const char* dispatch, const char* epilogue,
                            Style style, pb::io::Printer* out) {
  Variables variables = VariablesOf(service);
  variables["Class"] = class_name;
  out->Print(variables, R"(
const ::google::protobuf::ServiceDescriptor* $Class$::descriptor() {
  return DescriptorOf$Service$();
}

const ::google::protobuf::ServiceDescriptor* $Class$::GetDescriptor() {
  return DescriptorOf$Service$();
}

void $Class$::CallMethod(
    const ::google::protobuf::MethodDescriptor* method,
    [[maybe_unused]] ::google::protobuf::RpcController* controller,
    [[maybe_unused]] const ::google::protobuf::Message* request,
    [[maybe_unused]] ::google::protobuf::Message* response,
    [[maybe_unused]] ::google::protobuf::Closure* done) {
  ::flare::rpc::CheckMethodBelongsTo(method, DescriptorOf$Service$());
)");
  out->PrintRaw(prologue);
  out->Print("  switch (method->index()) {\n");
  PrintPerMethod(service, dispatch, out, style);
  out->Print("  }\n");
  out->PrintRaw(epilogue);
  out->Print("}\n");

  for (const char* side : {"Request", "Response"}) {
    variables["Side"] = side;
    out->Print(variables, R"(
const ::google::protobuf::Message& $Class$::Get$Side$Prototype(
    const ::google::protobuf::MethodDescriptor* method) const {
  ::flare::rpc::CheckMethodBelongsTo(method, DescriptorOf$Service$());
  switch (method->index()) {
)");
    for (int i = 0; i != service.method_count(); ++i) {
      auto of_method = VariablesOf(*service.method(i), style);
      of_method["Type"] = of_method[side];
      out->Print(of_method, R"(    case $index$:
      return $Type$::default_instance();
)");
    }
    out->Print("  }\n  ::flare::rpc::UnreachableMethod(method);\n}\n");
  }
}

void DefineStockService(const pb::ServiceDescriptor& service,
                        pb::io::Printer* out) {
  PrintPerMethod(service, R"(
void $Service$::$Method$(
    ::google::protobuf::RpcController* controller, const $Request$*,
    $Response$*, ::google::protobuf::Closure* done) {
  controller->SetFailed("Method $full_name$ is not implemented.");
  done->Run();
}
)",
                 out);
  DefineServiceOverrides(service, NameOf(service), "", R"(    case $index$:
      return this->$Method$(
          controller, static_cast<const $Request$*>(request),
          static_cast<$Response$*>(response), done);
)",
                         "  ::flare::rpc::UnreachableMethod(method);\n",
                         Style::kSync, out);
  PrintOnce(service, R"(
$Service$_Stub::$Service$_Stub(::google::protobuf::RpcChannel* channel)
    : channel_(channel), owns_channel_(false) {}

$Service$_Stub::$Service$_Stub(
    ::google::protobuf::RpcChannel* channel,
    ::google::protobuf::Service::ChannelOwnership ownership)
    : channel_(channel),
      owns_channel_(ownership ==
                    ::google::protobuf::Service::STUB_OWNS_CHANNEL) {}

$Service$_Stub::~$Service$_Stub() {
  if (owns_channel_) delete channel_;
}
)",
            out);
  PrintPerMethod(service, R"(
void $Service$_Stub::$Method$(
    ::google::protobuf::RpcController* controller, const $Request$* request,
    $Response$*$response$, ::google::protobuf::Closure* done) {
  $StubCall$;
}
)",
                 out);
}

constexpr auto kServerController =
    R"(  [[maybe_unused]] auto* const server =
      static_cast<::flare::RpcServerController*>(controller);
)";

constexpr auto kDispatch = R"(    case $index$:
      $ended$this->$Method$(
          $GetInput$,
          $GetOutput$,
          server);
      break;
)";

void DefineSyncService(const pb::ServiceDescriptor& service,
                       pb::io::Printer* out) {
  PrintPerMethod(service, R"(
void Sync$Service$::$Method$(
    $Input$,
    $Output$,
    ::flare::RpcServerController* controller) {
  controller->SetFailed(::flare::rpc::STATUS_FAILED,
                        "Method $full_name$ is not implemented.");
}
)",
                 out, Style::kSync);
  DefineServiceOverrides(service, "Sync" + NameOf(service),
                         (std::string(kServerController) + "  try {\n").c_str(),
                         kDispatch,
                         R"(  } catch (...) {
    ::flare::rpc::FailByException(method, controller);
  }
  if (done != nullptr) done->Run();
)",
                         Style::kSync, out);
}

void DefineAsyncService(const pb::ServiceDescriptor& service,
                        pb::io::Printer* out) {
  PrintPerMethod(service, R"(
::flare::Future<> Async$Service$::$Method$(
    $Input$,
    $Output$,
    ::flare::RpcServerController* controller) {
  controller->SetFailed(::flare::rpc::STATUS_FAILED,
                        "Method $full_name$ is not implemented.");
  return ::flare::MakeReadyFuture<>();
}
)",
                 out, Style::kAsync);
  DefineServiceOverrides(
      service, "Async" + NameOf(service),
      (std::string(kServerController) + "  ::flare::Future<> ended;\n  try {\n")
          .c_str(),
      kDispatch,
      R"(  } catch (...) {
    ::flare::rpc::FailByException(method, controller);
  }
  ::flare::rpc::RunWhenReady(std::move(ended), method, controller, done);
)",
      Style::kAsync, out);
}

constexpr auto kSyncStubHeading = R"(
// Calls that block their fiber (or thread) until the reply is there. Those of
// streaming methods block it in their readers and writers.
class $Service$_SyncStub : public ::flare::rpc::StubBase {
 public:
)";

constexpr auto kAsyncStubHeading = R"(
// Calls that return at once. A controller must live until the future is ready,
// or the readers and writers of the call are gone.
class $Service$_AsyncStub : public ::flare::rpc::StubBase {
 public:
)";

void DefineStub(const pb::ServiceDescriptor& service, Style style,
                pb::io::Printer* out) {
  PrintPerMethod(service, R"(
$Result$
$Service$_$Style$Stub::$Method$(
      $FirstOfTwo$::flare::RpcClientController* controller) const {
  return $Call$(
      DescriptorOf$Service$()->method($index$)$argument$, controller);
}

$Result$
$Service$_$Style$Stub::$Method$($OnlyParameter$) const {
  return $Call$(
      DescriptorOf$Service$()->method($index$)$argument$);
}
)",
                 out, style);
}

}  // namespace

// "_" is also appended to names that the classes have uses of their own for:
// constructors (service Echo with a method Echo), and members that aren't
// functions or that are called with template arguments.
std::string NameInCpp(const pb::MethodDescriptor& method) {
  const std::string service = NameOf(*method.service());
  const std::set<std::string> taken{service,
                                    "Sync" + service,
                                    "Async" + service,
                                    service + "_Stub",
                                    service + "_SyncStub",
                                    service + "_AsyncStub",
                                    "Stub",
                                    "channel_",
                                    "owns_channel_",
                                    "CallAndWait",
                                    "CallWithFuture",
                                    "OpenReader",
                                    "OpenReaderAndWriter"};
  std::string name(method.name());
  while (IsKeyword(name) || taken.contains(name)) name += '_';
  return name;
}

void PrintDeclarations(const pb::ServiceDescriptor& service,
                       pb::io::Printer* out) {
  if (!HasStockService(service)) DeclareStockService(service, out);
  DeclareBasicNames(service, out);
  DeclareService(service, kSyncServiceHeading, Style::kSync, out);
  DeclareService(service, kAsyncServiceHeading, Style::kAsync, out);
  DeclareStub(service, kSyncStubHeading, Style::kSync, out);
  DeclareStub(service, kAsyncStubHeading, Style::kAsync, out);
}

std::vector<std::string> AddedClasses(const pb::ServiceDescriptor& service) {
  const std::string name = NameOf(service);
  std::vector<std::string> classes{
      name + "_Stub", "Basic" + name,     name + "_BasicStub", "Sync" + name,
      "Async" + name, name + "_SyncStub", name + "_AsyncStub"};
  if (name != service.name()) classes.insert(classes.begin(), name);
  return classes;
}

void PrintDefinitions(const pb::ServiceDescriptor& service,
                      pb::io::Printer* out) {
  DefineDescriptor(service, out);
  if (!HasStockService(service)) DefineStockService(service, out);
  DefineSyncService(service, out);
  DefineAsyncService(service, out);
  DefineStub(service, Style::kSync, out);
  DefineStub(service, Style::kAsync, out);
}

}  // namespace flare::protoc_plugin
