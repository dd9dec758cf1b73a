#include "flare/rpc/http/http_compression.h"

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "flare/base/buffer.h"
#include "gtest/gtest.h"

namespace flare::rpc {
namespace {

using enum CompressionAlgorithm;

CompressionAlgorithm ChosenOf(std::initializer_list<std::string_view> fields) {
  HttpCodingWeights weights;
  for (std::string_view field : fields) weights.Add(field);
  return weights.Choose({kZstd, kGzip, kZlib});
}

TEST(HttpCodingWeights, TheLargestWins) {
  EXPECT_EQ(ChosenOf({"gzip, deflate"}), kGzip);
  EXPECT_EQ(ChosenOf({"gzip, deflate, br, zstd"}), kZstd);
  EXPECT_EQ(ChosenOf({"gzip;q=0.5, deflate;q=0.501"}), kZlib);
  EXPECT_EQ(ChosenOf({"zstd;q=0.9, gzip;q=1.0"}), kGzip);
  EXPECT_EQ(ChosenOf({"zstd ; q=0.09 ,gzip;Q=0.1"}), kGzip);
  EXPECT_EQ(ChosenOf({"X-GZIP"}), kGzip);
  EXPECT_EQ(ChosenOf({"br", "gzip;q=0.001"}), kGzip);
  EXPECT_EQ(ChosenOf({"gzip;level=1;q=0.2, deflate;q=0.1"}), kGzip);
}

TEST(HttpCodingWeights, NoCodingIsTakenForGranted) {
  EXPECT_EQ(ChosenOf({}), kNone);
  for (const char* field :
       {"", ",", "identity", "br", "gzip;q=0", "gzip;q=0.000", "*;q=0",
        "gzip;q=", "; gzip", "lz4"}) {
    EXPECT_EQ(ChosenOf({field}), kNone) << field;
  }
}

TEST(HttpCodingWeights, AStarStandsForCodingsThatAreNotNamed) {
  EXPECT_EQ(ChosenOf({"*"}), kGzip);
  EXPECT_EQ(ChosenOf({"gzip;q=0, *"}), kZlib);
  EXPECT_EQ(ChosenOf({"*;q=0, deflate"}), kZlib);
  EXPECT_EQ(ChosenOf({"*;q=0.5, deflate;q=0.6"}), kZlib);
}

TEST(HttpCodingWeights, IdentityMayBePreferredOrRefused) {
  EXPECT_EQ(ChosenOf({"identity, gzip;q=0.5"}), kNone);
  EXPECT_EQ(ChosenOf({"identity;q=0.5, gzip;q=0.5"}), kGzip);
  const auto refuses = [](std::string_view field) {
    HttpCodingWeights weights;
    weights.Add(field);
    return weights.refuses_identity();
  };
  EXPECT_TRUE(refuses("gzip, identity;q=0"));
  EXPECT_TRUE(refuses("gzip, *;q=0"));
  EXPECT_FALSE(refuses("*;q=0, identity;q=0.1"));
  EXPECT_FALSE(refuses("gzip"));
  EXPECT_FALSE(refuses(""));
}

// A reply in text that is worth it.
HttpResponse TextReply() {
  HttpResponse response;
  response.headers()->Set("Content-Type", "text/plain; charset=utf-8");
  response.headers()->Set("ETag", "\"1\"");
  response.headers()->Set("Accept-Ranges", "bytes");
  response.set_body(std::string(2000, 'x'));
  return response;
}

HttpRequest RequestFor(std::string_view accept = "gzip") {
  HttpRequest request;
  request.set_method(HttpMethod::Get);
  request.headers()->Set("Accept-Encoding", accept);
  return request;
}

std::string ValueOf(const HttpResponse& response, std::string_view name) {
  return std::string(response.headers()->TryGet(name).value_or("(none)"));
}

// The coding and "Vary" of a reply to `request`, as handlers made it.
std::string Outcome(HttpResponse response,
                    const HttpRequest& request = RequestFor(),
                    std::size_t from = 1000) {
  CompressReply(request, from, &response);
  return ValueOf(response, "Content-Encoding") + ' ' +
         ValueOf(response, "Vary");
}

TEST(CompressReply, SetsTheFieldsOfACompressedBody) {
  const std::pair<const char*, CompressionAlgorithm> codings[] = {
      {"gzip", kGzip}, {"deflate", kZlib}, {"zstd", kZstd}};
  for (const auto& [name, algorithm] : codings) {
    HttpResponse response = TextReply();
    CompressReply(RequestFor(name), 1000, &response);
    EXPECT_EQ(ValueOf(response, "Content-Encoding"), name);
    EXPECT_EQ(ValueOf(response, "Vary"), "Accept-Encoding");
    EXPECT_EQ(ValueOf(response, "ETag"), "W/\"1\"");
    EXPECT_EQ(ValueOf(response, "Accept-Ranges"), "(none)");
    EXPECT_LT(response.body_size(), 200u);
    const auto plain =
        Decompress(algorithm, *response.noncontiguous_body(), 2000);
    ASSERT_TRUE(plain) << plain.error().ToString();
    EXPECT_EQ(FlattenSlow(*plain), std::string(2000, 'x'));
  }
}

TEST(CompressReply, IsOffWithoutASize) {
  EXPECT_EQ(Outcome(TextReply(), RequestFor(), 0), "(none) (none)");
}

TEST(CompressReply, AsItIsWhereThatIsBetter) {
  const auto expect_plain = [](const HttpRequest& request, std::string body) {
    HttpResponse response = TextReply();
    response.set_body(body);
    CompressReply(request, 1000, &response);
    EXPECT_EQ(ValueOf(response, "Content-Encoding"), "(none)");
    EXPECT_EQ(ValueOf(response, "Vary"), "Accept-Encoding");
    EXPECT_EQ(ValueOf(response, "ETag"), "\"1\"");
    EXPECT_EQ(*response.body(), body);
  };
  const std::string text(1000, 'x');
  expect_plain(RequestFor(), text.substr(1));
  expect_plain(RequestFor("gzip, identity;q=0"), "");
  expect_plain(RequestFor("br"), text);
  expect_plain(HttpRequest(), text);
  std::string noise;
  for (unsigned i = 1; noise.size() != 1000; i = i * 1103515245 + 12345) {
    noise += static_cast<char>(i >> 24);
  }
  expect_plain(RequestFor(), noise);
}

TEST(CompressReply, AClientThatRefusesIdentityGetsACoding) {
  HttpResponse response = TextReply();
  response.set_body("ok");
  EXPECT_EQ(Outcome(std::move(response), RequestFor("gzip, identity;q=0")),
            "gzip Accept-Encoding");
}

TEST(CompressReply, LeavesOtherRepliesAlone) {
  constexpr std::string_view kUntouched = "(none) (none)";
  for (const char* type :
       {"image/png", "video/mp4", "application/zip", "application/gzip",
        "application/octet-stream", "font/woff2", "textual/x", ""}) {
    HttpResponse response = TextReply();
    response.headers()->Set("Content-Type", type);
    EXPECT_EQ(Outcome(std::move(response)), kUntouched) << type;
  }
  const std::pair<const char*, const char*> fields[] = {
      {"Content-Range", "bytes 0-1999/3000"},
      {"Content-Digest", "sha-256=:x:"},
      {"Cache-Control", "public, no-transform"}};
  for (const auto& [name, value] : fields) {
    HttpResponse response = TextReply();
    response.headers()->Set(name, value);
    EXPECT_EQ(Outcome(std::move(response)), kUntouched) << name;
  }
  for (const int status : {204, 205, 206, 416}) {
    HttpResponse response = TextReply();
    response.set_status(static_cast<HttpStatus>(status));
    EXPECT_EQ(Outcome(std::move(response)), kUntouched) << status;
  }
  HttpResponse packed = TextReply();
  packed.headers()->Set("Content-Encoding", "br");
  EXPECT_EQ(Outcome(std::move(packed)), "br (none)");
}

TEST(CompressReply, KnowsTypesOfTexts) {
  for (const char* type :
       {"text/html", "TEXT/CSV;charset=x", "application/json",
        "application/problem+json", "image/svg+xml", "text/javascript",
        "application/wasm", "text/event-stream"}) {
    HttpResponse response = TextReply();
    response.headers()->Set("Content-Type", type);
    EXPECT_EQ(Outcome(std::move(response)), "gzip Accept-Encoding") << type;
  }
  HttpResponse failure;
  FillHttpError(HttpStatus::NotFound, std::string(1500, 'x'), &failure);
  EXPECT_EQ(Outcome(std::move(failure)), "gzip Accept-Encoding");
}

TEST(CompressReply, HeadHasTheFieldsOfGet) {
  HttpRequest head = RequestFor();
  head.set_method(HttpMethod::Head);
  HttpResponse response = TextReply();
  CompressReply(head, 1000, &response);
  HttpResponse of_get = TextReply();
  CompressReply(RequestFor(), 1000, &of_get);
  EXPECT_EQ(response.headers()->ToString(), of_get.headers()->ToString());
  EXPECT_EQ(response.body_size(), of_get.body_size());
}

// The length and the ETag of a reply of a handler of its own.
std::string HeadOfItsOwn(const char* length, std::string_view accept = "gzip") {
  HttpRequest head = RequestFor(accept);
  head.set_method(HttpMethod::Head);
  HttpResponse response = TextReply();
  response.set_body("");
  if (length != nullptr) response.headers()->Set("Content-Length", length);
  CompressReply(head, 1000, &response);
  EXPECT_EQ(ValueOf(response, "Vary"), "Accept-Encoding");
  EXPECT_EQ(ValueOf(response, "Content-Encoding"), "(none)");
  return ValueOf(response, "Content-Length") + ' ' + ValueOf(response, "ETag");
}

TEST(CompressReply, HeadWithoutABodySaysNothingOfPlainBytes) {
  EXPECT_EQ(HeadOfItsOwn("1000"), "(none) W/\"1\"");
  EXPECT_EQ(HeadOfItsOwn(nullptr), "(none) W/\"1\"");
  EXPECT_EQ(HeadOfItsOwn("999"), "999 \"1\"");
  EXPECT_EQ(HeadOfItsOwn("999", "gzip, identity;q=0"), "(none) W/\"1\"");
  EXPECT_EQ(HeadOfItsOwn("1000", "br"), "1000 \"1\"");
}

// The ETag and Vary of a 304 that has `field`, too.
std::string NotModified(std::string_view accept, const char* name = nullptr,
                        const char* value = "") {
  HttpResponse response;
  response.set_status(HttpStatus::NotModified);
  response.headers()->Set("ETag", "\"1\"");
  if (name != nullptr) response.headers()->Set(name, value);
  HttpResponse in_pieces = response;
  CompressReply(RequestFor(accept), 1000, &response);
  EXPECT_EQ(ChooseForPieces(RequestFor(accept), 1000, &in_pieces), kNone);
  EXPECT_EQ(in_pieces.headers()->ToString(), response.headers()->ToString());
  EXPECT_EQ(ValueOf(response, "Content-Encoding"), "(none)");
  return ValueOf(response, "ETag") + ' ' + ValueOf(response, "Vary");
}

TEST(CompressReply, NotModifiedIsLikeItsPage) {
  constexpr char kPlain[] = "\"1\" (none)";
  EXPECT_EQ(NotModified("gzip"), "W/\"1\" Accept-Encoding");
  EXPECT_EQ(NotModified("gzip", "Content-Type", "text/css"),
            "W/\"1\" Accept-Encoding");
  EXPECT_EQ(NotModified("br"), "\"1\" Accept-Encoding");
  EXPECT_EQ(NotModified("gzip", "Content-Type", "image/png"), kPlain);
  EXPECT_EQ(NotModified("gzip", "Cache-Control", "no-transform"), kPlain);
}

TEST(CompressReply, KeepsAWeakTagAndAVaryThatHasIt) {
  const std::pair<const char*, std::string_view> varies[] = {
      {"Origin, accept-encoding", "Origin, accept-encoding"},
      {"*", "*"},
      {"Origin", "Origin, Accept-Encoding"}};
  for (const auto& [before, after] : varies) {
    HttpResponse response = TextReply();
    response.headers()->Set("Vary", before);
    response.headers()->Set("ETag", "W/\"2\"");
    CompressReply(RequestFor(), 1000, &response);
    std::string all;
    for (const auto value : response.headers()->TryGetMultiple("Vary")) {
      all += (all.empty() ? "" : ", ") + std::string(value);
    }
    EXPECT_EQ(all, after);
    EXPECT_EQ(ValueOf(response, "ETag"), "W/\"2\"");
  }
}

TEST(ChooseForPieces, TakesASmallContext) {
  HttpResponse head = TextReply();
  EXPECT_EQ(ChooseForPieces(RequestFor("gzip, deflate, br, zstd"), 1, &head),
            kGzip);
  EXPECT_EQ(ValueOf(head, "Content-Encoding"), "gzip");
  EXPECT_EQ(ValueOf(head, "ETag"), "W/\"1\"");
  EXPECT_EQ(ValueOf(head, "Vary"), "Accept-Encoding");
  head = TextReply();
  EXPECT_EQ(ChooseForPieces(RequestFor("zstd, deflate;q=0.1"), 1, &head),
            kZlib);
  head = TextReply();
  EXPECT_EQ(ChooseForPieces(RequestFor("zstd"), 1, &head), kNone);
  EXPECT_EQ(ValueOf(head, "Content-Encoding"), "(none)");
}

TEST(ChooseForPieces, AsTheyAreWhereWholeBodiesAre) {
  HttpResponse head = TextReply();
  EXPECT_EQ(ChooseForPieces(RequestFor(), 0, &head), kNone);
  EXPECT_EQ(ChooseForPieces(RequestFor("br"), 1, &head), kNone);
  EXPECT_EQ(ValueOf(head, "Content-Encoding"), "(none)");
  EXPECT_EQ(ValueOf(head, "ETag"), "\"1\"");
  head.headers()->Set("Content-Type", "image/png");
  EXPECT_EQ(ChooseForPieces(RequestFor(), 1, &head), kNone);
}

}  // namespace
}  // namespace flare::rpc
