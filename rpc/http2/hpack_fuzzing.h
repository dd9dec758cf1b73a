// Invariants for HPACK, whatever the peer sends: it is compared with that of
// libnghttp2. Shared by the randomised test and the fuzzer; a difference ends
// the process.
//
//   CheckHpackBytes(bytes);     // Blocks of any bytes, broken ones included.
//   CheckHpackFields(script);   // Lists of fields, encoded by either, decoded
//                               // by both.
#ifndef FLARE_RPC_HTTP2_HPACK_FUZZING_H_
#define FLARE_RPC_HTTP2_HPACK_FUZZING_H_

#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/rpc/http2/hpack.h"
#include "glog/logging.h"

namespace flare::rpc::testing {

// Bytes as choices; zeros behind their end.
class HpackScript {
 public:
  explicit HpackScript(std::string_view bytes) : left_(bytes) {}

  bool empty() const { return left_.empty(); }
  std::uint8_t Byte() {
    if (left_.empty()) return 0;
    const auto byte = static_cast<std::uint8_t>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }
  std::string_view Take(std::size_t size) {
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(taken.size());
    return taken;
  }

 private:
  std::string_view left_;
};

using HpackFields = std::vector<std::pair<std::string, std::string>>;

struct DecodedHpack {
  bool ok = true;
  HpackFields fields;  // Up to the error.

  bool operator==(const DecodedHpack&) const = default;
};

// `result`, if not null, says more.
inline DecodedHpack DecodeHpack(std::string_view block, HpackDecoder* decoder,
                                HpackResult* result = nullptr) {
  DecodedHpack decoded;
  const HpackResult its_result =
      decoder->Decode(block, [&](const HpackField& field) {
        decoded.fields.emplace_back(field.name, field.value);
      });
  decoded.ok = its_result.error.empty();
  if (result != nullptr) {
    *result = its_result;
  } else {
    CHECK(!its_result.too_long);
  }
  return decoded;
}

// One with a limit leaves out fields beyond it, and knows the table behind it
// nevertheless. False: it has given up.
inline bool CheckLimitedHpack(std::string_view block,
                              const DecodedHpack& unlimited,
                              HpackDecoder* decoder) {
  HpackResult result;
  const DecodedHpack decoded = DecodeHpack(block, decoder, &result);
  CHECK_LE(decoded.fields.size(), unlimited.fields.size());
  CHECK(std::equal(decoded.fields.begin(), decoded.fields.end(),
                   unlimited.fields.begin()));
  CHECK(result.too_long || decoded == unlimited);
  if (decoded.ok == unlimited.ok) return decoded.ok;
  CHECK(result.too_long && !decoded.ok);
  return false;
}

// libnghttp2's.
class ReferenceDecoder {
 public:
  ReferenceDecoder() { CHECK_EQ(nghttp2_hd_inflate_new(&inflater_), 0); }
  ~ReferenceDecoder() { nghttp2_hd_inflate_del(inflater_); }
  ReferenceDecoder(const ReferenceDecoder&) = delete;
  ReferenceDecoder& operator=(const ReferenceDecoder&) = delete;

  DecodedHpack Decode(std::string_view block) {
    DecodedHpack decoded;
    const auto* at = reinterpret_cast<const std::uint8_t*>(block.data());
    const auto* const end = at + block.size();
    for (;;) {
      nghttp2_nv field = {};
      int flags = 0;
      const ssize_t taken = nghttp2_hd_inflate_hd2(
          inflater_, &field, &flags, at, static_cast<std::size_t>(end - at), 1);
      if (taken < 0) {
        decoded.ok = false;
        return decoded;
      }
      at += taken;
      if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) {
        decoded.fields.emplace_back(Text(field.name, field.namelen),
                                    Text(field.value, field.valuelen));
      }
      if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) {
        nghttp2_hd_inflate_end_headers(inflater_);
        return decoded;
      }
    }
  }

 private:
  static std::string Text(const std::uint8_t* data, std::size_t size) {
    return {reinterpret_cast<const char*>(data), size};
  }

  nghttp2_hd_inflater* inflater_ = nullptr;
};

class ReferenceEncoder {
 public:
  ReferenceEncoder() {
    CHECK_EQ(nghttp2_hd_deflate_new(&deflater_, kHpackTableSize), 0);
  }
  ~ReferenceEncoder() { nghttp2_hd_deflate_del(deflater_); }
  ReferenceEncoder(const ReferenceEncoder&) = delete;
  ReferenceEncoder& operator=(const ReferenceEncoder&) = delete;

  void SetMaxTableSize(std::size_t size) {
    CHECK_EQ(nghttp2_hd_deflate_change_table_size(deflater_, size), 0);
  }
  std::string Encode(const HpackFields& fields) {
    std::vector<nghttp2_nv> nvs;
    for (const auto& [name, value] : fields) {
      nvs.push_back({.name = Bytes(name),
                     .value = Bytes(value),
                     .namelen = name.size(),
                     .valuelen = value.size(),
                     .flags = NGHTTP2_NV_FLAG_NONE});
    }
    std::string block(
        nghttp2_hd_deflate_bound(deflater_, nvs.data(), nvs.size()), '\0');
    const ssize_t size = nghttp2_hd_deflate_hd(
        deflater_, Bytes(block), block.size(), nvs.data(), nvs.size());
    CHECK_GE(size, 0);
    block.resize(static_cast<std::size_t>(size));
    return block;
  }

 private:
  static std::uint8_t* Bytes(const std::string& text) {
    return reinterpret_cast<std::uint8_t*>(const_cast<char*>(text.data()));
  }

  nghttp2_hd_deflater* deflater_ = nullptr;
};

// Each block begins with a byte that has its size.
inline void CheckHpackBytes(std::string_view bytes) {
  HpackScript script(bytes);
  HpackDecoder decoder({.max_header_list = std::size_t{1} << 40});
  HpackDecoder limited({.max_header_list = 100});
  ReferenceDecoder reference;
  bool ok = true;
  bool limited_ok = true;
  while (ok && !script.empty()) {
    const std::string_view block = script.Take(script.Byte());
    const DecodedHpack ours = DecodeHpack(block, &decoder);
    const DecodedHpack theirs = reference.Decode(block);
    CHECK(ours == theirs) << "they differ on a block of " << block.size()
                          << " bytes: " << ours.fields.size() << " and "
                          << theirs.fields.size() << " fields, " << ours.ok
                          << " and " << theirs.ok;
    limited_ok = limited_ok && CheckLimitedHpack(block, ours, &limited);
    ok = ours.ok;
  }
}

// Names and values repeat often enough for tables to matter.
inline std::string HpackTextOf(HpackScript* script, bool name) {
  static constexpr auto kNames = std::to_array<std::string_view>(
      {":status", ":path", "content-type", "grpc-status", "grpc-message", "te",
       "x", "cookie", "via", "a-name-that-no-static-table-has"});
  static constexpr auto kValues = std::to_array<std::string_view>(
      {"", "0", "200", "/", "application/grpc", "trailers", "GET"});
  const std::uint8_t choice = script->Byte();
  if (choice < 160) {
    return std::string(name ? kNames[choice % kNames.size()]
                            : kValues[choice % kValues.size()]);
  }
  std::string text;
  for (int i = choice % 4; i >= 0; --i) {
    const std::uint8_t times = script->Byte();
    text.append(times, static_cast<char>(script->Byte()));
  }
  return text;
}

inline void CheckHpackFields(std::string_view bytes) {
  HpackScript script(bytes);
  HpackEncoder encoder;
  HpackDecoder decoder({.max_header_list = std::size_t{1} << 40});
  HpackDecoder decoder_of_theirs({.max_header_list = std::size_t{1} << 40});
  ReferenceEncoder their_encoder;
  ReferenceDecoder their_decoder;
  while (!script.empty()) {
    std::uint8_t act = script.Byte();
    for (; act % 8 == 0; act = script.Byte()) {
      if (script.empty()) break;
      const std::size_t size = std::size_t{script.Byte()} * 20;
      encoder.SetMaxTableSize(size);
      their_encoder.SetMaxTableSize(std::min(size, kHpackTableSize));
    }
    DecodedHpack wanted;
    std::string block;
    for (int i = act % 16; i >= 0; --i) {
      const std::string name = HpackTextOf(&script, true);
      const std::string value = HpackTextOf(&script, false);
      encoder.Encode(name, value, static_cast<HpackIndexing>(i % 3), &block);
      wanted.fields.emplace_back(name, value);
    }
    CHECK(DecodeHpack(block, &decoder) == wanted);
    CHECK(their_decoder.Decode(block) == wanted);
    const std::string theirs = their_encoder.Encode(wanted.fields);
    CHECK(DecodeHpack(theirs, &decoder_of_theirs) == wanted);
  }
}

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_HTTP2_HPACK_FUZZING_H_
