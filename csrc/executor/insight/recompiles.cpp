#include "executor/insight/recompiles.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "executor/compile/compile.h"
#include "executor/compile/difference.h"
#include "lazy/lock.h"
#include "lazy/operator.h"
#include "lazy/print.h"
#include "util/diagnostics.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/log.h"

namespace torch_xla::executor {
namespace {

using util::concat;
using Kind = Difference::Kind;
using Programs = std::vector<std::shared_ptr<const Program>>;

// Guarded by the GraphLock.
struct History {
  static constexpr size_t kMost = 1000;     // recompiles that are kept
  static constexpr size_t kPlaces = 10000;  // whose programs are counted

  std::unordered_map<std::string, uint64_t> programs_at;
  std::deque<Recompile> recompiles;

  // Returns the number of the program among those of its place.
  uint64_t count(const Program& program) {
    if (programs_at.size() >= kPlaces) programs_at.clear();
    return ++programs_at[program.name + "\n" + program.place];
  }
};

History& history() {
  static auto& all = *new History;
  return all;
}

// That of the same line with the most calls in common.
std::shared_ptr<const Program> nearest(const Programs& earlier, const Program& program) {
  constexpr int kMost = 64;  // the most recently used of them are looked at
  std::shared_ptr<const Program> best;
  Likeness closest;
  int seen = 0;
  for (const auto& other : earlier) {
    if (other->name != program.name || other->place != program.place) continue;
    const Likeness likeness_of = likeness(program.function, other->function);
    if (best == nullptr || closest < likeness_of) {
      best = other;
      closest = likeness_of;
    }
    if (++seen == kMost) break;
  }
  return best;
}

// What differs between programs whose functions do not.
struct Outside {
  std::string kind, what;
};

// The first call that reads a parameter.
std::string read_by(const lazy::Function& function, size_t parameter) {
  for (const lazy::Function::Call& call : function.calls) {
    const auto is_it = [&](const lazy::Ref& r) { return r.index == parameter; };
    if (std::ranges::none_of(function.operands_of(call), is_it)) continue;
    const std::string line = call.source.str();
    return concat("which ", call.signature->op->name, line.empty() ? "" : " at " + line, " reads");
  }
  return "which is a result";
}

std::string spec(const spmd::Sharding* sharding) {
  return sharding == nullptr ? "{replicated}" : sharding->gspmd();
}

Outside outside(const Program& now, const Program& before) {
  const std::vector<Parameter>&a = now.interface.parameters, &b = before.interface.parameters;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const std::string input = concat("input ", i, " (", lazy::types_of({a[i].geometry}), ", ",
                                     read_by(now.function, i), ")");
    if (a[i].sharding != b[i].sharding) {
      return {"sharding", concat(input, " is split as ", spec(a[i].sharding), ", was as ",
                                 spec(b[i].sharding))};
    }
    if ((a[i].reused_by >= 0) != (b[i].reused_by >= 0)) {
      return {"memory", concat("the memory of ", input,
                               a[i].reused_by >= 0 ? " is reused for a result, was not"
                                                   : " is not reused for a result, was")};
    }
  }
  if (now.interface.results != before.interface.results) {
    return {"sharding", "results are split in another way"};
  }
  std::istringstream flags(now.flags), before_flags(before.flags);
  for (std::string x, y; std::getline(flags, x) && std::getline(before_flags, y);) {
    if (x != y) return {"settings", concat("the flag ", x, " was ", y.substr(y.find('=') + 1))};
  }
  return {"settings", "the calls and operands are equal; what else a program depends on is not"};
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

// The program that has read a value shortly before and has this call, if any.
std::shared_ptr<const Program> read_with(const Programs& earlier, const lazy::Function::Call& call,
                                         std::string_view op = {}) {
  constexpr size_t kRecent = 16;
  for (const auto& program : std::span(earlier).first(std::min(kRecent, earlier.size()))) {
    if (program->name != "read") continue;
    for (const lazy::Function::Call& other : program->function.calls) {
      const bool found =
          op.empty() ? other.signature->key == call.signature->key
                     : other.signature->op->name == op && other.source.str() == call.source.str();
      if (found) return program;
    }
  }
  return nullptr;
}

std::string advice_on_shape(const Difference& d) {
  const lazy::Geometry &now = *d.type, &before = *d.earlier_type;
  if (now.sizes.size() == before.sizes.size() && !now.sizes.empty()) {
    size_t different = 0, dim = 0;
    for (size_t i = 0; i < now.sizes.size(); ++i) {
      if (now.sizes[i] == before.sizes[i]) continue;
      ++different;
      dim = i;
    }
    if (different == 1 && dim == 0 && now.sizes[0] < before.sizes[0]) {
      return "Each size has a program of its own. If this is the last batch of an epoch, leave it "
             "out (DataLoader(drop_last=True)) or pad it.";
    }
  }
  return "Each size has a program of its own. Pad to a few sizes; in torch.compile, "
         "torch._dynamo.mark_dynamic says that a size changes.";
}

// Whether an optimizer writes parameters in it, in the forms that those of torch.optim have on xla.
bool updates(const lazy::Function& function) {
  return std::ranges::any_of(function.calls, [](const lazy::Function::Call& call) {
    const std::string& op = call.signature->op->name;
    return has(op, "_fused_") || has(op, "_foreach_");
  });
}

constexpr const char* kTrainAndEval =
    "model.train() and model.eval() have a program each. That is as it should be if both are used.";

std::string advice(const Difference& d, const Program& now, const Program& before,
                   const Programs& earlier) {
  if (d.kind == Kind::Results) {
    return "A tensor is kept beyond the step, or no longer is. Keep the same in each step.";
  }
  const lazy::Function::Call& call = d.call ? *d.call : *d.earlier_call;
  const std::string& op = call.signature->op->name;
  if (read_with(earlier, call, "torch_xla::nonzero") != nullptr) {
    return "A mask selects as many elements as it has true values, so each number of them has a "
           "program of its own. Keep the size: torch.where(mask, x, 0), or a product with the "
           "mask.";
  }
  switch (d.kind) {
    case Kind::Shape:
      return advice_on_shape(d);
    case Kind::DType:
      return "Convert tensors to one dtype before the step.";
    case Kind::Attribute:
      if (d.argument == "training" || d.argument == "train") {
        return kTrainAndEval;
      }
      if (has(d.what, " tensors, was ") || has(d.what, " tensor, was ")) {
        return "Each length of a list has a program of its own. Keep the length, or write into a "
               "tensor of the full size, as in x.index_copy_(0, place, value[None]) with a place "
               "on xla.";
      }
      if (d.argument == "output_mask") {
        return "Other tensors want a gradient than before (requires_grad).";
      }
      if (d.argument == "start" || d.argument == "end" || d.argument == "length") {
        return "Each size of a slice has a program of its own. Slice to one of a few sizes, or pad "
               "what is shorter; a place alone can be a tensor on xla, as in "
               "x.index_select(0, place).";
      }
      return "Python values that are no factors or terms, such as sizes, dimensions and indices, "
             "are parts of the program. Keep them the same, or make an index a tensor on xla "
             "instead of reading it with .item().";
    case Kind::Results:
    case Kind::Calls:
    case Kind::Inputs:
      break;
  }
  if (const auto read = read_with(earlier, call)) {
    return concat("It was computed apart when a value was read at ", read->place,
                  ". Read after the barrier (torch_xla.sync()), or in each step alike; "
                  "xm.add_step_closure reads without waiting.");
  }
  if (d.kind == Kind::Calls && d.earlier_call && d.earlier_call->num_operands == 0) {
    return "The earlier program also made tensors that this one finds made, as the first step of a "
           "loop does. That is as it should be if it ends here; torch_xla.sync() before the loop "
           "gives all steps one program.";
  }
  if (has(op, "dropout") || has(op, "batch_norm")) {
    return kTrainAndEval;
  }
  if (updates(now.function) != updates(before.function)) {
    return "One of the two has no optimizer step, as in gradient accumulation: both are kept, and "
           "there is nothing to do.";
  }
  if (has(op, "_fused_") || has(op, "_foreach_")) {
    return "An optimizer has other parameters than before, or makes their state. That is as it "
           "should be if it ends here.";
  }
  return "Python took another way: a branch, or other tensors that want gradients. Each way has a "
         "program, which is kept. What depends on values can stay in one: torch.where, or "
         "torch.cond.";
}

Recompile explained(const Program& now, const Program& before, const Programs& earlier) {
  Recompile r;
  if (const std::optional<Difference> d = difference(now.function, before.function)) {
    r.kind = name_of(d->kind);
    r.what = d->what;
    if (d->call) r.line = d->call->source.str();
    if (d->earlier_call) r.earlier_line = d->earlier_call->source.str();
    r.advice = advice(*d, now, before, earlier);
    return r;
  }
  const Outside other = outside(now, before);
  r.kind = other.kind;
  r.what = other.what;
  if (other.kind == "memory") {
    r.advice =
        "Whether something else still refers to a tensor when its step overwrites it (a list, "
        "a copy of state_dict()) is a part of the program. Let go of it, or keep it in each "
        "step.";
  } else if (other.kind == "sharding") {
    r.advice = "Mark tensors alike in each step (mark_sharding).";
  } else {
    r.advice = "Set it before the first step.";
  }
  return r;
}

// 2, 3, 5, 9, 17, ..: the 1st, 2nd, 4th, 8th recompile of a line.
bool is_told(uint64_t number) { return ((number - 1) & (number - 2)) == 0; }

}  // namespace

std::string Recompile::str() const {
  char time[32];
  std::snprintf(time, sizeof(time), " in %.2f s", seconds);
  std::string text = concat(from_disk ? "Loaded" : "Recompiled", " \"", name, "\"",
                            place.empty() ? "" : " of " + place,
                            from_job    ? " from another process of the job"
                            : from_disk ? " from the disk cache"
                                        : time,
                            ": its program ", number, ".\n  ", what);
  if (!line.empty()) text += ", at " + line;
  if (!earlier_line.empty() && earlier_line != line) text += ", before at " + earlier_line;
  return text + ".\n  " + advice;
}

void note_program(const Program& program, const Cause& cause, std::optional<double> seconds) {
  if constexpr (!util::kDiagnostics) return;
  if (!cause.is_of_line || cause.of_run == kExamined.of_run) return;
  const lazy::GraphLock lock;
  const uint64_t number = history().count(program);
  if (number == 1) return;
  const Programs earlier = cached_programs();
  const std::shared_ptr<const Program> before = nearest(earlier, program);
  if (before == nullptr) return;  // it was dropped
  Recompile r = explained(program, *before, earlier);
  r.number = number;
  r.name = program.name;
  r.place = program.place;
  r.seconds = seconds.value_or(0);
  r.from_disk = !seconds;
  r.from_job = r.from_disk && std::ranges::count(program.files, "") > 0;
  r.key = program.key.hex();
  r.earlier_key = before->key.hex();
  if (is_told(number) && util::flag::XLA_EXPLAIN()) {
    TXLA_LOG(WARNING) << r.str();
  }
  if (history().recompiles.size() == History::kMost) history().recompiles.pop_front();
  history().recompiles.push_back(std::move(r));
}

void forget_lines() {
  const lazy::GraphLock lock;
  history().programs_at.clear();
}

std::vector<Recompile> recompiles(bool clear) {
  const lazy::GraphLock lock;
  std::deque<Recompile>& kept = history().recompiles;
  std::vector<Recompile> all(kept.begin(), kept.end());
  if (clear) kept.clear();
  return all;
}

}  // namespace torch_xla::executor
