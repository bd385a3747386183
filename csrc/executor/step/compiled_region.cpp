#include "executor/step/compiled_region.h"

#include <algorithm>
#include <string_view>
#include <type_traits>

#include "executor/compile/difference.h"
#include "executor/compile/graph.h"
#include "executor/compile/observer.h"
#include "executor/run/array_types.h"
#include "lazy/operator.h"
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

// A call as PyTorch/XLA prints it.
std::string xla_text(const lazy::Function::Call& call) {
  const std::string& op = call.signature->op->name;
  std::string shapes;
  for (const lazy::Geometry* g : call.signature->outputs) {
    if (!shapes.empty()) shapes += ", ";
    shapes += g == nullptr ? "none" : xla_shape(*g);
  }
  const size_t count = call.signature->outputs.size();
  return "[] " + op.substr(0, op.find('.')) +
         (count == 1 ? "" : ", num_outputs=" + std::to_string(count)) +
         ", xla_shape=" + (count == 1 ? shapes : "(" + shapes + ")") + ", dynamic_dims: ()";
}

size_t calls_in_common(const lazy::Function& a, const lazy::Function& b) {
  const auto same = [](const lazy::Function::Call& x, const lazy::Function::Call& y) {
    return x.signature->key == y.signature->key;
  };
  return static_cast<size_t>(std::ranges::mismatch(a.calls, b.calls, same).in1 - a.calls.begin());
}

// Where a function leaves the way of all the others, and how those go on there.
std::string parting(const lazy::Function& function, const std::vector<lazy::Function>& others) {
  size_t at = 0;
  for (const lazy::Function& other : others) at = std::max(at, calls_in_common(function, other));
  std::vector<std::string> ways;
  for (const lazy::Function& other : others) {
    if (calls_in_common(function, other) != at) continue;
    std::string way =
        at < other.calls.size() ? xla_text(other.calls[at]) : "the end of the function";
    if (std::ranges::find(ways, way) == ways.end()) ways.push_back(std::move(way));
  }
  std::string text;
  if (at < function.calls.size()) {
    text = "Got: " + xla_text(function.calls[at]) + "\n";
  } else if (!function.calls.empty()) {
    text = "Reached the end of the function at: " + xla_text(function.calls.back()) + "\n";
  }
  if (ways.size() == 1) return text + "Expected: " + ways[0] + "\n";
  text += "Expected either of:\n";
  for (const std::string& way : ways) text += "  - " + way + "\n";
  return text;
}

}  // namespace

CompiledRegion::CompiledRegion(std::string name, bool whole, std::optional<size_t> most_graphs,
                               const CompiledRegion* like)
    : name_(std::move(name)),
      whole_(whole),
      most_graphs_(most_graphs),
      known_(like == nullptr ? std::make_shared<Known>() : like->known_) {}

void CompiledRegion::enter(std::shared_ptr<CompiledRegion> region) {
  c10::ThreadLocalDebugInfo::_push(region_kind(), std::move(region));
}

void CompiledRegion::leave() { c10::ThreadLocalDebugInfo::_pop(region_kind()); }

const CompiledRegion* CompiledRegion::current() {
  return static_cast<const CompiledRegion*>(c10::ThreadLocalDebugInfo::get(region_kind()));
}

std::string CompiledRegion::title() const {
  return name_.empty() ? "the block" : "\"" + name_ + "\"";
}

void CompiledRegion::check_run(const char* wanted, const Graph& graph, const Cause& cause) const {
  if (!whole_) return;
  observer().unexpected(graph, cause);
  util::fail(util::ErrorKind::Runtime,
             "Unexpected execution happens inside the compiled function, exiting\n"
             "torch_xla.compile(full_graph=True): expected ",
             title(), " to be one graph, got ", wanted,
             " inside it. Do that outside, or leave full_graph out.");
}

void CompiledRegion::check_number(const Graph& graph) const {
  if (!most_graphs_ || known_->keys.size() < *most_graphs_) return;
  if (known_->keys.contains(graph.key)) return;
  const lazy::Function function = graph.function();
  util::fail(util::ErrorKind::Runtime,
             "Maximum number of different graphs allowed per function exceeded: ", *most_graphs_,
             "\n", parting(function, known_->functions), "torch_xla.compile of ", title(), ": ",
             first_difference(function, known_->functions.back()),
             ". Give its arguments the shapes of an earlier call, or raise max_different_graphs.");
}

void CompiledRegion::add(const Graph& graph) {
  if (!most_graphs_ || !known_->keys.insert(graph.key).second) return;
  known_->functions.push_back(graph.function());
}

}  // namespace torch_xla::executor
