#include "flare/rpc/wire/text_payload.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/common.h>
#include <google/protobuf/text_format.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "flare/base/string.h"
#include "flare/base/zero_copy_stream.h"
#include "flare/rpc/wire/payload_bounds.h"
#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {

namespace {

namespace pb = google::protobuf;

// For each Any in its long form protobuf builds the types anew that the value
// reaches. So many of them may be built for one text, which takes some
// milliseconds.
constexpr std::size_t kMaxAnyTypes = 4096;

std::string TooDeepForText() {
  return "nested deeper than " + std::to_string(kMaxTextNesting) + " levels";
}

// Keeps the first complaint; otherwise protobuf writes a log line for each.
class FirstTextError : public pb::io::ErrorCollector {
 public:
#if GOOGLE_PROTOBUF_VERSION < 4022000
  void AddError(int line, int column, const std::string& what) override {
#else
  void RecordError(int line, int column, std::string_view what) override {
#endif
    if (!text_.empty()) return;
    text_ = At(line, column);
    text_ += what;
  }
  const std::string& text() const { return text_; }

  static std::string At(int line, int column) {
    return std::to_string(line + 1) + ":" + std::to_string(column + 1) + ": ";
  }

 private:
  std::string text_;
};

// Finds the types of Any values, as protobuf would, until they cost too much.
class BoundedAnyTypes : public pb::TextFormat::Finder {
 public:
  const pb::Descriptor* FindAnyType(const pb::Message& message,
                                    const std::string& prefix,
                                    const std::string& name) const override {
    const pb::Descriptor* const type =
        Finder::FindAnyType(message, prefix, name);
    if (type == nullptr) return nullptr;
    built_ += TypesReachedFrom(type);
    return built_ <= kMaxAnyTypes ? type : nullptr;
  }

  bool too_many() const { return built_ > kMaxAnyTypes; }

 private:
  std::size_t TypesReachedFrom(const pb::Descriptor* type) const {
    std::size_t& known = reached_[type];
    if (known != 0) return known;
    std::vector<const pb::Descriptor*> open = {type};
    std::unordered_set<const pb::Descriptor*> seen = {type};
    while (!open.empty() && seen.size() <= kMaxAnyTypes) {
      const pb::Descriptor* const next = open.back();
      open.pop_back();
      for (int i = 0; i != next->field_count(); ++i) {
        const pb::Descriptor* const child = next->field(i)->message_type();
        if (child != nullptr && seen.insert(child).second) {
          open.push_back(child);
        }
      }
    }
    return known = seen.size();
  }

  mutable std::unordered_map<const pb::Descriptor*, std::size_t> reached_;
  mutable std::size_t built_ = 0;
};

// The parser's own limit doesn't count the long form of Any. Braces are counted
// by the tokenizer that the parser uses, so strings and comments can't hide
// them. Empty: the text isn't nested too deeply.
std::string FindDeepText(const Buffer& text) {
  FirstTextError ignored;  // The parser will find the same ones.
  BufferInputStream stream(&text);
  pb::io::Tokenizer tokens(&stream, &ignored);
  tokens.set_allow_f_after_float(true);
  tokens.set_comment_style(pb::io::Tokenizer::SH_COMMENT_STYLE);
  int open = 0;
  while (tokens.Next()) {
    if (tokens.current().type != pb::io::Tokenizer::TYPE_SYMBOL) continue;
    const char symbol = tokens.current().text[0];
    if (symbol == '{' || symbol == '<') {
      if (++open > kMaxTextNesting) {
        return FirstTextError::At(tokens.current().line,
                                  tokens.current().column) +
               TooDeepForText();
      }
    } else if ((symbol == '}' || symbol == '>') && open != 0) {
      --open;
    }
  }
  return "";
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = Utf8SequenceLength(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

// Visits the fields of a message and of those in it, no deeper than text may
// nest.
class TextWalk {
 public:
  // The walk ends at a field for which `visit(message, field)` returns false,
  // and returns that field.
  template <class Visit>
  static const pb::FieldDescriptor* Find(const pb::Message& message,
                                         int levels_left, const Visit& visit) {
    const pb::Reflection* const reflection = message.GetReflection();
    std::vector<const pb::FieldDescriptor*> fields;
    reflection->ListFields(message, &fields);
    for (const pb::FieldDescriptor* field : fields) {
      if (!visit(message, field, levels_left)) return field;
      if (field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE) continue;
      const int count =
          field->is_repeated() ? reflection->FieldSize(message, field) : 1;
      for (int i = 0; i != count; ++i) {
        const pb::Message& child =
            field->is_repeated()
                ? reflection->GetRepeatedMessage(message, field, i)
                : reflection->GetMessage(message, field);
        if (const auto* found = Find(child, levels_left - 1, visit)) {
          return found;
        }
      }
    }
    return nullptr;
  }
};

bool HoldsUtf8(const pb::Message& message, const pb::FieldDescriptor* field) {
  if (field->type() != pb::FieldDescriptor::TYPE_STRING) return true;
#if GOOGLE_PROTOBUF_VERSION < 4022000
  const bool is_utf8 =
      field->file()->syntax() == pb::FileDescriptor::SYNTAX_PROTO3;
#else
  const bool is_utf8 = field->requires_utf8_validation();
#endif
  if (!is_utf8) return true;
  const pb::Reflection* const reflection = message.GetReflection();
  std::string scratch;
  if (!field->is_repeated()) {
    return IsUtf8(reflection->GetStringReference(message, field, &scratch));
  }
  for (int i = 0; i != reflection->FieldSize(message, field); ++i) {
    if (!IsUtf8(reflection->GetRepeatedStringReference(message, field, i,
                                                       &scratch))) {
      return false;
    }
  }
  return true;
}

// Passes on to a stream until so many bytes were written.
class BoundedTextStream : public pb::io::ZeroCopyOutputStream {
 public:
  BoundedTextStream(pb::io::ZeroCopyOutputStream* to, std::size_t max_size)
      : to_(to), max_size_(max_size) {}

  bool Next(void** data, int* size) override {
    return static_cast<std::size_t>(to_->ByteCount()) <= max_size_ &&
           to_->Next(data, size);
  }
  void BackUp(int count) override { to_->BackUp(count); }
  std::int64_t ByteCount() const override { return to_->ByteCount(); }

 private:
  pb::io::ZeroCopyOutputStream* const to_;
  const std::size_t max_size_;
};

}  // namespace

bool ReadText(const Buffer& text, pb::Message* message, std::string* why) {
  if (*why = FindDeepText(text); !why->empty()) return false;
  FirstTextError errors;
  BoundedAnyTypes any_types;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&errors);
  parser.SetFinder(&any_types);
  parser.SetRecursionLimit(kMaxTextNesting);
  parser.AllowPartialMessage(true);
  BufferInputStream stream(&text);
  if (!parser.Parse(&stream, message)) {
    *why = any_types.too_many()
               ? "too many Any values in their long form, [type.url] { ... }"
               : errors.text();
    return false;
  }
  // Its binary form would be refused by the next reader.
  const auto* const bad = TextWalk::Find(
      *message, kMaxTextNesting,
      [](const pb::Message& holder, const pb::FieldDescriptor* field, int) {
        return HoldsUtf8(holder, field);
      });
  if (bad != nullptr) *why = std::string(bad->full_name()) + " isn't UTF-8";
  return bad == nullptr;
}

bool WriteText(const pb::Message& message, Buffer* text, std::string* why) {
  const auto* const deep = TextWalk::Find(
      message, kMaxTextNesting,
      [](const pb::Message&, const pb::FieldDescriptor* field, int left) {
        return left > 0 ||
               field->cpp_type() != pb::FieldDescriptor::CPPTYPE_MESSAGE;
      });
  if (deep != nullptr) {
    *why = TooDeepForText();
    return false;
  }
  const std::size_t size = message.ByteSizeLong();
  pb::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  printer.SetHideUnknownFields(true);
  BufferBuilder builder;
  BufferOutputStream out(&builder, size);
  BoundedTextStream bounded(&out, MaxConvertedSize(size));
  if (!printer.Print(message, &bounded)) {
    *why =
        "its text exceeds " + std::to_string(MaxConvertedSize(size)) + " bytes";
    return false;
  }
  out.Flush();
  *text = builder.DestructiveGet();
  // Each field is followed by a space.
  if (!text->empty()) *text = text->Cut(text->size() - 1);
  return true;
}

}  // namespace flare::rpc
