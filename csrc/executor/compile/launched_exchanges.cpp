#include "executor/compile/launched_exchanges.h"

#include <algorithm>
#include <utility>

#include "ops/exchange.h"

namespace torch_xla::executor {
namespace {

using Weak = c10::weak_intrusive_ptr<lazy::Node>;

struct Known {
  Weak call;  // others keep it
  std::vector<std::pair<uint32_t, Weak>> leaves;
};

std::vector<Known>& known() {
  static auto& all = *new std::vector<Known>;
  std::erase_if(all, [](const Known& k) { return k.call.expired(); });
  return all;
}

const Known* find(const lazy::Node* call) {
  for (const Known& k : known()) {
    if (k.call.lock().get() == call) return &k;
  }
  return nullptr;
}

}  // namespace

Calls exchanges_in(const Graph& graph, const Program* program) {
  Calls calls;
  if (program != nullptr && program->exchanges == nullptr) return calls;
  for (const lazy::Node* call : graph.calls) {
    if (!ops::exchanges(call->signature())) continue;
    auto* const owned = const_cast<lazy::Node*>(call);  // NOLINT(*-const-cast): to keep it
    calls.push_back(c10::intrusive_ptr<lazy::Node>::reclaim_copy(owned));
  }
  return calls;
}

void note_exchanged(const Calls& calls, const Graph& graph,
                    const std::vector<lazy::Value>& leaves) {
  if (calls.empty()) return;
  std::vector<Known>& all = known();
  for (const auto& call : calls) {
    Known& k = all.emplace_back(Weak(call));
    for (size_t i = 0; i < leaves.size(); ++i) {
      const lazy::Value& result = graph.results[i];
      if (result.node == call) k.leaves.emplace_back(result.index, Weak(leaves[i].node));
    }
  }
}

lazy::Value if_exchanged(const lazy::Value& value) {
  if (value.node->num_outputs() == 1) return value;
  const Known* call = find(value.node.get());
  if (call == nullptr) return value;
  for (const auto& [index, leaf] : call->leaves) {
    if (index != value.index) continue;
    if (auto node = leaf.lock()) return {std::move(node), 0};
  }
  return value;
}

const lazy::Node* exchanged_again(const Graph& graph) {
  if (known().empty()) return nullptr;
  for (const lazy::Node* call : graph.calls) {
    if (ops::exchanges(call->signature()) && find(call) != nullptr) return call;
  }
  return nullptr;
}

}  // namespace torch_xla::executor
