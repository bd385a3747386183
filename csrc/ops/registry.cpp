#include "ops/registry.h"

#include <algorithm>
#include <map>

#include "lazy/operator.h"
#include "util/error.h"

namespace torch_xla::ops {
namespace {

template <class T>
using ByName = std::map<std::string, T, std::less<>>;

ByName<Rule>& rules_of_all() {
  static auto& map = *new ByName<Rule>;
  return map;
}
ByName<Traits>& traits_of_all() {
  static auto& map = *new ByName<Traits>;
  return map;
}
ByName<Traits>& traits_of_one() {
  static auto& map = *new ByName<Traits>;
  return map;
}

template <class T>
T& register_once(ByName<T>& map, std::string_view name, const char* what) {
  const auto [it, is_new] = map.emplace(name, T());
  TXLA_CHECK(is_new, name, ": ", what, " registered twice.");
  return it->second;
}

struct Filler {
  std::function<void(Registry&)> fill;
  Rules::Stage stage;
};
std::vector<Filler>& fillers() {
  static auto& list = *new std::vector<Filler>;
  return list;
}

template <class T>
const T* find_in(const ByName<T>& map, std::string_view name) {
  const auto it = map.find(name);
  return it == map.end() ? nullptr : &it->second;
}

}  // namespace

Rules::Rules(std::function<void(Registry&)> fill, Stage stage) {
  fillers().push_back({std::move(fill), stage});
}

Rule& Registry::add(std::string_view overload, RuleFunction rule) {
  Rule& added = register_once(rules_of_all(), overload, "lowering");
  added.lower = rule;
  return added;
}

Traits& Registry::all(std::string_view name) {
  return register_once(traits_of_all(), name, "traits");
}
Traits& Registry::one(std::string_view overload) {
  return register_once(traits_of_one(), overload, "traits of one overload");
}

const Rule* Registry::find(std::string_view overload) const {
  return find_in(rules_of_all(), overload);
}

const Traits& Registry::traits(const c10::OperatorName& op) const {
  static const Traits kNone;
  const Traits* found = find_in(traits_of_one(), lazy::full_name(op));
  if (found == nullptr) found = find_in(traits_of_all(), op.name);
  return found == nullptr ? kNone : *found;
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, rule] : rules_of_all()) names.push_back(name);
  return names;
}

Registry& Registry::get() {
  static Registry registry;
  static const bool filled = [] {
    std::ranges::stable_sort(fillers(), {}, &Filler::stage);
    for (const Filler& filler : fillers()) filler.fill(registry);
    return true;
  }();
  (void)filled;
  return registry;
}

bool is_constant(const lazy::Operator& op) { return op.rule != nullptr && op.rule->constant; }

}  // namespace torch_xla::ops
