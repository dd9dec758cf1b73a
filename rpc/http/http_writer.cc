#include "flare/rpc/http/http_writer.h"

#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <string>

#include "flare/base/string.h"
#include "flare/rpc/http_message.h"
#include "flare/rpc/wire/utf8.h"

namespace flare::rpc {

namespace {

constexpr std::size_t kDateSize = 29;
constexpr std::size_t kMaxFieldText = 4096;

bool IsControl(char c) {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
}

// "Date: ", a date and CRLF, as they are within one second.
struct DateField {
  std::int64_t second = -1;
  char text[6 + kDateSize + 2] = {'D', 'a', 't', 'e', ':', ' '};
};

// Each thread has its own, so that none waits for another. Formatting it costs
// as much as a call.
constinit thread_local DateField date_field;

}  // namespace

void AppendDecimal(std::uint64_t value, BufferBuilder* out) {
  constexpr std::size_t kMaxDigits = 20;
  if (out->SizeAvailable() >= kMaxDigits) [[likely]] {
    char* const begin = out->data();
    const auto end = std::to_chars(begin, begin + kMaxDigits, value).ptr;
    out->MarkWritten(static_cast<std::size_t>(end - begin));
    return;
  }
  char digits[kMaxDigits];
  const auto end = std::to_chars(digits, std::end(digits), value).ptr;
  out->Append(digits, static_cast<std::size_t>(end - digits));
}

void AppendDecimal(int value, BufferBuilder* out) {
  std::uint64_t size = static_cast<std::uint64_t>(value);
  if (value < 0) {
    out->Append("-");
    size = -size;
  }
  AppendDecimal(size, out);
}

void AppendStatusLine(int status, BufferBuilder* out) {
  if (status == 200) {
    out->Append("HTTP/1.1 200 OK\r\n");
    return;
  }
  out->Append("HTTP/1.1 ");
  AppendDecimal(status, out);
  out->Append(" ");
  out->Append(HttpReasonPhrase(status));
  out->Append("\r\n");
}

void AppendFieldText(std::string_view text, BufferBuilder* out) {
  text = CutUtf8(text, kMaxFieldText);
  if (std::none_of(text.begin(), text.end(), IsControl)) {
    out->Append(text);
    return;
  }
  std::string clean(text);
  std::replace_if(clean.begin(), clean.end(), IsControl, ' ');
  out->Append(clean);
}

void AppendJsonString(std::string_view text, std::string* out) {
  std::string scratch;
  out->push_back('"');
  for (const char c : AsUtf8(CutUtf8(text, kMaxFieldText), &scratch)) {
    if (c == '"' || c == '\\') {
      out->append({'\\', c});
    } else if (c == '\n') {
      out->append("\\n");
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      const auto hex = HexOf(static_cast<unsigned char>(c));
      out->append("\\u00").append(hex.data(), hex.size());
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

// Kept out of line: the caller may be on another thread at another time, and
// must not keep the address of a thread's variable.
[[gnu::noinline]] void AppendDateField(BufferBuilder* out) {
  timespec now;
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  DateField& field = date_field;
  if (field.second != now.tv_sec) [[unlikely]] {
    field.second = now.tv_sec;
    FormatHttpDate(now.tv_sec, field.text + 6);
    std::memcpy(field.text + 6 + kDateSize, "\r\n", 2);
  }
  out->Append(std::string_view(field.text, sizeof(field.text)));
}

void FormatHttpDate(std::int64_t unix_seconds, char* out) {
  // In place of strftime: names of days must not depend on the locale.
  constexpr char kDays[] = "SunMonTueWedThuFriSat";
  constexpr char kMonths[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
  time_t seconds = unix_seconds;
  tm date{};
  gmtime_r(&seconds, &date);
  auto put_two = [](int value, char* at) {
    at[0] = static_cast<char>('0' + value / 10 % 10);
    at[1] = static_cast<char>('0' + value % 10);
  };
  std::memcpy(out, "ddd, 00 mmm 0000 00:00:00 GMT", kDateSize);
  std::memcpy(out, kDays + 3 * date.tm_wday, 3);
  put_two(date.tm_mday, out + 5);
  std::memcpy(out + 8, kMonths + 3 * date.tm_mon, 3);
  put_two((date.tm_year + 1900) / 100, out + 12);
  put_two((date.tm_year + 1900) % 100, out + 14);
  put_two(date.tm_hour, out + 17);
  put_two(date.tm_min, out + 20);
  put_two(date.tm_sec, out + 23);
}

}  // namespace flare::rpc
