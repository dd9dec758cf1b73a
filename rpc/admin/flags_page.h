// The page /inspect/flags: the flags of the process, and changes of those that
// may change while it runs (changeable_flag.h).
//
//   GET  /inspect/flags?name=PART   flags with PART in their names; as text in
//                                   the form of a flag file, or HTML
//   POST /inspect/flags?NAME=VALUE  changes one, and tells the old value
//
// Values of text flags whose names promise a secret ("password") are hidden.
//
// A POST needs a field X-Requested-With, which a form of a stranger's web page
// can't send: a browser would ask this server first whether the page may, and
// the server doesn't allow it for this path. Without credentials, Host must be
// an address or localhost, too: else a name of the stranger's could lead a
// browser here (DNS rebinding), where his page may send all fields.
#ifndef FLARE_RPC_ADMIN_FLAGS_PAGE_H_
#define FLARE_RPC_ADMIN_FLAGS_PAGE_H_

#include "flare/rpc/http_handler.h"

namespace flare::rpc {

struct FlagsPageRules {
  bool may_change = false;
  bool has_credentials = false;  // Readers have shown some.
};

// A handler that any thread may call, and that doesn't suspend the fiber.
HttpHandlerPtr NewFlagsPage(const FlagsPageRules& rules);

}  // namespace flare::rpc

#endif  // FLARE_RPC_ADMIN_FLAGS_PAGE_H_
