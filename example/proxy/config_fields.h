// The list of settings: how each is called in a file and on the command line,
// and how its text gets into a ProxyConfig. A new setting goes here, into
// config.h, config_flags.cc and docs/proxy.md.

#ifndef EXAMPLE_PROXY_CONFIG_FIELDS_H_
#define EXAMPLE_PROXY_CONFIG_FIELDS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "example/proxy/config.h"
#include "flare/base/status.h"

namespace example::proxy {

// A piece of text and where it was written.
struct PlacedText {
  std::string text;
  // "proxy.yaml:7: connect_timeout", "--connect_timeout".
  std::string where;
};

// The values given for one field.
struct Setting {
  std::string field;
  std::vector<PlacedText> values;  // One, except for fields that are lists.
  std::string where;               // Place of the field as a whole.
};

struct Field {
  std::string_view name;  // "health_check.interval": an `interval` in a map.
  std::string_view flag;  // "health_check_interval".
  bool is_list;
  // Takes one value, or the next one of a list; may ask the resolver. The
  // error doesn't say where.
  flare::Status (*set)(const PlacedText& value, ProxyConfig* config);
};

// All of them, in the order of the documentation.
std::span<const Field> Fields();

// nullptr: there is none of this name.
const Field* FindField(std::string_view name);

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_CONFIG_FIELDS_H_
