// The tokens of JSON, one after the other:
//
//   JsonScanner json(text);
//   if (!json.Take('{')) return json.Fail("expects an object");
//   while (!json.Take('}')) { ... }
//
// It understands the additions of protobuf's parser to JSON: single quotes,
// names without quotes, and a comma behind the last element.
//
// One thread at a time; nothing blocks or recurses, and each function takes
// time in proportion to the bytes that it passes.
#ifndef FLARE_RPC_WIRE_JSON_SCANNER_H_
#define FLARE_RPC_WIRE_JSON_SCANNER_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace flare::rpc {

class JsonScanner {
 public:
  enum class Kind {
    kObject,
    kList,
    kString,
    kNumber,
    kTrue,
    kFalse,
    kNull,
    // No value: a bracket that closes, the end, bytes that are no JSON.
    kOther,
  };

  // `text` must outlive it.
  explicit JsonScanner(std::string_view text) : text_(text) {}

  // Whether all of the text is UTF-8; the functions below need that.
  bool IsUtf8() const;

  // The kind of the next value. White space before it is passed.
  Kind Peek();
  // Passes `c` if that is the next character that isn't white space.
  bool Take(char c);
  // Whether nothing but white space is left.
  bool AtEnd();
  // Passes a value that Peek() said to be kTrue, kFalse or kNull.
  void PassWord(Kind kind);

  // Passes a string, or a number. *value is valid until the next call of
  // ReadString() or ReadKey().
  [[nodiscard]] bool ReadString(std::string_view* value);
  [[nodiscard]] bool ReadNumber(std::string_view* value);
  // Passes the name of an object's member and the colon behind it.
  [[nodiscard]] bool ReadKey(std::string_view* key);
  // Passes any value, which may nest up to `max_nesting` levels.
  [[nodiscard]] bool SkipValue(int max_nesting);

  // Behind a member of an object or a list: passes the comma, or sees that
  // `closing` follows.
  [[nodiscard]] bool PassComma(char closing);

  std::size_t position() const { return at_; }
  // The position of the next token: white space before it is passed.
  std::size_t NextPosition() {
    Peek();
    return at_;
  }
  // Goes back to where it was.
  void GoTo(std::size_t position) { at_ = position; }

  // Returns false, and error() is `what` with the line and column; the first
  // time it counts.
  bool Fail(std::string_view what);
  // Fails with the line and column of a former position.
  bool FailAt(std::size_t position, std::string_view what) {
    GoTo(position);
    return Fail(what);
  }
  // Fails for a member that an object of a configuration file can't have.
  // `known`: the names of those that it can.
  bool FailAtUnknown(std::size_t position, std::string_view name,
                     std::string_view known) {
    return FailAt(position, "unknown \"" + std::string(name) +
                                "\"; known: " + std::string(known));
  }
  const std::string& error() const { return error_; }

 private:
  bool ReadEscape();
  bool ReadHex(unsigned* code);
  char Next() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  const std::string_view text_;
  std::size_t at_ = 0;
  std::string unescaped_;
  std::string error_;
};

}  // namespace flare::rpc

#endif  // FLARE_RPC_WIRE_JSON_SCANNER_H_
