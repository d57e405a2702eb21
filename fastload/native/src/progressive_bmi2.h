/* The places of bits in a mask with BMI2's PDEP, for the instruction set of TARGET. See progressive_scan.h. */
#include "progressive_pass.h"

#include <immintrin.h>

TARGET INLINE uint64_t bit_below_bmi2(uint64_t from, int num)
{
    const int more = __builtin_popcountll(from) - 1 - num;
    return more < 0 ? 0 : _pdep_u64((uint64_t)1 << more, from);
}
