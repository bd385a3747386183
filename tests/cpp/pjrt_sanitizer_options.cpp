// Sanitizer defaults of the test program, in which the plugin is the one library that is not
// instrumented.
#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED const char* __asan_default_options();
EXPORTED const char* __tsan_default_options();
EXPORTED const char* __tsan_default_suppressions();

// A test asks the plugin for more memory than there is.
const char* __asan_default_options() { return "allocator_may_return_null=1"; }
const char* __tsan_default_options() { return "allocator_may_return_null=1"; }

// Locks inside the plugin are invisible, so what it does with memory looks like a race.
const char* __tsan_default_suppressions() { return "race:xla_cpu_pjrt.so\n"; }
