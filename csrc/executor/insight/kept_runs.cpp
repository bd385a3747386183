#include "executor/insight/kept_runs.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <unordered_set>
#include <utility>

#include "executor/compile/graph.h"
#include "executor/program/instantiate.h"
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
  lazy::Function copy;
  for (const Node* parameter : graph.parameters) {
    run->placeholders.push_back(lazy::placeholder(parameter->output(0), graph.device));
    run->inputs.push_back(parameter->data());
    copy.parameters.push_back(run->placeholders.back().node.get());
  }
  lazy::Function recorded = graph;
  recorded.calls = as_recorded(graph);
  const Instance instance =
      instantiate(Recipe(recorded), run->placeholders, numbers_of(recorded), graph.device);
  for (const auto& call : instance.calls) copy.calls.push_back(call.get());
  copy.results = instance.results;
  run->function = lazy::open(copy, is_traced);
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

RunReplay::RunReplay(std::shared_ptr<const KeptRun> run) : run_(std::move(run)) {
  const lazy::Function& function = run_->function;
  for (size_t i = 0; i < function.parameters.size(); ++i) {
    const Node* parameter = function.parameters[i];
    values_[parameter] = {data_value(&parameter->output(0), run_->device, run_->inputs[i])};
  }
  for (const Node* call : function.calls) {
    for (const Value& operand : call->operands()) ++readers_[operand.node.get()];
  }
}

std::vector<double> RunReplay::compute(const std::vector<size_t>& calls, double seconds,
                                       bool all_results) {
  drop_unneeded();
  std::unordered_map<const Node*, c10::intrusive_ptr<Node>> copies;
  std::vector<std::pair<const Node*, uint32_t>> wanted;
  std::vector<Value> values;
  {
    const lazy::GraphLock lock;
    for (const size_t i : calls) {
      TXLA_CHECK_KIND(util::ErrorKind::Value,
                      i < run_->calls().size() && !values_.contains(run_->calls()[i].get()),
                      "replay: expected a call that has not been computed, got number ", i, " of ",
                      run_->calls().size(), ".");
      const Node& call = *run_->calls()[i];
      lazy::Operands operands;
      for (const Value& operand : call.operands()) {
        const Node* node = operand.node.get();
        if (const auto here = copies.find(node); here != copies.end()) {
          operands.push_back({here->second, operand.index});
          continue;
        }
        const auto there = values_.find(node);
        TXLA_CHECK_KIND(util::ErrorKind::Value, there != values_.end(),
                        "replay: expected the operands of call ", i, " to have been computed.");
        operands.push_back(there->second[operand.index]);
      }
      copies.emplace(&call, lazy::copy_of(call, std::move(operands)));
      for (const Value& operand : call.operands()) --readers_[operand.node.get()];
    }
    for (const size_t i : calls) {
      const Node* call = run_->calls()[i].get();
      std::vector<Value>& results = values_[call];
      results.resize(call->num_outputs());
      if (readers_[call] == 0 && !all_results && calls.size() > 1) {
        const auto is_it = [&](const Value& v) { return v.node.get() == call; };
        if (std::ranges::none_of(run_->function.results, is_it)) continue;
      }
      for (uint32_t k = 0; k < call->num_outputs(); ++k) {
        if (call->signature().outputs[k] == nullptr) continue;
        wanted.emplace_back(call, k);
        values.push_back({copies.at(call), k});
      }
    }
  }
  std::vector<double> taken = time_runs(values, run_->device, seconds);
  for (size_t i = 0; i < wanted.size(); ++i) values_[wanted[i].first][wanted[i].second] = values[i];
  return taken;
}

// What all its readers have read; data that a program runs on may be let go at once.
void RunReplay::drop_unneeded() {
  std::unordered_set<const Node*> results;
  for (const Value& v : run_->function.results) results.insert(v.node.get());
  for (auto& [node, values] : values_) {
    if (readers_[node] > 0 || results.contains(node)) continue;
    for (Value& value : values) value = {};
  }
}

std::vector<at::Tensor> RunReplay::download(std::vector<Value> values) const {
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
  const auto there = values_.find(run_->calls().at(call).get());
  TXLA_CHECK_KIND(util::ErrorKind::Value, there != values_.end(),
                  "replay: expected a call that has been computed, got number ", call, ".");
  return download(there->second);
}

std::vector<at::Tensor> RunReplay::operands(size_t call) {
  std::vector<Value> values;
  for (const Value& operand : run_->calls().at(call)->operands()) {
    const auto there = values_.find(operand.node.get());
    values.push_back(there == values_.end() ? Value() : there->second[operand.index]);
  }
  return download(std::move(values));
}

}  // namespace torch_xla::executor
