// One function reads each kind of thing, and calls that of the things within.
// Each is called where its value begins; `levels` says how many messages are
// around.
//
// Accepts all that protobuf's own reader accepts beyond the specification: a
// single value for a list, null for anything, numbers as strings, well-known
// types as objects with their fields.
#include "flare/rpc/wire/json_reader.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "flare/base/string.h"
#include "flare/rpc/wire/json_scalars.h"
#include "flare/rpc/wire/json_scanner.h"
#include "flare/rpc/wire/well_known_types.h"

namespace flare::rpc {

namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Kind = JsonScanner::Kind;

constexpr std::string_view kNoValue = "expects a value";

class JsonReader {
 public:
  JsonReader(std::string_view text, bool ignore_unknown)
      : in_(text),
        ignore_unknown_(ignore_unknown),
        lookahead_(16 * text.size() + (64 << 10)) {}

  bool Read(Message* message, std::string* why) {
    const bool ok = (in_.IsUtf8() || in_.Fail("isn't UTF-8")) &&
                    ReadMessage(message, 0) &&
                    (in_.AtEnd() || in_.Fail("something follows the message"));
    *why = in_.error();
    return ok;
  }

 private:
  bool ReadMessage(Message* message, int levels);
  bool ReadMembers(Message* message, bool in_any, int levels);
  bool ReadMember(Message* message, std::string_view key, int levels);
  [[gnu::noinline]] const FieldDescriptor* FindField(const Descriptor* type,
                                                     std::string_view key);
  bool ReadField(Message* message, const FieldDescriptor* field, int levels);
  bool ReadList(Message* message, const FieldDescriptor* field, int levels);
  bool ReadMap(Message* message, const FieldDescriptor* field, int levels);
  bool ReadElement(Message* message, const FieldDescriptor* field, int levels);

  // A value that is neither an object nor a list.
  [[gnu::noinline]] bool ReadScalar(Message* message,
                                    const FieldDescriptor* field);
  bool SetScalar(Message* message, const FieldDescriptor* field, Kind kind,
                 std::string_view text);
  bool SetReal(Message* message, const FieldDescriptor* field, Kind kind,
               std::string_view text);
  bool SetEnum(Message* message, const FieldDescriptor* field, Kind kind,
               std::string_view text);
  void SetString(Message* message, const FieldDescriptor* field,
                 std::string text);
  // Kept out of line: in the frames of no levels.
  [[gnu::cold, gnu::noinline]] bool TooDeep() {
    return in_.Fail("nested deeper than " + std::to_string(kMaxJsonNesting) +
                    " levels");
  }
  [[gnu::cold, gnu::noinline]] bool IsNoObject(const Descriptor* type) {
    return in_.Fail("expects an object, a " + std::string(type->full_name()));
  }
  [[gnu::cold, gnu::noinline]] bool HasNoField(const Descriptor* type,
                                               std::string_view key) {
    return in_.Fail("a " + std::string(type->full_name()) + " has no field '" +
                    std::string(key) + "'");
  }
  [[gnu::cold, gnu::noinline]] bool IsChosen(
      const google::protobuf::OneofDescriptor* choice) {
    return in_.Fail("another field of " + std::string(choice->full_name()) +
                    " is set");
  }
  [[gnu::cold, gnu::noinline]] bool IsUnusable(const FieldDescriptor* field) {
    return in_.Fail("expects another value for " +
                    std::string(field->full_name()));
  }

  [[gnu::noinline]] bool ReadAny(Message* any, int levels);
  bool HasOnlyType();
  [[gnu::noinline]] bool FindType(std::string* type_url, bool* empty);
  [[gnu::noinline]] bool ReadAnyValue(Message* value, int levels);
  [[gnu::noinline]] bool ReadValue(Message* value, int levels);
  [[gnu::noinline]] bool ReadFieldMask(Message* mask);
  [[gnu::noinline]] bool ReadDuration(Message* duration);
  [[gnu::noinline]] bool ReadTimestamp(Message* timestamp);

  JsonScanner in_;
  const bool ignore_unknown_;
  std::size_t lookahead_;  // Bytes that may still be read ahead for "@type".
  AnyValueFactory any_values_;
  // The fields of types seen so far whose .proto names them for JSON.
  std::unordered_map<const Descriptor*, std::vector<const FieldDescriptor*>>
      renamed_;
};

// null is a value of some types, and nothing for the others.
bool TakesNull(const FieldDescriptor* field) {
  if (field->is_map()) return false;
  if (field->enum_type() != nullptr) {
    return field->enum_type()->full_name() == "google.protobuf.NullValue";
  }
  return field->message_type() != nullptr &&
         WellKnownTypeOf(field->message_type()) == WellKnownType::kValue;
}

bool TakesList(const FieldDescriptor* field) {
  if (field->message_type() == nullptr) return false;
  const WellKnownType type = WellKnownTypeOf(field->message_type());
  return type == WellKnownType::kValue || type == WellKnownType::kListValue;
}

const FieldDescriptor* JsonReader::FindField(const Descriptor* type,
                                             std::string_view key) {
  const std::string name(key);
  const FieldDescriptor* const camel = type->FindFieldByCamelcaseName(name);
  if (camel != nullptr && camel->json_name() == key) return camel;
  const auto [known, is_new] = renamed_.try_emplace(type);
  std::vector<const FieldDescriptor*>& renamed = known->second;
  for (int i = 0; is_new && i != type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    if (field->json_name() != field->camelcase_name()) renamed.push_back(field);
  }
  for (const FieldDescriptor* field : renamed) {
    if (field->json_name() == key) return field;
  }
  return type->FindFieldByName(name);
}

bool JsonReader::ReadMessage(Message* message, int levels) {
  if (levels > kMaxJsonNesting) return TooDeep();
  const Kind kind = in_.Peek();
  const Descriptor* const type = message->GetDescriptor();
  const bool object = kind == Kind::kObject;
  const bool list = kind == Kind::kList;
  switch (WellKnownTypeOf(type)) {
    case WellKnownType::kNone:
      break;
    case WellKnownType::kAny:
      if (object) return ReadAny(message, levels);
      break;
    case WellKnownType::kStruct:
      if (object) return ReadMap(message, type->FindFieldByNumber(1), levels);
      break;
    case WellKnownType::kValue:
      return ReadValue(message, levels);
    case WellKnownType::kListValue:
      if (list) return ReadList(message, type->FindFieldByNumber(1), levels);
      break;
    case WellKnownType::kFieldMask:
      if (!object && !list) return ReadFieldMask(message);
      break;
    case WellKnownType::kDuration:
      if (!object && !list) return ReadDuration(message);
      break;
    case WellKnownType::kTimestamp:
      if (!object && !list) return ReadTimestamp(message);
      break;
    case WellKnownType::kWrapper:
      if (!object && !list) {
        return ReadScalar(message, type->FindFieldByNumber(1));
      }
      break;
  }
  if (!object) return IsNoObject(type);
  return ReadMembers(message, /*in_any=*/false, levels);
}

bool JsonReader::ReadMembers(Message* message, bool in_any, int levels) {
  in_.Take('{');
  std::string_view key;
  while (!in_.Take('}')) {
    if (!in_.ReadKey(&key)) return false;
    if (in_any && key == "@type") {
      if (!in_.SkipValue(kMaxJsonNesting)) return false;
    } else if (!ReadMember(message, key, levels)) {
      return false;
    }
    if (!in_.PassComma('}')) return false;
  }
  return true;
}

bool JsonReader::ReadMember(Message* message, std::string_view key,
                            int levels) {
  const FieldDescriptor* const field = FindField(message->GetDescriptor(), key);
  if (field != nullptr) return ReadField(message, field, levels);
  if (ignore_unknown_) return in_.SkipValue(kMaxJsonNesting);
  return HasNoField(message->GetDescriptor(), key);
}

bool JsonReader::ReadField(Message* message, const FieldDescriptor* field,
                           int levels) {
  const Kind kind = in_.Peek();
  if (kind == Kind::kNull && !TakesNull(field)) {
    in_.PassWord(kind);
    return true;
  }
  if (field->is_map()) return ReadMap(message, field, levels);
  if (field->is_repeated()) {
    return kind == Kind::kList ? ReadList(message, field, levels)
                               : ReadElement(message, field, levels);
  }
  const auto* const choice = field->containing_oneof();
  if (choice != nullptr &&
      message->GetReflection()->HasOneof(*message, choice)) {
    return IsChosen(choice);
  }
  return ReadElement(message, field, levels);
}

bool JsonReader::ReadList(Message* message, const FieldDescriptor* field,
                          int levels) {
  in_.Take('[');
  while (!in_.Take(']')) {
    const Kind kind = in_.Peek();
    if (kind == Kind::kNull && !TakesNull(field)) {
      in_.PassWord(kind);
    } else if (kind == Kind::kList && !TakesList(field)) {
      return in_.Fail("a list in a list");
    } else if (!ReadElement(message, field, levels)) {
      return false;
    }
    if (!in_.PassComma(']')) return false;
  }
  return true;
}

bool JsonReader::ReadMap(Message* message, const FieldDescriptor* field,
                         int levels) {
  if (!in_.Take('{')) return IsUnusable(field);
  const FieldDescriptor* const key_field = field->message_type()->map_key();
  const FieldDescriptor* const value_field = field->message_type()->map_value();
  std::vector<std::string> keys;
  std::string_view key;
  while (!in_.Take('}')) {
    if (!in_.ReadKey(&key)) return false;
    keys.emplace_back(key);
    Message* const entry = message->GetReflection()->AddMessage(message, field);
    if (!SetScalar(entry, key_field, Kind::kString, key)) return false;
    if (const Kind kind = in_.Peek();
        kind == Kind::kNull && !TakesNull(value_field)) {
      in_.PassWord(kind);
    } else if (!ReadElement(entry, value_field, levels + 1)) {
      return false;
    }
    if (!in_.PassComma('}')) return false;
  }
  // Sorted rather than hashed: nobody can choose keys that take longer.
  std::sort(keys.begin(), keys.end());
  return std::adjacent_find(keys.begin(), keys.end()) == keys.end() ||
         in_.Fail("a key is twice in " + std::string(field->full_name()));
}

bool JsonReader::ReadElement(Message* message, const FieldDescriptor* field,
                             int levels) {
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    return ReadScalar(message, field);
  }
  const Reflection* const reflection = message->GetReflection();
  return ReadMessage(field->is_repeated()
                         ? reflection->AddMessage(message, field)
                         : reflection->MutableMessage(message, field),
                     levels + 1);
}

bool JsonReader::ReadScalar(Message* message, const FieldDescriptor* field) {
  const Kind kind = in_.Peek();
  std::string_view text;
  switch (kind) {
    case Kind::kObject:
    case Kind::kList:
      return IsUnusable(field);
    case Kind::kOther:
      return in_.Fail(kNoValue);
    case Kind::kString:
      return in_.ReadString(&text) && SetScalar(message, field, kind, text);
    case Kind::kNumber:
      return in_.ReadNumber(&text) && SetScalar(message, field, kind, text);
    case Kind::kNull:
      in_.PassWord(kind);
      // The field of a wrapper.
      return !TakesNull(field) || SetScalar(message, field, kind, "");
    default:
      in_.PassWord(kind);
      return SetScalar(message, field, kind,
                       kind == Kind::kTrue ? "true" : "false");
  }
}

// Numbers may be strings. `Set` and `Add` are functions of Reflection.
template <class T, class Set, class Add>
bool SetInteger(Message* message, const FieldDescriptor* field, Kind kind,
                std::string_view text, Set set, Add add) {
  if (kind != Kind::kNumber && kind != Kind::kString) return false;
  const auto value = ParseJsonInteger<T>(text);
  if (!value) return false;
  const Reflection* const reflection = message->GetReflection();
  (reflection->*(field->is_repeated() ? add : set))(message, field, *value);
  return true;
}

bool JsonReader::SetScalar(Message* message, const FieldDescriptor* field,
                           Kind kind, std::string_view text) {
  bool ok = false;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      ok = SetInteger<std::int32_t>(message, field, kind, text,
                                    &Reflection::SetInt32,
                                    &Reflection::AddInt32);
      break;
    case FieldDescriptor::CPPTYPE_INT64:
      ok = SetInteger<std::int64_t>(message, field, kind, text,
                                    &Reflection::SetInt64,
                                    &Reflection::AddInt64);
      break;
    case FieldDescriptor::CPPTYPE_UINT32:
      ok = SetInteger<std::uint32_t>(message, field, kind, text,
                                     &Reflection::SetUInt32,
                                     &Reflection::AddUInt32);
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      ok = SetInteger<std::uint64_t>(message, field, kind, text,
                                     &Reflection::SetUInt64,
                                     &Reflection::AddUInt64);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_FLOAT:
      ok = SetReal(message, field, kind, text);
      break;
    case FieldDescriptor::CPPTYPE_BOOL: {
      const auto value =
          kind == Kind::kNumber ? std::nullopt : TryParse<bool>(text);
      ok = value.has_value();
      if (!ok) break;
      const Reflection* const reflection = message->GetReflection();
      (reflection->*(field->is_repeated() ? &Reflection::AddBool
                                          : &Reflection::SetBool))(
          message, field, *value);
      break;
    }
    case FieldDescriptor::CPPTYPE_ENUM:
      ok = SetEnum(message, field, kind, text);
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      if (kind != Kind::kString) break;
      if (field->type() == FieldDescriptor::TYPE_STRING) {
        ok = true;
        SetString(message, field, std::string(text));
      } else if (auto bytes = ParseBase64(text)) {
        ok = true;
        SetString(message, field, *std::move(bytes));
      }
      break;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return ok || IsUnusable(field);
}

bool JsonReader::SetReal(Message* message, const FieldDescriptor* field,
                         Kind kind, std::string_view text) {
  std::optional<double> value;
  if (kind == Kind::kString && text == "NaN") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (kind == Kind::kString && text == "Infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (kind == Kind::kString && text == "-Infinity") {
    value = -std::numeric_limits<double>::infinity();
  } else if (kind == Kind::kString || kind == Kind::kNumber) {
    value = ParseJsonReal(text);
  }
  if (!value) return false;
  const Reflection* const reflection = message->GetReflection();
  const bool repeated = field->is_repeated();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
    (reflection->*(repeated ? &Reflection::AddDouble : &Reflection::SetDouble))(
        message, field, *value);
    return true;
  }
  const auto narrow = std::isfinite(*value)
                          ? NarrowJsonReal(*value)
                          : std::optional(static_cast<float>(*value));
  if (!narrow) return false;
  (reflection->*(repeated ? &Reflection::AddFloat : &Reflection::SetFloat))(
      message, field, *narrow);
  return true;
}

// A name, or any number.
bool JsonReader::SetEnum(Message* message, const FieldDescriptor* field,
                         Kind kind, std::string_view text) {
  const auto* const type = field->enum_type();
  std::optional<int> number;
  if (kind == Kind::kNull) {
    number = 0;
  } else if (kind == Kind::kNumber) {
    number = ParseJsonInteger<std::int32_t>(text);
  } else if (kind == Kind::kString) {
    const auto* value = type->FindValueByName(std::string(text));
    if (value == nullptr) {
      const auto parsed = TryParse<std::int32_t>(text);
      if (parsed) value = type->FindValueByNumber(*parsed);
    }
    if (value == nullptr) return ignore_unknown_;
    number = value->number();
  }
  if (!number) return false;
  const Reflection* const reflection = message->GetReflection();
  (reflection->*(field->is_repeated() ? &Reflection::AddEnumValue
                                      : &Reflection::SetEnumValue))(
      message, field, *number);
  return true;
}

void JsonReader::SetString(Message* message, const FieldDescriptor* field,
                           std::string text) {
  const Reflection* const reflection = message->GetReflection();
  if (field->is_repeated()) {
    reflection->AddString(message, field, std::move(text));
  } else {
    reflection->SetString(message, field, std::move(text));
  }
}

bool JsonReader::ReadAny(Message* any, int levels) {
  const std::size_t start = in_.position();
  std::string type_url;
  bool empty = false;
  if (!FindType(&type_url, &empty)) return false;
  if (empty) return true;
  const Descriptor* const type = any->GetDescriptor();
  auto value = any_values_.New(*any, type_url);
  if (value == nullptr) {
    // Without a value any type will do.
    in_.GoTo(start);
    if (HasOnlyType()) {
      SetString(any, type->FindFieldByNumber(1), std::move(type_url));
      return true;
    }
    return in_.Fail("an Any of an unknown type, '" + type_url + "'");
  }
  in_.GoTo(start);
  if (!ReadAnyValue(value.get(), levels + 1)) return false;
  if (!value->IsInitialized()) {
    return in_.Fail("required fields are missing in an Any of " + type_url);
  }
  SetString(any, type->FindFieldByNumber(1), std::move(type_url));
  SetString(any, type->FindFieldByNumber(2), value->SerializeAsString());
  return true;
}

// Looks for "@type" in the object that begins here. Where it comes last at each
// of many levels, all that is within is passed as often.
bool JsonReader::FindType(std::string* type_url, bool* empty) {
  const std::size_t start = in_.position();
  in_.Take('{');
  *empty = in_.Take('}');
  if (*empty) return true;
  std::string_view text;
  while (!in_.Take('}')) {
    if (!in_.ReadKey(&text)) return false;
    if (text != "@type") {
      if (!in_.SkipValue(kMaxJsonNesting) || !in_.PassComma('}')) return false;
      if (in_.position() - start <= lookahead_) continue;
      return in_.Fail("\"@type\" isn't first in too many Any values");
    }
    if (in_.Peek() != Kind::kString) return in_.Fail("\"@type\" is a string");
    if (!in_.ReadString(&text)) return false;
    *type_url = text;
    lookahead_ -= std::min(lookahead_, in_.position() - start);
    return true;
  }
  return in_.Fail("an Any has no \"@type\"");
}

// Passes the object that begins here if nothing but "@type" is in it.
bool JsonReader::HasOnlyType() {
  std::string_view key;
  in_.Take('{');
  if (!in_.ReadKey(&key) || key != "@type" || !in_.SkipValue(0)) return false;
  in_.Take(',');
  return in_.Take('}');
}

bool JsonReader::ReadAnyValue(Message* value, int levels) {
  if (WellKnownTypeOf(value->GetDescriptor()) == WellKnownType::kNone) {
    if (levels > kMaxJsonNesting) return TooDeep();
    return ReadMembers(value, /*in_any=*/true, levels);
  }
  in_.Take('{');
  std::string_view key;
  while (!in_.Take('}')) {
    if (!in_.ReadKey(&key)) return false;
    if (key == "@type") {
      if (!in_.SkipValue(kMaxJsonNesting)) return false;
    } else if (key != "value") {
      return in_.Fail("an Any of " + std::string(value->GetTypeName()) +
                      " has a \"value\" only");
    } else if (!ReadMessage(value, levels)) {
      return false;
    }
    if (!in_.PassComma('}')) return false;
  }
  return true;
}

bool JsonReader::ReadValue(Message* value, int levels) {
  const Descriptor* const type = value->GetDescriptor();
  int number = 0;
  switch (in_.Peek()) {
    case Kind::kNull:
      number = 1;
      break;
    case Kind::kNumber:
      number = 2;
      break;
    case Kind::kString:
      number = 3;
      break;
    case Kind::kTrue:
    case Kind::kFalse:
      number = 4;
      break;
    case Kind::kObject:
      number = 5;
      break;
    case Kind::kList:
      number = 6;
      break;
    case Kind::kOther:
      return in_.Fail(kNoValue);
  }
  return ReadElement(value, type->FindFieldByNumber(number), levels);
}

bool JsonReader::ReadFieldMask(Message* mask) {
  const FieldDescriptor* const field =
      mask->GetDescriptor()->FindFieldByNumber(1);
  std::string_view text;
  if (const Kind kind = in_.Peek(); kind == Kind::kNull) {
    in_.PassWord(kind);
    return true;
  } else if (kind != Kind::kString) {
    return IsUnusable(field);
  }
  if (!in_.ReadString(&text)) return false;
  const std::string why = ForEachMaskPath(
      text, [&](std::string path) { SetString(mask, field, std::move(path)); });
  return why.empty() || in_.Fail("a bad FieldMask: " + why);
}

void SetTime(Message* time, std::int64_t seconds, std::int32_t nanos) {
  const Descriptor* const type = time->GetDescriptor();
  const Reflection* const reflection = time->GetReflection();
  reflection->SetInt64(time, type->FindFieldByNumber(1), seconds);
  reflection->SetInt32(time, type->FindFieldByNumber(2), nanos);
}

bool JsonReader::ReadDuration(Message* duration) {
  std::string_view text;
  if (const Kind kind = in_.Peek(); kind == Kind::kNull) {
    in_.PassWord(kind);
    return true;
  } else if (kind != Kind::kString) {
    return in_.Fail("a Duration is a string");
  }
  if (!in_.ReadString(&text)) return false;
  const auto value = ParseJsonDuration(text);
  if (!value) return in_.Fail("a bad Duration, '" + std::string(text) + "'");
  SetTime(duration, value->seconds, value->nanos);
  return true;
}

bool JsonReader::ReadTimestamp(Message* timestamp) {
  std::string_view text;
  if (const Kind kind = in_.Peek(); kind == Kind::kNull) {
    in_.PassWord(kind);
    return true;
  } else if (kind != Kind::kString) {
    return in_.Fail("a Timestamp is a string");
  }
  if (!in_.ReadString(&text)) return false;
  google::protobuf::Timestamp value;
  if (!google::protobuf::util::TimeUtil::FromString(std::string(text),
                                                    &value)) {
    return in_.Fail("a bad Timestamp, '" + std::string(text) + "'");
  }
  SetTime(timestamp, value.seconds(), value.nanos());
  return true;
}

}  // namespace

bool ReadJson(std::string_view json, bool ignore_unknown, Message* message,
              std::string* why) {
  return JsonReader(json, ignore_unknown).Read(message, why);
}

}  // namespace flare::rpc
