#include "flare/rpc/server/message_growth.h"

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace flare::rpc {
namespace {

namespace pb = google::protobuf;

// A string's buffer, which doubles as it grows.
constexpr std::size_t kText = 2;
// A number in a list of numbers: eight bytes in a list that doubles. An unknown
// field, of which two bytes make 16, takes as much in the list of its message;
// that list keeps its size, which SpaceUsedLong() doesn't tell.
constexpr std::size_t kListed = 16;
// A string in a list: an object, its pointer, and the allocator's rounding.
constexpr std::size_t kListedText = 24;
// An unknown field of two bytes with an empty text: as listed, and the text's
// object.
constexpr std::size_t kUnknownText = kListed + kListedText;
// A node of a map, besides its value, and its place in the table.
constexpr std::size_t kMapNode = 96;
// An element of an extension, whose type isn't known here.
constexpr std::size_t kExtension = 256;
// The least that an element takes on the wire.
constexpr std::size_t kLeastOnWire = 2;

// With the allocator's rounding, and the pointer to it.
std::size_t SizeOf(const pb::Descriptor* type) {
  const pb::Message* const prototype =
      pb::MessageFactory::generated_factory()->GetPrototype(type);
  if (prototype == nullptr) return kLeastOnWire * kExtension;
  return prototype->SpaceUsedLong() * 5 / 4 + sizeof(void*);
}

class Walk {
 public:
  // `many`: there may be any number of such messages.
  void Visit(const pb::Descriptor* type, bool many) {
    if (!seen_.emplace(type, many).second) return;
    path_.push_back(type);
    if (many) Count(kListed);  // Unknown fields.
    if (type->extension_range_count() != 0) Count(kExtension);
    for (int i = 0; i != type->field_count(); ++i) {
      VisitField(*type->field(i), many || type->field(i)->is_repeated());
    }
    path_.pop_back();
  }

  std::size_t growth() const { return growth_; }

 private:
  void Count(std::size_t growth) { growth_ = std::max(growth_, growth); }

  void VisitField(const pb::FieldDescriptor& field, bool many) {
    if (field.is_map()) return VisitMap(*field.message_type());
    if (const pb::Descriptor* const type = field.message_type()) {
      Count(kListed);  // Unknown fields of several messages.
      many |= std::find(path_.begin(), path_.end(), type) != path_.end();
      if (many) Count(SizeOf(type) / kLeastOnWire);
      Visit(type, many);
    } else if (field.cpp_type() == pb::FieldDescriptor::CPPTYPE_STRING) {
      Count(many ? kListedText : kText);
    } else if (field.is_repeated()) {
      Count(kListed);
    }
  }

  void VisitMap(const pb::Descriptor& entry) {
    const pb::Descriptor* const value = entry.field(1)->message_type();
    Count((kMapNode + (value == nullptr ? 0 : SizeOf(value))) / kLeastOnWire);
    if (value != nullptr) Visit(value, /*many=*/true);
  }

  std::set<std::pair<const pb::Descriptor*, bool>> seen_;
  std::vector<const pb::Descriptor*> path_;
  std::size_t growth_ = kText;
};

}  // namespace

bool IsMeasurable(const pb::Descriptor* type) {
  for (int i = 0; i != type->field_count(); ++i) {
    if (type->field(i)->message_type() != nullptr) return false;
  }
  return type->extension_range_count() == 0;
}

std::size_t MeasureCleared(pb::Message* message) {
  message->Clear();
  const pb::Reflection* const reflection = message->GetReflection();
  if (&reflection->GetUnknownFields(*message) !=
      &pb::UnknownFieldSet::default_instance()) {
    pb::UnknownFieldSet none;  // Its list has no memory, unlike a cleared one.
    reflection->MutableUnknownFields(message)->Swap(&none);
  }
  return message->SpaceUsedLong();
}

std::size_t MemoryPerByte(const pb::Descriptor* type) {
  Walk walk;
  walk.Visit(type, /*many=*/false);
  return walk.growth();
}

std::size_t MemoryPerParsedByte(const pb::Descriptor* type) {
  return std::max(MemoryPerByte(type), kUnknownText);
}

}  // namespace flare::rpc
