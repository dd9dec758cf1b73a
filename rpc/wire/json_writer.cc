// One function writes each kind of thing, and calls that of the things within.
// `levels` says how many messages are around.
#include "flare/rpc/wire/json_writer.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/string.h"
#include "flare/rpc/wire/json_scalars.h"
#include "flare/rpc/wire/payload_bounds.h"
#include "flare/rpc/wire/well_known_types.h"

namespace flare::rpc {

namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

class JsonWriter {
 public:
  JsonWriter(JsonStyle style, std::size_t max_size)
      : style_(style), room_(max_size), max_size_(max_size) {}

  bool Write(const Message& message, Buffer* json, std::string* why) {
    const bool ok = PutMessage(message, 0) && !Full();
    *json = out_.DestructiveGet();
    *why = std::move(why_);
    return ok;
  }

 private:
  [[gnu::cold, gnu::noinline]] bool Fail(std::string_view what,
                                         std::string_view why) {
    if (why_.empty()) why_ = std::string(what) + " " + std::string(why);
    return false;
  }
  [[gnu::cold, gnu::noinline]] bool TooDeep() {
    return Fail("nested deeper than",
                std::to_string(kMaxJsonNesting) + " levels");
  }
  [[gnu::cold, gnu::noinline]] bool FailAt(const FieldDescriptor* field,
                                           std::string_view why) {
    return Fail(field->full_name(), why);
  }
  [[gnu::cold, gnu::noinline]] bool FailAt(const Message& message,
                                           std::string_view why) {
    return Fail(message.GetTypeName(), why);
  }

  // The output is too large already, so that no more is needed.
  bool Full() { return full_ && !TooLarge(); }
  [[gnu::cold, gnu::noinline]] bool TooLarge() {
    return Fail("its JSON exceeds", std::to_string(max_size_) + " bytes");
  }

  void Put(std::string_view text) {
    full_ = full_ || text.size() > room_;
    if (full_) return;
    room_ -= text.size();
    out_.Append(text);
  }

  bool PutMessage(const Message& message, int levels);
  bool PutFields(const Message& message, bool first, int levels);
  bool PutField(const Message& message, const FieldDescriptor* field,
                int levels);
  bool PutMap(const Message& message, const FieldDescriptor* field, int levels);
  bool PutList(const Message& message, const FieldDescriptor* field,
               int levels);
  bool PutElement(const Message& message, const FieldDescriptor* field,
                  int index, int levels);

  // Those that aren't inlined are in the frames of no levels around them.

  // The value of a field that is no message; index -1 if it isn't repeated.
  [[gnu::noinline]] bool PutScalar(const Message& message,
                                   const FieldDescriptor* field, int index);
  bool PutMapKey(const Message& entry, const FieldDescriptor* key);
  bool PutEnum(const FieldDescriptor* field, int number);
  bool PutString(std::string_view text);
  void PutBase64(std::string_view bytes);
  void PutInteger(std::integral auto number, bool quoted);
  template <class T>
  void PutReal(T number, int digits, int all_digits);

  [[gnu::noinline]] bool PutAny(const Message& any, int levels);
  [[gnu::noinline]] bool ReadAny(const Message& any, int levels,
                                 std::string* type_url,
                                 std::unique_ptr<Message>* value);
  [[gnu::noinline]] bool PutAnyValue(const std::string& type_url,
                                     const Message& value, int levels);
  [[gnu::noinline]] bool PutValue(const Message& value, int levels);
  [[gnu::noinline]] bool PutFieldMask(const Message& mask);
  [[gnu::noinline]] bool PutDuration(const Message& duration);
  [[gnu::noinline]] bool PutTimestamp(const Message& timestamp);

  bool IsPutUnset(const FieldDescriptor* field) const {
    return style_ == JsonStyle::kTrpc &&
           (field->is_repeated() ||
            (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE &&
             field->containing_oneof() == nullptr));
  }

  const JsonStyle style_;
  std::size_t room_;  // Bytes that may still be put.
  const std::size_t max_size_;
  bool full_ = false;
  // The written message is the value of an Any, and thus our own.
  bool owned_ = false;
  std::string why_;
  AnyValueFactory any_values_;
  BufferBuilder out_;
};

const FieldDescriptor* FieldOf(const Message& message, int number) {
  return message.GetDescriptor()->FindFieldByNumber(number);
}

std::int64_t SecondsOf(const Message& time) {
  return time.GetReflection()->GetInt64(time, FieldOf(time, 1));
}

std::int32_t NanosOf(const Message& time) {
  return time.GetReflection()->GetInt32(time, FieldOf(time, 2));
}

bool JsonWriter::PutMessage(const Message& message, int levels) {
  if (levels > kMaxJsonNesting) return TooDeep();
  if (Full()) return false;
  switch (WellKnownTypeOf(message.GetDescriptor())) {
    case WellKnownType::kNone:
      break;
    case WellKnownType::kAny:
      return PutAny(message, levels);
    case WellKnownType::kStruct:
      return PutMap(message, FieldOf(message, 1), levels);
    case WellKnownType::kValue:
      return PutValue(message, levels);
    case WellKnownType::kListValue:
      return PutList(message, FieldOf(message, 1), levels);
    case WellKnownType::kFieldMask:
      return PutFieldMask(message);
    case WellKnownType::kDuration:
      return PutDuration(message);
    case WellKnownType::kTimestamp:
      return PutTimestamp(message);
    case WellKnownType::kWrapper:
      return PutScalar(message, FieldOf(message, 1), -1);
  }
  Put("{");
  if (!PutFields(message, /*first=*/true, levels)) return false;
  Put("}");
  return true;
}

bool JsonWriter::PutFields(const Message& message, bool first, int levels) {
  const Descriptor* const type = message.GetDescriptor();
  const Reflection* const reflection = message.GetReflection();
  for (int i = 0; i != type->field_count(); ++i) {
    const FieldDescriptor* const field = type->field(i);
    const bool set = field->is_repeated()
                         ? reflection->FieldSize(message, field) != 0
                         : reflection->HasField(message, field);
    if (!set && !IsPutUnset(field)) continue;
    if (!first) Put(",");
    first = false;
    if (!PutString(style_ == JsonStyle::kTrpc ? field->name()
                                              : field->json_name())) {
      return FailAt(field, "has a name that isn't UTF-8");
    }
    Put(":");
    if (!PutField(message, field, levels)) return false;
  }
  return true;
}

bool JsonWriter::PutField(const Message& message, const FieldDescriptor* field,
                          int levels) {
  if (field->is_map()) return PutMap(message, field, levels);
  if (field->is_repeated()) return PutList(message, field, levels);
  return PutElement(message, field, -1, levels);
}

bool JsonWriter::PutList(const Message& message, const FieldDescriptor* field,
                         int levels) {
  Put("[");
  const int count = message.GetReflection()->FieldSize(message, field);
  for (int i = 0; i != count; ++i) {
    if (i != 0) Put(",");
    if (!PutElement(message, field, i, levels)) return false;
  }
  Put("]");
  return true;
}

bool JsonWriter::PutElement(const Message& message,
                            const FieldDescriptor* field, int index,
                            int levels) {
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    return PutScalar(message, field, index);
  }
  const Reflection* const reflection = message.GetReflection();
  return PutMessage(index < 0
                        ? reflection->GetMessage(message, field)
                        : reflection->GetRepeatedMessage(message, field, index),
                    levels + 1);
}

std::string MapKeyOf(const Message& entry, const FieldDescriptor* key) {
  const Reflection* const reflection = entry.GetReflection();
  switch (key->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return std::to_string(reflection->GetInt32(entry, key));
    case FieldDescriptor::CPPTYPE_INT64:
      return std::to_string(reflection->GetInt64(entry, key));
    case FieldDescriptor::CPPTYPE_UINT32:
      return std::to_string(reflection->GetUInt32(entry, key));
    case FieldDescriptor::CPPTYPE_UINT64:
      return std::to_string(reflection->GetUInt64(entry, key));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(entry, key) ? "1" : "0";
    default:
      return reflection->GetString(entry, key);
  }
}

// Which entries of a map count: reflection shows those that were added, and of
// each key the last one holds. Sorted rather than hashed: nobody can choose
// keys that take longer.
[[gnu::noinline]] std::vector<int> LastOfEachKey(const Message& message,
                                                 const FieldDescriptor* field) {
  const Reflection* const reflection = message.GetReflection();
  const FieldDescriptor* const key = field->message_type()->map_key();
  std::vector<std::pair<std::string, int>> keys;
  for (int i = 0; i != reflection->FieldSize(message, field); ++i) {
    keys.emplace_back(
        MapKeyOf(reflection->GetRepeatedMessage(message, field, i), key), i);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<int> last;
  for (std::size_t i = 0; i != keys.size(); ++i) {
    if (i + 1 != keys.size() && keys[i].first == keys[i + 1].first) continue;
    last.push_back(keys[i].second);
  }
  std::sort(last.begin(), last.end());
  return last;
}

bool JsonWriter::PutMap(const Message& message, const FieldDescriptor* field,
                        int levels) {
  const Reflection* const reflection = message.GetReflection();
  const FieldDescriptor* const key = field->message_type()->map_key();
  const FieldDescriptor* const value = field->message_type()->map_value();
  Put("{");
  bool first = true;
  for (int i : LastOfEachKey(message, field)) {
    if (!first) Put(",");
    first = false;
    const Message& entry = reflection->GetRepeatedMessage(message, field, i);
    if (!PutMapKey(entry, key)) return false;
    Put(":");
    if (!PutElement(entry, value, -1, levels + 1)) return false;
  }
  Put("}");
  return true;
}

bool JsonWriter::PutMapKey(const Message& entry, const FieldDescriptor* key) {
  switch (key->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_BOOL:
      Put("\"");
      if (!PutScalar(entry, key, -1)) return false;
      Put("\"");
      return true;
    default:  // Has its quotes.
      return PutScalar(entry, key, -1);
  }
}

bool JsonWriter::PutScalar(const Message& message, const FieldDescriptor* field,
                           int index) {
  if (Full()) return false;
  const Reflection& in = *message.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      PutInteger(one ? in.GetInt32(message, field)
                     : in.GetRepeatedInt32(message, field, index),
                 /*quoted=*/false);
      return true;
    case FieldDescriptor::CPPTYPE_INT64:
      PutInteger(one ? in.GetInt64(message, field)
                     : in.GetRepeatedInt64(message, field, index),
                 /*quoted=*/true);
      return true;
    case FieldDescriptor::CPPTYPE_UINT32:
      PutInteger(one ? in.GetUInt32(message, field)
                     : in.GetRepeatedUInt32(message, field, index),
                 /*quoted=*/false);
      return true;
    case FieldDescriptor::CPPTYPE_UINT64:
      PutInteger(one ? in.GetUInt64(message, field)
                     : in.GetRepeatedUInt64(message, field, index),
                 /*quoted=*/true);
      return true;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      PutReal(one ? in.GetDouble(message, field)
                  : in.GetRepeatedDouble(message, field, index),
              15, 17);
      return true;
    case FieldDescriptor::CPPTYPE_FLOAT:
      PutReal(one ? in.GetFloat(message, field)
                  : in.GetRepeatedFloat(message, field, index),
              6, 9);
      return true;
    case FieldDescriptor::CPPTYPE_BOOL:
      Put((one ? in.GetBool(message, field)
               : in.GetRepeatedBool(message, field, index))
              ? "true"
              : "false");
      return true;
    case FieldDescriptor::CPPTYPE_ENUM:
      return PutEnum(field,
                     one ? in.GetEnumValue(message, field)
                         : in.GetRepeatedEnumValue(message, field, index));
    case FieldDescriptor::CPPTYPE_STRING: {
      std::string scratch;
      const std::string& text =
          one ? in.GetStringReference(message, field, &scratch)
              : in.GetRepeatedStringReference(message, field, index, &scratch);
      if (field->type() == FieldDescriptor::TYPE_BYTES) {
        PutBase64(text);
        return true;
      }
      return PutString(text) || FailAt(field, "isn't UTF-8");
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      break;
  }
  return FailAt(field, "has no form in JSON");
}

bool JsonWriter::PutEnum(const FieldDescriptor* field, int number) {
  if (field->enum_type()->full_name() == "google.protobuf.NullValue") {
    Put("null");
    return true;
  }
  const auto* const value = style_ == JsonStyle::kTrpc
                                ? nullptr
                                : field->enum_type()->FindValueByNumber(number);
  if (value != nullptr) return PutString(value->name());
  PutInteger(number, /*quoted=*/false);
  return true;
}

void JsonWriter::PutInteger(std::integral auto number, bool quoted) {
  std::array<char, 24> text;
  char* end = text.data();
  if (quoted) *end++ = '"';
  end = std::to_chars(end, text.data() + text.size(), number).ptr;
  if (quoted) *end++ = '"';
  Put({text.data(), end});
}

// With `digits` digits if that says all there is, else with `all_digits`.
template <class T>
void JsonWriter::PutReal(T number, int digits, int all_digits) {
  if (!std::isfinite(number)) {
    return Put(std::isnan(number) ? "\"NaN\""
               : number > 0       ? "\"Infinity\""
                                  : "\"-Infinity\"");
  }
  std::array<char, 40> text;
  const auto print = [&](int precision) {
    return std::to_chars(text.data(), text.data() + text.size(), number,
                         std::chars_format::general, precision)
        .ptr;
  };
  char* end = print(digits);
  T read{};
  std::from_chars(text.data(), end, read);
  if (read != number) end = print(all_digits);
  Put({text.data(), end});
}

// Bytes that are escaped, or looked at together with the next ones.
constexpr auto kIsEscaped = [] {
  std::array<bool, 256> escaped{};
  for (std::size_t c = 0; c != escaped.size(); ++c) {
    escaped[c] =
        c < 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>';
  }
  return escaped;
}();

// '<' and '>' are escaped, too, for pages that JSON is put in, and so are the
// two characters that end a line in JavaScript only.
bool JsonWriter::PutString(std::string_view text) {
  Put("\"");
  std::size_t done = 0;
  const auto escape = [&](std::size_t at, std::size_t size,
                          std::string_view escaped) {
    Put(text.substr(done, at - done));
    Put(escaped);
    done = at + size;
  };
  for (std::size_t at = 0; at < text.size() && !full_;) {
    const char c = text[at];
    if (!kIsEscaped[static_cast<unsigned char>(c)]) {
      ++at;
      continue;
    }
    if (static_cast<unsigned char>(c) >= 0x80) {
      const std::size_t size = Utf8SequenceLength(text.substr(at));
      if (size == 0) return false;
      const std::string_view one = text.substr(at, size);
      if (one == "\u2028") escape(at, size, "\\u2028");
      if (one == "\u2029") escape(at, size, "\\u2029");
      at += size;
      continue;
    }
    constexpr std::string_view kPlain = "\"\\\b\f\n\r\t";
    constexpr std::string_view kNames = "\"\\bfnrt";
    if (const auto found = kPlain.find(c); found != kPlain.npos) {
      escape(at, 1, std::array<char, 3>{'\\', kNames[found], 0}.data());
    } else {
      const auto hex = HexOf(static_cast<unsigned char>(c));
      escape(at, 1, std::string("\\u00").append(hex.data(), hex.size()));
    }
    ++at;
  }
  Put(text.substr(done));
  Put("\"");
  return true;
}

void JsonWriter::PutBase64(std::string_view bytes) {
  Put("\"");
  std::array<char, 1024> text;
  std::size_t size = 0;
  while (!bytes.empty() && !full_) {
    for (const char digit : Base64Digits(bytes)) text[size++] = digit;
    bytes.remove_prefix(std::min<std::size_t>(bytes.size(), 3));
    if (size == text.size() || bytes.empty()) {
      Put({text.data(), size});
      size = 0;
    }
  }
  Put("\"");
}

bool JsonWriter::PutValue(const Message& value, int levels) {
  std::vector<const FieldDescriptor*> set;
  value.GetReflection()->ListFields(value, &set);
  if (set.empty()) {
    Put("null");
    return true;
  }
  const FieldDescriptor* const field = set[0];
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE &&
      !std::isfinite(value.GetReflection()->GetDouble(value, field))) {
    return FailAt(field, "is no finite number");
  }
  return PutElement(value, field, -1, levels);
}

bool JsonWriter::PutAny(const Message& any, int levels) {
  std::string type_url;
  std::unique_ptr<Message> value;
  if (!ReadAny(any, levels, &type_url, &value)) return false;
  if (value == nullptr) {
    Put(type_url.empty() ? "{" : "{\"@type\":");
    if (!type_url.empty() && !PutString(type_url)) {
      return FailAt(any, "has a type URL that isn't UTF-8");
    }
    Put("}");
    return true;
  }
  const bool was_owned = std::exchange(owned_, true);
  const bool ok = PutAnyValue(type_url, *value, levels + 1);
  owned_ = was_owned;
  return ok;
}

// *value stays null if the Any has none. An Any that is ours is emptied, and
// its bytes are freed as soon as they are read: of all that are nested only one
// is in memory twice.
bool JsonWriter::ReadAny(const Message& any, int levels, std::string* type_url,
                         std::unique_ptr<Message>* value) {
  std::unique_ptr<Message> taken;
  if (owned_) {
    taken.reset(any.New());
    any.GetReflection()->Swap(const_cast<Message*>(&any), taken.get());
  }
  const Message& from = taken != nullptr ? *taken : any;
  const Reflection* const reflection = from.GetReflection();
  *type_url = reflection->GetString(from, FieldOf(from, 1));
  std::string scratch;
  const std::string& bytes =
      reflection->GetStringReference(from, FieldOf(from, 2), &scratch);
  *value = any_values_.New(from, *type_url);
  const bool known = *value != nullptr;
  if (bytes.empty() && (!known || (*value)->IsInitialized())) {
    value->reset();
    return true;
  }
  if (!known) return FailAt(any, "holds an unknown type, '" + *type_url + "'");
  google::protobuf::io::CodedInputStream in(
      reinterpret_cast<const std::uint8_t*>(bytes.data()),
      static_cast<int>(bytes.size()));
  in.SetRecursionLimit(std::max(kMaxJsonNesting - levels, 0));
  if (!(*value)->MergePartialFromCodedStream(&in) ||
      !in.ConsumedEntireMessage()) {
    return FailAt(any, "holds a malformed or too deeply nested " + *type_url);
  }
  return (*value)->IsInitialized() ||
         FailAt(any, "holds a " + *type_url + " without required fields");
}

bool JsonWriter::PutAnyValue(const std::string& type_url, const Message& value,
                             int levels) {
  Put("{\"@type\":");
  if (!PutString(type_url)) return Fail(type_url, "isn't UTF-8");
  if (WellKnownTypeOf(value.GetDescriptor()) != WellKnownType::kNone) {
    Put(",\"value\":");
    if (!PutMessage(value, levels)) return false;
  } else if (levels > kMaxJsonNesting) {
    return TooDeep();
  } else if (!PutFields(value, /*first=*/false, levels)) {
    return false;
  }
  Put("}");
  return true;
}

// "user_name" is "userName" in JSON.
bool JsonWriter::PutFieldMask(const Message& mask) {
  const FieldDescriptor* const field = FieldOf(mask, 1);
  const Reflection* const reflection = mask.GetReflection();
  std::string paths;
  for (int i = 0; i != reflection->FieldSize(mask, field); ++i) {
    if (i != 0) paths += ',';
    bool after_underscore = false;
    for (char c : reflection->GetRepeatedString(mask, field, i)) {
      const bool lower = 'a' <= c && c <= 'z';
      if (after_underscore && lower) {
        paths += static_cast<char>(c - 'a' + 'A');
      } else if (c != '_') {
        paths += c;
      }
      after_underscore = c == '_';
    }
  }
  if (!ForEachMaskPath(paths, [](std::string) {}).empty()) {
    return FailAt(field, "has no form in JSON");
  }
  return PutString(paths) || FailAt(field, "isn't UTF-8");
}

bool JsonWriter::PutDuration(const Message& duration) {
  const std::int64_t seconds = SecondsOf(duration);
  const std::int32_t nanos = NanosOf(duration);
  constexpr std::int64_t kMaxSeconds = 315'576'000'000;
  if (seconds < -kMaxSeconds || seconds > kMaxSeconds || nanos <= -1000000000 ||
      nanos >= 1000000000 || (seconds < 0 && nanos > 0) ||
      (seconds > 0 && nanos < 0)) {
    return FailAt(duration, "is out of range");
  }
  std::string text = seconds < 0 || nanos < 0 ? "\"-" : "\"";
  text += std::to_string(std::abs(seconds));
  if (nanos != 0) {
    // Three, six or nine digits.
    std::string digits = std::to_string(1000000000 + std::abs(nanos));
    digits[0] = '.';
    while (digits.ends_with("000")) digits.resize(digits.size() - 3);
    text += digits;
  }
  Put(text + "s\"");
  return true;
}

bool JsonWriter::PutTimestamp(const Message& message) {
  namespace util = google::protobuf::util;
  google::protobuf::Timestamp timestamp;
  timestamp.set_seconds(SecondsOf(message));
  timestamp.set_nanos(NanosOf(message));
  if (timestamp.seconds() < util::TimeUtil::kTimestampMinSeconds ||
      timestamp.seconds() > util::TimeUtil::kTimestampMaxSeconds ||
      timestamp.nanos() < 0 || timestamp.nanos() >= 1000000000) {
    return FailAt(message, "is out of range");
  }
  Put("\"" + util::TimeUtil::ToString(timestamp) + "\"");
  return true;
}

}  // namespace

bool WriteJson(JsonStyle style, const Message& message, Buffer* json,
               std::string* why) {
  JsonWriter writer(style, MaxConvertedSize(message.ByteSizeLong()));
  return writer.Write(message, json, why);
}

}  // namespace flare::rpc
