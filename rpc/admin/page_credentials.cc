#include "flare/rpc/admin/page_credentials.h"

#include <cerrno>
#include <cstddef>
#include <utility>

#include "flare/base/clock.h"
#include "flare/base/read_file.h"
#include "flare/base/string.h"
#include "flare/rpc/http_message.h"
#include "glog/logging.h"

namespace flare::rpc {
namespace {

constexpr std::size_t kMaxCredentialsFile = 64 << 10;

// Splits "Basic  dXNlcjpwYXNz" into "basic" and the rest. Empty texts: it has
// no blank.
std::pair<std::string, std::string_view> SplitCredentials(
    std::string_view text) {
  const std::size_t blank = text.find(' ');
  if (blank == text.npos) return {};
  return {ToLower(text.substr(0, blank)), Trim(text.substr(blank))};
}

io::SecretDigest DigestOf(const std::string& scheme, std::string_view secret) {
  return io::SecretDigest(scheme + ' ' + std::string(secret));
}

}  // namespace

Expected<std::shared_ptr<PageCredentials>, flare::Status>
PageCredentials::Create(std::string file,
                        std::chrono::nanoseconds reload_interval) {
  std::shared_ptr<PageCredentials> credentials(
      new PageCredentials(std::move(file), reload_interval));
  credentials->version_ = VersionOfFile(credentials->file_);
  auto known = Read(credentials->file_);
  if (!known) return known.error();
  const ScopedLock guard(credentials->lock_);
  credentials->known_ = *std::move(known);
  return credentials;
}

PageCredentials::PageCredentials(std::string file,
                                 std::chrono::nanoseconds reload_interval)
    : file_(std::move(file)), reload_gate_(reload_interval) {}

Expected<std::shared_ptr<const PageCredentials::Known>, flare::Status>
PageCredentials::Read(const std::string& file) {
  const auto text = ReadFile(file, kMaxCredentialsFile);
  if (!text) return text.error();
  auto known = std::make_shared<Known>();
  bool basic = false, bearer = false;
  int number = 0;
  for (std::string_view line : Split(*text, '\n')) {
    ++number;
    line = Trim(line);
    if (line.empty() || line.front() == '#') continue;
    const auto [scheme, secret] = SplitCredentials(line);
    const std::size_t colon = secret.find(':');
    const bool named =
        colon != secret.npos && colon != 0 && colon + 1 != secret.size();
    // The text leaves the line out, as it may have a secret.
    if (!(scheme == "basic" && named) &&
        !(scheme == "bearer" && !secret.empty() &&
          secret.find(' ') == secret.npos)) {
      return flare::Status(EINVAL, file + ':' + std::to_string(number) +
                                       ": a line is \"basic USER:PASSWORD\", "
                                       "\"bearer TOKEN\", or begins with #");
    }
    (scheme == "basic" ? basic : bearer) = true;
    known->digests.push_back(scheme == "basic"
                                 ? DigestOf(scheme, io::EncodeBase64(secret))
                                 : DigestOf(scheme, secret));
  }
  if (known->digests.empty()) {
    return flare::Status(EINVAL, file +
                                     ": there are no credentials; nobody could "
                                     "read the pages");
  }
  known->challenge = basic ? "Basic realm=\"pages\", charset=\"UTF-8\"" : "";
  if (basic && bearer) known->challenge += ", ";
  if (bearer) known->challenge += "Bearer realm=\"pages\"";
  return std::shared_ptr<const Known>(std::move(known));
}

bool PageCredentials::Allow(std::string_view authorization) {
  reload_gate_.LookIfDue(this, &PageCredentials::CheckFile);
  const auto [scheme, secret] = SplitCredentials(authorization);
  const io::SecretDigest shown = DigestOf(scheme, secret);
  bool found = false;
  // Compares all of them, so that the time doesn't tell which one matches.
  for (const io::SecretDigest& digest : known()->digests) {
    found = (digest == shown) | found;
  }
  return found;
}

std::string PageCredentials::challenge() const { return known()->challenge; }

std::shared_ptr<const PageCredentials::Known> PageCredentials::known() const {
  const ScopedLock guard(lock_);
  return known_;
}

void PageCredentials::CheckFile() {
  // A file may have been half written at the last look.
  std::string version = VersionOfFile(file_);
  if (!complained_ && version == version_) return;
  auto read = Read(file_);
  // Behind the read: if that throws, the next look reads the version.
  version_ = std::move(version);
  if (!read) {
    if (!std::exchange(complained_, true)) {
      LOG(ERROR) << "credentials of pages stay as they were: "
                 << read.error().message();
    }
    return;
  }
  complained_ = false;
  const std::size_t count = (*read)->digests.size();
  {
    const ScopedLock guard(lock_);
    known_.swap(*read);
  }
  LOG(INFO) << "credentials of pages are now those of " << file_ << ": "
            << count;
}

class PageCredentials::Page final : public HttpHandler {
 public:
  Page(HttpHandlerPtr page, std::shared_ptr<PageCredentials> credentials)
      : page_(std::move(page)), credentials_(std::move(credentials)) {}

  void HandleRequest(const HttpRequest& request, HttpResponse* response,
                     HttpServerContext* context) override {
    const auto shown = request.headers()->TryGet("Authorization");
    if (credentials_->Allow(shown.value_or(""))) {
      return page_->HandleRequest(request, response, context);
    }
    if (shown) {
      if (const auto left_out = credentials_->log_.Admit()) {
        LOG(WARNING) << "credentials for "
                     << OneLine(std::string(request.path())) << " by "
                     << OneLine(context->remote_peer.ToString()) << " are wrong"
                     << LogThrottle::Note(*left_out);
      }
    }
    FillHttpError(HttpStatus::Unauthorized,
                  shown ? "These credentials are wrong."
                        : "This page is for readers with credentials.",
                  response);
    response->headers()->Set("WWW-Authenticate", credentials_->challenge());
  }

 private:
  const HttpHandlerPtr page_;
  const std::shared_ptr<PageCredentials> credentials_;
};

HttpHandlerPtr PageCredentials::Guard(
    HttpHandlerPtr page, std::shared_ptr<PageCredentials> credentials) {
  return std::make_unique<Page>(std::move(page), std::move(credentials));
}

}  // namespace flare::rpc
