#pragma once
#include <cstring>

struct __half {
  _Float16 value;
};
inline float __half2float(__half number) { return (float)number.value; }
inline __half __float2half_rn(float value) { return {(_Float16)value}; }
inline unsigned short __half_as_ushort(__half number) {
  unsigned short bits;
  std::memcpy(&bits, &number, 2);
  return bits;
}
inline __half __ushort_as_half(unsigned short bits) {
  __half number;
  std::memcpy(&number, &bits, 2);
  return number;
}
