#include "flare/rpc/fan_out/partition_channel.h"

#include <google/protobuf/descriptor.h>

#include <utility>

#include "flare/base/random.h"
#include "flare/rpc/rpc_status.h"

namespace flare {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

using Parts = std::vector<std::unique_ptr<Message>>;

bool IsKey(const FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return false;
    default:
      return true;
  }
}

// Element `index` of the repeated `field`, or the value of another one, as
// bytes that are the same for the same value.
std::string KeyOf(const Message& message, const FieldDescriptor* field,
                  int index) {
  const Reflection* const get = message.GetReflection();
  const bool one = !field->is_repeated();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? get->GetString(message, field)
                 : get->GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_INT32:
      return std::to_string(one ? get->GetInt32(message, field)
                                : get->GetRepeatedInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_INT64:
      return std::to_string(one ? get->GetInt64(message, field)
                                : get->GetRepeatedInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT32:
      return std::to_string(
          one ? get->GetUInt32(message, field)
              : get->GetRepeatedUInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT64:
      return std::to_string(
          one ? get->GetUInt64(message, field)
              : get->GetRepeatedUInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return std::to_string(one ? get->GetBool(message, field)
                                : get->GetRepeatedBool(message, field, index));
    default:
      return std::to_string(
          one ? get->GetEnumValue(message, field)
              : get->GetRepeatedEnumValue(message, field, index));
  }
}

// Copies an element of the repeated `field`, which IsKey().
void CopyElement(const Message& from, const FieldDescriptor* field, int index,
                 Message* to) {
  const Reflection* const get = from.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_STRING:
      return get->AddString(to, field,
                            get->GetRepeatedString(from, field, index));
    case FieldDescriptor::CPPTYPE_INT32:
      return get->AddInt32(to, field,
                           get->GetRepeatedInt32(from, field, index));
    case FieldDescriptor::CPPTYPE_INT64:
      return get->AddInt64(to, field,
                           get->GetRepeatedInt64(from, field, index));
    case FieldDescriptor::CPPTYPE_UINT32:
      return get->AddUInt32(to, field,
                            get->GetRepeatedUInt32(from, field, index));
    case FieldDescriptor::CPPTYPE_UINT64:
      return get->AddUInt64(to, field,
                            get->GetRepeatedUInt64(from, field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return get->AddBool(to, field, get->GetRepeatedBool(from, field, index));
    default:
      return get->AddEnumValue(to, field,
                               get->GetRepeatedEnumValue(from, field, index));
  }
}

Status Unusable(const Message& request, const std::string& field,
                const char* why) {
  return Status(rpc::STATUS_NOT_SUPPORTED,
                "can't divide a " + request.GetDescriptor()->full_name() +
                    " by its field \"" + field + "\": " + why);
}

void CopyTo(std::size_t partition, const Message& request, Parts* parts) {
  (*parts)[partition].reset(request.New());
  (*parts)[partition]->CopyFrom(request);
}

Status DivideElements(const Message& request, const FieldDescriptor* field,
                      Parts* parts) {
  std::unique_ptr<Message> others(request.New());
  others->CopyFrom(request);
  others->GetReflection()->ClearField(others.get(), field);
  const int elements = request.GetReflection()->FieldSize(request, field);
  for (int i = 0; i != elements; ++i) {
    const std::size_t partition =
        PartitionOf(KeyOf(request, field, i), parts->size());
    if ((*parts)[partition] == nullptr) CopyTo(partition, *others, parts);
    CopyElement(request, field, i, (*parts)[partition].get());
  }
  return Status();
}

}  // namespace

std::size_t PartitionOf(std::string_view key, std::size_t partitions) {
  // FNV-1a, whose low bits MixBits() mends.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : key) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return MixBits(hash) % partitions;
}

Partitioner PartitionByField(std::string field) {
  return [name = std::move(field)](const Message& request,
                                   Parts* parts) -> Status {
    const FieldDescriptor* const field =
        request.GetDescriptor()->FindFieldByName(name);
    if (field == nullptr) return Unusable(request, name, "it has none");
    if (!IsKey(field)) {
      return Unusable(request, name,
                      "it is no string, bytes, integer, enum or bool");
    }
    if (field->is_repeated()) return DivideElements(request, field, parts);
    CopyTo(PartitionOf(KeyOf(request, field, 0), parts->size()), request,
           parts);
    return Status();
  };
}

Partitioner PartitionByKey(std::function<std::string(const Message&)> key) {
  return [key = std::move(key)](const Message& request, Parts* parts) {
    CopyTo(PartitionOf(key(request), parts->size()), request, parts);
    return Status();
  };
}

PartitionChannel::PartitionChannel(
    std::vector<std::shared_ptr<google::protobuf::RpcChannel>> partitions,
    Partitioner partitioner, Options options)
    : settings_(std::make_shared<const rpc::FanOutCall::Settings>(
          rpc::FanOutCall::Settings{std::move(partitions),
                                    std::move(options)})),
      partitioner_(std::move(partitioner)) {}

void PartitionChannel::CallMethod(
    const google::protobuf::MethodDescriptor* method,
    google::protobuf::RpcController* controller,
    const google::protobuf::Message* request,
    google::protobuf::Message* response, google::protobuf::Closure* done) {
  const std::size_t partitions = settings_->channels.size();
  const auto divide = [&](const Message& whole,
                          std::vector<rpc::FanOutCall::Part>* parts) {
    if (partitions == 0) return Status();
    Parts requests(partitions);
    Status divided = partitioner_(whole, &requests);
    if (!divided.ok()) return divided;
    requests.resize(partitions);
    for (std::size_t i = 0; i != partitions; ++i) {
      if (requests[i] != nullptr) parts->push_back({i, std::move(requests[i])});
    }
    return Status();
  };
  rpc::FanOutCall::Run(settings_, divide,
                       {method, controller, request, response, done});
}

}  // namespace flare
