#include "flare/rpc/redis_server/redis_reply_writer.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/string.h"

namespace flare::rpc {
namespace {

using Kind = RedisReply::Kind;

class RedisReplyWriter {
 public:
  RedisReplyWriter(bool resp3, BufferBuilder* out) : resp3_(resp3), out_(out) {}

  void Write(RedisReply&& reply, std::size_t depth);

 private:
  void WriteNumber(char type, std::int64_t number);
  void WriteLine(char type, std::string_view text);
  void WriteString(std::string&& bytes);
  void WriteDouble(double value);
  void WriteNil() { out_->Append(resp3_ ? "_\r\n" : "$-1\r\n"); }
  void WriteElements(RedisReply&& reply, std::size_t depth);

  const bool resp3_;
  BufferBuilder* const out_;
};

void RedisReplyWriter::Write(RedisReply&& reply, std::size_t depth) {
  switch (reply.kind()) {
    case Kind::kNil:
      if (reply.is_nil_array() && !resp3_) return WriteNumber('*', -1);
      return WriteNil();
    case Kind::kStatus:
      return WriteLine('+', reply.text());
    case Kind::kError:
      return WriteLine('-', reply.text());
    case Kind::kInteger:
      return WriteNumber(':', reply.integer());
    case Kind::kDouble:
      return WriteDouble(reply.real());
    case Kind::kBoolean:
      if (resp3_) return WriteLine('#', reply.integer() != 0 ? "t" : "f");
      return WriteNumber(':', reply.integer() != 0 ? 1 : 0);
    case Kind::kString:
      return WriteString(std::move(reply).text());
    case Kind::kArray:
    case Kind::kMap:
    case Kind::kPush:
      break;
  }
  if (depth == kMaxRedisReplyDepth) {
    return WriteLine('-', "ERR the reply is nested too deeply");
  }
  WriteElements(std::move(reply), depth + 1);
}

void RedisReplyWriter::WriteNumber(char type, std::int64_t number) {
  char* const begin = out_->DataWithRoom(32);
  char* end = begin;
  *end++ = type;
  end = std::to_chars(end, begin + 30, number).ptr;
  *end++ = '\r';
  *end++ = '\n';
  out_->MarkWritten(static_cast<std::size_t>(end - begin));
}

void RedisReplyWriter::WriteLine(char type, std::string_view text) {
  out_->Append(type);
  if (text.find_first_of("\r\n") == text.npos) {
    out_->Append(text);
  } else {
    std::string line(text);
    for (char& c : line) {
      if (c == '\r' || c == '\n') c = ' ';
    }
    out_->Append(line);
  }
  out_->Append("\r\n");
}

void RedisReplyWriter::WriteString(std::string&& bytes) {
  WriteNumber('$', static_cast<std::int64_t>(bytes.size()));
  if (bytes.size() <= kMaxKeptBytes) {
    out_->Append(bytes);
  } else {
    out_->Append(MakeForeignBuffer(std::move(bytes)));
  }
  out_->Append("\r\n");
}

void RedisReplyWriter::WriteDouble(double value) {
  char digits[32];
  std::string_view text = "nan";
  if (!std::isnan(value)) {
    const auto end = std::to_chars(digits, digits + sizeof(digits), value);
    text = {digits, static_cast<std::size_t>(end.ptr - digits)};
  }
  if (resp3_) return WriteLine(',', text);
  WriteString(std::string(text));
}

void RedisReplyWriter::WriteElements(RedisReply&& reply, std::size_t depth) {
  const bool map = reply.kind() == Kind::kMap;
  const bool push = reply.kind() == Kind::kPush;
  std::vector<RedisReply> elements = std::move(reply).elements();
  const bool odd = map && elements.size() % 2 != 0;
  const auto size = static_cast<std::int64_t>(elements.size() + (odd ? 1 : 0));
  if (resp3_ && map) {
    WriteNumber('%', size / 2);
  } else {
    WriteNumber(resp3_ && push ? '>' : '*', size);
  }
  for (RedisReply& element : elements) Write(std::move(element), depth);
  if (odd) WriteNil();
}

}  // namespace

void WriteRedisReply(RedisReply&& reply, bool resp3, BufferBuilder* out) {
  RedisReplyWriter(resp3, out).Write(std::move(reply), /*depth=*/0);
}

}  // namespace flare::rpc
