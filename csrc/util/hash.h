// A 128-bit hash for graph keys and memo tables.
// Two independently seeded multiply-fold lanes; not cryptographic, but wide enough never to collide
// by chance.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace torch_xla::util {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;

  friend bool operator==(const Hash128&, const Hash128&) = default;

  std::string hex() const {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string text(32, '0');
    for (int i = 0; i < 16; ++i) {
      text[15 - i] = kDigits[(high >> (4 * i)) & 15];
      text[31 - i] = kDigits[(low >> (4 * i)) & 15];
    }
    return text;
  }
};

struct Hash128Hasher {
  size_t operator()(const Hash128& hash) const { return hash.low; }
};

// Folds the 128-bit product, so every input bit reaches every output bit.
inline uint64_t multiply_fold(uint64_t a, uint64_t b) {
  const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

class Hasher {
 public:
  // A walk adds three words a call: a function's call would cost as much again.
  [[gnu::always_inline]] Hasher& add(uint64_t word) {
    low_ = multiply_fold(low_ ^ word, 0x9e3779b97f4a7c15ull) + word;
    high_ =
        multiply_fold(high_ ^ std::rotl(word, 32), 0xd6e8feb86659fd93ull) + 0x632be59bd9b4e019ull;
    return *this;
  }
  Hasher& add(const Hash128& hash) { return add(hash.low).add(hash.high); }
  Hasher& add_double(double value) { return add(std::bit_cast<uint64_t>(value)); }
  Hasher& add_bytes(std::string_view text) {
    add(text.size());
    while (!text.empty()) {
      uint64_t word = 0;
      const size_t n = text.size() < 8 ? text.size() : 8;
      std::memcpy(&word, text.data(), n);
      add(word);
      text.remove_prefix(n);
    }
    return *this;
  }
  Hash128 finish() const {
    return {multiply_fold(low_ ^ high_, 0xa0761d6478bd642full),
            multiply_fold(std::rotl(high_, 17) ^ low_, 0xe7037ed1a0b428dbull)};
  }

 private:
  uint64_t low_ = 0x243f6a8885a308d3ull;
  uint64_t high_ = 0x13198a2e03707344ull;
};

}  // namespace torch_xla::util
