// A YAML file as a list of settings. docs/proxy.md describes its form: a map
// from names to values, lists of values, and maps of them for names with a dot.

#ifndef EXAMPLE_PROXY_CONFIG_FILE_H_
#define EXAMPLE_PROXY_CONFIG_FILE_H_

#include <string>
#include <vector>

#include "example/proxy/config_fields.h"
#include "flare/base/expected.h"
#include "flare/base/status.h"

namespace example::proxy {

// Reads `path`; blocks the thread, and uses up to half a megabyte of stack.
// Errors: ReadFile()'s; EINVAL names file and line: it is no YAML, an unknown
// name, a name that is given twice, a list or map where a value should be.
// Values are not looked at.
flare::Expected<std::vector<Setting>> ReadSettingsFile(const std::string& path);

// Parses `text`, which is called `name` in errors.
flare::Expected<std::vector<Setting>> ParseSettings(const std::string& text,
                                                    const std::string& name);

}  // namespace example::proxy

#endif  // EXAMPLE_PROXY_CONFIG_FILE_H_
