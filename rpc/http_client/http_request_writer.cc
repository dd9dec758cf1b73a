#include "flare/rpc/http_client/http_request_writer.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "flare/base/string.h"
#include "flare/base/version.h"
#include "flare/rpc/http/http_text.h"
#include "flare/rpc/http/http_writer.h"
#include "flare/rpc/http_client_options.h"

namespace flare::rpc {
namespace {

// They concern the connection, or the length of the body: what the server reads
// from them must be what the client does.
constexpr std::string_view kOwnFields[] = {
    "Connection",        "Content-Length",   "Expect",
    "Keep-Alive",        "Proxy-Connection", "TE",
    "Transfer-Encoding", "Trailer",          "Upgrade"};

flare::Status BadRequest(std::string why) {
  return flare::Status(ERROR_INVALID_REQUEST, std::move(why));
}

flare::Status CheckHttpField(std::string_view name, std::string_view value) {
  if (!IsHttpToken(name)) {
    // Nor is it shown: a value may have come to its place.
    return BadRequest(
        "the name of a field is empty or has other characters than letters, "
        "digits and !#$%&'*+-.^_`|~");
  }
  const std::string quoted = "the field " + std::string(name);
  if (!std::all_of(value.begin(), value.end(), IsHttpValueChar)) {
    return BadRequest(quoted + " has control bytes in its value");
  }
  for (std::string_view own : kOwnFields) {
    if (IEquals(name, own)) {
      return BadRequest(quoted + " is written by the client itself");
    }
  }
  if (IEquals(name, "Host") && !MayBeHttpHost(value)) {
    return BadRequest(quoted + " has no good host");
  }
  return {};
}

bool HasBodyByNature(HttpMethod method) {
  return method == HttpMethod::Post || method == HttpMethod::Put ||
         method == HttpMethod::Patch;
}

// Puts a field that each request has in front, unless `request` has its own.
void AppendDefault(const HttpRequest& request, std::string_view name,
                   std::string_view value, BufferBuilder* out) {
  if (!request.headers()->contains(name)) {
    out->Append(name, ": ", value, "\r\n");
  }
}

}  // namespace

flare::Status AddHttpField(std::string_view line, HttpHeaders* headers) {
  const std::size_t colon = line.find(':');
  if (colon == line.npos) {
    return BadRequest("a field has no colon, as \"Name: value\" has");
  }
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = TrimBlanks(line.substr(colon + 1));
  if (flare::Status checked = CheckHttpField(name, value); !checked.ok()) {
    return checked;
  }
  headers->Append(name, value);
  return {};
}

Expected<Buffer, flare::Status> WriteHttpRequest(
    const HttpRequest& request, const HttpUrl& url,
    const HttpRequestParts& parts) {
  const HttpMethod method = request.method();
  if (method == HttpMethod::Unspecified || method == HttpMethod::Connect) {
    return BadRequest("the method " + std::string(ToStringView(method)) +
                      " can't be requested");
  }
  if (request.headers()->TryGetMultiple("Host").size() > 1) {
    return BadRequest("there are several fields Host");
  }
  if (parts.source != nullptr && request.body_size() != 0) {
    return BadRequest("there are a body and a body_source");
  }
  BufferBuilder out;
  out.Append(ToStringView(method), " ",
             parts.to_proxy ? url.ToString() : url.target, " HTTP/1.1\r\n");
  AppendDefault(request, "Host", url.host, &out);
  AppendDefault(request, "User-Agent", std::string("flare/") + kVersion, &out);
  AppendDefault(request, "Accept", "*/*", &out);
  for (const auto& [name, value] : *request.headers()) {
    if (flare::Status checked = CheckHttpField(name, value); !checked.ok()) {
      return checked;
    }
    out.Append(name, ": ", value, "\r\n");
  }
  out.Append(parts.lines);
  if (parts.source != nullptr && !parts.source->size) {
    out.Append("Transfer-Encoding: chunked\r\n");
  } else if (parts.source != nullptr || request.body_size() != 0 ||
             HasBodyByNature(method)) {
    out.Append("Content-Length: ");
    AppendDecimal(parts.source != nullptr ? *parts.source->size
                                          : std::uint64_t{request.body_size()},
                  &out);
    out.Append("\r\n");
  }
  out.Append("\r\n");
  out.Append(*request.noncontiguous_body());
  return out.DestructiveGet();
}

bool DropsBody(HttpStatus status, HttpMethod method) {
  if (status == HttpStatus::SeeOther) return method != HttpMethod::Head;
  // As browsers do; RFC 9110, 15.4.2 allows it.
  return (status == HttpStatus::MovedPermanently ||
          status == HttpStatus::Found) &&
         method == HttpMethod::Post;
}

void RedirectHttpRequest(HttpStatus status, const HttpUrl& from,
                         const HttpUrl& to, HttpRequest* request) {
  HttpHeaders* const headers = request->headers();
  if (DropsBody(status, request->method())) {
    request->set_method(HttpMethod::Get);
    request->set_body(Buffer());
    for (std::string_view name : {"Content-Type", "Content-Encoding",
                                  "Content-Language", "Content-Location"}) {
      headers->Remove(name);
    }
  }
  if (from.origin() != to.origin()) {
    for (std::string_view name :
         {"Authorization", "Cookie", "Proxy-Authorization", "Host"}) {
      headers->Remove(name);
    }
  }
}

}  // namespace flare::rpc
