// Shared by the tests of metas: random values, and protobuf's own parser as the
// judge of our decoders.
//
// `make()` returns a random message of protobuf's. `decodes(bytes, reference)`
// says whether our decoder takes the bytes and, if so and there is a reference,
// expects that it reads the same as in there.
#ifndef FLARE_RPC_WIRE_META_TESTING_H_
#define FLARE_RPC_WIRE_META_TESTING_H_

#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "flare/base/testing/rounds.h"
#include "gtest/gtest.h"

namespace flare::rpc::testing {

class MetaRandom : public ::testing::Test {
 protected:
  // All magnitudes alike, zero included.
  std::uint64_t Number() { return rng_() >> (rng_() % 64) >> (rng_() % 2); }
  std::int32_t Int32() { return static_cast<std::int32_t>(Number()); }
  bool Sometimes() { return rng_() % 2 == 0; }

  std::string Text() {
    std::string text(rng_() % 40, '\0');
    for (char& c : text) c = static_cast<char>('!' + rng_() % 90);
    return text;
  }

  // Every beginning of a message is judged as protobuf does.
  template <class Make, class Decodes>
  static void CheckTruncations(int rounds, Make make, Decodes decodes) {
    for (int i = 0; i != rounds; ++i) {
      const std::string bytes = make().SerializeAsString();
      for (std::size_t size = 0; size != bytes.size(); ++size) {
        // A copy of exactly this size, so that a sanitizer sees overruns.
        std::string part = bytes.substr(0, size);
        part.shrink_to_fit();
        decltype(make()) reference;
        const bool valid = reference.ParsePartialFromString(part);
        ASSERT_EQ(decodes(part, valid ? &reference : nullptr), valid)
            << ::testing::PrintToString(part);
      }
    }
  }

  // Damaged messages likewise.
  template <class Make, class Decodes>
  void CheckMutations(int most, Make make, Decodes decodes) {
    const int rounds = flare::testing::Rounds(most);
    int accepted = 0;
    for (int i = 0; i != rounds; ++i) {
      std::string bytes = make().SerializeAsString();
      for (int n = 1 + rng_() % 3; n != 0 && !bytes.empty(); --n) {
        Damage(&bytes);
      }
      decltype(make()) reference;
      const bool valid = reference.ParsePartialFromString(bytes);
      if (valid && HasGroup(reference)) continue;  // documented difference
      ASSERT_EQ(decodes(bytes, valid ? &reference : nullptr), valid)
          << ::testing::PrintToString(bytes);
      accepted += valid;
    }
    // The mutations must exercise both outcomes.
    EXPECT_GT(accepted, rounds / 20);
    EXPECT_LT(accepted, rounds - rounds / 20);
  }

  std::mt19937_64 rng_{20250607};

 private:
  void Damage(std::string* bytes) {
    const std::size_t at = rng_() % bytes->size();
    switch (rng_() % 3) {
      case 0:
        (*bytes)[at] = static_cast<char>(rng_());
        break;
      case 1:
        bytes->erase(at, 1);
        break;
      default:
        bytes->insert(at, 1, static_cast<char>(rng_()));
    }
  }

  static bool HasGroup(const google::protobuf::Message& message) {
    const auto* const reflection = message.GetReflection();
    const auto& unknown = reflection->GetUnknownFields(message);
    for (int i = 0; i != unknown.field_count(); ++i) {
      if (unknown.field(i).type() ==
          google::protobuf::UnknownField::TYPE_GROUP) {
        return true;
      }
    }
    std::vector<const google::protobuf::FieldDescriptor*> fields;
    reflection->ListFields(message, &fields);
    return std::any_of(fields.begin(), fields.end(), [&](const auto* field) {
      return field->cpp_type() ==
                 google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE &&
             !field->is_repeated() &&
             HasGroup(reflection->GetMessage(message, field));
    });
  }
};

}  // namespace flare::rpc::testing

#endif  // FLARE_RPC_WIRE_META_TESTING_H_
