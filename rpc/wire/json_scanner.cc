#include "flare/rpc/wire/json_scanner.h"

#include <algorithm>

#include "flare/base/ascii.h"
#include "flare/base/string.h"

namespace flare::rpc {

namespace {

bool IsJsonSpace(char c) { return c == ' ' || ('\t' <= c && c <= '\r'); }

bool BeginsJsonName(char c) {
  return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || c == '_' ||
         c == '$';
}

bool IsJsonDigit(char c) { return '0' <= c && c <= '9'; }

void AppendCodePoint(unsigned code, std::string* text) {
  if (code < 0x80) {
    *text += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  *text +=
      static_cast<char>((0xff00 >> (more + 1) & 0xff) | code >> (6 * more));
  for (int i = more; i-- != 0;) {
    *text += static_cast<char>(0x80 | (code >> (6 * i) & 0x3f));
  }
}

constexpr std::string_view kJsonWords[] = {"true", "false", "null"};

}  // namespace

bool JsonScanner::IsUtf8() const {
  std::string_view rest = text_;
  while (true) {
    rest.remove_prefix(AsciiPrefix(rest));
    if (rest.empty()) return true;
    const std::size_t size = Utf8SequenceLength(rest);
    if (size == 0) return false;
    rest.remove_prefix(size);
  }
}

JsonScanner::Kind JsonScanner::Peek() {
  while (IsJsonSpace(Next())) ++at_;
  switch (const char c = Next(); c) {
    case '{':
      return Kind::kObject;
    case '[':
      return Kind::kList;
    case '"':
    case '\'':
      return Kind::kString;
    default:
      if (c == '-' || IsJsonDigit(c)) return Kind::kNumber;
  }
  for (int i = 0; i != 3; ++i) {
    if (text_.substr(at_).starts_with(kJsonWords[i])) {
      return static_cast<Kind>(static_cast<int>(Kind::kTrue) + i);
    }
  }
  return Kind::kOther;
}

bool JsonScanner::Take(char c) {
  while (IsJsonSpace(Next())) ++at_;
  if (at_ == text_.size() || text_[at_] != c) return false;
  ++at_;
  return true;
}

bool JsonScanner::AtEnd() {
  while (IsJsonSpace(Next())) ++at_;
  return at_ == text_.size();
}

void JsonScanner::PassWord(Kind kind) {
  at_ +=
      kJsonWords[static_cast<int>(kind) - static_cast<int>(Kind::kTrue)].size();
}

bool JsonScanner::ReadString(std::string_view* value) {
  const char quote = Next();
  std::size_t from = ++at_;
  bool escaped = false;
  while (true) {
    while (at_ != text_.size() && text_[at_] != quote && text_[at_] != '\\') {
      ++at_;
    }
    if (at_ == text_.size()) return Fail("a string has no closing quote");
    if (text_[at_] == quote) break;
    if (!escaped) unescaped_.clear();
    escaped = true;
    unescaped_ += text_.substr(from, at_ - from);
    if (!ReadEscape()) return false;
    from = at_;
  }
  *value = text_.substr(from, at_++ - from);
  if (escaped) *value = unescaped_ += *value;
  return true;
}

bool JsonScanner::ReadHex(unsigned* code) {
  *code = 0;
  for (int i = 0; i != 4; ++i) {
    const char c = static_cast<char>(Next() | 0x20);
    if (IsJsonDigit(Next())) {
      *code = *code << 4 | static_cast<unsigned>(Next() - '0');
    } else if ('a' <= c && c <= 'f') {
      *code = *code << 4 | static_cast<unsigned>(c - 'a' + 10);
    } else {
      return Fail("\\u needs four hexadecimal digits");
    }
    ++at_;
  }
  return true;
}

// A backslash is next.
bool JsonScanner::ReadEscape() {
  if (++at_ == text_.size()) return Fail("a string has no closing quote");
  const char c = text_[at_++];
  if (c != 'u') {
    constexpr std::string_view kNames = "bfnrtv";
    const auto found = kNames.find(c);
    unescaped_ += found == kNames.npos ? c : "\b\f\n\r\t\v"[found];
    return true;
  }
  unsigned code;
  if (!ReadHex(&code)) return false;
  if (code >= 0xd800 && code < 0xdc00) {
    unsigned low = 0;
    if (!text_.substr(at_).starts_with("\\u")) {
      return Fail("half a surrogate pair");
    }
    at_ += 2;
    if (!ReadHex(&low)) return false;
    if (low < 0xdc00 || low > 0xdfff) return Fail("half a surrogate pair");
    code = 0x10000 + ((code & 0x3ff) << 10 | (low & 0x3ff));
  } else if (code >= 0xdc00 && code < 0xe000) {
    return Fail("half a surrogate pair");
  }
  AppendCodePoint(code, &unescaped_);
  return true;
}

bool JsonScanner::ReadNumber(std::string_view* value) {
  const std::size_t from = at_;
  while (IsJsonDigit(Next()) || Next() == '.' || Next() == 'e' ||
         Next() == 'E' || Next() == '+' || Next() == '-') {
    ++at_;
  }
  *value = text_.substr(from, at_ - from);
  const std::string_view digits = value->substr((*value)[0] == '-' ? 1 : 0);
  if (digits.size() > 1 && digits[0] == '0' && IsJsonDigit(digits[1])) {
    return Fail("a number begins with 0");
  }
  return true;
}

bool JsonScanner::ReadKey(std::string_view* key) {
  if (Peek() == Kind::kString) {
    if (!ReadString(key)) return false;
  } else if (BeginsJsonName(Next())) {
    const std::size_t from = at_;
    while (BeginsJsonName(Next()) || IsJsonDigit(Next())) ++at_;
    *key = text_.substr(from, at_ - from);
    if (std::find(std::begin(kJsonWords), std::end(kJsonWords), *key) !=
        std::end(kJsonWords)) {
      return Fail("expects a name");
    }
  } else {
    return Fail("expects a name");
  }
  return Take(':') || Fail("expects a colon");
}

bool JsonScanner::PassComma(char closing) {
  if (Take(',')) return true;
  Peek();
  return (at_ != text_.size() && text_[at_] == closing) ||
         Fail(std::string("expects a comma or ") + closing);
}

bool JsonScanner::SkipValue(int max_nesting) {
  std::string open;  // The brackets that close the open ones.
  std::string_view ignored;
  while (true) {
    const Kind kind = Peek();
    switch (kind) {
      case Kind::kObject:
      case Kind::kList:
        if (static_cast<int>(open.size()) == max_nesting) {
          return Fail("nested deeper than " + std::to_string(max_nesting) +
                      " levels");
        }
        ++at_;
        open += kind == Kind::kObject ? '}' : ']';
        break;
      case Kind::kString:
        if (!ReadString(&ignored)) return false;
        break;
      case Kind::kNumber:
        if (!ReadNumber(&ignored)) return false;
        break;
      case Kind::kOther:
        return Fail("expects a value");
      default:
        PassWord(kind);
    }
    const bool opened = kind == Kind::kObject || kind == Kind::kList;
    if (!opened && !open.empty() && !PassComma(open.back())) return false;
    while (!open.empty() && Take(open.back())) {
      open.pop_back();
      if (!open.empty() && !PassComma(open.back())) return false;
    }
    if (open.empty()) return true;
    if (open.back() == '}' && !ReadKey(&ignored)) return false;
  }
}

bool JsonScanner::Fail(std::string_view what) {
  if (!error_.empty()) return false;
  const std::string_view before = text_.substr(0, at_);
  const auto line = std::count(before.begin(), before.end(), '\n');
  const auto line_start = before.rfind('\n') + 1;  // 0 if there is none.
  error_ = std::to_string(line + 1) + ":" +
           std::to_string(before.size() - line_start + 1) + ": ";
  error_ += what;
  return false;
}

}  // namespace flare::rpc
