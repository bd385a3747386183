#include "executor/pieces.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "util/error.h"
#include "util/flags.h"

namespace torch_xla::executor {
namespace {

using lazy::Node;
using lazy::Signature;
using lazy::Value;

class Planner {
 public:
  Planner(const Graph& graph, const Interface& interface, const ops::Target& target)
      : graph_(graph), interface_(interface), target_(target) {}

  std::optional<LoweredPieces> plan() {
    const auto facts = [this](const Signature& s) { return facts_of(s, target_); };
    const PieceLimits& limits = piece_limits();
    const std::vector<Repeat> repeats = find_repeats(graph_, limits.repeats, facts);
    size_t saved = 0;
    for (const Repeat& r : repeats) saved += r.length * (r.times - 1);
    if (saved < limits.saved) return std::nullopt;
    cut(repeats);
    place_numbers();
    make_pieces();
    std::vector<Lowered> lowered = lower_all(/*reuse=*/true);
    const auto reuses = [](const Lowered& l) { return l.reuses_buffers; };
    const auto fails = [](const Lowered& l) { return l.can_fail; };
    if (std::ranges::any_of(lowered, fails) && std::ranges::any_of(lowered, reuses)) {
      lowered = lower_all(/*reuse=*/false);  // a run that fails must leave its inputs as they are
    }
    return LoweredPieces{std::move(lowered), std::move(plan_)};
  }

 private:
  // Stretches of one kind are one executable.
  struct Cut {
    Stretch stretch;
    uint32_t kind;
    size_t anew = 0;  // how many of its first calls others have computed
  };

  void cut(const std::vector<Repeat>& repeats) {
    auto repeat = repeats.begin();
    for (size_t i = 0; i < graph_.calls.size(); ++kinds_) {
      const size_t end = repeat == repeats.end() ? graph_.calls.size() : repeat->first;
      if (i < end) {
        cut_loose(i, end);
        i = end;
        continue;
      }
      for (size_t part = 0; part < repeat->times; ++part) {
        const auto& calls = repeat->parts[part];
        cuts_.push_back({{repeat->inputs[part], calls, {}}, kinds_, calls.size() - repeat->length});
      }
      i = (repeat++)->end();
    }
    find_outputs();
    // What all others compute anew need not run.
    std::erase_if(cuts_, [](const Cut& c) { return c.stretch.outputs.empty(); });
    std::map<uint32_t, uint32_t> kept;
    for (Cut& c : cuts_) {
      c.kind = kept.emplace(c.kind, static_cast<uint32_t>(kept.size())).first->second;
    }
    kinds_ = static_cast<uint32_t>(kept.size());
  }

  // What any stretch of a kind gives to others is an output of all of that kind. What it computes
  // anew is given by the one that it belongs to.
  void find_outputs() {
    std::set<Result> needed;
    for (const Cut& c : cuts_) needed.insert(c.stretch.inputs.begin(), c.stretch.inputs.end());
    for (const Value& v : graph_.results) needed.insert({v.node.get(), v.index});
    std::vector<std::set<std::pair<size_t, uint32_t>>> outputs(kinds_);  // calls by their places
    for (const Cut& c : cuts_) {
      for (size_t i = c.anew; i < c.stretch.calls.size(); ++i) {
        const Node* call = c.stretch.calls[i];
        for (uint32_t k = 0; k < call->num_outputs(); ++k) {
          if (needed.contains({call, k})) outputs[c.kind].emplace(i, k);
        }
      }
    }
    for (Cut& c : cuts_) {
      for (const auto& [i, k] : outputs[c.kind]) {
        c.stretch.outputs.push_back({c.stretch.calls[i], k});
      }
    }
  }

  // What lies between repeats.
  void cut_loose(size_t begin, size_t end) {
    Stretch stretch;
    std::unordered_set<const Node*> own;
    std::set<Result> known;
    for (size_t i = begin; i < end; ++i) {
      const Node* call = graph_.calls[i];
      for (const Value& v : call->operands()) {
        const Result input{v.node.get(), v.index};
        if (own.contains(input.node) || !known.insert(input).second) continue;
        stretch.inputs.push_back(input);
      }
      own.insert(call);
      stretch.calls.push_back(call);
    }
    cuts_.push_back({std::move(stretch), kinds_});
  }

  // The numbers of a call among the program's.
  struct Numbers {
    std::vector<uint32_t> floats, ints;
  };

  void place_numbers() {
    uint32_t floats = 0, ints = 0;
    for (const Node* call : graph_.calls) {
      const Signature& s = call->signature();
      for (size_t i = 0; i < s.numbers.size(); ++i) {
        if (constant_numbers().contains(s, call->numbers(), i)) continue;
        PackedNumbers one;
        one.add(call->numbers()[i], s.numbers[i]);
        for (size_t k = 0; k < one.floats.size(); ++k) numbers_[call].floats.push_back(floats++);
        for (size_t k = 0; k < one.ints.size(); ++k) numbers_[call].ints.push_back(ints++);
      }
    }
  }

  void make_pieces() {
    std::map<Result, uint32_t> slots;
    for (const Node* parameter : graph_.parameters) {
      slots.emplace(Result{parameter, 0}, static_cast<uint32_t>(slots.size()));
    }
    for (const Cut& c : cuts_) {
      Piece& piece = plan_.pieces.emplace_back();
      piece.executable = c.kind;
      for (const Result& input : c.stretch.inputs) piece.arguments.push_back(slots.at(input));
      for (const Result& output : c.stretch.outputs) {
        const auto slot = static_cast<uint32_t>(slots.size());
        slots.emplace(output, slot);
        piece.results.push_back(slot);
      }
      for (const Node* call : c.stretch.calls) {
        const auto there = numbers_.find(call);
        if (there == numbers_.end()) continue;
        const auto& [floats, ints] = there->second;
        piece.floats.insert(piece.floats.end(), floats.begin(), floats.end());
        piece.ints.insert(piece.ints.end(), ints.begin(), ints.end());
      }
    }
    for (const Value& v : graph_.results) {
      plan_.results.push_back(slots.at({v.node.get(), v.index}));
    }
    plan_.num_slots = static_cast<uint32_t>(slots.size());

    last_.assign(plan_.num_slots, 0);
    for (uint32_t p = 0; p < plan_.pieces.size(); ++p) {
      for (const uint32_t slot : plan_.pieces[p].results) last_[slot] = p;
      for (const uint32_t slot : plan_.pieces[p].arguments) last_[slot] = p;
    }
    std::vector<bool> is_result(plan_.num_slots);
    for (const uint32_t slot : plan_.results) is_result[slot] = true;
    for (uint32_t slot = graph_.parameters.size(); slot < plan_.num_slots; ++slot) {
      if (!is_result[slot]) plan_.pieces[last_[slot]].ended.push_back(slot);
    }
  }

  std::vector<Lowered> lower_all(bool reuse) const {
    std::vector<Lowered> lowered(kinds_);
    for (size_t p = 0; p < cuts_.size(); ++p) {
      const bool is_first = p == 0 || cuts_[p].kind != cuts_[p - 1].kind;
      if (!is_first) continue;
      size_t end = p + 1;
      while (end < cuts_.size() && cuts_[end].kind == cuts_[p].kind) ++end;
      lowered[cuts_[p].kind] = lower(cuts_[p].stretch, interface_of(p, end, reuse), target_);
    }
    return lowered;
  }

  // Of the pieces [begin, end), which are of one kind.
  Interface interface_of(size_t begin, size_t end, bool reuse) const {
    const Piece& first = plan_.pieces[begin];
    Interface all;
    all.num_floats = first.floats.size();
    all.num_ints = first.ints.size();
    for (size_t k = 0; k < first.arguments.size(); ++k) {
      const uint32_t slot = first.arguments[k];
      if (slot < graph_.parameters.size()) {
        all.parameters.push_back(interface_.parameters[slot]);
      } else {
        const Result& input = cuts_[begin].stretch.inputs[k];
        const lazy::Geometry& geometry = input.node->output(input.index);
        all.parameters.push_back({&geometry, geometry.dtype});
      }
      int32_t& reused_by = all.parameters.back().reused_by;
      reused_by = reuse ? reused_in(begin, k) : -1;
      for (size_t p = begin + 1; p < end; ++p) {
        if (reused_in(p, k) != reused_by) reused_by = -1;
      }
    }
    return all;
  }

  // Which result of a piece takes over the buffer of its argument `k`: the one that the program has
  // chosen, where no later piece reads the buffer.
  int32_t reused_in(size_t p, size_t k) const {
    const Piece& piece = plan_.pieces[p];
    const uint32_t slot = piece.arguments[k];
    if (slot >= graph_.parameters.size() || last_[slot] != p) return -1;
    const int32_t result = interface_.parameters[slot].reused_by;
    if (result < 0) return -1;
    const auto there = std::ranges::find(piece.results, plan_.results[result]);
    return there == piece.results.end() ? -1 : static_cast<int32_t>(there - piece.results.begin());
  }

  const Graph& graph_;
  const Interface& interface_;
  const ops::Target& target_;
  std::vector<Cut> cuts_;
  uint32_t kinds_ = 0;
  std::unordered_map<const Node*, Numbers> numbers_;
  Plan plan_;
  std::vector<uint32_t> last_;  // of each slot, the last piece that has to do with it
};

bool wanted_for(const ops::Target& target) {
  const std::string where = util::flag::XLA_COMPILE_IN_PIECES();
  TXLA_CHECK_KIND(util::ErrorKind::Value, where == "auto" || where == "1" || where == "0",
                  "XLA_COMPILE_IN_PIECES: expected auto, 1 or 0, got '", where, "'.");
  return where == "1" || (where == "auto" && target.is_cpu());
}

}  // namespace

PieceLimits& piece_limits() {
  static PieceLimits limits;
  return limits;
}

std::optional<LoweredPieces> lower_in_pieces(const Graph& graph, const Interface& interface,
                                             const ops::Target& target) {
  if (graph.calls.size() < piece_limits().saved || !wanted_for(target)) return std::nullopt;
  return Planner(graph, interface, target).plan();
}

}  // namespace torch_xla::executor
