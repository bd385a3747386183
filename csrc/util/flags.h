// Every environment variable the project reads, declared once: type, default, cache key, help.
// C++, Python and docs/flags.md share this table; values are read when used, never at import.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

// X(type, name, default, in_cache_key, help)
//   type          Bool, Int, String, or OptionalString: one that may be given as empty
//   default       text, parsed as the environment's value would be; an Int of "-1" means "not set"
//   in_cache_key  true if a compiled program depends on the flag
#define TXLA_FLAGS(X)                                                                            \
  X(String, PJRT_DEVICE, "", false,                                                              \
    "Kind of device to use: `CPU`, `CUDA`, `TPU` or the name of a registered plugin.")           \
  X(Bool, PJRT_SELECT_DEFAULT_DEVICE, "1", false,                                                \
    "A device is chosen where `PJRT_DEVICE` names none; `0`: that is an error.")                 \
  X(String, PJRT_LIBRARY_PATH, "", false,                                                        \
    "Path of the PJRT plugin library to load, instead of the one that is found.")                \
  X(Int, CPU_NUM_DEVICES, "1", false, "Number of devices that the CPU plugin shows.")            \
  X(Bool, XLA_USE_SPMD, "0", false,                                                              \
    "All devices are one, as after `xr.use_spmd()`. Read with the first use of a device.")       \
  X(Int, XLA_JOB_HEARTBEAT_SECONDS, "6", false,                                                  \
    "In a job of several processes, one that is silent for longer is lost, and the others end. " \
    "`0`: silence is no reason.")                                                                \
  X(Int, XLA_JOB_COMPILE_SECONDS, "1800", false,                                                 \
    "For so long a process of a job waits for a program that another of them compiles, and "     \
    "then compiles it itself. `0`: each compiles for itself.")                                   \
  X(Int, XLA_JOB_WAIT_SECONDS, "30", false,                                                      \
    "A process of a job that waits for others longer than that has told what each of them "      \
    "does. `0`: nothing is told.")                                                               \
  X(String, XLA_JOB_STORE, "", false,                                                            \
    "Where the store of a job is, as `host:port`; `xmp.spawn` sets it for its processes.")       \
  X(String, XLA_AUTO_SPMD_MESH, "", false,                                                       \
    "Sizes of the mesh for auto-sharding, as `2,2`; otherwise it tries some.")                   \
  X(Int, GPU_NUM_DEVICES, "-1", false,                                                           \
    "Number of GPUs that this process uses; all where it is not set.")                           \
  X(String, PJRT_NAMES_AND_LIBRARY_PATHS, "", false,                                             \
    "Libraries of plugins by name, as `name:path,name:path`.")                                   \
  X(String, TPU_LIBRARY_PATH, "", false,                                                         \
    "Path of libtpu; for any other plugin, `<NAME>_LIBRARY_PATH`.")                              \
  X(String, PJRT_ALLOCATOR_FRACTION, "", false,                                                  \
    "Part of a GPU's memory that the plugin may take, from 0 to 1; the plugin's choice "         \
    "otherwise.")                                                                                \
  X(String, PJRT_ALLOCATOR_PREALLOCATE, "", false,                                               \
    "`0`: the plugin takes GPU memory as it needs it. `1`: at once.")                            \
  X(Bool, PJRT_ALLOCATOR_CUDA_ASYNC, "0", false,                                                 \
    "GPU memory comes from CUDA's own asynchronous allocator.")                                  \
  X(String, XLA_FLAGS, "", true,                                                                 \
    "Options of the XLA compiler, read by the plugin itself when it is loaded.")                 \
  X(String, LIBTPU_INIT_ARGS, "", true,                                                          \
    "Options of the TPU's compiler and runtime, read by libtpu itself when it is loaded.")       \
  X(Bool, XLA_SYNC_WAIT, "0", false, "Each sync waits until the device has finished.")           \
  X(Bool, XLA_BACKGROUND_COMPILE, "1", false,                                                    \
    "The program goes on after a sync whose graph is new, which is compiled meanwhile and run "  \
    "once it is there.")                                                                         \
  X(Bool, XLA_USE_EAGER_DEBUG_MODE, "0", false,                                                  \
    "Each operation is compiled and run on its own as soon as it is called.")                    \
  X(Bool, XLA_NO_SPECIAL_SCALARS, "0", false,                                                    \
    "Accepted: the scalars 0 and 1 are parameters of the program like any other in any case.")   \
  X(Bool, XLA_USE_BF16, "0", true,                                                               \
    "The device holds float32 and float64 tensors as bfloat16; PyTorch sees their own dtype.")   \
  X(Bool, XLA_DOWNCAST_BF16, "0", true,                                                          \
    "The device holds float32 tensors as bfloat16 and float64 tensors as float32.")              \
  X(Bool, XLA_USE_32BIT_LONG, "0", true, "The device holds int64 tensors as int32.")             \
  X(Bool, XLA_IR_DEBUG, "0", false, "Records the Python stack with each operation.")             \
  X(Bool, XLA_HLO_DEBUG, "0", true,                                                              \
    "Writes the recorded Python source lines into the compiled program.")                        \
  X(Int, XLA_COMPILATION_CACHE_SIZE, "2048", false,                                              \
    "Number of compiled programs kept in memory; the least recently used goes first.")           \
  X(OptionalString, XLA_PERSISTENT_CACHE_PATH, "", false,                                        \
    "Folder that keeps compiled programs for later processes: `torch_xla` among the user's "     \
    "caches where it is not set, none where it is empty. `xr.initialize_cache` sets it.")        \
  X(Bool, XLA_PERSISTENT_CACHE_READ_ONLY, "0", false,                                            \
    "This process reads that folder and writes nothing to it.")                                  \
  X(Int, XLA_PERSISTENT_CACHE_SIZE, "4294967296", false,                                         \
    "Bytes of the programs in that folder; the least recently used go first. `-1`: any.")        \
  X(Bool, XLA_CHECK_GRAPH_KEY, "0", false,                                                       \
    "Compares the whole graph, not only its key, when a compiled program is found.")             \
  X(Bool, XLA_NO_DONATION, "0", true,                                                            \
    "Buffers that a step overwrites are kept instead of being reused for its results.")          \
  X(Bool, XLA_USE_SHARDY, "1", true,                                                             \
    "Shardy partitions programs for several devices where the plugin has it; `0`: GSPMD.")       \
  X(String, XLA_COMPILE_IN_PIECES, "auto", true,                                                 \
    "Parts that repeat in a large program, such as layers, are compiled once and run one "       \
    "after the other: `auto` on the CPU, `1` everywhere, graphs of torch.compile too, `0` "      \
    "nowhere.")                                                                                  \
  X(String, XLA_HOST_KERNELS, "auto", true,                                                      \
    "PyTorch's CPU kernels inside programs of the CPU platform, in place of lowerings: `auto` "  \
    "where they are faster, `all` where there is one, `none`.")                                  \
  X(String, XLA_HOST_FALLBACK, "warn", false,                                                    \
    "What becomes of operators that can only run on the host, outside of programs: `allow`, "    \
    "`warn` once per operator, `error`. `torch_xla.experimental.host_fallback` sets it.")        \
  X(Bool, XLA_CPU_HUGE_PAGES, "1", false,                                                        \
    "Large blocks of the CPU plugin's memory come in huge pages, and freed memory is kept for "  \
    "the next run. Read once, with the first use of a device.")                                  \
  X(String, HOME, "", false, "The user's folder; the user's caches are in `.cache` there.")      \
  X(String, XDG_CACHE_HOME, "", false, "Folder of the user's caches, in place of `~/.cache`.")   \
  X(Int, TF_CPP_MIN_LOG_LEVEL, "1", false,                                                       \
    "Least level that is logged: 0 info, 1 warning, 2 error, 3 nothing.")                        \
  X(String, TF_CPP_VMODULE, "", false,                                                           \
    "Verbose logging, as `module=level,...`; needs `TF_CPP_MIN_LOG_LEVEL=0`.")                   \
  X(Bool, TF_CPP_LOG_THREAD_ID, "0", false, "Log lines carry the thread's id.")                  \
  X(Bool, PT_XLA_DEBUG, "0", false, "The same as `PT_XLA_DEBUG_LEVEL=2`.")                       \
  X(Bool, XLA_EXPLAIN, "1", false,                                                               \
    "Warns where a line needs another compiled program than before, and says why; tells at "     \
    "exit which lines waited for values, if that was much.")                                     \
  X(Bool, XLA_DEBUG_NANS, "0", false,                                                            \
    "Looks for NaN in what each run gives, and raises at the next one with the line that made "  \
    "the first.")                                                                                \
  X(OptionalString, XLA_REPORT_FILE, "", false,                                                  \
    "File to which `torch_xla.debug.report` writes its page at exit. Read at import.")           \
  X(Int, PT_XLA_DEBUG_LEVEL, "-1", false,                                                        \
    "Tells what is compiled and why, and what is too frequent (1), and each run too (2).")       \
  X(String, PT_XLA_DEBUG_FILE, "", false,                                                        \
    "File to which that is added; otherwise it is printed to stderr.")                           \
  X(Int, PT_XLA_DEBUG_MAX_FRAME, "8", false, "Number of Python's frames that it shows.")         \
  X(String, XLA_SAVE_TENSORS_FILE, "", false,                                                    \
    "File to which each graph is added when it is run, with the lines that asked for it.")       \
  X(String, XLA_SAVE_TENSORS_FMT, "text", false,                                                 \
    "Its form there: `text`, `dot`, `hlo`, `stablehlo`, or some, as in `hlo|text`.")             \
  X(String, XLA_SAVE_HLO_FILE, "", false,                                                        \
    "File to which a program is added that cannot be compiled or that fails.")                   \
  X(Bool, XLA_DUMP_HLO_GRAPH, "0", false, "The error of such a program holds its text, too.")    \
  X(Bool, XLA_DUMP_POST_OPTIMIZATIONS, "0", false,                                               \
    "HLO that is asked for is what the compiler has made of it.")                                \
  X(String, XLA_METRICS_FILE, "", false,                                                         \
    "File to which the report of the metrics is added after each step.")                         \
  X(Bool, XLA_DUMP_FATAL_STACK, "0", false,                                                      \
    "Prints the stacks of C++ and Python where a signal ends the process. Read at import.")      \
  X(Bool, XLA_DYNAMO_DEBUG, "0", false,                                                          \
    "Prints what becomes of each graph of `torch.compile(backend=\"openxla\")`.")

namespace torch_xla::util {

enum class FlagType { Bool, Int, String, OptionalString };

struct FlagInfo {
  const char* name;
  FlagType type;
  const char* default_text;
  bool in_cache_key;
  const char* help;
};

namespace flags {
inline constexpr FlagInfo kTable[] = {
#define TXLA_FLAG_ROW(type, name, default_text, in_cache_key, help) \
  {#name, FlagType::type, default_text, in_cache_key, help},
    TXLA_FLAGS(TXLA_FLAG_ROW)
#undef TXLA_FLAG_ROW
};

enum class Id : std::size_t {
#define TXLA_FLAG_ID(type, name, default_text, in_cache_key, help) name,
  TXLA_FLAGS(TXLA_FLAG_ID)
#undef TXLA_FLAG_ID
};

// Returns the environment's text, or the default where the variable is unset or empty.
std::string text(const FlagInfo& info);
// These throw an Error of kind Value, which names the variable, where the text does not fit the
// type.
bool read_Bool(const FlagInfo& info);
std::int64_t read_Int(const FlagInfo& info);
std::string read_String(const FlagInfo& info);
std::optional<std::string> read_OptionalString(const FlagInfo& info);

// Returns "NAME=value" lines of all flags that a compiled program depends on, in table order.
std::string cache_key_text();
}  // namespace flags

// The accessors: flag::XLA_SYNC_WAIT() is a bool, flag::CPU_NUM_DEVICES() an int64_t, and so on.
// Each call reads the environment (tens of nanoseconds): once a step is fine, once an operation
// not.
namespace flag {
#define TXLA_FLAG_ACCESSOR(type, name, default_text, in_cache_key, help)                 \
  inline auto name() {                                                                   \
    return flags::read_##type(flags::kTable[static_cast<std::size_t>(flags::Id::name)]); \
  }
TXLA_FLAGS(TXLA_FLAG_ACCESSOR)
#undef TXLA_FLAG_ACCESSOR
}  // namespace flag

}  // namespace torch_xla::util
