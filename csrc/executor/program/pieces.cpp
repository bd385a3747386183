#include "executor/program/pieces.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "executor/program/stretch.h"
#include "util/error.h"
#include "util/flags.h"

namespace torch_xla::executor {
namespace {

using lazy::Function;
using lazy::Ref;
using lazy::Signature;

// Where there are so many small inputs of one type, others join them first: the compiler's time
// grows with the square of their number.
constexpr size_t kManyInputs = 512;
constexpr int64_t kMostElements = 256;  // of a small one
constexpr int64_t kRows = 128;          // of an array of them

// A graph of torch.compile, say, which alone has so many calls that pieces may be worth it. Whole
// it runs faster, and tracing takes most of its first step.
bool is_large_function(const Signature& s) {
  const auto is_number = [](const lazy::OperandInfo& info) { return info.number >= 0; };
  return s.expansion != nullptr && s.expansion->calls.size() >= piece_limits().saved &&
         std::ranges::none_of(s.operands, is_number);
}

// Which of the program's numbers a call takes.
struct CallNumbers {
  std::vector<uint32_t> floats, ints;
};

// The numbers of all calls: first those of the function, which each run brings, then `constants`.
struct NumberPlaces {
  std::vector<CallNumbers> of_call;
  PackedNumbers constants;  // those of calls within functions
};

// Gives the numbers of a function's calls to the calls that stand for them. A large function takes
// seeds alone; the numbers within it are what they were when it was traced.
class NumberPlacer {
 public:
  // As lazy::open() gives `open` and `opened`.
  NumberPlacer(const Function& function, const Interface& interface, const Function& open,
               const std::vector<size_t>& opened) {
    places_.of_call.resize(open.calls.size());
    const auto floats = static_cast<uint32_t>(interface.num_floats);
    const auto ints = static_cast<uint32_t>(interface.num_ints);
    uint32_t next_float = 0, next_int = 0;
    for (size_t i = 0; i < function.calls.size(); ++i) {
      const Function::Call& call = function.calls[i];
      const size_t begin = opened[i], end = opened[i + 1];
      const bool is_open = end - begin != 1 || open.calls[begin].signature != call.signature;
      CallNumbers seeds;
      each_number(function, call, [&](size_t, const PackedNumbers& one) {
        CallNumbers& taken = is_open ? seeds : places_.of_call[begin];
        for (size_t k = 0; k < one.floats.size(); ++k) taken.floats.push_back(next_float++);
        for (size_t k = 0; k < one.ints.size(); ++k) taken.ints.push_back(next_int++);
      });
      if (!is_open) continue;
      auto seed = seeds.ints.begin();
      for (size_t part = begin; part < end; ++part) {
        each_number(open, open.calls[part], [&](size_t number, const PackedNumbers& one) {
          CallNumbers& taken = places_.of_call[part];
          if (open.calls[part].signature->is_seed(number)) {
            taken.ints.push_back(*seed++);
            return;
          }
          append(one.floats, floats, places_.constants.floats, taken.floats);
          append(one.ints, ints, places_.constants.ints, taken.ints);
        });
      }
    }
  }

  NumberPlaces take() { return std::move(places_); }

 private:
  // Those that the call's program takes.
  template <class F>
  static void each_number(const Function& function, const Function::Call& call, F&& visit) {
    const Signature& s = *call.signature;
    const std::span<const lazy::Number> numbers = function.numbers_of(call);
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (constant_numbers().contains(s, numbers, i)) continue;
      PackedNumbers one;
      one.add(numbers[i], s.numbers[i]);
      visit(i, one);
    }
  }

  template <class T>
  static void append(const std::vector<T>& numbers, uint32_t first, std::vector<T>& constants,
                     std::vector<uint32_t>& places) {
    for (const T& number : numbers) {
      places.push_back(first + static_cast<uint32_t>(constants.size()));
      constants.push_back(number);
    }
  }

  NumberPlaces places_;
};

class Planner {
 public:
  Planner(const Function& function, NumberPlaces numbers, const Interface& interface,
          const ops::Target& target)
      : function_(function),
        interface_(interface),
        target_(target),
        numbers_(std::move(numbers.of_call)) {
    plan_.constants = std::move(numbers.constants);
  }

  std::optional<LoweredPieces> plan() {
    const auto facts = [this](const Signature& s) { return facts_of(s, target_); };
    const PieceLimits& limits = piece_limits();
    std::vector<Repeat> repeats = find_repeats(function_, limits.repeats, facts);
    size_t saved = 0;
    for (const Repeat& r : repeats) saved += r.length * (r.times - 1);
    if (saved < limits.saved) {
      if (function_.parameters.size() < kManyInputs) return std::nullopt;
      repeats.clear();
    }
    cut(repeats);
    if (cuts_.size() == 1) return std::nullopt;
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
    for (size_t i = 0; i < function_.calls.size(); ++kinds_) {
      const size_t end = repeat == repeats.end() ? function_.calls.size() : repeat->first;
      if (i < end) {
        cut_loose(i, end);
        i = end;
        continue;
      }
      for (const Stretch& part : repeat->parts) {
        cuts_.push_back({part, kinds_, part.calls.size() - repeat->length});
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
  // anew is given by the one that it belongs to; an array of others is what it is there for.
  void find_outputs() {
    std::set<Ref> needed(function_.results.begin(), function_.results.end());
    for (const Cut& c : cuts_) needed.insert(c.stretch.inputs.begin(), c.stretch.inputs.end());
    std::vector<std::set<std::pair<size_t, uint32_t>>> outputs(kinds_);  // calls by their places
    for (const Cut& c : cuts_) {
      for (size_t i = c.anew; i < c.stretch.calls.size(); ++i) {
        const uint32_t call = c.stretch.calls[i];
        for (uint32_t k = 0; k < function_.calls[call].signature->outputs.size(); ++k) {
          if (needed.contains({function_.index_of(call), k})) outputs[c.kind].emplace(i, k);
        }
      }
    }
    for (Cut& c : cuts_) {
      for (const auto& [i, k] : outputs[c.kind]) {
        c.stretch.outputs.push_back({function_.index_of(c.stretch.calls[i]), k});
      }
    }
  }

  // What lies between repeats.
  void cut_loose(size_t begin, size_t end) {
    Stretch stretch;
    std::set<Ref> known;
    for (size_t i = begin; i < end; ++i) {
      for (const Ref& input : function_.operands_of(function_.calls[i])) {
        if (input.index >= function_.index_of(begin) || !known.insert(input).second) continue;
        stretch.inputs.push_back(input);
      }
      stretch.calls.push_back(static_cast<uint32_t>(i));
    }
    pack_inputs(stretch);
    cuts_.push_back({std::move(stretch), kinds_});
  }

  // Of the inputs of one type, where they are many and small, stretches before this one make
  // arrays. What a result may take over stays as it is.
  void pack_inputs(Stretch& stretch) {
    std::map<std::pair<const lazy::Geometry*, at::ScalarType>, std::vector<Ref>> by_type;
    for (const Ref& input : stretch.inputs) {
      const lazy::Geometry* geometry = function_.geometry(input).row_major();
      at::ScalarType dtype = geometry->dtype;
      if (function_.is_parameter(input)) {
        const Parameter& parameter = interface_.parameters[input.index];
        if (parameter.reused_by >= 0) continue;
        dtype = parameter.dtype;
      }
      if (geometry->numel <= kMostElements) by_type[{geometry, dtype}].push_back(input);
    }
    std::set<Ref> packed;
    for (auto& [type, inputs] : by_type) {
      if (inputs.size() < kManyInputs) continue;
      packed.insert(inputs.begin(), inputs.end());
      std::vector<int64_t> sizes = type.first->sizes;
      sizes.insert(sizes.begin(), kRows);
      const lazy::Geometry* joined = lazy::intern_contiguous(type.first->dtype, sizes);
      for (size_t i = 0; i < inputs.size(); i += kRows) {
        const auto first = inputs.begin() + static_cast<std::ptrdiff_t>(i);
        std::vector<Ref> rows(first, first + std::min<std::ptrdiff_t>(kRows, inputs.end() - first));
        const auto array = static_cast<uint32_t>(function_.num_values() + arrays_.size());
        arrays_.push_back(joined);
        stretch.packs.push_back({array, rows});
        rows.resize(kRows, rows.back());
        cuts_.push_back({{rows, {}, {{array, 0}}, {{array, rows}}}, kinds_});
      }
      ++kinds_;
    }
    std::erase_if(stretch.inputs, [&](const Ref& r) { return packed.contains(r); });
    for (const Pack& pack : stretch.packs) stretch.inputs.push_back({pack.array, 0});
  }

  void make_pieces() {
    std::map<Ref, uint32_t> slots;
    for (uint32_t i = 0; i < function_.parameters.size(); ++i) slots.emplace(Ref{i, 0}, i);
    for (const Cut& c : cuts_) {
      Piece& piece = plan_.pieces.emplace_back();
      piece.executable = c.kind;
      for (const Ref& input : c.stretch.inputs) piece.arguments.push_back(slots.at(input));
      for (const Ref& output : c.stretch.outputs) {
        const auto slot = static_cast<uint32_t>(slots.size());
        slots.emplace(output, slot);
        piece.results.push_back(slot);
      }
      for (const uint32_t call : c.stretch.calls) {
        const auto& [floats, ints] = numbers_[call];
        piece.floats.insert(piece.floats.end(), floats.begin(), floats.end());
        piece.ints.insert(piece.ints.end(), ints.begin(), ints.end());
      }
    }
    for (const Ref& result : function_.results) plan_.results.push_back(slots.at(result));
    plan_.num_slots = static_cast<uint32_t>(slots.size());

    last_.assign(plan_.num_slots, 0);
    for (uint32_t p = 0; p < plan_.pieces.size(); ++p) {
      for (const uint32_t slot : plan_.pieces[p].results) last_[slot] = p;
      for (const uint32_t slot : plan_.pieces[p].arguments) last_[slot] = p;
    }
    std::vector<bool> is_result(plan_.num_slots);
    for (const uint32_t slot : plan_.results) is_result[slot] = true;
    for (uint32_t slot = function_.parameters.size(); slot < plan_.num_slots; ++slot) {
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
      lowered[cuts_[p].kind] =
          lower(function_, cuts_[p].stretch, interface_of(p, end, reuse), target_);
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
      if (slot < function_.parameters.size()) {
        all.parameters.push_back(interface_.parameters[slot]);
      } else {
        const Ref& input = cuts_[begin].stretch.inputs[k];
        const lazy::Geometry* geometry = input.index < function_.num_values()
                                             ? &function_.geometry(input)
                                             : arrays_[input.index - function_.num_values()];
        all.parameters.push_back({geometry, geometry->dtype});
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
  // chosen, where no later piece reads the buffer, nor this one in another place.
  int32_t reused_in(size_t p, size_t k) const {
    const Piece& piece = plan_.pieces[p];
    const uint32_t slot = piece.arguments[k];
    if (slot >= function_.parameters.size() || last_[slot] != p) return -1;
    if (std::ranges::count(piece.arguments, slot) > 1) return -1;
    const int32_t result = interface_.parameters[slot].reused_by;
    if (result < 0) return -1;
    const auto there = std::ranges::find(piece.results, plan_.results[result]);
    return there == piece.results.end() ? -1 : static_cast<int32_t>(there - piece.results.begin());
  }

  const Function& function_;
  const Interface& interface_;
  const ops::Target& target_;
  std::vector<Cut> cuts_;
  std::vector<const lazy::Geometry*> arrays_;  // of inputs that are packed
  uint32_t kinds_ = 0;
  std::vector<CallNumbers> numbers_;
  Plan plan_;
  std::vector<uint32_t> last_;  // of each slot, the last piece that has to do with it
};

// Pieces give a value once. A function may give one twice, or what it was given.
bool has_distinct_results(const Function& function) {
  std::set<Ref> known;
  return std::ranges::all_of(function.results, [&](const Ref& r) {
    return r && !function.is_parameter(r) && known.insert(r).second;
  });
}

// Where pieces are wanted.
enum class Wanted { Nowhere, Calls, FunctionsToo };

Wanted wanted_for(const ops::Target& target) {
  const std::string where = util::flag::XLA_COMPILE_IN_PIECES();
  TXLA_CHECK_KIND(util::ErrorKind::Value, where == "auto" || where == "1" || where == "0",
                  "XLA_COMPILE_IN_PIECES: expected auto, 1 or 0, got '", where, "'.");
  if (where == "1") return Wanted::FunctionsToo;
  return where == "auto" && target.is_cpu() ? Wanted::Calls : Wanted::Nowhere;
}

}  // namespace

PieceLimits& piece_limits() {
  static PieceLimits limits;
  return limits;
}

std::optional<LoweredPieces> lower_in_pieces(const Function& function, const Interface& interface,
                                             const ops::Target& target) {
  const Wanted wanted = wanted_for(target);
  if (wanted == Wanted::Nowhere) return std::nullopt;
  const auto opens = [&](const Signature& s) {
    return wanted == Wanted::FunctionsToo && is_large_function(s);
  };
  const auto is_opened = [&](const Function::Call& call) { return opens(*call.signature); };
  if (function.calls.size() < piece_limits().saved && function.parameters.size() < kManyInputs &&
      std::ranges::none_of(function.calls, is_opened)) {
    return std::nullopt;
  }
  std::vector<size_t> opened;
  const Function open = lazy::open(function, opens, &opened);
  if (!has_distinct_results(open)) return std::nullopt;
  return Planner(open, NumberPlacer(function, interface, open, opened).take(), interface, target)
      .plan();
}

}  // namespace torch_xla::executor
