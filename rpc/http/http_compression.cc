#include "flare/rpc/http/http_compression.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "flare/base/buffer.h"
#include "flare/base/string.h"
#include "flare/rpc/http/http_coding.h"
#include "flare/rpc/http/http_text.h"

namespace flare::rpc {
namespace {

// Whole bodies: the one that packs best in least time first. Pieces: those of a
// small context, which is held as long as the reply lasts; that of zstd is six
// times as large.
constexpr std::initializer_list<CompressionAlgorithm> kForBodies = {
    CompressionAlgorithm::kZstd, CompressionAlgorithm::kGzip,
    CompressionAlgorithm::kZlib};
constexpr std::initializer_list<CompressionAlgorithm> kForPieces = {
    CompressionAlgorithm::kGzip, CompressionAlgorithm::kZlib};

std::string_view NameOf(CompressionAlgorithm algorithm) {
  return algorithm == CompressionAlgorithm::kZstd ? "zstd"
                                                  : HttpCodingName(algorithm);
}

// "q=0.25" among the parameters of a coding: 250. Without it, and for a text
// that is no number, 1000.
unsigned WeightIn(std::string_view parameters) {
  unsigned weight = 1000;
  while (!parameters.empty()) {
    const std::size_t end = parameters.find(';');
    const std::string_view one = TrimBlanks(parameters.substr(0, end));
    parameters = end == std::string_view::npos ? std::string_view()
                                               : parameters.substr(end + 1);
    if (!IEquals(one.substr(0, 2), "q=")) continue;
    const std::string_view value = one.substr(2);
    weight = value.empty() || value[0] == '0' ? 0 : 1000;
    if (!value.starts_with("0.")) continue;
    unsigned digit_weight = 100;
    for (const char c : value.substr(2, 3)) {
      if (c < '0' || c > '9') break;
      weight += static_cast<unsigned>(c - '0') * digit_weight;
      digit_weight /= 10;
    }
  }
  return weight;
}

bool IsCompressibleType(std::string_view type) {
  type = TrimBlanks(type.substr(0, type.find(';')));
  const std::string name = ToLower(type);
  if (name.starts_with("text/")) return true;
  for (const char* suffix : {"+json", "+xml", "+text", "+yaml"}) {
    if (name.ends_with(suffix)) return true;
  }
  constexpr std::string_view kOthers[] = {"application/json",
                                          "application/x-ndjson",
                                          "application/jsonl",
                                          "application/xml",
                                          "application/javascript",
                                          "application/x-javascript",
                                          "application/ecmascript",
                                          "application/yaml",
                                          "application/x-yaml",
                                          "application/toml",
                                          "application/sql",
                                          "application/graphql",
                                          "application/rtf",
                                          "application/wasm",
                                          "application/openmetrics-text",
                                          "image/bmp",
                                          "image/x-icon",
                                          "image/vnd.microsoft.icon",
                                          "font/ttf",
                                          "font/otf"};
  return std::find(std::begin(kOthers), std::end(kOthers), name) !=
         std::end(kOthers);
}

bool HasMember(const HttpHeaders& headers, std::string_view field,
               std::string_view name) {
  bool found = false;
  for (const std::string_view value : headers.TryGetMultiple(field)) {
    ForEachListMember(value, [&](std::string_view member) {
      found |= IEquals(member, name);
    });
  }
  return found;
}

bool MayBeCompressed(const HttpResponse& response) {
  const int status = static_cast<int>(response.status());
  if (status < 200 || status == 204 || status == 205 || status == 206 ||
      status == 416) {
    return false;
  }
  const HttpHeaders& headers = *response.headers();
  for (const char* field : {"Content-Encoding", "Content-Range",
                            "Content-Digest", "Digest", "Content-MD5"}) {
    if (headers.contains(field)) return false;
  }
  if (HasMember(headers, "Cache-Control", "no-transform")) return false;
  const auto type = headers.TryGet("Content-Type");
  // A 304 may leave out the type of its page.
  return type ? IsCompressibleType(*type)
              : response.status() == HttpStatus::NotModified;
}

void AddVary(HttpHeaders* headers) {
  constexpr std::string_view kBy = "Accept-Encoding";
  if (HasMember(*headers, "Vary", kBy) || HasMember(*headers, "Vary", "*")) {
    return;
  }
  headers->Append("Vary", kBy);
}

void WeakenETag(HttpHeaders* headers) {
  const auto tag = headers->TryGet("ETag");
  if (!tag || tag->starts_with("W/")) return;
  headers->Set("ETag", "W/" + std::string(*tag));
}

void RemovePlainFacts(HttpHeaders* headers) {
  headers->Remove("Accept-Ranges");
  WeakenETag(headers);
}

void SetCoding(CompressionAlgorithm coding, HttpHeaders* headers) {
  headers->Set("Content-Encoding", NameOf(coding));
  RemovePlainFacts(headers);
}

// A reply without the body that it is about: a 304, or the reply of a handler
// of its own to HEAD.
bool LacksItsBody(const HttpRequest& request, const HttpResponse& response) {
  return response.status() == HttpStatus::NotModified ||
         (request.method() == HttpMethod::Head && response.body_size() == 0);
}

// For such a reply to a client whose GET has the body compressed, unless that
// is shorter than `from`. How long it would be only compressing it tells.
void FollowGet(std::size_t from, HttpHeaders* headers) {
  if (const auto text = headers->TryGet("Content-Length")) {
    const auto length = TryParse<std::uint64_t>(*text);
    if (length && *length < from) return;
    headers->Remove("Content-Length");
  }
  RemovePlainFacts(headers);
}

// Whether the body goes out compressed if the client takes a coding, and that
// is what *weights say. Sets the fields that don't depend on it.
bool Negotiate(const HttpRequest& request, std::size_t from,
               HttpResponse* response, HttpCodingWeights* weights) {
  if (from == 0 || !MayBeCompressed(*response)) return false;
  AddVary(response->headers());
  for (const auto value :
       request.headers()->TryGetMultiple("Accept-Encoding")) {
    weights->Add(value);
  }
  return true;
}

}  // namespace

// --- Accept-Encoding -------------------------------------------------------

void HttpCodingWeights::Add(std::string_view value) {
  ForEachListMember(value, [this](std::string_view member) {
    const std::size_t end = member.find(';');
    const std::string_view name = TrimBlanks(member.substr(0, end));
    Weight* const weight =
        HttpCodingOf(name) == CompressionAlgorithm::kGzip   ? &gzip_
        : HttpCodingOf(name) == CompressionAlgorithm::kZlib ? &deflate_
        : IEquals(name, "zstd")                             ? &zstd_
        : IEquals(name, "identity")                         ? &identity_
        : name == "*"                                       ? &any_
                                                            : nullptr;
    if (weight == nullptr) return;
    *weight =
        WeightIn(end == std::string_view::npos ? "" : member.substr(end + 1));
  });
}

bool HttpCodingWeights::refuses_identity() const {
  return identity_.value_or(any_.value_or(1)) == 0;
}

HttpCodingWeights::Weight HttpCodingWeights::WeightOf(
    CompressionAlgorithm algorithm) const {
  switch (algorithm) {
    case CompressionAlgorithm::kGzip:
      return gzip_ ? gzip_ : any_;
    case CompressionAlgorithm::kZlib:
      return deflate_ ? deflate_ : any_;
    default:
      return zstd_;
  }
}

CompressionAlgorithm HttpCodingWeights::Choose(
    std::initializer_list<CompressionAlgorithm> preferred) const {
  CompressionAlgorithm chosen = CompressionAlgorithm::kNone;
  unsigned largest = 0;
  for (const CompressionAlgorithm algorithm : preferred) {
    const unsigned weight = WeightOf(algorithm).value_or(0);
    if (weight <= largest) continue;
    largest = weight;
    chosen = algorithm;
  }
  return largest >= identity_.value_or(0) ? chosen
                                          : CompressionAlgorithm::kNone;
}

// --- replies ---------------------------------------------------------------

void CompressReply(const HttpRequest& request, std::size_t from,
                   HttpResponse* response) {
  HttpCodingWeights weights;
  if (!Negotiate(request, from, response, &weights)) return;
  const CompressionAlgorithm coding = weights.Choose(kForBodies);
  if (coding == CompressionAlgorithm::kNone) return;
  const bool must = weights.refuses_identity();
  if (LacksItsBody(request, *response)) {
    return FollowGet(must ? 1 : from, response->headers());
  }
  const std::size_t size = response->body_size();
  if (size == 0 || (size < from && !must)) return;
  auto packed = Compress(coding, *response->noncontiguous_body());
  if (!packed || (packed->size() >= size && !must)) return;
  response->set_body(*std::move(packed));
  SetCoding(coding, response->headers());
}

CompressionAlgorithm ChooseForPieces(const HttpRequest& request,
                                     std::size_t from, HttpResponse* head) {
  constexpr auto kNone = CompressionAlgorithm::kNone;
  HttpCodingWeights weights;
  if (!Negotiate(request, from, head, &weights)) return kNone;
  const CompressionAlgorithm coding = weights.Choose(kForPieces);
  if (coding == kNone) return kNone;
  if (head->status() == HttpStatus::NotModified) {
    RemovePlainFacts(head->headers());
    return kNone;
  }
  SetCoding(coding, head->headers());
  return coding;
}

}  // namespace flare::rpc
