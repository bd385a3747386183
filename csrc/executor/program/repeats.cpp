#include "executor/program/repeats.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "executor/program/numbers.h"
#include "util/hash.h"

namespace torch_xla::executor {
namespace {

using lazy::Function;
using lazy::Node;
using lazy::Signature;
using lazy::Value;

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
      : limits_(limits), calls_(function.calls), facts_of_(facts_of) {
    for (size_t i = 0; i < calls_.size(); ++i) {
      place_[calls_[i]] = i;
      for (const Value& operand : calls_[i]->operands()) readers_[operand.node.get()].push_back(i);
    }
    for (const Value& result : function.results) {
      if (result) results_.insert(result.node.get());
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
    for (const Node* call : calls_) work_anew(*call);  // operands first: chains are long
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
      const Node& call = *calls_[place];
      const Signature& s = call.signature();
      util::Hasher h;
      h.add(s.key);
      for (size_t i = 0; i < s.numbers.size(); ++i) {
        if (!constant_numbers().contains(s, call.numbers(), i)) continue;
        h.add(i).add(static_cast<uint64_t>(call.numbers()[i].integer));
        h.add(std::bit_cast<uint64_t>(call.numbers()[i].imag));
      }
      words.push_back(h.finish().low);
      places[words.back()].push_back(place);
    }
    for (const auto& [word, there] : places) {
      if (there.size() < limits_.fewest || !facts(*calls_[there[0]]).can_fail) continue;
      for (const size_t place : there) {
        words[place] = util::Hasher().add(word).add(place).finish().low;
      }
    }
    return words;
  }

  const CallFacts& facts(const Node& call) {
    const auto [there, is_new] = facts_.try_emplace(&call.signature());
    if (is_new) there->second = facts_of_(call.signature());
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
      Repeat r{begin, *next - begin, 0, {}, {}};
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
  std::optional<size_t> own_call(size_t begin, const Value& operand) const {
    const auto there = place_.find(operand.node.get());
    if (there == place_.end() || there->second < begin) return std::nullopt;
    return there->second - begin;
  }

  // How many parts from the first on are alike in their operands, too.
  size_t alike_parts(const Repeat& r) const {
    for (size_t part = 1; part < r.times; ++part) {
      const size_t begin = r.first + part * r.length;
      for (size_t i = 0; i < r.length; ++i) {
        const Node& a = *calls_[r.first + i];
        const Node& b = *calls_[begin + i];
        if (words_[r.first + i] != words_[begin + i]) return part;
        for (size_t k = 0; k < a.operands().size(); ++k) {
          const auto own = own_call(r.first, a.operands()[k]);
          if (own != own_call(begin, b.operands()[k])) return part;
          if (own && a.operands()[k].index != b.operands()[k].index) return part;
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
      const Node& call = *calls_[i];
      for (size_t k = 0; k < call.num_outputs(); ++k) {
        const lazy::Geometry* output = call.signature().outputs[k];
        if (output != nullptr) elements += output->numel;
      }
      is_fused = is_fused && facts(call).work;
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
      for (const Value& operand : calls_[i]->operands()) {
        const auto there = place_.find(operand.node.get());
        if (there == place_.end()) continue;
        if (there->second >= r.first && there->second < r.first + r.length) return true;
      }
    }
    return false;
  }

  // A value of each part.
  using Slot = std::vector<Result>;

  static Slot operand(const std::vector<const Node*>& calls, size_t k) {
    Slot slot;
    for (const Node* call : calls) {
      slot.push_back({call->operands()[k].node.get(), call->operands()[k].index});
    }
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
    r.inputs.assign(r.times, {});
    std::set<Slot> known;
    const std::function<void(const Slot&)> need = [&](const Slot& slot) {
      if (!known.insert(slot).second) return;
      if (!is_computed_anew(slot)) {
        for (size_t part = 0; part < r.times; ++part) r.inputs[part].push_back(slot[part]);
        return;
      }
      std::vector<const Node*> calls;
      for (const Result& r : slot) calls.push_back(r.node);
      for (size_t k = 0; k < calls[0]->operands().size(); ++k) need(operand(calls, k));
      for (size_t part = 0; part < r.times; ++part) r.parts[part].push_back(calls[part]);
    };
    for (size_t i = 0; i < r.length; ++i) {
      std::vector<const Node*> calls;
      for (size_t part = 0; part < r.times; ++part) {
        calls.push_back(calls_[r.first + part * r.length + i]);
      }
      for (size_t k = 0; k < calls[0]->operands().size(); ++k) {
        if (!own_call(r.first, calls[0]->operands()[k])) need(operand(calls, k));
      }
    }
    for (size_t part = 0; part < r.times; ++part) {
      const auto own = calls_.begin() + r.first + part * r.length;
      r.parts[part].insert(r.parts[part].end(), own, own + r.length);
    }
    std::set<Result> of_first;
    return std::ranges::all_of(known,
                               [&](const Slot& slot) { return of_first.insert(slot[0]).second; });
  }

  uint64_t word_of(const Result& r) const { return words_[place_.at(r.node)]; }

  // Whether the compiler would fuse these values into their readers, were all of them there.
  bool is_computed_anew(const Slot& slot) {
    int64_t work = 0;
    for (const Result& r : slot) {
      const std::optional<int64_t> of_this = work_anew(*r.node);
      if (!of_this || word_of(r) != word_of(slot[0])) return false;
      work = std::max(work, *of_this);
    }
    return work <= kMostAgain;
  }

  // The work of a value and of what is computed anew for it, where it is in no one's memory.
  std::optional<int64_t> work_anew(const Node& call) {
    const auto [there, is_new] = work_anew_.try_emplace(&call);
    if (!is_new) return there->second;
    if (!place_.contains(&call) || results_.contains(&call) || call.num_outputs() != 1 ||
        call.signature().num_seeds != 0) {
      return std::nullopt;
    }
    std::optional<int64_t> work = facts(call).work;
    for (const size_t reader : readers_[&call]) {
      // What is only moved is the same memory, or cheap.
      if (work != 0 && !facts(*calls_[reader]).work) return std::nullopt;
    }
    for (const Value& operand : call.operands()) {
      if (!work || operand.node->is_data()) continue;
      *work = std::min(*work + work_anew(*operand.node).value_or(0), kMostAgain + 1);
    }
    return work_anew_[&call] = work;
  }

  const RepeatLimits limits_;
  const std::vector<const Node*>& calls_;
  const FactsOf facts_of_;
  std::vector<uint64_t> words_;
  std::unordered_map<const Node*, size_t> place_;
  std::unordered_map<const Node*, std::vector<size_t>> readers_;
  std::unordered_set<const Node*> results_;
  std::unordered_map<const Signature*, CallFacts> facts_;
  std::unordered_map<const Node*, std::optional<int64_t>> work_anew_;
};

}  // namespace

std::vector<Repeat> find_repeats(const Function& function, const RepeatLimits& limits,
                                 c10::function_ref<CallFacts(const Signature&)> facts_of) {
  if (function.calls.size() / limits.shortest < limits.fewest) return {};
  return Finder(function, limits, facts_of).find();
}

}  // namespace torch_xla::executor
