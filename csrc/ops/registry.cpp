#include <map>
#include <stdexcept>

#include "ops/lowering.h"

namespace torch_xla::ops {
namespace {

struct Entry {
  Rule rule;
  std::map<std::string, RuleFunction, std::less<>> platforms;
};

std::map<std::string, Entry, std::less<>>& entries() {
  static std::map<std::string, Entry, std::less<>> map;
  return map;
}

}  // namespace

Rule& Registry::add(std::string_view name, RuleFunction rule) {
  Entry& entry = entries()[std::string(name)];
  if (entry.rule.lower != nullptr) {
    throw std::logic_error("lowering registered twice: " + std::string(name));
  }
  entry.rule.lower = rule;
  return entry.rule;
}

void Registry::override_on(std::string_view platform, std::string_view name, RuleFunction rule) {
  if (!entries()[std::string(name)].platforms.emplace(std::string(platform), rule).second) {
    throw std::logic_error("lowering overridden twice on " + std::string(platform) + ": " +
                           std::string(name));
  }
}

const Rule* Registry::find(std::string_view name) const {
  const auto it = entries().find(name);
  return it == entries().end() ? nullptr : &it->second.rule;
}

RuleFunction Registry::function_for(std::string_view name, std::string_view platform) const {
  const auto it = entries().find(name);
  if (it == entries().end()) return nullptr;
  const auto override_it = it->second.platforms.find(platform);
  return override_it == it->second.platforms.end() ? it->second.rule.lower : override_it->second;
}

std::vector<std::string> Registry::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries()) names.push_back(name);
  return names;
}

Registry& Registry::get() {
  static Registry registry;
  static const bool filled = [] {
    register_cast(registry);
    register_elementwise(registry);
    register_activation(registry);
    register_reduce(registry);
    register_scan(registry);
    register_shape(registry);
    register_index(registry);
    register_factory(registry);
    register_matmul(registry);
    register_conv(registry);
    register_pool(registry);
    register_norm(registry);
    register_loss(registry);
    register_attention(registry);
    register_rnn(registry);
    register_resize(registry);
    register_random(registry);
    register_sort(registry);
    register_distance(registry);
    register_compact(registry);
    register_fft(registry);
    register_linalg(registry);
    register_optim(registry);
    register_cpu_kernels(registry);
    return true;
  }();
  (void)filled;
  return registry;
}

}  // namespace torch_xla::ops
