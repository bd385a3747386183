#include "executor/compile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <utility>

#include <c10/util/Exception.h>
#include <malloc.h>

#include "debug/metrics.h"
#include "debug/trace.h"
#include "executor/background.h"
#include "executor/compile_progress.h"
#include "executor/deferred.h"
#include "executor/disk_cache.h"
#include "executor/dumps.h"
#include "executor/in_flight.h"
#include "executor/new_state.h"
#include "executor/pieces.h"
#include "executor/program_cache.h"
#include "executor/recompiles.h"
#include "executor/runtime.h"
#include "executor/waits.h"
#include "lazy/source.h"
#include "spmd/compiled_module.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/log.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

using lazy::Value;

ProgramCache& programs() {  // guarded by the graph lock
  static auto& cache = *new ProgramCache;
  return cache;
}

std::string text_of(const std::vector<Lowered>& lowered) {
  std::string text;
  for (const Lowered& l : lowered) text += l.text;
  return text;
}

struct AlsoLowered {
  std::string platform;  // none: nothing is
  std::unordered_set<util::Hash128, util::Hash128Hasher> seen;
  std::vector<Elsewhere> programs;

  void add(std::string_view name, const Graph& graph, const Interface& interface) {
    if (platform.empty() || !seen.insert(graph.key).second) return;
    Elsewhere& added = programs.emplace_back();
    added.name = name;
    try {
      added.text = lower(graph, interface, ops::target_of(platform)).text;
    } catch (const c10::Error& e) {
      added.refusal = e.what_without_backtrace();
    }
  }
};

AlsoLowered& also_lowered() {  // guarded by the graph lock
  static auto& all = *new AlsoLowered;
  return all;
}

// How many parameters' memory results take over.
size_t num_reused(const Program& program) {
  if (!program.reuses_buffers) return 0;
  return static_cast<size_t>(
      std::ranges::count_if(program.interface.parameters,
                            [](const Parameter& parameter) { return parameter.reused_by >= 0; }));
}

}  // namespace

void lower_also_for(std::string platform) {
  const lazy::GraphLock lock;
  also_lowered().platform = std::move(platform);
}

std::vector<Elsewhere> take_also_lowered() {
  const lazy::GraphLock lock;
  return std::exchange(also_lowered().programs, {});
}

void count_update(const Graph& graph) {
  const auto updates = [](int32_t result) { return result >= 0; };
  if (std::ranges::any_of(graph.reused_by, updates)) count_step();
}

std::shared_ptr<const Program> find_program(std::string_view name, const Graph& graph,
                                            Missing& missing) {
  static const debug::Counter hits("CachedCompile");
  static const debug::Metric size("TensorsGraphSize", debug::Unit::Value);
  if (graph.key != missing.key) {  // else it was counted a moment ago
    size.add(static_cast<double>(graph.calls.size() + graph.parameters.size() +
                                 graph.numbers.floats.size() + graph.numbers.ints.size()));
  }
  auto program = programs().find(graph.key);
  const bool check = util::flag::XLA_CHECK_GRAPH_KEY();
  if (program != nullptr) {
    // A program that was missing a moment ago was counted then.
    if (graph.key != missing.key) hits.add();
    count_update(graph);
    if (!check) return program;
  } else if ((missing.compilation = Compilation::find(graph.key)) != nullptr) {
    if (graph.key != missing.key) hits.add();
    missing.key = graph.key;
    if (!missing.compilation->ended()) return nullptr;
    count_update(graph);
    return std::exchange(missing.compilation, nullptr)->take();
  } else {
    missing.constants = constants_of_new_state(graph);
    if (!missing.constants.empty()) return nullptr;
    missing.unplanned = unplanned(graph);
    if (missing.unplanned) return nullptr;
  }
  Runtime& runtime = Runtime::get();
  missing.key = graph.key;
  auto made = std::make_shared<Program>();
  made->name = name;
  made->place = lazy::source_line();
  made->key = graph.key;
  made->interface = graph.interface();
  made->num_inputs = count_inputs(graph);
  if (graph.plan != nullptr) {
    static const debug::Counter planned("CompileWithAutoSharding");
    planned.add();
  }
  for (const Value& result : graph.results) made->results.push_back(&result.geometry());
  made->recipe = Recipe(graph);
  made->flags = util::flags::cache_key_text();
  debug::Span span("lower");
  span.detail("graph", [&] { return graph.key.hex(); });
  std::optional<LoweredPieces> pieces;
  if (runtime.devices(graph.device).size() == 1) {
    pieces = lower_in_pieces(graph, made->interface, runtime.target());
  }
  if (pieces) {
    missing.lowered = std::move(pieces->executables);
    made->plan = std::move(pieces->plan);
  } else {
    missing.lowered = {lower(graph, made->interface, runtime.target())};
  }
  for (const Lowered& lowered : missing.lowered) {
    made->reuses_buffers |= lowered.reuses_buffers;
    made->can_fail |= lowered.can_fail;
  }
  also_lowered().add(name, graph, made->interface);
  static const debug::Metric aliases("InputOutputAliasCount", debug::Unit::Value);
  aliases.add(static_cast<double>(num_reused(*made)));
  missing.program = std::move(made);
  missing.options = compile_options_of(graph.device);
  for (const spmd::Sharding* s : graph.shardings) {
    missing.options.allow_spmd_sharding_propagation_to_output.push_back(s == nullptr);
  }
  if (program == nullptr) return nullptr;
  // Recipes hold what the key holds; a text also shows what a rule read beside it.
  const std::string text = text_of(missing.lowered);
  TXLA_CHECK(program->text.empty() || program->text == text,
             "XLA_CHECK_GRAPH_KEY: expected one program for graph ", graph.key.hex(),
             ", got another:\n", text, "\nthan the one that was compiled:\n", program->text,
             "\nPlease report this.");
  return program;
}

namespace {

// Fills the places `absent` of the executables, on as many threads as there are processors: most
// passes of a compiler run on one. Needs no lock: others may record meanwhile.
void compile(const Missing& missing, const std::vector<size_t>& absent, Program& program) {
  for (const size_t i : absent) {
    TXLA_VLOG(3) << "graph " << missing.key.hex() << ":\n" << missing.lowered[i].text;
  }
  std::atomic<size_t> next = 0;
  std::vector<std::exception_ptr> failures(absent.size());
  size_t failed = 0;
  const auto compile_next = [&] {
    for (size_t i; (i = next++) < absent.size();) {
      const std::string& text = missing.lowered[absent[i]].text;
      try {
        program.executables[absent[i]] = Runtime::get().client().compile(text, missing.options);
      } catch (...) {
        failures[i] = std::current_exception();
        next = absent.size();
      }
      // Compiling a large program leaves hundreds of MiB of free heap behind; they go back here.
      if (text.size() > (1 << 17)) malloc_trim(0);
    }
  };
  try {
    const util::Unlocked unlocked;
    const CompileProgress progress(program);
    {
      const size_t processors = std::max(1u, std::thread::hardware_concurrency());
      std::vector<std::jthread> helpers;
      try {
        while (helpers.size() + 1 < std::min(absent.size(), processors)) {
          helpers.emplace_back(compile_next);
        }
      } catch (const std::system_error&) {  // no more threads: those that are there do the work
      }
      compile_next();
    }
    for (; failed < failures.size(); ++failed) {
      if (failures[failed]) std::rethrow_exception(failures[failed]);
    }
  } catch (const pjrt::Error& e) {
    throw NotMade{e, show_failed(missing.lowered[absent[failed]].text)};
  }
}

// How the compiler has split the results.
void read_shardings(Program& program) {
  if (program.interface.mesh == nullptr) return;
  static const debug::Counter of_dynamo("UncachedOutputSharding");
  if (program.name == kDynamo.program) of_dynamo.add();
  const pjrt::OptimizedModule module = program.executables[0]->optimized_module();
  program.shardings =
      spmd::read_output_shardings(module.bytes, module.with_config(), program.interface.mesh);
  TXLA_CHECK(program.shardings.size() == program.results.size(),
             "sharding: expected the compiler to tell how it has split ", program.results.size(),
             " results, it has told of ", program.shardings.size(), ". Please report this.");
  for (size_t i = 0; i < program.shardings.size(); ++i) {  // the compiler tells of their arrays
    const spmd::Sharding* s = program.interface.results[i];
    if (s != nullptr && s->is_manual) program.shardings[i] = s;
  }
}

// What launches ask of the executables.
void read_facts(const Missing& missing, Program& program) {
  read_shardings(program);
  for (size_t i = 0; i < program.executables.size(); ++i) {
    program.need_gates.push_back(needs_gate(*program.executables[i], missing.lowered[i].text));
  }
}

}  // namespace

void NotMade::raise() const { fail(error, context); }

// From the disk where there is a cache that has it, else from the compiler.
std::optional<double> make(const Missing& missing, const Cause& cause) {
  Program& program = *missing.program;
  using Seconds = std::chrono::duration<double>;
  static const debug::Counter hits("CachedCompile"), misses("UncachedCompile"),
      made("CreateCompileHandles"), as_stablehlo("StableHloCompile");  // all are
  static const debug::Metric time("CompileTime"), eager_time("EagerOpCompileTime");
  made.add();
  DiskCache* disk = DiskCache::get();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<size_t> absent;
  for (const Lowered& lowered : missing.lowered) {
    DiskCache::Loaded loaded;
    if (disk != nullptr) loaded = disk->load(lowered.text, missing.options);
    if (loaded.executable == nullptr) absent.push_back(program.executables.size());
    program.executables.push_back(std::move(loaded.executable));
    program.files.push_back(std::move(loaded.file));
  }
  if (absent.empty()) {
    const Seconds taken = std::chrono::steady_clock::now() - begin;
    read_facts(missing, program);
    hits.add();
    tell_loaded(program, missing.lowered, cause, taken.count());
    return std::nullopt;
  }
  tell_compilation(program, cause);
  const auto start = std::chrono::steady_clock::now();
  {
    const debug::TimedScope scope(is_eager(cause) ? eager_time : time);
    debug::Span span("compile");
    add_details(program, span);
    compile(missing, absent, program);
  }
  const Seconds taken = std::chrono::steady_clock::now() - start;
  WaitScope::pause(taken.count());
  read_facts(missing, program);
  misses.add();
  as_stablehlo.add();
  if (!is_eager(cause)) tell_compiled(program, missing.lowered);
  if (disk != nullptr) {
    for (const size_t i : absent) {
      disk->store(missing.lowered[i].text, missing.options, *program.executables[i]);
    }
  }
  return taken.count();
}

void keep(const Missing& missing, const Cause& cause, std::optional<double> seconds) {
  missing.program->needs = needs_of(*missing.program);
  note_program(*missing.program, cause, seconds);
  if (util::flag::XLA_CHECK_GRAPH_KEY()) missing.program->text = text_of(missing.lowered);
  const lazy::GraphLock lock;
  programs().insert(missing.key, missing.program,
                    static_cast<size_t>(util::flag::XLA_COMPILATION_CACHE_SIZE()));
}

// A program for several devices is partitioned, by Shardy where the plugin has it.
pjrt::CompileOptions compile_options_of(int device) {
  const lazy::GraphLock lock;
  const Runtime& runtime = Runtime::get();
  const std::vector<pjrt::Device>& devices = runtime.devices(device);
  pjrt::CompileOptions options;
  for (const pjrt::Device& d : devices) options.device_ids.push_back(d.id());
  options.num_partitions = static_cast<int>(devices.size());
  options.use_spmd = devices.size() > 1;
  options.use_shardy = options.use_spmd && !runtime.target().lacks.shardy;
  options.env_overrides = runtime.compile_options();
  return options;
}

std::vector<std::shared_ptr<const Program>> cached_programs() {
  const lazy::GraphLock lock;
  return programs().programs();
}

void drop_programs_with(const util::Hash128& signature) { programs().drop_users_of(signature); }

void clear_cached_programs() {
  await_deferred();  // what is being compiled would come after
  const lazy::GraphLock lock;
  programs().clear();
  forget_lines();
}

}  // namespace torch_xla::executor
