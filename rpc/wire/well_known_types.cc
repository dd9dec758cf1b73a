#include "flare/rpc/wire/well_known_types.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/message.h>

#include <string_view>

namespace flare::rpc {

namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

bool HasField(const Descriptor* type, int number, FieldDescriptor::Type kind,
              bool repeated = false) {
  const FieldDescriptor* const field = type->FindFieldByNumber(number);
  return field != nullptr && field->type() == kind &&
         field->is_repeated() == repeated;
}

bool HasOneScalar(const Descriptor* type) {
  const FieldDescriptor* const field = type->FindFieldByNumber(1);
  return field != nullptr && !field->is_repeated() &&
         field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
}

bool HasTime(const Descriptor* type) {
  return HasField(type, 1, FieldDescriptor::TYPE_INT64) &&
         HasField(type, 2, FieldDescriptor::TYPE_INT32);
}

bool HoldsType(const Descriptor* type, int number,
               Descriptor::WellKnownType of) {
  const FieldDescriptor* const field = type->FindFieldByNumber(number);
  return field != nullptr && field->message_type() != nullptr &&
         field->message_type()->well_known_type() == of;
}

bool IsStruct(const Descriptor* type) {
  const FieldDescriptor* const field = type->FindFieldByNumber(1);
  if (field == nullptr || !field->is_map()) return false;
  const Descriptor* const entry = field->message_type();
  return HasField(entry, 1, FieldDescriptor::TYPE_STRING) &&
         HoldsType(entry, 2, Descriptor::WELLKNOWNTYPE_VALUE);
}

bool IsListValue(const Descriptor* type) {
  return HasField(type, 1, FieldDescriptor::TYPE_MESSAGE, /*repeated=*/true) &&
         HoldsType(type, 1, Descriptor::WELLKNOWNTYPE_VALUE);
}

bool IsValue(const Descriptor* type) {
  return type->field_count() == 6 &&
         HasField(type, 1, FieldDescriptor::TYPE_ENUM) &&
         HasField(type, 2, FieldDescriptor::TYPE_DOUBLE) &&
         HasField(type, 3, FieldDescriptor::TYPE_STRING) &&
         HasField(type, 4, FieldDescriptor::TYPE_BOOL) &&
         HasField(type, 5, FieldDescriptor::TYPE_MESSAGE) &&
         HoldsType(type, 5, Descriptor::WELLKNOWNTYPE_STRUCT) &&
         IsStruct(type->FindFieldByNumber(5)->message_type()) &&
         HasField(type, 6, FieldDescriptor::TYPE_MESSAGE) &&
         HoldsType(type, 6, Descriptor::WELLKNOWNTYPE_LISTVALUE) &&
         IsListValue(type->FindFieldByNumber(6)->message_type());
}

}  // namespace

WellKnownType WellKnownTypeOf(const Descriptor* type) {
  using enum WellKnownType;
  const auto if_so = [](bool has_fields, WellKnownType known) {
    return has_fields ? known : kNone;
  };
  switch (type->well_known_type()) {
    case Descriptor::WELLKNOWNTYPE_UNSPECIFIED:
      return kNone;
    case Descriptor::WELLKNOWNTYPE_ANY:
      return if_so(HasField(type, 1, FieldDescriptor::TYPE_STRING) &&
                       HasField(type, 2, FieldDescriptor::TYPE_BYTES),
                   kAny);
    case Descriptor::WELLKNOWNTYPE_STRUCT:
      return if_so(IsStruct(type), kStruct);
    case Descriptor::WELLKNOWNTYPE_VALUE:
      return if_so(IsValue(type), kValue);
    case Descriptor::WELLKNOWNTYPE_LISTVALUE:
      return if_so(IsListValue(type), kListValue);
    case Descriptor::WELLKNOWNTYPE_FIELDMASK:
      return if_so(
          HasField(type, 1, FieldDescriptor::TYPE_STRING, /*repeated=*/true),
          kFieldMask);
    case Descriptor::WELLKNOWNTYPE_DURATION:
      return if_so(HasTime(type), kDuration);
    case Descriptor::WELLKNOWNTYPE_TIMESTAMP:
      return if_so(HasTime(type), kTimestamp);
    default:
      return if_so(HasOneScalar(type), kWrapper);
  }
}

AnyValueFactory::AnyValueFactory() = default;
AnyValueFactory::~AnyValueFactory() = default;

std::unique_ptr<google::protobuf::Message> AnyValueFactory::New(
    const google::protobuf::Message& any, const std::string& type_url) {
  constexpr std::string_view kPrefix = "type.googleapis.com/";
  if (!type_url.starts_with(kPrefix)) return nullptr;
  const auto* const pool = any.GetDescriptor()->file()->pool();
  const Descriptor* const type =
      pool->FindMessageTypeByName(type_url.substr(kPrefix.size()));
  if (type == nullptr || type->options().map_entry()) return nullptr;
  const google::protobuf::Message* prototype;
  if (pool == google::protobuf::DescriptorPool::generated_pool()) {
    prototype =
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(
            type);
  } else {
    if (dynamic_ == nullptr) {
      dynamic_ = std::make_unique<google::protobuf::DynamicMessageFactory>();
    }
    prototype = dynamic_->GetPrototype(type);
  }
  return std::unique_ptr<google::protobuf::Message>(
      prototype == nullptr ? nullptr : prototype->New());
}

}  // namespace flare::rpc
