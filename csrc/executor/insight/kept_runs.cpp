#include "executor/insight/kept_runs.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "executor/compile/graph.h"
#include "executor/run/live_data.h"
#include "executor/step/read_data.h"
#include "executor/step/sync.h"
#include "lazy/lock.h"
#include "lazy/operator.h"
#include "util/error.h"

namespace torch_xla::executor {
namespace {

using lazy::Node;
using lazy::Value;

struct Kept {
  std::atomic<size_t> most = 0;  // read without the lock, too
  std::deque<std::shared_ptr<const KeptRun>> runs;
};

Kept& kept() {  // guarded by the GraphLock
  static auto& all = *new Kept;
  return all;
}

// A function of the user's that was traced; a decomposed operator goes by its own name.
bool is_traced(const lazy::Signature& s) {
  return s.expansion != nullptr && s.op->rule == nullptr && s.op->name.starts_with("torch_xla:");
}

// In the order in which they were recorded, where that has operands before users: calls of several
// threads may not.
std::vector<const Node*> as_recorded(const Graph& graph) {
  std::vector<const Node*> calls = graph.calls;
  std::ranges::stable_sort(calls, {}, &Node::id);
  std::unordered_set<const Node*> known(graph.parameters.begin(), graph.parameters.end());
  for (const Node* call : calls) {
    const auto is_known = [&](const Value& v) { return known.contains(v.node.get()); };
    if (!std::ranges::all_of(call->operands(), is_known)) return graph.calls;
    known.insert(call);
  }
  return calls;
}

std::shared_ptr<const KeptRun> copy_of(const Graph& graph, const Program& program) {
  auto run = std::make_shared<KeptRun>();
  run->device = graph.device;
  run->name = program.name;
  run->place = program.place;
  run->key = program.key;
  for (const Node* parameter : graph.parameters) run->inputs.push_back(parameter->data());
  lazy::Walk recorded = graph;
  recorded.calls = as_recorded(graph);
  run->function = lazy::open(lazy::function_of(recorded), is_traced);
  return run;
}

}  // namespace

size_t keep_runs(size_t most) {
  std::deque<std::shared_ptr<const KeptRun>> dropped;  // let go without the lock
  const lazy::GraphLock lock;
  const size_t before = kept().most.exchange(most);
  while (kept().runs.size() > most) {
    dropped.push_back(std::move(kept().runs.front()));
    kept().runs.pop_front();
  }
  return before;
}

bool keeps_runs() { return kept().most > 0; }

std::shared_ptr<const KeptRun> newest_kept_run() {
  const lazy::GraphLock lock;
  return kept().runs.empty() ? nullptr : kept().runs.back();
}

bool keep_run(const Graph& graph, const Program& program) {
  Kept& all = kept();
  if (all.most == 0) return false;
  all.runs.push_back(copy_of(graph, program));
  if (all.runs.size() > all.most) all.runs.pop_front();
  return true;
}

std::vector<std::shared_ptr<const KeptRun>> kept_runs() {
  const lazy::GraphLock lock;
  return {kept().runs.begin(), kept().runs.end()};
}

RunReplay::RunReplay(std::shared_ptr<const KeptRun> run)
    : run_(std::move(run)),
      values_(run_->function.num_values()),
      readers_(run_->function.num_values()) {
  const lazy::Function& function = run_->function;
  for (size_t i = 0; i < function.parameters.size(); ++i) {
    values_[i] = {data_value(function.parameters[i], run_->device, run_->inputs[i])};
  }
  for (const lazy::Ref& operand : function.operands) ++readers_[operand.index];
}

Value RunReplay::value_of(const lazy::Ref& r) const {
  const std::vector<Value>& values = values_[r.index];
  return values.empty() ? Value() : values[r.result];
}

std::vector<double> RunReplay::compute(const std::vector<size_t>& calls, double seconds,
                                       bool all_results) {
  drop_unneeded();
  const lazy::Function& function = run_->function;
  std::unordered_map<uint32_t, c10::intrusive_ptr<Node>> made;  // by Ref::index
  std::vector<lazy::Ref> wanted;
  std::vector<Value> values;
  {
    const lazy::GraphLock lock;
    for (const size_t i : calls) {
      TXLA_CHECK_KIND(util::ErrorKind::Value, i < function.calls.size() && !is_computed(i),
                      "replay: expected a call that has not been computed, got number ", i, " of ",
                      function.calls.size(), ".");
      const lazy::Function::Call& call = function.calls[i];
      lazy::Operands operands;
      for (const lazy::Ref& r : function.operands_of(call)) {
        const auto here = made.find(r.index);
        operands.push_back(here != made.end() ? Value{here->second, r.result} : value_of(r));
        TXLA_CHECK_KIND(util::ErrorKind::Value, static_cast<bool>(operands.back()),
                        "replay: expected the operands of call ", i, " to have been computed.");
      }
      made.emplace(
          function.index_of(i),
          lazy::instantiate(call, std::move(operands), function.numbers_of(call), run_->device));
      for (const lazy::Ref& r : function.operands_of(call)) --readers_[r.index];
    }
    for (const size_t i : calls) {
      const uint32_t index = function.index_of(i);
      const auto& outputs = function.calls[i].signature->outputs;
      values_[index].resize(outputs.size());
      if (readers_[index] == 0 && !all_results && calls.size() > 1) {
        const auto is_it = [&](const lazy::Ref& r) { return r.index == index; };
        if (std::ranges::none_of(function.results, is_it)) continue;
      }
      for (uint32_t k = 0; k < outputs.size(); ++k) {
        if (outputs[k] == nullptr) continue;
        wanted.push_back({index, k});
        values.push_back({made.at(index), k});
      }
    }
  }
  std::vector<double> taken = time_runs(values, run_->device, seconds);
  for (size_t i = 0; i < wanted.size(); ++i) values_[wanted[i].index][wanted[i].result] = values[i];
  return taken;
}

// What all its readers have read; data that a program runs on may be let go at once.
void RunReplay::drop_unneeded() {
  std::vector<bool> is_result(values_.size());
  for (const lazy::Ref& r : run_->function.results) is_result[r.index] = true;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (readers_[i] > 0 || is_result[i]) continue;
    for (Value& value : values_[i]) value = {};
  }
}

std::vector<at::Tensor> RunReplay::download(const std::vector<Value>& values) const {
  std::vector<Value> present;
  for (const Value& v : values) {
    if (v) present.push_back(v);
  }
  const std::vector<at::Tensor> downloaded = read_data(present, run_->device);
  std::vector<at::Tensor> all;
  size_t next = 0;
  for (const Value& v : values) all.push_back(v ? downloaded[next++] : at::Tensor());
  return all;
}

std::vector<at::Tensor> RunReplay::results(size_t call) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, call < run_->function.calls.size() && is_computed(call),
                  "replay: expected a call that has been computed, got number ", call, ".");
  return download(values_[run_->function.index_of(call)]);
}

std::vector<at::Tensor> RunReplay::operands(size_t call) {
  std::vector<Value> values;
  for (const lazy::Ref& r : run_->function.operands_of(run_->function.calls.at(call))) {
    values.push_back(value_of(r));
  }
  return download(values);
}

}  // namespace torch_xla::executor
