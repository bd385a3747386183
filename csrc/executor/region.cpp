#include "executor/region.h"

#include <string_view>
#include <type_traits>

#include "executor/graph.h"
#include "util/error.h"

namespace torch_xla::executor {
namespace {

constexpr std::string_view kName = "torch_xla.compile";

// PyTorch hands what is pushed under a kind on to the threads of a backward pass.
template <class Kind = c10::DebugInfoKind>
Kind region_kind() {
  if constexpr (std::is_enum_v<Kind>) {
    return Kind::PRODUCER_INFO;  // before PyTorch 2.13 there is no kind of one's own
  } else {
    return Kind(&kName);
  }
}

}  // namespace

Region::Region(std::string name, bool whole, std::optional<size_t> most_graphs)
    : name_(std::move(name)), whole_(whole), most_graphs_(most_graphs) {}

void Region::enter(std::shared_ptr<Region> region) {
  c10::ThreadLocalDebugInfo::_push(region_kind(), std::move(region));
}

void Region::leave() { c10::ThreadLocalDebugInfo::_pop(region_kind()); }

const Region* Region::current() {
  return static_cast<const Region*>(c10::ThreadLocalDebugInfo::get(region_kind()));
}

void Region::check_run(const char* wanted) const {
  TXLA_CHECK(!whole_, "torch_xla.compile(full_graph=True): expected \"", name_,
             "\" to be one graph, got ", wanted,
             " inside it. Do that outside, or leave full_graph out.");
}

void Region::check_number(const Graph& graph) const {
  if (!most_graphs_ || graphs_.size() < *most_graphs_ || graphs_.contains(graph.key)) return;
  util::fail(util::ErrorKind::Runtime, "torch_xla.compile: expected at most ", *most_graphs_,
             " different graphs of \"", name_, "\", got another. ",
             first_difference(Recipe(graph), last_),
             ". Give its arguments the shapes of an earlier call, or raise max_different_graphs.");
}

void Region::add(const Graph& graph) {
  if (graphs_.insert(graph.key).second) last_ = Recipe(graph);
}

}  // namespace torch_xla::executor
