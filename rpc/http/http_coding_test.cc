#include "flare/rpc/http/http_coding.h"

#include <initializer_list>
#include <string_view>

#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using enum CompressionAlgorithm;

CompressionAlgorithm Chosen(std::initializer_list<std::string_view> fields) {
  HttpCodings codings;
  for (std::string_view field : fields) codings.Add(field);
  return PreferredHttpCoding(codings.usable());
}

TEST(HttpCodings, NamesAndAlgorithms) {
  EXPECT_EQ(HttpCodingOf("gzip"), kGzip);
  EXPECT_EQ(HttpCodingOf("X-Gzip"), kGzip);
  EXPECT_EQ(HttpCodingOf("DEFLATE"), kZlib);
  for (const char* name : {"", "gzi", "gzipp", "br", "zstd", "compress"}) {
    EXPECT_EQ(HttpCodingOf(name), kUnknown) << name;
  }
  EXPECT_EQ(HttpCodingName(kGzip), "gzip");
  EXPECT_EQ(HttpCodingName(kZlib), "deflate");
  EXPECT_EQ(HttpCodingName(kZstd), "");
}

TEST(HttpCodings, NothingIsAcceptedUnlessTheCallerSaysSo) {
  EXPECT_EQ(Chosen({}), kNone);
  for (const char* field :
       {"", ",", "identity", "br, zstd", "gzip;q=0", "gzip; q=0.000", "*;q=0",
        "gzip;q=0, deflate;q=0, *", "deflate;Q=0", ";q=1", "; gzip"}) {
    EXPECT_EQ(Chosen({field}), kNone) << field;
  }
}

TEST(HttpCodings, ChoosesGzipBeforeDeflate) {
  for (const char* field :
       {"gzip", "deflate, gzip", "gzip;q=0.1, br;q=1.0", "x-gzip", "*",
        "GZIP ; q=0.001", "*;q=0, gzip", "br,*;q=0.2"}) {
    EXPECT_EQ(Chosen({field}), kGzip) << field;
  }
  for (const char* field :
       {"deflate", "gzip;q=0, deflate", "*, gzip;q=0", "deflate;level=1"}) {
    EXPECT_EQ(Chosen({field}), kZlib) << field;
  }
}

TEST(HttpCodings, SeveralFieldsAreOneList) {
  EXPECT_EQ(Chosen({"br", "gzip"}), kGzip);
  EXPECT_EQ(Chosen({"gzip;q=0", "*"}), kZlib);
}

}  // namespace
}  // namespace flare::rpc
