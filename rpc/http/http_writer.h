// Small pieces of HTTP text, appended to a message under construction. Nothing
// allocates, blocks or locks.
#ifndef FLARE_RPC_HTTP_HTTP_WRITER_H_
#define FLARE_RPC_HTTP_HTTP_WRITER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "flare/base/buffer.h"

namespace flare::rpc {

void AppendDecimal(std::uint64_t value, BufferBuilder* out);
void AppendDecimal(int value, BufferBuilder* out);

// "HTTP/1.1 404 Not Found\r\n"
void AppendStatusLine(int status, BufferBuilder* out);

// A text as a field value: control bytes become blanks, so that it can't end
// the field; bytes beyond 4096 are cut off, in front of a UTF-8 sequence.
void AppendFieldText(std::string_view text, BufferBuilder* out);

// A text as a string of JSON, with its quotes. Invalid UTF-8 becomes '?'s;
// bytes beyond 4096 are cut off.
void AppendJsonString(std::string_view text, std::string* out);

// "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n", now.
void AppendDateField(BufferBuilder* out);

// The value of a Date field for that many seconds since 1970, 29 bytes.
void FormatHttpDate(std::int64_t unix_seconds, char* out);

}  // namespace flare::rpc

#endif  // FLARE_RPC_HTTP_HTTP_WRITER_H_
