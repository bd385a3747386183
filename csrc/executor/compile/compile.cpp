#include "executor/compile/compile.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <span>
#include <system_error>
#include <thread>
#include <unordered_set>
#include <utility>

#include <c10/util/Exception.h>
#include <malloc.h>

#include "debug/metrics.h"
#include "debug/trace.h"
#include "debug/waits.h"
#include "executor/compile/compile_progress.h"
#include "executor/compile/new_state.h"
#include "executor/compile/observer.h"
#include "executor/compile/program_cache.h"
#include "executor/program/pieces.h"
#include "executor/run/doing.h"
#include "executor/run/in_flight.h"
#include "executor/run/launch.h"
#include "executor/run/replicas.h"
#include "executor/run/runtime.h"
#include "executor/stored/disk_cache.h"
#include "executor/stored/job_programs.h"
#include "lazy/lock.h"
#include "lazy/source.h"
#include "spmd/compiled_module.h"
#include "util/error.h"
#include "util/flags.h"
#include "util/hash.h"
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

  void add(const Program& program) {
    if (platform.empty() || !seen.insert(program.key).second) return;
    Elsewhere& added = programs.emplace_back();
    added.name = program.name;
    try {
      added.text = lower(program.function, program.interface, ops::target_of(platform)).text;
    } catch (const c10::Error& e) {
      added.refusal = e.what_without_backtrace();
    }
  }
};

AlsoLowered& also_lowered() {  // guarded by the graph lock
  static auto& all = *new AlsoLowered;
  return all;
}

// Counts the parameters whose memory results take over.
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

namespace {

// A program whose replicas exchange values runs on a device of each process. Theirs have to be one,
// so that they compare it with their exchanges.
void set_replicas(Program& program, const std::string& text, int device,
                  pjrt::CompileOptions& options) {
  if (program.exchanges == nullptr || Runtime::get().target().exchanges_on_host) return;
  const pjrt::Devices replicas = replicas_of(device);
  for (const ops::ExchangeNote& note : *program.exchanges) {
    const int64_t last = std::ranges::max(note.members);
    TXLA_CHECK_KIND(util::ErrorKind::Value, last < std::ssize(replicas.all),
                    "replicas: expected groups of the ", replicas.all.size(),
                    " replica(s) of this job, one a process, got replica ", last, ".");
  }
  options.set_devices(replicas, pjrt::Over::Replicas);
  ops::ExchangeNote note;
  note.size = std::ssize(replicas.all);
  for (int64_t i = 0; i < note.size; ++i) note.members.push_back(i);
  note.text = "program " + util::Hasher().add_bytes(text).finish().hex().substr(0, 8);
  note.line = program.place;
  ops::ExchangeNotes notes = *program.exchanges;
  notes.push_back(std::move(note));
  program.exchanges = std::make_shared<const ops::ExchangeNotes>(std::move(notes));
}

Unmade lowered(std::string_view name, const Graph& graph) {
  Runtime& runtime = Runtime::get();
  Unmade unmade;
  unmade.program = std::make_shared<Program>();
  Program& program = *unmade.program;
  program.name = name;
  program.place = lazy::source_line();
  program.key = graph.key;
  program.interface = graph.interface();
  program.num_inputs = count_inputs(graph);
  if (graph.plan != nullptr) {
    static const debug::Counter planned("CompileWithAutoSharding");
    planned.add();
  }
  for (const Value& result : graph.results) program.results.push_back(&result.geometry());
  program.function = graph.function();
  if (ops::ExchangeNotes notes = ops::exchanges_of(program.function); !notes.empty()) {
    program.exchanges = std::make_shared<const ops::ExchangeNotes>(std::move(notes));
  }
  program.flags = util::flags::cache_key_text();
  debug::Span span("lower");
  span.detail("graph", [&] { return graph.key.hex(); });
  std::optional<LoweredPieces> pieces;
  if (runtime.devices(graph.device).all.size() == 1) {
    pieces = lower_in_pieces(program.function, program.interface, runtime.target());
  }
  if (pieces) {
    unmade.lowered = std::move(pieces->executables);
    program.plan = std::move(pieces->plan);
  } else {
    unmade.lowered = {lower(program.function, program.interface, runtime.target())};
  }
  for (const Lowered& lowered : unmade.lowered) {
    program.reuses_buffers |= lowered.reuses_buffers;
    program.can_fail |= lowered.can_fail;
  }
  also_lowered().add(program);
  static const debug::Metric aliases("InputOutputAliasCount", debug::Unit::Value);
  aliases.add(static_cast<double>(num_reused(program)));
  unmade.options = compile_options_of(graph.device);
  set_replicas(program, text_of(unmade.lowered), graph.device, unmade.options);
  for (const spmd::Sharding* s : graph.shardings) {
    unmade.options.allow_spmd_sharding_propagation_to_output.push_back(s == nullptr);
  }
  return unmade;
}

// A function holds what the key holds; a text also shows what a rule read beside it.
void check_text(const Program& program, const Unmade& now) {
  const std::string text = text_of(now.lowered);
  TXLA_CHECK(program.text.empty() || program.text == text,
             "XLA_CHECK_GRAPH_KEY: expected one program for graph ", program.key.hex(),
             ", got another:\n", text, "\nthan the one that was compiled:\n", program.text,
             "\nPlease report this.");
}

}  // namespace

std::shared_ptr<const Program> find_program(std::string_view name, const Graph& graph, bool again) {
  static const debug::Counter hits("CachedCompile");
  static const debug::Metric size("TensorsGraphSize", debug::Unit::Value);
  if (!again) {
    size.add(static_cast<double>(graph.calls.size() + graph.parameters.size() +
                                 graph.numbers.floats.size() + graph.numbers.ints.size()));
  }
  auto program = programs().find(graph.key);
  if (program == nullptr) return nullptr;
  if (!again) hits.add();
  count_update(graph);
  if (util::flag::XLA_CHECK_GRAPH_KEY()) check_text(*program, lowered(name, graph));
  return program;
}

Lack lack_of(std::string_view name, const Graph& graph) {
  if (auto constants = constants_of_new_state(graph); !constants.empty()) {
    return NewState{std::move(constants)};
  }
  if (Unplanned lacking = unplanned(graph)) return lacking;
  return lowered(name, graph);
}

namespace {

// An executable of a program that is not there yet.
struct Absent {
  size_t place;
  ProgramKey key;  // none where neither a disk nor a job wants it
  std::optional<JobPrograms::Claim> claim = {};
};

// Fills the places of the executables, on as many threads as there are processors: most passes of
// a compiler run on one. Those of a job that another process has claimed stay absent; the first is
// claimed. Needs no lock: others may record meanwhile.
void compile(const Unmade& unmade, std::span<Absent> absent, JobPrograms* job, Program& program) {
  for (const Absent& part : absent) {
    TXLA_VLOG(3) << "graph " << program.key.hex() << ":\n" << unmade.lowered[part.place].text;
  }
  std::atomic<size_t> next = 0;
  std::vector<std::exception_ptr> failures(absent.size());
  size_t failed = 0;
  const auto compile_next = [&] {
    for (size_t i; (i = next++) < absent.size();) {
      Absent& part = absent[i];
      const std::string& text = unmade.lowered[part.place].text;
      try {
        if (job != nullptr && i > 0) part.claim = job->claim(part.key);
        if (job != nullptr && !part.claim) continue;
        program.executables[part.place] =
            pjrt::Executable::compile(Runtime::get().client(), text, unmade.options);
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
    throw NotMade{e, observer().failed(unmade.lowered[absent[failed].place].text)};
  }
}

// Reads from the compiled module how the results are split.
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

// Reads the facts of the executables that launches ask for.
void read_facts(const Unmade& unmade, Program& program) {
  read_shardings(program);
  for (size_t i = 0; i < program.executables.size(); ++i) {
    program.need_gates.push_back(needs_gate(*program.executables[i], unmade.lowered[i].text));
  }
}

}  // namespace

void NotMade::raise() const { fail(error, context); }

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

std::vector<Absent> load(const Unmade& unmade, Program& program) {
  DiskCache* disk = DiskCache::get();
  std::vector<Absent> absent;
  for (const Lowered& lowered : unmade.lowered) {
    DiskCache::Loaded loaded;
    if (disk != nullptr) loaded = disk->load(lowered.text, unmade.options);
    if (loaded.executable == nullptr) {
      absent.push_back({program.executables.size(), std::move(loaded.key)});
    }
    program.executables.push_back(std::move(loaded.executable));
    program.files.push_back(std::move(loaded.file));
  }
  return absent;
}

// Keeps an executable for later processes, and gives it to those of the job that wait for it.
void share(Absent& part, const pjrt::Executable& executable) {
  static const debug::Metric time("PersistentCacheStoreTime");
  DiskCache* disk = DiskCache::get();
  const bool is_stored = disk != nullptr && disk->is_written();
  if (!is_stored && !part.claim) return;
  const util::Unlocked unlocked;
  try {
    const auto begin = Clock::now();
    const std::string bytes = pack(part.key, executable);
    const bool in_folder = is_stored && disk->store(part.key, bytes);
    if (is_stored) time.add(std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
    if (part.claim) part.claim->give(bytes, in_folder);
  } catch (const pjrt::Error& error) {
    if (is_stored) disk->cannot_pack(error);
    if (part.claim && error.code() == PJRT_Error_Code_UNIMPLEMENTED) part.claim->refuse();
  }
}

std::string described(const Program& program) {
  return util::concat("\"", program.name, "\"", program.place.empty() ? "" : " of ", program.place);
}

// Compiles those that no other process of the job does. Returns the seconds that it took.
double compile_own(const Unmade& unmade, std::span<Absent> absent, JobPrograms* job,
                   const Cause& cause) {
  static const debug::Metric time("CompileTime"), eager_time("EagerOpCompileTime");
  Program& program = *unmade.program;
  observer().compiling(program, cause);
  const auto start = Clock::now();
  const Doing doing({Work::Compiles, described(program), start});
  {
    const debug::TimedScope scope(is_eager(cause) ? eager_time : time);
    debug::Span span("compile");
    add_details(program, span);
    compile(unmade, absent, job, program);
  }
  const Seconds taken = Clock::now() - start;
  debug::WaitScope::pause(taken.count());
  for (Absent& part : absent) {
    if (const auto& made = program.executables[part.place]) share(part, *made);
  }
  return taken.count();
}

// Takes what other processes of the job compile. Those that cannot be had stay absent.
void take(const Unmade& unmade, std::span<const Absent> absent, JobPrograms& job, Origin& origin) {
  static const debug::Counter taken("JobCompileTaken"), failures("JobCompileFailure");
  Program& program = *unmade.program;
  DiskCache* disk = DiskCache::get();
  for (const Absent& part : absent) {
    auto& executable = program.executables[part.place];
    const auto begin = Clock::now();
    const auto given = job.await(part.key, described(program));
    const Seconds waited = Clock::now() - begin;
    origin.waited += waited.count();
    debug::WaitScope::pause(waited.count());
    if (!given) continue;
    const util::Unlocked unlocked;
    if (given->in_folder && disk != nullptr) {
      DiskCache::Loaded loaded = disk->load(unmade.lowered[part.place].text, unmade.options);
      executable = std::move(loaded.executable);
      program.files[part.place] = std::move(loaded.file);
    } else if (const std::string_view packed = packed_in(given->bytes, part.key); !packed.empty()) {
      try {
        executable = load_packed(packed, unmade.options);
      } catch (const pjrt::Error& error) {
        TXLA_LOG(WARNING) << "one compile for a job: expected a program that the plugin can load "
                             "from rank "
                          << given->rank << ", got '" << error.what() << "'. It is compiled.";
      }
      if (executable != nullptr && disk != nullptr) disk->store(part.key, given->bytes);
    }
    origin.rank = given->rank;
    (executable != nullptr ? taken : failures).add();
  }
}

}  // namespace

// From the disk where there is a cache that has it, else from the compiler: in a job, that of the
// first process which needs it.
std::optional<double> make(const Unmade& unmade, const Cause& cause) {
  Program& program = *unmade.program;
  static const debug::Counter hits("CachedCompile"), misses("UncachedCompile"),
      made("CreateCompileHandles"), as_stablehlo("StableHloCompile");  // all are
  made.add();
  const auto begin = Clock::now();
  std::vector<Absent> absent = load(unmade, program);
  JobPrograms* job = absent.empty() ? nullptr : JobPrograms::get();
  const auto is_there = [&](const Absent& part) {
    return program.executables[part.place] != nullptr;
  };
  Origin origin;
  std::optional<double> compiled;  // seconds
  if (job != nullptr) {
    for (Absent& part : absent) {
      if (!part.key.text.empty()) continue;  // the disk has looked for it
      part.key = key_of(unmade.lowered[part.place].text, unmade.options);
    }
    size_t first = 0;
    while (first < absent.size() && !(absent[first].claim = job->claim(absent[first].key))) ++first;
    const auto unclaimed = std::span(absent).subspan(first);
    if (!unclaimed.empty()) compiled = compile_own(unmade, unclaimed, job, cause);
    std::erase_if(absent, is_there);
    take(unmade, absent, *job, origin);
    std::erase_if(absent, is_there);
  }
  if (!absent.empty()) {
    compiled = compiled.value_or(0) + compile_own(unmade, absent, nullptr, cause);
  }
  read_facts(unmade, program);
  if (!compiled) {
    hits.add();
    const Seconds taken = Clock::now() - begin;
    origin.seconds = taken.count() - origin.waited;
    observer().loaded(program, unmade.lowered, cause, origin);
  } else {
    misses.add();
    as_stablehlo.add();
    observer().compiled(program, unmade.lowered, cause);
  }
  return compiled;
}

void keep(const Unmade& unmade, const Cause& cause, std::optional<double> seconds) {
  unmade.program->needs = needs_of(*unmade.program);
  observer().made(*unmade.program, cause, seconds);
  if (util::flag::XLA_CHECK_GRAPH_KEY()) unmade.program->text = text_of(unmade.lowered);
  const lazy::GraphLock lock;
  programs().insert(unmade.program->key, unmade.program,
                    static_cast<size_t>(util::flag::XLA_COMPILATION_CACHE_SIZE()));
}

std::vector<std::shared_ptr<const Program>> cached_programs() {
  const lazy::GraphLock lock;
  return programs().programs();
}

void drop_programs_with(const util::Hash128& signature) { programs().drop_users_of(signature); }

void clear_cached_programs() {
  const lazy::GraphLock lock;
  programs().clear();
  observer().dropped();
}

}  // namespace torch_xla::executor
