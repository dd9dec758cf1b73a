#include "flare/rpc/http2/hpack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "flare/base/string.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http2/hpack_huffman.h"

namespace flare::rpc {
namespace {

// The first byte of a representation (RFC 7541, 6), and how many of its bits
// belong to the number.
struct Form {
  std::uint8_t bits;
  int prefix;
};
constexpr Form kIndexed = {0x80, 7};
constexpr Form kAdded = {0x40, 6};
constexpr Form kTableSize = {0x20, 5};
constexpr Form kNeverIndexed = {0x10, 4};
constexpr Form kOmitted = {0x00, 4};
// ... and of a string.
constexpr Form kHuffman = {0x80, 7};
constexpr Form kPlain = {0x00, 7};

// Bits of a mark in a decoder's table. Names are checked when they come, not
// each time that a field is named by a number.
constexpr std::uint32_t kValidName = 1;
constexpr std::uint32_t kValidField = 2;

constexpr bool Has(std::uint8_t first, Form form) {
  return (first & form.bits) != 0;
}

constexpr Form FormOf(HpackIndexing indexing) {
  switch (indexing) {
    case HpackIndexing::kAdd:
      return kAdded;
    case HpackIndexing::kNever:
      return kNeverIndexed;
    case HpackIndexing::kOmit:
      break;
  }
  return kOmitted;
}

// RFC 7541, appendix A. The first field has the number 1.
struct StaticField {
  std::string_view name;
  std::string_view value;
};
constexpr auto kStatic = std::to_array<StaticField>({
    {":authority", ""},
    {":method", "GET"},
    {":method", "POST"},
    {":path", "/"},
    {":path", "/index.html"},
    {":scheme", "http"},
    {":scheme", "https"},
    {":status", "200"},
    {":status", "204"},
    {":status", "206"},
    {":status", "304"},
    {":status", "400"},
    {":status", "404"},
    {":status", "500"},
    {"accept-charset", ""},
    {"accept-encoding", "gzip, deflate"},
    {"accept-language", ""},
    {"accept-ranges", ""},
    {"accept", ""},
    {"access-control-allow-origin", ""},
    {"age", ""},
    {"allow", ""},
    {"authorization", ""},
    {"cache-control", ""},
    {"content-disposition", ""},
    {"content-encoding", ""},
    {"content-language", ""},
    {"content-length", ""},
    {"content-location", ""},
    {"content-range", ""},
    {"content-type", ""},
    {"cookie", ""},
    {"date", ""},
    {"etag", ""},
    {"expect", ""},
    {"expires", ""},
    {"from", ""},
    {"host", ""},
    {"if-match", ""},
    {"if-modified-since", ""},
    {"if-none-match", ""},
    {"if-range", ""},
    {"if-unmodified-since", ""},
    {"last-modified", ""},
    {"link", ""},
    {"location", ""},
    {"max-forwards", ""},
    {"proxy-authenticate", ""},
    {"proxy-authorization", ""},
    {"range", ""},
    {"referer", ""},
    {"refresh", ""},
    {"retry-after", ""},
    {"server", ""},
    {"set-cookie", ""},
    {"strict-transport-security", ""},
    {"transfer-encoding", ""},
    {"user-agent", ""},
    {"vary", ""},
    {"via", ""},
    {"www-authenticate", ""},
});
constexpr auto kStaticCount = static_cast<std::uint32_t>(kStatic.size());

constexpr const StaticField& StaticAt(std::uint32_t number) {
  return kStatic[number - 1];
}

static_assert(std::endian::native == std::endian::little);
template <std::size_t kSize>
constexpr std::uint64_t Load(const char* at) {
  std::uint64_t word = 0;
  if (!std::is_constant_evaluated()) {
    std::memcpy(&word, at, kSize);
    return word;
  }
  for (std::size_t i = 0; i != kSize; ++i) {
    word |= std::uint64_t{static_cast<unsigned char>(at[i])} << (8 * i);
  }
  return word;
}

// Texts are mostly short: a call of memcmp() costs more.
inline bool Same(const char* a, const char* b, std::size_t size) {
  if (size >= 8) {
    for (std::size_t i = 0; i < size - 8; i += 8) {
      if (Load<8>(a + i) != Load<8>(b + i)) return false;
    }
    return Load<8>(a + size - 8) == Load<8>(b + size - 8);
  }
  if (size >= 4) {
    return Load<4>(a) == Load<4>(b) &&
           Load<4>(a + size - 4) == Load<4>(b + size - 4);
  }
  for (std::size_t i = 0; i != size; ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}
inline bool Same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && Same(a.data(), b.data(), a.size());
}

// Uses its size, its begin and its end, so in the same time for any text. Those
// that collide cost a comparison each, and a table has at most 128.
constexpr std::uint64_t HashOf(std::string_view text) {
  const std::size_t size = text.size();
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  if (size >= 8) {
    begin = Load<8>(text.data());
    end = Load<8>(text.data() + size - 8);
  } else if (size >= 4) {
    begin = Load<4>(text.data());
    end = Load<4>(text.data() + size - 4);
  } else if (size != 0) {
    begin = Load<1>(text.data());
    end = Load<1>(text.data() + size - 1);
  }
  return begin ^ std::rotl(end, 29) ^ (size << 56);
}

constexpr std::uint32_t HashOf(std::string_view name, std::string_view value) {
  const std::uint64_t mixed = HashOf(name) ^ std::rotl(HashOf(value), 11);
  return static_cast<std::uint32_t>((mixed * 0x9e3779b97f4a7c15) >> 32);
}

// By hash, the number of a static field; 0: there is none. One whose slot was
// taken is in the next free slot.
constexpr std::size_t kSlots = 512;
using StaticIndex = std::array<std::uint8_t, kSlots>;

constexpr void AddTo(StaticIndex* index, std::uint32_t hash,
                     std::uint32_t number) {
  std::size_t slot = hash % kSlots;
  while ((*index)[slot] != 0) slot = (slot + 1) % kSlots;
  (*index)[slot] = static_cast<std::uint8_t>(number);
}

constexpr StaticIndex MakeStaticFields() {
  StaticIndex index = {};
  for (std::uint32_t number = 1; number <= kStaticCount; ++number) {
    const StaticField& field = StaticAt(number);
    AddTo(&index, HashOf(field.name, field.value), number);
  }
  return index;
}
constexpr StaticIndex kStaticFields = MakeStaticFields();

// The first field of each name, by that alone.
constexpr StaticIndex MakeStaticNames() {
  StaticIndex index = {};
  for (std::uint32_t number = 1; number <= kStaticCount; ++number) {
    const std::string_view name = StaticAt(number).name;
    if (number != 1 && StaticAt(number - 1).name == name) continue;
    AddTo(&index, HashOf(name, ""), number);
  }
  return index;
}
constexpr StaticIndex kStaticNames = MakeStaticNames();

std::uint32_t FindStatic(std::uint32_t hash, std::string_view name,
                         std::string_view value) {
  for (std::size_t slot = hash % kSlots;; slot = (slot + 1) % kSlots) {
    const std::uint32_t number = kStaticFields[slot];
    if (number == 0 || (Same(StaticAt(number).value, value) &&
                        Same(StaticAt(number).name, name))) {
      return number;
    }
  }
}

std::uint32_t FindStaticName(std::string_view name) {
  for (std::size_t slot = HashOf(name, "") % kSlots;;
       slot = (slot + 1) % kSlots) {
    const std::uint32_t number = kStaticNames[slot];
    if (number == 0 || Same(StaticAt(number).name, name)) return number;
  }
}

bool IsValidName(std::string_view name) {
  if (name.starts_with(':')) name.remove_prefix(1);
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return IsHttpTokenChar(c) && (c < 'A' || c > 'Z');
  });
}

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

bool IsValidValue(std::string_view value) {
  if (value.empty()) return true;
  return !IsBlank(value.front()) && !IsBlank(value.back()) &&
         std::all_of(value.begin(), value.end(), IsHttpValueChar);
}

void AppendLongInteger(Form form, std::size_t value, std::string* block) {
  const std::size_t most = (std::size_t{1} << form.prefix) - 1;
  block->push_back(static_cast<char>(form.bits | most));
  value -= most;
  for (; value >= 0x80; value >>= 7) {
    block->push_back(static_cast<char>(value | 0x80));
  }
  block->push_back(static_cast<char>(value));
}

inline void AppendInteger(Form form, std::size_t value, std::string* block) {
  if (value < (std::size_t{1} << form.prefix) - 1) {
    block->push_back(static_cast<char>(form.bits | value));
  } else {
    AppendLongInteger(form, value, block);
  }
}

// A shorter text that is sent each time is sent as it is: its code saves a few
// bytes, and costs both sides more than those.
constexpr std::size_t kWorthCoding = 64;

void AppendString(std::string_view text, bool once, std::string* block) {
  if (once || text.size() >= kWorthCoding) {
    const std::size_t size = HuffmanSize(text);
    if (size < text.size()) {
      AppendInteger(kHuffman, size, block);
      const std::size_t at = block->size();
      block->resize(at + size);
      HuffmanEncode(text, block->data() + at);
      return;
    }
  }
  AppendInteger(kPlain, text.size(), block);
  block->append(text);
}

}  // namespace

// The rest of a block.
class HpackDecoder::Reader {
 public:
  explicit Reader(std::string_view block) : left_(block) {}

  bool empty() const { return left_.empty(); }
  // Zero behind the end.
  std::uint8_t first() const {
    return left_.empty() ? 0 : static_cast<std::uint8_t>(left_.front());
  }
  // False: it is cut off, or larger than any that can be meant.
  bool ReadInteger(int prefix, std::uint32_t* value) {
    if (left_.empty()) return false;
    const std::uint32_t most = (1U << prefix) - 1;
    *value = Take() & most;
    return *value < most || ReadLongInteger(value);
  }
  // False: there aren't as many bytes.
  bool ReadBytes(std::size_t size, std::string_view* bytes) {
    if (size > left_.size()) return false;
    *bytes = left_.substr(0, size);
    left_.remove_prefix(size);
    return true;
  }

 private:
  // Numbers of 32 bits need no more, and take six bytes.
  static constexpr int kMaxShift = 28;

  // The bytes behind a prefix of ones.
  bool ReadLongInteger(std::uint32_t* value) {
    std::uint64_t sum = *value;
    for (int shift = 0; shift <= kMaxShift && !left_.empty(); shift += 7) {
      const std::uint32_t byte = Take();
      sum += std::uint64_t{byte & 0x7f} << shift;
      if (byte >= 0x80) continue;
      *value = static_cast<std::uint32_t>(sum);
      return *value == sum;
    }
    return false;
  }

  std::uint32_t Take() {
    const auto byte = static_cast<std::uint8_t>(left_.front());
    left_.remove_prefix(1);
    return byte;
  }

  std::string_view left_;
};

HpackDecoder::HpackDecoder(const Options& options)
    : options_(options), table_(options.max_table_size) {}

inline bool HpackDecoder::Lookup(std::uint32_t index, Field* field) const {
  if (index == 0) return false;
  if (index <= kStaticCount) {
    field->name = StaticAt(index).name;
    field->value = StaticAt(index).value;
    return true;
  }
  const std::uint32_t distance = index - kStaticCount;
  if (distance > table_.count()) return false;
  const HpackTable::Field found = table_.Latest(distance);
  field->name = found.name;
  field->value = found.value;
  field->valid = (found.mark & kValidField) != 0;
  field->valid_name = (found.mark & kValidName) != 0;
  return true;
}

inline void HpackDecoder::ReadIndexed(Reader* reader, Field* field) {
  std::uint32_t index = 0;
  if (!reader->ReadInteger(kIndexed.prefix, &index) || !Lookup(index, field)) {
    error_ = "HPACK: the number of a field that isn't in the tables";
  }
}

HpackResult HpackDecoder::DecodeBlock(std::string_view block, Callback callback,
                                      void* code) {
  Reader reader(block);
  HpackResult result;
  std::size_t list = 0;
  bool at_begin = true;
  while (error_.empty() && !reader.empty()) {
    const std::uint8_t first = reader.first();
    Field field;
    bool adds = false;
    if (Has(first, kIndexed)) {
      ReadIndexed(&reader, &field);
    } else if (Has(first, kAdded)) {
      adds = true;
      ReadLiteral(&reader, kAdded.prefix, &field);
    } else if (Has(first, kTableSize)) {
      ReadTableSize(&reader, at_begin);
      result.table_changed = true;
      continue;
    } else {
      field.never_index = Has(first, kNeverIndexed);
      ReadLiteral(&reader, kOmitted.prefix, &field);
    }
    at_begin = false;
    if (!error_.empty()) break;
    list += field.name.size() + field.value.size() + HpackTable::kFieldOverhead;
    if (list <= options_.max_header_list) [[likely]] {
      callback(code, field);
    } else {
      result.too_long = true;
      if (list / kEndlessList >= options_.max_header_list) {
        error_ = "HPACK: a list of fields without end";
      }
    }
    if (adds) {
      result.table_changed = true;
      table_.Insert(field.name, field.value,
                    (field.valid ? kValidField : 0) |
                        (field.valid_name ? kValidName : 0));
    }
  }
  ClearKeeping(&name_);
  ClearKeeping(&value_);
  result.error = error_;
  return result;
}

void HpackDecoder::ReadTableSize(Reader* reader, bool at_begin) {
  std::uint32_t size = 0;
  if (!at_begin) {
    error_ = "HPACK: a table size behind a field";
  } else if (!reader->ReadInteger(kTableSize.prefix, &size)) {
    error_ = "HPACK: a table size that is cut off or too large";
  } else if (size > options_.max_table_size) {
    error_ = "HPACK: a larger table than SETTINGS_HEADER_TABLE_SIZE allows";
  } else {
    table_.SetMaxSize(size);
  }
}

void HpackDecoder::ReadLiteral(Reader* reader, int prefix_bits, Field* field) {
  std::uint32_t index = 0;
  if (!reader->ReadInteger(prefix_bits, &index)) {
    error_ = "HPACK: a number that is cut off or too large";
    return;
  }
  if (index == 0) {
    ReadString(reader, &name_, &field->name);
    field->valid_name = IsValidName(field->name);
  } else if (!Lookup(index, field)) {
    error_ = "HPACK: the number of a name that isn't in the tables";
  } else if (index > kStaticCount && prefix_bits == kAdded.prefix) {
    // The table may drop the name to make room for the field.
    field->name = name_.assign(field->name);
  }
  if (!error_.empty()) return;
  ReadString(reader, &value_, &field->value);
  field->valid = field->valid_name && IsValidValue(field->value);
}

void HpackDecoder::ReadString(Reader* reader, std::string* scratch,
                              std::string_view* text) {
  const bool coded = Has(reader->first(), kHuffman);
  std::uint32_t size = 0;
  if (!reader->ReadInteger(kHuffman.prefix, &size) ||
      !reader->ReadBytes(size, text)) {
    error_ = "HPACK: a string that is cut off or too long";
    return;
  }
  if (!coded) return;
  scratch->resize(MaxHuffmanText(size));
  const char* const end = HuffmanDecode(*text, scratch->data());
  if (end == nullptr) {
    error_ = "HPACK: a string with a broken Huffman code";
    return;
  }
  *text = {scratch->data(), end};
}

void HpackEncoder::SetMaxTableSize(std::size_t size) {
  size = std::min(size, kHpackTableSize);
  if (size == table_.max_size()) return;
  least_size_ = std::min(least_size_, size);
  size_changed_ = true;
  ++version_;
  table_.SetMaxSize(size);
}

void HpackEncoder::AppendTableSizes(std::string* block) {
  if (least_size_ < table_.max_size()) {
    AppendInteger(kTableSize, least_size_, block);
  }
  AppendInteger(kTableSize, table_.max_size(), block);
  least_size_ = table_.max_size();
  size_changed_ = false;
  ++version_;
}

void HpackEncoder::Encode(std::string_view name, std::string_view value,
                          HpackIndexing indexing, std::string* block) {
  if (size_changed_) [[unlikely]]
    AppendTableSizes(block);
  const std::uint32_t hash = HashOf(name, value);
  if (indexing != HpackIndexing::kNever) [[likely]] {
    std::uint32_t number = FindStatic(hash, name, value);
    if (number == 0) number = FindDynamic(hash, name, value);
    if (number != 0) return AppendInteger(kIndexed, number, block);
  }
  const std::size_t size =
      name.size() + value.size() + HpackTable::kFieldOverhead;
  if (indexing == HpackIndexing::kAdd && size <= table_.max_size()) {
    AppendLiteral(name, value, indexing, block);
    std::uint32_t& bucket = buckets_[hash % buckets_.size()];
    table_.Insert(name, value, bucket);
    ++version_;
    bucket = table_.inserted();
  } else {  // A larger field would only empty the table.
    if (indexing == HpackIndexing::kAdd) indexing = HpackIndexing::kOmit;
    AppendLiteral(name, value, indexing, block);
  }
}

std::uint32_t HpackEncoder::FindDynamic(std::uint32_t hash,
                                        std::string_view name,
                                        std::string_view value) const {
  const std::uint32_t end = table_.inserted() + 1;
  std::uint32_t distance = end - buckets_[hash % buckets_.size()];
  // Lists lead to ever older fields, so one that doesn't has come to a field
  // that has left the table.
  for (std::uint32_t last = 0; distance > last && distance <= table_.count();) {
    const HpackTable::Field field = table_.Latest(distance);
    if (Same(field.value, value) && Same(field.name, name)) {
      return kStaticCount + distance;
    }
    last = distance;
    distance = end - field.mark;
  }
  return 0;
}

std::uint32_t HpackEncoder::FindName(std::string_view name) const {
  const std::uint32_t number = FindStaticName(name);
  if (number != 0) return number;
  for (std::uint32_t distance = 1; distance <= table_.count(); ++distance) {
    if (Same(table_.Latest(distance).name, name)) {
      return kStaticCount + distance;
    }
  }
  return 0;
}

void HpackEncoder::AppendLiteral(std::string_view name, std::string_view value,
                                 HpackIndexing indexing,
                                 std::string* block) const {
  const bool once = indexing == HpackIndexing::kAdd;
  const std::uint32_t number = FindName(name);
  AppendInteger(FormOf(indexing), number, block);
  if (number == 0) AppendString(name, once, block);
  AppendString(value, once, block);
}

}  // namespace flare::rpc
