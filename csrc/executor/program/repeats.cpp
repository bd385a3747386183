#include "executor/program/repeats.h"

#include <algorithm>
#include <functional>
#include <set>
#include <unordered_map>

#include "executor/program/numbers.h"
#include "util/hash.h"

namespace torch_xla::executor {
namespace {

using lazy::Function;
using lazy::Ref;
using lazy::Signature;

constexpr size_t kNearest = 32;     // places like one that are looked at
constexpr int64_t kMostAgain = 32;  // work that is done anew for one value
// Small parts run together, so many calls at a time, where there are so many of them.
constexpr size_t kCallsTogether = 256, kManyCalls = 2048;

// Compares stretches of words by hashes of all that begin at the first.
class Stretches {
 public:
  explicit Stretches(const std::vector<uint64_t>& words)
      : size_(words.size()), sums_(size_ + 1), powers_(size_ + 1, 1) {
    for (size_t i = 0; i < size_; ++i) {
      sums_[i + 1] = sums_[i] * kBase + words[i];
      powers_[i + 1] = powers_[i] * kBase;
    }
  }

  uint64_t hash(size_t begin, size_t length) const {
    return sums_[begin + length] - sums_[begin] * powers_[length];
  }
  // How many words are equal from these two places on.
  size_t common(size_t a, size_t b) const {
    size_t low = 0, high = size_ - std::max(a, b);
    while (low < high) {
      const size_t middle = (low + high + 1) / 2;
      if (hash(a, middle) == hash(b, middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

 private:
  static constexpr uint64_t kBase = 0x9e3779b97f4a7c15ull;
  size_t size_;
  std::vector<uint64_t> sums_, powers_;
};

class Finder {
 public:
  using FactsOf = c10::function_ref<CallFacts(const Signature&)>;

  Finder(const Function& function, const RepeatLimits& limits, FactsOf facts_of)
      : function_(function),
        limits_(limits),
        calls_(function.calls),
        facts_of_(facts_of),
        readers_(function.num_values()),
        is_result_(function.num_values()),
        work_anew_(calls_.size()) {
    for (size_t i = 0; i < calls_.size(); ++i) {
      for (const Ref& r : function.operands_of(calls_[i])) readers_[r.index].push_back(i);
    }
    for (const Ref& result : function.results) {
      if (result) is_result_[result.index] = true;
    }
  }

  std::vector<Repeat> find() {
    words_ = all_words();
    const Stretches stretches(words_);
    std::unordered_map<uint64_t, std::vector<size_t>> alike;  // places, by the words that follow
    for (size_t i = 0; i + limits_.shortest <= words_.size(); ++i) {
      alike[stretches.hash(i, limits_.shortest)].push_back(i);
    }
    std::vector<Repeat> repeats;
    for (size_t i = 0; i + limits_.shortest * limits_.fewest <= words_.size();) {
      std::optional<Repeat> best =
          best_at(i, alike.at(stretches.hash(i, limits_.shortest)), stretches);
      i = best ? best->end() : i + 1;
      if (best) repeats.push_back(std::move(*best));
    }
    if (repeats.empty()) return repeats;
    for (size_t i = 0; i < calls_.size(); ++i) work_anew(i);  // operands first: chains are long
    for (Repeat& r : repeats) fill_from_a_model(r);
    std::erase_if(repeats, [&](const Repeat& r) { return r.times < limits_.fewest; });
    return repeats;
  }

 private:
  // The calls as words, equal where calls are but for their operands. A call that can fail is like
  // no other: its failure names its line.
  std::vector<uint64_t> all_words() {
    std::vector<uint64_t> words;
    std::unordered_map<uint64_t, std::vector<size_t>> places;
    for (size_t place = 0; place < calls_.size(); ++place) {
      const Signature& s = *calls_[place].signature;
      const std::span<const lazy::Number> numbers = function_.numbers_of(calls_[place]);
      lazy::FunctionKey key;
      key.call(s);
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (constant_numbers().contains(s, numbers, i)) key.constant(i, numbers[i]);
      }
      words.push_back(key.hasher().finish().low);
      places[words.back()].push_back(place);
    }
    for (const auto& [word, there] : places) {
      if (there.size() < limits_.fewest || !facts(there[0]).can_fail) continue;
      for (const size_t place : there) {
        words[place] = util::Hasher().add(word).add(place).finish().low;
      }
    }
    return words;
  }

  const CallFacts& facts(size_t call) {
    const Signature& s = *calls_[call].signature;
    const auto [there, is_new] = facts_.try_emplace(&s);
    if (is_new) there->second = facts_of_(s);
    return there->second;
  }

  // The one that saves most calls.
  std::optional<Repeat> best_at(size_t begin, const std::vector<size_t>& places,
                                const Stretches& stretches) {
    std::optional<Repeat> best;
    const auto saves_more = [&best](const Repeat& r) {
      return !best || r.length * (r.times - 1) > best->length * (best->times - 1);
    };
    auto next = std::ranges::upper_bound(places, begin);
    for (size_t tried = 0; next != places.end() && tried < kNearest; ++next, ++tried) {
      Repeat r{begin, *next - begin, 0, {}};
      if (r.length < limits_.shortest) continue;
      r.times = stretches.common(begin, *next) / r.length + 1;
      if (r.times < limits_.fewest || !saves_more(r)) continue;
      r.times = alike_parts(r);
      if (r.times >= limits_.fewest && !is_worth(r)) r = several_together(r);
      if (r.times < limits_.fewest || !saves_more(r)) continue;
      best = std::move(r);
    }
    return best;
  }

  // Which call of the part that begins there gives an operand, if one does.
  std::optional<size_t> own_call(size_t begin, const Ref& operand) const {
    if (function_.is_parameter(operand) || function_.call_of(operand) < begin) return std::nullopt;
    return function_.call_of(operand) - begin;
  }

  // How many parts from the first on are alike in their operands, too.
  size_t alike_parts(const Repeat& r) const {
    for (size_t part = 1; part < r.times; ++part) {
      const size_t begin = r.first + part * r.length;
      for (size_t i = 0; i < r.length; ++i) {
        const std::span<const Ref> a = operands(r.first + i), b = operands(begin + i);
        if (words_[r.first + i] != words_[begin + i]) return part;
        for (size_t k = 0; k < a.size(); ++k) {
          const auto own = own_call(r.first, a[k]);
          if (own != own_call(begin, b[k])) return part;
          if (own && a[k].result != b[k].result) return part;
        }
      }
    }
    return r.times;
  }

  // Whether running the parts one by one costs little beside what they compute. A loop of small
  // kernels that the compiler fuses over its iterations is better left whole.
  bool is_worth(const Repeat& r) {
    int64_t elements = 0;
    bool is_fused = true;  // over the parts
    for (size_t i = r.first; i < r.first + r.length; ++i) {
      for (const lazy::Geometry* output : calls_[i].signature->outputs) {
        if (output != nullptr) elements += output->numel;
      }
      is_fused = is_fused && facts(i).work;
    }
    return elements >= limits_.elements && !(is_fused && is_chain(r));
  }

  // The same calls, of which each part has those of several; none where they are not many. The
  // compiler's time grows with their square.
  Repeat several_together(Repeat r) const {
    const size_t calls = r.length * r.times, parts = (kCallsTogether - 1) / r.length + 1;
    r.length *= parts;
    r.times = calls < kManyCalls ? 0 : r.times / parts;
    r.times = r.times < limits_.fewest ? 0 : alike_parts(r);
    if (r.length * r.times < kManyCalls) r.times = 0;
    return r;
  }

  // Whether the second part reads the first.
  bool is_chain(const Repeat& r) const {
    for (size_t i = r.first + r.length; i < r.first + 2 * r.length; ++i) {
      for (const Ref& operand : operands(i)) {
        const auto own = own_call(r.first, operand);
        if (own && *own < r.length) return true;
      }
    }
    return false;
  }

  // A value of each part.
  using Slot = std::vector<Ref>;

  std::span<const Ref> operands(size_t call) const { return function_.operands_of(calls_[call]); }

  Slot operand(const std::vector<uint32_t>& calls, size_t k) const {
    Slot slot;
    for (const uint32_t call : calls) slot.push_back(operands(call)[k]);
    return slot;
  }

  // The first part is the one that is lowered. Where it reads one value in two places and others
  // read two (`y = x`, then `y = layer(y, x)` again and again), it says too little: it is left out.
  void fill_from_a_model(Repeat& r) {
    while (r.times >= limits_.fewest && !fill(r)) {
      r.first += r.length;
      --r.times;
    }
  }

  // Finds the inputs and what is computed anew. Returns whether they differ in the first part
  // wherever they do in another.
  bool fill(Repeat& r) {
    r.parts.assign(r.times, {});
    std::set<Slot> known;
    const std::function<void(const Slot&)> need = [&](const Slot& slot) {
      if (!known.insert(slot).second) return;
      if (!is_computed_anew(slot)) {
        for (size_t part = 0; part < r.times; ++part) r.parts[part].inputs.push_back(slot[part]);
        return;
      }
      std::vector<uint32_t> calls;
      for (const Ref& value : slot) calls.push_back(call_of(value));
      for (size_t k = 0; k < operands(calls[0]).size(); ++k) need(operand(calls, k));
      for (size_t part = 0; part < r.times; ++part) r.parts[part].calls.push_back(calls[part]);
    };
    for (size_t i = 0; i < r.length; ++i) {
      std::vector<uint32_t> calls;
      for (size_t part = 0; part < r.times; ++part) {
        calls.push_back(static_cast<uint32_t>(r.first + part * r.length + i));
      }
      for (size_t k = 0; k < operands(calls[0]).size(); ++k) {
        if (!own_call(r.first, operands(calls[0])[k])) need(operand(calls, k));
      }
    }
    for (size_t part = 0; part < r.times; ++part) {
      for (size_t i = 0; i < r.length; ++i) {
        r.parts[part].calls.push_back(static_cast<uint32_t>(r.first + part * r.length + i));
      }
    }
    std::set<Ref> of_first;
    return std::ranges::all_of(known,
                               [&](const Slot& slot) { return of_first.insert(slot[0]).second; });
  }

  uint32_t call_of(const Ref& r) const { return static_cast<uint32_t>(function_.call_of(r)); }

  // Whether the compiler would fuse these values into their readers, were all of them there.
  bool is_computed_anew(const Slot& slot) {
    int64_t work = 0;
    for (const Ref& r : slot) {
      if (function_.is_parameter(r)) return false;
      const std::optional<int64_t> of_this = work_anew(call_of(r));
      if (!of_this || words_[call_of(r)] != words_[call_of(slot[0])]) return false;
      work = std::max(work, *of_this);
    }
    return work <= kMostAgain;
  }

  // The work of a value and of what is computed anew for it, where it is in no one's memory.
  std::optional<int64_t> work_anew(size_t call) {
    if (work_anew_[call]) return *work_anew_[call];
    std::optional<int64_t>& work = work_anew_[call].emplace();
    const Signature& s = *calls_[call].signature;
    const uint32_t index = function_.index_of(call);
    if (is_result_[index] || s.outputs.size() != 1 || s.num_seeds != 0) return work;
    work = facts(call).work;
    for (const size_t reader : readers_[index]) {
      // What is only moved is the same memory, or cheap.
      if (work != 0 && !facts(reader).work) return work = std::nullopt;
    }
    for (const Ref& operand : operands(call)) {
      if (!work || function_.is_parameter(operand)) continue;
      *work = std::min(*work + work_anew(function_.call_of(operand)).value_or(0), kMostAgain + 1);
    }
    return work;
  }

  const Function& function_;
  const RepeatLimits limits_;
  const std::vector<Function::Call>& calls_;
  const FactsOf facts_of_;
  std::vector<uint64_t> words_;
  std::vector<std::vector<size_t>> readers_;  // by Ref::index, as the next
  std::vector<bool> is_result_;
  std::unordered_map<const Signature*, CallFacts> facts_;
  std::vector<std::optional<std::optional<int64_t>>> work_anew_;  // of calls; once it is known
};

}  // namespace

std::vector<Repeat> find_repeats(const Function& function, const RepeatLimits& limits,
                                 c10::function_ref<CallFacts(const Signature&)> facts_of) {
  if (function.calls.size() / limits.shortest < limits.fewest) return {};
  return Finder(function, limits, facts_of).find();
}

}  // namespace torch_xla::executor
