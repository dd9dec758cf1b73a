#include "example/proxy/config_file.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <map>
#include <string_view>

#include "example/proxy/config_value.h"
#include "flare/base/read_file.h"
#include "yaml-cpp/yaml.h"

namespace example::proxy {
namespace {

using flare::Expected;
using flare::Status;

// An operator that names a log file by mistake learns it at once.
constexpr std::size_t kMaxFileBytes = 1 << 20;

const char* KindOf(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Map:
      return "a map";
    case YAML::NodeType::Scalar:
      return "a single value";
    default:
      return "nothing";
  }
}

// Is there a field that begins with `name` and a dot?
bool IsGroup(std::string_view name) {
  return std::any_of(Fields().begin(), Fields().end(), [&](const Field& field) {
    return field.name.starts_with(name) && field.name.size() > name.size() &&
           field.name[name.size()] == '.';
  });
}

// Walks through one document and keeps its findings.
class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  // `map` is that of the fields which begin with `prefix`.
  Status ReadMap(const YAML::Node& map, const std::string& prefix) {
    for (const auto& entry : map) {
      if (!entry.first.IsScalar()) {
        return Bad(
            entry.first, "",
            "a name was expected, not " + std::string(KindOf(entry.first)));
      }
      const std::string name = prefix + entry.first.Scalar();
      if (Status status = ReadEntry(entry.first, name, entry.second);
          !status.ok()) {
        return status;
      }
    }
    return Status();
  }

  Status Bad(const YAML::Node& at, const std::string& name,
             const std::string& what) const {
    return Status(EINVAL, Place(at, name) + ": " + what);
  }

  std::vector<Setting> Take() { return std::move(settings_); }

 private:
  Status ReadEntry(const YAML::Node& key, const std::string& name,
                   const YAML::Node& value) {
    const auto [first, is_new] = lines_.emplace(name, Line(key));
    if (!is_new) {
      return Bad(key, name,
                 "given twice; the first time is in line " +
                     std::to_string(first->second));
    }
    if (IsGroup(name)) {
      if (!value.IsMap()) {
        return Bad(key, name,
                   std::string("a map of settings was expected, not ") +
                       KindOf(value));
      }
      return ReadMap(value, name + ".");
    }
    const Field* const field = FindField(name);
    if (field == nullptr) return UnknownName(key, name);
    return ReadField(*field, key, value);
  }

  Status ReadField(const Field& field, const YAML::Node& key,
                   const YAML::Node& value) {
    const std::string name(field.name);
    Setting setting{name, {}, Place(key, name)};
    if (value.IsScalar()) {
      setting.values.push_back({value.Scalar(), Place(value, name)});
    } else if (value.IsSequence() && field.is_list) {
      for (std::size_t i = 0; i != value.size(); ++i) {
        const std::string element = name + "[" + std::to_string(i) + "]";
        if (!value[i].IsScalar()) {
          return Bad(value[i], element,
                     std::string("a single value was expected, not ") +
                         KindOf(value[i]));
        }
        setting.values.push_back({value[i].Scalar(), Place(value[i], element)});
      }
    } else {
      return Bad(key, name,
                 std::string(field.is_list ? "a list" : "a single value") +
                     " was expected, not " + KindOf(value));
    }
    settings_.push_back(std::move(setting));
    return Status();
  }

  Status UnknownName(const YAML::Node& key, const std::string& name) const {
    const std::string_view group =
        std::string_view(name).substr(0, name.rfind('.') + 1);
    std::vector<std::string_view> names;
    for (const Field& field : Fields()) {
      std::string_view known = field.name;
      if (!known.starts_with(group)) continue;
      known.remove_prefix(group.size());
      known = known.substr(0, known.find('.'));
      if (names.empty() || names.back() != known) names.push_back(known);
    }
    return Bad(key, name,
               "there is no such setting: " +
                   NoSuchChoice(key.Scalar(), names).message());
  }

  static int Line(const YAML::Node& node) { return node.Mark().line + 1; }

  std::string Place(const YAML::Node& at, const std::string& name) const {
    std::string place = file_ + ":" + std::to_string(Line(at));
    if (!name.empty()) place += ": " + name;
    return place;
  }

  const std::string& file_;
  std::map<std::string, int> lines_;  // Lines of the names so far.
  std::vector<Setting> settings_;
};

}  // namespace

Expected<std::vector<Setting>> ParseSettings(const std::string& text,
                                             const std::string& name) try {
  const std::vector<YAML::Node> documents = YAML::LoadAll(text);
  if (documents.empty() || documents[0].IsNull()) {
    return std::vector<Setting>();  // Nothing but comments.
  }
  Reader reader(name);
  if (documents.size() > 1) {
    return reader.Bad(documents[1], "",
                      "a second document; write one file "
                      "for each proxy");
  }
  if (!documents[0].IsMap()) {
    return reader.Bad(documents[0], "",
                      std::string("settings (`name: value`) were expected, "
                                  "not ") +
                          KindOf(documents[0]));
  }
  if (Status status = reader.ReadMap(documents[0], ""); !status.ok()) {
    return status;
  }
  return reader.Take();
} catch (const YAML::Exception& error) {
  return Status(EINVAL, name + ":" + std::to_string(error.mark.line + 1) +
                            ": this is no YAML: " + error.msg + " (column " +
                            std::to_string(error.mark.column + 1) + ")");
}

Expected<std::vector<Setting>> ReadSettingsFile(const std::string& path) {
  const auto text = flare::ReadFile(path, kMaxFileBytes);
  if (!text) {
    return Status(text.error().code(), "--config: " + text.error().message());
  }
  return ParseSettings(*text, path);
}

}  // namespace example::proxy
