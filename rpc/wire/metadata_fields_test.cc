#include "flare/rpc/wire/metadata_fields.h"

#include <memory>
#include <string>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

Metadata Entry(std::string_view name, std::string_view value) {
  Metadata metadata;
  EXPECT_TRUE(metadata.Add(name, value).ok());
  return metadata;
}

TEST(MetadataText, BinaryValuesAreBase64WithoutPadding) {
  std::string scratch;
  const struct {
    std::string value;
    std::string text;
  } kCases[] = {{"", ""},
                {"f", "Zg"},
                {"fo", "Zm8"},
                {"foo", "Zm9v"},
                {std::string("\0\xff\xfe", 3), "AP/+"}};
  for (const auto& [value, text] : kCases) {
    const Metadata binary = Entry("a-bin", value);
    EXPECT_EQ(MetadataText(*binary.begin(), &scratch), text);
    EXPECT_EQ(MetadataTextSize(*binary.begin()), text.size());
    EXPECT_EQ(MetadataValueSize("A-Bin", text), value.size());
    Metadata read;
    EXPECT_TRUE(AddMetadataText("A-Bin", text, &read));
    EXPECT_EQ(read.Get("a-bin"), value);
  }
  const Metadata plain = Entry("a", "f");
  EXPECT_EQ(MetadataText(*plain.begin(), &scratch), "f");
  EXPECT_EQ(MetadataTextSize(*plain.begin()), 1u);
}

TEST(MetadataText, OtherTextsAreTakenAsTheyAre) {
  Metadata read;
  EXPECT_TRUE(AddMetadataText("a-bin", "no base64!", &read));
  EXPECT_TRUE(AddMetadataText("b-bin", "Zg==", &read));
  EXPECT_TRUE(AddMetadataText("c", "Zg", &read));
  EXPECT_EQ(read.Get("a-bin"), "no base64!");
  EXPECT_EQ(read.Get("b-bin"), "f");
  EXPECT_EQ(read.Get("c"), "Zg");
}

TEST(MetadataLimitsTest, NamesTheLimit) {
  const MetadataLimits limits{.entries = 2, .bytes = 10};
  EXPECT_EQ(CheckMetadata({.entries = 2, .bytes = 10}, limits), "");
  EXPECT_EQ(CheckMetadata({.entries = 3, .bytes = 10}, limits),
            "metadata of 3 entries exceeds the limit of 2");
  EXPECT_EQ(CheckMetadata({.entries = 2, .bytes = 11}, limits),
            "metadata of 11 bytes exceeds the limit of 10");
}

struct TestMeta {
  std::uint32_t id = 0;
  MetadataFields metadata;
};
using TestCodec = codec::Message<
    codec::Field<1, &TestMeta::id>,
    codec::MetadataField<20, &TestMeta::metadata, MetadataValues::kBytes>>;

TEST(MetadataFieldsTest, EntriesOfARepeatedField) {
  Metadata metadata = Entry("k", "v");
  ASSERT_TRUE(metadata.Add("b-bin", std::string(1, '\0')).ok());
  TestMeta meta;
  meta.id = 5;
  meta.metadata.written = &metadata;
  std::string bytes(TestCodec::Size(meta), '\0');
  EXPECT_LE(bytes.size(), TestCodec::Bound(meta));
  EXPECT_EQ(TestCodec::Encode(meta, bytes.data()), bytes.data() + bytes.size());
  EXPECT_EQ(bytes, std::string("\x08\x05"
                               "\xa2\x01\x06\x0a\x01k\x12\x01v"
                               "\xa2\x01\x0a\x0a\x05"
                               "b-bin\x12\x01\0",
                               24));
  TestMeta read;
  ASSERT_EQ(TestCodec::Decode(bytes, &read), "");
  EXPECT_EQ(read.metadata.count.entries, 2u);
  EXPECT_EQ(read.metadata.count.bytes, 8u);
  std::unique_ptr<Metadata> taken;
  ASSERT_EQ(TakeMetadata(read.metadata, {}, &taken), "");
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->size(), 2u);
  EXPECT_EQ(taken->Get("k"), "v");
  EXPECT_EQ(taken->Get("b-bin"), std::string(1, '\0'));

  std::unique_ptr<Metadata> refused;
  EXPECT_NE(TakeMetadata(read.metadata, {.entries = 1}, &refused), "");
  EXPECT_NE(TakeMetadata(read.metadata, {.bytes = 7}, &refused), "");
  EXPECT_EQ(refused, nullptr);
}

// Without a name that may be one there is nothing to take.
TEST(MetadataFieldsTest, EntriesWithoutANameAreLeftOut) {
  for (const std::string& entry :
       {std::string(), std::string("\x12\x01v"), std::string("\x0a\x05k"),
        std::string("\x0a\x01 \x12\x01v"), std::string("\xff")}) {
    std::string bytes = "\xa2\x01";
    bytes.push_back(static_cast<char>(entry.size()));
    bytes += entry;
    TestMeta read;
    EXPECT_EQ(TestCodec::Decode(bytes, &read), "");
    EXPECT_EQ(read.metadata.count.entries, 1u);
    std::unique_ptr<Metadata> taken;
    EXPECT_EQ(TakeMetadata(read.metadata, {}, &taken), "");
    EXPECT_EQ(taken, nullptr);
  }
}

}  // namespace
}  // namespace flare::rpc
