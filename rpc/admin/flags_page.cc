#include "flare/rpc/admin/flags_page.h"

#include <gflags/gflags.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flare/base/endpoint.h"
#include "flare/base/string.h"
#include "flare/rpc/admin/page_text.h"
#include "flare/rpc/changeable_flag.h"
#include "flare/rpc/http_message.h"

namespace flare::rpc {
namespace {

using Flag = gflags::CommandLineFlagInfo;

// --- the list --------------------------------------------------------------

struct FlagList {
  std::string part;  // The names have it; empty: all flags.
  std::vector<Flag> flags;
  std::vector<std::string> changeable;  // Names, sorted.

  bool IsChangeable(const Flag& flag) const {
    return std::binary_search(changeable.begin(), changeable.end(), flag.name);
  }
};

FlagList ListFlags(const HttpRequest& request) {
  FlagList list;
  for (auto& [name, value] : ParseQuery(request.query())) {
    if (name == "name") list.part = std::move(value);
  }
  gflags::GetAllFlags(&list.flags);
  std::erase_if(list.flags, [&](const Flag& flag) {
    return flag.name.find(list.part) == std::string::npos;
  });
  std::sort(list.flags.begin(), list.flags.end(),
            [](const Flag& a, const Flag& b) { return a.name < b.name; });
  list.changeable = ChangeableFlags();
  return list;
}

// A flag that names a file has no secret itself.
bool IsSecret(const Flag& flag) {
  if (flag.type != "string" || flag.name.ends_with("_file")) return false;
  const std::string name = ToLower(flag.name);
  for (const char* word :
       {"password", "passwd", "secret", "token", "credential"}) {
    if (name.find(word) != name.npos) return true;
  }
  return false;
}

// "int32, default 100, can be changed"
std::string FactsOf(const Flag& flag, const FlagList& list) {
  std::string facts = flag.type;
  if (flag.current_value != flag.default_value) {
    facts +=
        ", default " +
        (flag.default_value.empty() ? "empty" : OneLine(flag.default_value));
  }
  if (list.IsChangeable(flag)) facts += ", can be changed";
  return facts;
}

void WriteFlagsAsText(const FlagList& list, std::ostream& out) {
  out << "# " << CountOf(list.flags.size(), "flag") << "\n";
  for (const Flag& flag : list.flags) {
    const std::string about = ": " + OneLine(flag.description) + "\n";
    if (IsSecret(flag)) {
      out << "# --" << flag.name << " is hidden, as its name is a secret's"
          << about;
      continue;
    }
    out << "# " << FactsOf(flag, list) << about << "--" << flag.name << "="
        << OneLine(flag.current_value) << "\n";
  }
}

constexpr char kFlagsHead[] = R"(<!DOCTYPE html><meta charset="utf-8">
<title>/inspect/flags</title>
<style>
body { font: 14px system-ui, sans-serif; margin: 1.5em; }
table { border-collapse: collapse; }
td, th { text-align: left; padding: 2px 10px 2px 0; vertical-align: top; }
th { border-bottom: 1px solid #888; }
code { font: 12px ui-monospace, monospace; }
.note { color: #555; }
</style>
)";

// Sends the field that forms can't.
constexpr char kChangeScript[] = R"(<script>
async function change(form) {
  const field = form.elements[0];
  const reply = await fetch('/inspect/flags?' + encodeURIComponent(field.name) +
      '=' + encodeURIComponent(field.value),
      {method: 'POST', headers: {'X-Requested-With': 'flags'}});
  if (reply.ok) return location.reload();
  alert(await reply.text());
}
</script>
)";

void WriteFlagRow(const Flag& flag, const FlagList& list, bool may_change,
                  std::ostream& out) {
  const std::string value = EscapeHtml(OneLine(flag.current_value));
  out << "<tr><td><code>--" << EscapeHtml(flag.name) << "</code></td><td>";
  if (IsSecret(flag)) {
    out << "<span class=note>hidden</span>";
  } else if (may_change && list.IsChangeable(flag)) {
    out << "<form onsubmit=\"change(this); return false\"><input name=\""
        << EscapeHtml(flag.name) << "\" size=16 value=\"" << value
        << "\"> <button>change</button></form>";
  } else {
    out << "<code>" << value << "</code>";
  }
  out << "</td><td>" << EscapeHtml(flag.description) << " <span class=note>("
      << EscapeHtml(IsSecret(flag) ? flag.type : FactsOf(flag, list))
      << ")</span></td></tr>\n";
}

void WriteFlagsAsHtml(const FlagList& list, bool may_change,
                      std::ostream& out) {
  out << kFlagsHead;
  if (may_change) out << kChangeScript;
  out << "<form>name <input name=name value=\"" << EscapeHtml(list.part)
      << "\"> <button>show</button> <a href=\"/inspect/flags\">all</a></form>\n"
      << "<p class=note>" << CountOf(list.flags.size(), "flag")
      << "</p>\n<table><tr><th>flag</th><th>value</th><th></th></tr>\n";
  for (const Flag& flag : list.flags) {
    WriteFlagRow(flag, list, may_change, out);
  }
  out << "</table>\n";
}

// --- changes ---------------------------------------------------------------

// The rule that this request breaks; nullptr: none.
const char* BrokenRule(const HttpRequest& request, const Endpoint& peer,
                       const FlagsPageRules& rules) {
  if (!rules.may_change) {
    return "Flags can't be changed here: the server isn't started with "
           "--flare_rpc_server_pages_change_flags "
           "(Server::Options::pages_change_flags).";
  }
  if (!request.headers()->contains("X-Requested-With")) {
    return "A change needs a field X-Requested-With, of any value, which web "
           "pages of strangers can't send: curl -X POST -H 'X-Requested-With: "
           "curl' 'http://HOST/inspect/flags?NAME=VALUE'.";
  }
  if (!rules.has_credentials && !IsNamedAsThisHost(request, peer)) {
    return "A change needs the server's address or localhost as Host, not a "
           "name, unless readers of pages show credentials "
           "(--flare_rpc_server_pages_credentials_file).";
  }
  return nullptr;
}

HttpStatus StatusOfFailure(int code) {
  switch (code) {
    case ENOENT:
      return HttpStatus::NotFound;
    case EPERM:
      return HttpStatus::Forbidden;
    default:
      return HttpStatus::BadRequest;
  }
}

void ChangeFlagBy(const HttpRequest& request, const Endpoint& peer,
                  HttpResponse* response) {
  const QueryFields fields = ParseQuery(request.query());
  if (fields.size() != 1) {
    return FillHttpError(HttpStatus::BadRequest,
                         "A change is of one flag: /inspect/flags?NAME=VALUE.",
                         response);
  }
  const auto& [name, value] = fields.front();
  const auto before =
      ChangeFlag(name, value, peer.ToString() + " at /inspect/flags");
  if (!before) {
    return FillHttpError(StatusOfFailure(before.error().code()),
                         before.error().message(), response);
  }
  response->headers()->Set("Content-Type", "text/plain; charset=utf-8");
  response->set_body("--" + name + " was " + OneLine(*before) + "\n");
}

}  // namespace

HttpHandlerPtr NewFlagsPage(const FlagsPageRules& rules) {
  return NewHttpHandler(
      {HttpMethod::Get, HttpMethod::Post},
      [rules](const HttpRequest& request, HttpResponse* response,
              HttpServerContext* context) {
        response->headers()->Set("Cache-Control", "no-store");
        if (request.method() == HttpMethod::Post) {
          const char* const broken =
              BrokenRule(request, context->remote_peer, rules);
          if (broken == nullptr) {
            return ChangeFlagBy(request, context->remote_peer, response);
          }
          return FillHttpError(HttpStatus::Forbidden, broken, response);
        }
        const bool html = WantsHtml(request);
        std::ostringstream text;
        if (html) {
          WriteFlagsAsHtml(ListFlags(request), rules.may_change, text);
        } else {
          WriteFlagsAsText(ListFlags(request), text);
        }
        response->headers()->Set(
            "Content-Type",
            html ? "text/html; charset=utf-8" : "text/plain; charset=utf-8");
        response->set_body(std::move(text).str());
      });
}

}  // namespace flare::rpc
