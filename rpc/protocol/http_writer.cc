#include "flare/rpc/protocol/http_writer.h"

#include <time.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <mutex>
#include <string>

#include "flare/base/spinlock.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {

namespace {

constexpr std::size_t kDateSize = 29;
constexpr std::size_t kMaxFieldText = 4096;

template <class Number>
void AppendNumber(Number value, BufferBuilder* out) {
  char digits[24];
  auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value);
  out->Append(digits, static_cast<std::size_t>(end - digits));
}

bool IsControl(char c) {
  return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
}

// The text changes once a second, and formatting it costs as much as a call.
class DateCache {
 public:
  void Append(BufferBuilder* out) {
    timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    char text[kDateSize];
    {
      std::scoped_lock lock(lock_);
      if (second_ != now.tv_sec) {
        second_ = now.tv_sec;
        FormatHttpDate(second_, text_);
      }
      std::memcpy(text, text_, sizeof(text));
    }
    out->Append(text, sizeof(text));
  }

 private:
  Spinlock lock_;
  std::int64_t second_ FLARE_GUARDED_BY(lock_) = -1;
  char text_[kDateSize] FLARE_GUARDED_BY(lock_) = {};
};

constinit DateCache date_cache;

}  // namespace

void AppendDecimal(std::uint64_t value, BufferBuilder* out) {
  AppendNumber(value, out);
}

void AppendDecimal(int value, BufferBuilder* out) { AppendNumber(value, out); }

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
  text = text.substr(0, kMaxFieldText);
  if (std::none_of(text.begin(), text.end(), IsControl)) {
    out->Append(text);
    return;
  }
  std::string clean(text);
  std::replace_if(clean.begin(), clean.end(), IsControl, ' ');
  out->Append(clean);
}

void AppendDateField(BufferBuilder* out) {
  out->Append("Date: ");
  date_cache.Append(out);
  out->Append("\r\n");
}

void FormatHttpDate(std::int64_t unix_seconds, char* out) {
  // Not strftime: names of days must not depend on the locale.
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
