// The CPU plugin with a profiler: its profile has an event for each run of a program, on the plane
// of a device and on the thread that launched it. PROFILING_PLUGIN chooses an oddity:
// "copy"   the profile is copied to memory of the caller, as the interface has it
// "start"  profiles cannot be started
// "stop"   they cannot be stopped
// "empty"  they hold nothing
// "long"   they are said to be a byte longer, as libtpu's are
// "broken" they are no profiles
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <pjrt_c_api.h>
#include <unistd.h>

#include "pjrt/profiler_extension.h"

namespace torch_xla::pjrt {

// The types of the interface are declared by its header, and are each plugin's own.
struct ProfilerHandle {
  std::string space;
  bool collected = false;
};
struct ProfilerError {
  int32_t code;
  std::string message;
};

namespace {

bool is_odd(const char* oddity) {
  const char* given = std::getenv("PROFILING_PLUGIN");
  return given != nullptr && std::strcmp(given, oddity) == 0;
}

// --- protocol buffers -------------------------------------------------------------------------

void add_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void add_number(std::string& message, uint64_t field, int64_t value) {
  add_varint(message, field << 3);
  add_varint(message, static_cast<uint64_t>(value));
}

void add_bytes(std::string& message, uint64_t field, const std::string& value) {
  add_varint(message, field << 3 | 2);
  add_varint(message, value.size());
  message += value;
}

// An entry of event_metadata (4) or stat_metadata (5) of an XPlane.
void add_metadata(std::string& plane, uint64_t field, int64_t id, const std::string& name,
                  const std::string& more = "") {
  std::string metadata = more, entry;
  add_number(metadata, 1, id);
  add_bytes(metadata, 2, name);
  add_number(entry, 1, id);
  add_bytes(entry, 2, metadata);
  add_bytes(plane, field, entry);
}

// --- what is seen -----------------------------------------------------------------------------

struct Run {
  int64_t begin, end, thread;  // nanoseconds since the epoch
};

std::mutex mutex;
bool is_running = false;
std::vector<Run> runs;
const PJRT_Api* real = nullptr;

int64_t now() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args* args) {
  const int64_t begin = now();
  PJRT_Error* error = real->PJRT_LoadedExecutable_Execute(args);
  const std::lock_guard lock(mutex);
  if (is_running) runs.push_back({begin, now(), gettid()});
  return error;
}

// A line of the plane, with an event for each of the runs.
std::string line_of(int64_t id, const std::string& name, const std::vector<Run>& seen) {
  std::string line;
  add_number(line, 1, id);
  add_bytes(line, 2, name);
  add_number(line, 3, seen.front().begin);
  for (const Run& run : seen) {
    std::string event, stat;
    add_number(stat, 1, 1);
    add_number(stat, 7, 2);  // refers to the name of metadata 2
    add_number(event, 1, 1);
    add_number(event, 2, (run.begin - seen.front().begin) * 1000);
    add_number(event, 3, (run.end - run.begin) * 1000);
    add_bytes(event, 4, stat);
    add_bytes(line, 4, event);
  }
  return line;
}

std::string space_of(const std::vector<Run>& seen) {
  std::string device, host, space, of_event;
  add_bytes(device, 2, "/device:GPU:0");
  add_bytes(device, 3, line_of(7, "Stream #7", seen));
  std::map<int64_t, std::vector<Run>> by_thread;
  for (const Run& run : seen) by_thread[run.thread].push_back(run);
  add_bytes(host, 2, "/host:CPU");
  for (const auto& [thread, its] : by_thread) add_bytes(host, 3, line_of(thread, "launcher", its));
  add_number(of_event, 1, 1);
  add_bytes(of_event, 5, "three words here");
  std::string stats;
  add_bytes(stats, 5, of_event);  // a field that nothing in torch_xla reads
  for (std::string* plane : {&device, &host}) {
    add_metadata(*plane, 4, 1, plane == &device ? "loop_fusion" : "Execute", stats);
    add_metadata(*plane, 5, 1, "hlo_module");
    add_metadata(*plane, 5, 2, "the_module");
    add_bytes(space, 1, *plane);
  }
  return space;
}

// --- the interface ----------------------------------------------------------------------------

ProfilerError* create(ProfilerCreateArgs* args) {
  const std::string_view options(args->options, args->options_size);
  if (options.find("\x28\x01") == options.npos) {  // field 5, version: 1
    return new ProfilerError{PJRT_Error_Code_INVALID_ARGUMENT, "expected options of version 1"};
  }
  args->profiler = new ProfilerHandle;
  return nullptr;
}

ProfilerError* destroy(ProfilerArgs* args) {
  const std::lock_guard lock(mutex);
  is_running = false;
  delete args->profiler;
  return nullptr;
}

ProfilerError* start(ProfilerArgs*) {
  if (is_odd("start")) {
    return new ProfilerError{PJRT_Error_Code_PERMISSION_DENIED, "no right to read the counters"};
  }
  const std::lock_guard lock(mutex);
  is_running = true;
  runs.clear();
  return nullptr;
}

ProfilerError* stop(ProfilerArgs* args) {
  const std::lock_guard lock(mutex);
  is_running = false;
  if (is_odd("stop")) {
    return new ProfilerError{PJRT_Error_Code_INTERNAL, "the counters were lost"};
  }
  std::string& space = args->profiler->space;
  if (!is_odd("empty") && !runs.empty()) space = space_of(runs);
  if (is_odd("long")) space += '\0';
  if (is_odd("broken")) space.resize(space.size() - 3);
  return nullptr;
}

ProfilerError* collect(ProfilerCollectArgs* args) {
  std::string& space = args->profiler->space;
  args->buffer_size = space.size();
  if (args->buffer != nullptr) {
    std::memcpy(args->buffer, space.data(), space.size());
  } else if (!is_odd("copy")) {
    args->buffer = reinterpret_cast<uint8_t*>(space.data());
  }
  return nullptr;
}

ProfilerApi profiler = {
    .struct_size = sizeof(ProfilerApi),
    .priv = nullptr,
    .error_destroy = [](ProfilerErrorArgs* args) -> ProfilerError* {
      delete args->error;
      return nullptr;
    },
    .error_message = [](ProfilerErrorMessageArgs* args) -> ProfilerError* {
      args->message = args->error->message.data();
      args->message_size = args->error->message.size();
      return nullptr;
    },
    .error_code = [](ProfilerErrorCodeArgs* args) -> ProfilerError* {
      args->code = args->error->code;
      return nullptr;
    },
    .create = create,
    .destroy = destroy,
    .start = start,
    .stop = stop,
    .collect = collect,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static PJRT_Api api;
  static ProfilerExtension extension{
      {sizeof(ProfilerExtension), PJRT_Extension_Type_Profiler, nullptr}, &profiler};
  if (real != nullptr) return &api;
  void* library = dlopen(TORCH_XLA_TEST_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  real = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
  std::memcpy(&api, real, std::min(sizeof(api), real->struct_size));
  api.PJRT_LoadedExecutable_Execute = execute;
  extension.base.next = real->extension_start;
  api.extension_start = &extension.base;
  return &api;
}

}  // namespace torch_xla::pjrt
