#include "executor/run/undo.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include <c10/util/Exception.h>

#include "executor/program/program.h"
#include "executor/run/live_data.h"
#include "lazy/function.h"
#include "lazy/tensor.h"
#include "util/flags.h"

namespace torch_xla::executor {

using lazy::Node;
using lazy::Storage;
using lazy::Value;

Overwritten overwritten_by(const Storage& storage, const Node& before, bool is_held) {
  const lazy::DeviceData& data = before.data();
  return {.storage = &storage,
          .before_leaf = before.id(),
          .before = data.array,
          .held = is_held ? data.array : nullptr,
          .donatable = data.donatable,
          .geometry = &before.output(0)};
}

OverwrittenStorages overwritten_by(const Program& program, const std::vector<const Node*>& inputs,
                                   const std::vector<Storage*>& storages,
                                   const std::vector<size_t>& root_of) {
  std::unordered_map<uint64_t, size_t> kept;  // the inputs that stay, by Node::id()
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!program.has_run || !program.reuses(i)) kept.emplace(inputs[i]->id(), i);
  }
  OverwrittenStorages all;
  for (size_t s = 0; s < storages.size(); ++s) {
    const std::vector<Storage::Past>& past = storages[s]->past();
    const auto it = past.empty() ? kept.end() : kept.find(past.front().node);
    if (it == kept.end()) continue;
    const Node& input = *inputs[it->second];
    // An array that others hold too must not be held here: a later run may take it over.
    const bool is_held = util::flag::XLA_NO_DONATION() || !input.data().donatable ||
                         program.interface.parameters[it->second].reused_by >= 0;
    all.push_back(overwritten_by(*storages[s], input, is_held));
    all.back().root = root_of[s];
  }
  return all;
}

void note_leaves(OverwrittenStorages& overwritten, const std::vector<Value>& leaves) {
  for (Overwritten& o : overwritten) o.leaf = leaves[o.root].node->id();
}

namespace {

bool lacks_memory(const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (...) {
    return false;
  }
}

int64_t largest_result(const Node& call) {
  int64_t bytes = 0;
  for (const lazy::Geometry* g : call.signature().outputs) {
    if (g == nullptr) continue;  // not asked for
    bytes = std::max(bytes, g->numel * static_cast<int64_t>(c10::elementSize(g->dtype)));
  }
  return bytes;
}

// Those that are connected with `start` by calls.
std::unordered_set<const Node*> connected(const std::vector<const Node*>& calls,
                                          const Node* start) {
  std::unordered_map<const Node*, std::vector<const Node*>> neighbours;
  for (const Node* call : calls) {
    for (const Value& v : call->operands()) {
      if (v.node->is_data()) continue;
      neighbours[call].push_back(v.node.get());
      neighbours[v.node.get()].push_back(call);
    }
  }
  std::unordered_set<const Node*> found = {start};
  std::vector<const Node*> stack = {start};
  while (!stack.empty()) {
    const Node* call = stack.back();
    stack.pop_back();
    for (const Node* next : neighbours[call]) {
      if (found.insert(next).second) stack.push_back(next);
    }
  }
  return found;
}

}  // namespace

std::unordered_set<const Node*> failed_calls(const std::vector<const Node*>& calls,
                                             const std::exception_ptr& why) {
  std::unordered_set<const Node*> part(calls.begin(), calls.end());
  if (lacks_memory(why) && !calls.empty()) {
    part = connected(calls, *std::ranges::max_element(
                                calls, {}, [](const Node* call) { return largest_result(*call); }));
  }
  std::unordered_set<const Node*> used, failed;
  for (const Node* call : calls) {  // operands before users
    for (const Value& v : call->operands()) {
      used.insert(v.node.get());
      const bool is_of_data = v.node->is_data() || failed.contains(v.node.get());
      if (is_of_data && part.contains(call)) failed.insert(call);
    }
  }
  for (const Node* call : part) {
    if (!used.contains(call)) failed.insert(call);
  }
  return failed;
}

bool undo(const std::unordered_set<const Node*>& failed, int device, const std::vector<Value>& read,
          const OverwrittenStorages& overwritten) {
  std::unordered_map<uint64_t, const Overwritten*> by_leaf;
  for (const Overwritten& o : overwritten) by_leaf.emplace(o.leaf, &o);
  // The data that a storage held before its last runs, as far back as that is needed.
  const auto before = [&](Storage& storage) -> Value {
    const auto& past = storage.past();
    uint64_t leaf = past.empty() ? storage.value().node->id() : past.front().node;
    for (auto it = by_leaf.find(leaf); it != by_leaf.end(); it = by_leaf.find(leaf)) {
      const Overwritten& o = *it->second;
      if (o.storage != &storage || o.before_leaf == leaf) break;
      const std::shared_ptr<pjrt::Array> array = o.before.lock();
      if (array != nullptr && !array->is_promise() && !array->is_deleted() && !array->loss()) {
        return data_value(o.geometry, device, {array, o.donatable});
      }
      leaf = o.before_leaf;
    }
    return {};
  };
  const auto is_lost = [](const Node& node) {
    return node.is_data() && node.data().array != nullptr && node.data().array->loss() != nullptr;
  };
  std::vector<Storage*> storages;
  std::vector<Value> roots;
  Storage::for_each_pending(device, [&](Storage& storage) {
    if (storage.value().node->is_data() && !is_lost(*storage.value().node)) return;
    storages.push_back(&storage);
    if (!storage.value().node->is_data()) roots.push_back(storage.value());
  });
  for (const Value& value : read) {
    if (!value.node->is_data()) roots.push_back(value);
  }
  const lazy::Walk waiting = lazy::walk_of(std::move(roots));
  std::unordered_map<uint64_t, const Node*> alive;
  std::unordered_set<const Node*> dependents = failed;
  for (const Node* input : waiting.parameters) {
    alive[input->id()] = input;
    if (is_lost(*input)) dependents.insert(input);
  }
  for (const Node* call : waiting.calls) {  // operands before users
    alive[call->id()] = call;
    const auto needs = [&](const Value& v) { return dependents.contains(v.node.get()); };
    if (std::ranges::any_of(call->operands(), needs)) dependents.insert(call);
  }
  const auto depends = [&](const Value& value) {
    return dependents.contains(value.node.get()) || is_lost(*value.node);
  };
  for (Storage* storage : storages) {
    if (!depends(storage->value())) continue;
    if (Value data = before(*storage)) {
      storage->take_back(0, std::move(data));
      continue;
    }
    std::optional<size_t> last;
    const std::vector<Storage::Past>& past = storage->past();
    for (size_t i = 0; i < past.size(); ++i) {
      const auto it = alive.find(past[i].node);
      if (it != alive.end() && dependents.contains(it->second)) break;
      last = it == alive.end() ? std::nullopt : std::optional(i);
    }
    if (last) {
      auto* node = const_cast<Node*>(alive.at(past[*last].node));
      storage->take_back(*last, {c10::intrusive_ptr<Node>::reclaim_copy(node), past[*last].index});
    } else {
      storage->set_aside();
    }
  }
  return std::ranges::any_of(read, depends);
}

}  // namespace torch_xla::executor
