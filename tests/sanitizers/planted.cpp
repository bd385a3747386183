// Faults on purpose, which the sanitizers of this build must report: test_planted.py calls them
// from Python, beside torch and the extension, under the options and suppressions of the other
// tests.
#include <cstddef>
#include <limits>
#include <thread>

#define PLANTED extern "C" __attribute__((visibility("default")))

namespace {
volatile int zero = 0;  // the compiler cannot know its value
int shared = 0;
}  // namespace

PLANTED int use_after_free() {
  int* volatile numbers = new int[4];  // volatile: the compiler does not see that it is freed
  numbers[zero] = 1;
  delete[] numbers;
  return *static_cast<volatile int*>(numbers + zero);
}

PLANTED int heap_overflow() {
  int* numbers = new int[4 + static_cast<size_t>(zero)];
  const int found = *static_cast<volatile int*>(numbers + 4 + zero);
  delete[] numbers;
  return found;
}

PLANTED int signed_overflow() { return std::numeric_limits<int>::max() - zero + 1; }

PLANTED int data_race() {
  const auto count = [] {
    for (int i = 0; i < 10000; ++i) *static_cast<volatile int*>(&shared) = shared + 1;
  };
  std::thread one(count), two(count);
  one.join();
  two.join();
  return shared;
}
