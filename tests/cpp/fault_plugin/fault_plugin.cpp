// The CPU plugin, in which chosen calls fail and runs can be held. A test loads the library a
// second time and says what is to happen by the functions at its end (tests/fault_plugin.py).
//
// A call fails at once, before the real plugin has seen it, or late: the real plugin does the work,
// takes the inputs over that it may, and then the event and all results are those of a failure, as
// is whatever reads them.
#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <thread>

#include "wrapped_plugin.h"

namespace {

enum Kind { kRun, kCompile, kUpload, kDownload, kKinds };
enum Hold { kNothing, kLaunch, kEnd, kCompilation };

struct Armed {
  int64_t count = 0;  // calls since the last fault_arm()
  int64_t nth = 0;    // the call that fails; 0: none
  PJRT_Error_Code code = PJRT_Error_Code_INTERNAL;
  bool is_late = false;
  bool has_fired = false;
};

using FailurePtr = std::shared_ptr<const Failure>;

std::mutex mutex;
std::condition_variable changed;
std::array<Armed, kKinds> armed;
Hold hold = kNothing;
int64_t num_held = 0;
std::map<PJRT_Buffer*, FailurePtr> failed_buffers;
std::map<PJRT_Event*, FailurePtr> failed_events;
std::set<PJRT_Event*> held_events;  // those that are not ready before fault_release()

// Counts a call. Returns its failure, if it is the one that is to fail.
FailurePtr next(Kind kind, bool* is_late = nullptr) {
  static constexpr const char* kNames[] = {"run", "compilation", "upload", "download"};
  const std::lock_guard lock(mutex);
  Armed& a = armed[kind];
  if (++a.count != a.nth) return nullptr;
  a.has_fired = true;
  if (is_late != nullptr) *is_late = a.is_late;
  return std::make_shared<Failure>(Failure{a.code, "fault plugin: " + std::string(kNames[kind]) +
                                                       " " + std::to_string(a.nth) +
                                                       " fails on purpose"});
}

FailurePtr failure_of(PJRT_Buffer* buffer) {
  const std::lock_guard lock(mutex);
  const auto it = failed_buffers.find(buffer);
  return it == failed_buffers.end() ? nullptr : it->second;
}

FailurePtr failure_of(PJRT_Event* event) {
  const std::lock_guard lock(mutex);
  const auto it = failed_events.find(event);
  return it == failed_events.end() ? nullptr : it->second;
}

bool is_held(PJRT_Event* event) {
  const std::lock_guard lock(mutex);
  return held_events.contains(event);
}

void wait_for_release(PJRT_Event* event) {
  std::unique_lock lock(mutex);
  changed.wait(lock, [event] { return !held_events.contains(event); });
}

// --- events -----------------------------------------------------------------------------------

PJRT_Error* event_destroy(PJRT_Event_Destroy_Args* args) {
  {
    const std::lock_guard lock(mutex);
    failed_events.erase(args->event);
    held_events.erase(args->event);
  }
  return real->PJRT_Event_Destroy(args);
}

PJRT_Error* event_is_ready(PJRT_Event_IsReady_Args* args) {
  PJRT_Error* error = real->PJRT_Event_IsReady(args);
  args->is_ready = args->is_ready && !is_held(args->event);
  return error;
}

PJRT_Error* event_error(PJRT_Event_Error_Args* args) {
  const FailurePtr failure = failure_of(args->event);
  return failure != nullptr ? error_of(*failure) : real->PJRT_Event_Error(args);
}

PJRT_Error* event_await(PJRT_Event_Await_Args* args) {
  const FailurePtr failure = failure_of(args->event);
  wait_for_release(args->event);
  PJRT_Error* error = real->PJRT_Event_Await(args);
  return failure != nullptr ? error_of(*failure) : error;
}

struct Callback {
  PJRT_Event_OnReadyCallback callback;
  void* argument;
  FailurePtr failure;
};

PJRT_Error* event_on_ready(PJRT_Event_OnReady_Args* args) {
  auto* waiting = new Callback{args->callback, args->user_arg, failure_of(args->event)};
  PJRT_Event_OnReady_Args ours = *args;
  ours.user_arg = waiting;
  ours.callback = [](PJRT_Error* error, void* argument) {
    const std::unique_ptr<Callback> c(static_cast<Callback*>(argument));
    c->callback(c->failure != nullptr ? error_of(*c->failure) : error, c->argument);
  };
  if (!is_held(args->event)) return real->PJRT_Event_OnReady(&ours);
  // The event may be destroyed before: what is waited for is that nothing is held any more.
  std::thread([ours] {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [] { return hold == kNothing; });
    }
    ours.callback(nullptr, ours.user_arg);
  }).detach();
  return nullptr;
}

void mark(PJRT_Event* event, const FailurePtr& failure, bool held) {
  if (event == nullptr) return;
  const std::lock_guard lock(mutex);
  if (failure != nullptr) failed_events[event] = failure;
  if (held && hold == kEnd) held_events.insert(event);
}

// --- buffers ----------------------------------------------------------------------------------

PJRT_Error* buffer_destroy(PJRT_Buffer_Destroy_Args* args) {
  {
    const std::lock_guard lock(mutex);
    failed_buffers.erase(args->buffer);
  }
  return real->PJRT_Buffer_Destroy(args);
}

PJRT_Error* ready_event(PJRT_Buffer_ReadyEvent_Args* args) {
  PJRT_Error* error = real->PJRT_Buffer_ReadyEvent(args);
  if (error == nullptr) mark(args->event, failure_of(args->buffer), false);
  return error;
}

PJRT_Error* upload(PJRT_Client_BufferFromHostBuffer_Args* args) {
  bool is_late = false;
  const FailurePtr failure = next(kUpload, &is_late);
  if (failure != nullptr && !is_late) return error_of(*failure);
  PJRT_Error* error = real->PJRT_Client_BufferFromHostBuffer(args);
  if (error == nullptr && failure != nullptr) {
    const std::lock_guard lock(mutex);
    failed_buffers[args->buffer] = failure;
  }
  return error;
}

PJRT_Error* download(PJRT_Buffer_ToHostBuffer_Args* args) {
  bool is_late = false;
  FailurePtr failure = args->dst == nullptr ? nullptr : next(kDownload, &is_late);
  if (failure != nullptr && !is_late) return error_of(*failure);
  if (const FailurePtr earlier = failure_of(args->src)) failure = earlier;
  PJRT_Error* error = real->PJRT_Buffer_ToHostBuffer(args);
  if (error == nullptr) mark(args->event, failure, true);
  return error;
}

PJRT_Error* copy_to_device(PJRT_Buffer_CopyToDevice_Args* args) {
  PJRT_Error* error = real->PJRT_Buffer_CopyToDevice(args);
  if (const FailurePtr failure = failure_of(args->buffer); error == nullptr && failure != nullptr) {
    const std::lock_guard lock(mutex);
    failed_buffers[args->dst_buffer] = failure;
  }
  return error;
}

// --- programs ---------------------------------------------------------------------------------

PJRT_Error* compile(PJRT_Client_Compile_Args* args) {
  const FailurePtr failure = next(kCompile);
  {
    std::unique_lock lock(mutex);
    if (hold == kCompilation) ++num_held;
    changed.wait(lock, [] { return hold != kCompilation; });
  }
  return failure != nullptr ? error_of(*failure) : real->PJRT_Client_Compile(args);
}

PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args* args) {
  FailurePtr failure;
  for (size_t d = 0; d < args->num_devices && failure == nullptr; ++d) {
    for (size_t i = 0; i < args->num_args && failure == nullptr; ++i) {
      failure = failure_of(args->argument_lists[d][i]);
    }
  }
  bool is_late = true;
  if (const FailurePtr own = next(kRun, &is_late)) failure = own;
  if (failure != nullptr && !is_late) return error_of(*failure);
  {
    std::unique_lock lock(mutex);
    if (hold == kLaunch || hold == kEnd) ++num_held;
    changed.notify_all();
    changed.wait(lock, [] { return hold != kLaunch; });
  }
  PJRT_Error* error = real->PJRT_LoadedExecutable_Execute(args);
  if (error != nullptr) return error;
  const size_t outputs = failure == nullptr ? 0 : num_outputs(args->executable);
  for (size_t d = 0; d < args->num_devices; ++d) {
    if (args->device_complete_events != nullptr) {
      mark(args->device_complete_events[d], failure, true);
    }
    const std::lock_guard lock(mutex);
    for (size_t i = 0; i < outputs; ++i) failed_buffers[args->output_lists[d][i]] = failure;
  }
  return nullptr;
}

}  // namespace

extern "C" {

#define VISIBLE __attribute__((visibility("default")))

// The nth call of a kind from now on fails with `code`, at once or late; 0: none does.
VISIBLE void fault_arm(int kind, int64_t nth, int code, int is_late) {
  const std::lock_guard lock(mutex);
  armed.at(static_cast<size_t>(kind)) = {0, nth, static_cast<PJRT_Error_Code>(code), is_late != 0,
                                         false};
}

// Returns the calls of a kind since it was armed.
VISIBLE int64_t fault_count(int kind) {
  const std::lock_guard lock(mutex);
  return armed.at(static_cast<size_t>(kind)).count;
}

VISIBLE int fault_has_fired(int kind) {
  const std::lock_guard lock(mutex);
  return armed.at(static_cast<size_t>(kind)).has_fired;
}

// From now on, 1: launches do not return, 2: runs and reads do not end, 3: compilations do not
// return.
VISIBLE void fault_hold(int what) {
  const std::lock_guard lock(mutex);
  hold = static_cast<Hold>(what);
  num_held = 0;
}

VISIBLE void fault_release() {
  const std::lock_guard lock(mutex);
  hold = kNothing;
  held_events.clear();
  changed.notify_all();
}

// Returns the runs, or compilations, that came to the plugin since fault_hold().
VISIBLE int64_t fault_num_held() {
  const std::lock_guard lock(mutex);
  return num_held;
}

VISIBLE const PJRT_Api* GetPjrtApi() {
  static PJRT_Api* const api = wrap_cpu_plugin();
  if (api == nullptr) return nullptr;
  api->PJRT_Event_Destroy = event_destroy;
  api->PJRT_Event_IsReady = event_is_ready;
  api->PJRT_Event_Error = event_error;
  api->PJRT_Event_Await = event_await;
  api->PJRT_Event_OnReady = event_on_ready;
  api->PJRT_Buffer_Destroy = buffer_destroy;
  api->PJRT_Buffer_ReadyEvent = ready_event;
  api->PJRT_Buffer_ToHostBuffer = download;
  api->PJRT_Buffer_CopyToDevice = copy_to_device;
  api->PJRT_Client_BufferFromHostBuffer = upload;
  api->PJRT_Client_Compile = compile;
  api->PJRT_LoadedExecutable_Execute = execute;
  return api;
}

}  // extern "C"
