/* The inverse transform and colours with AVX-512. See idct_avx512.h and colors_vector.h. */
#include "fastload.h"

#ifdef FASTLOAD_X86
#include "idct_avx512.h"

#define ALL16(number) _mm512_set1_epi16((short)(number))
#define MULHI _mm512_mulhi_epi16
#define SHIFT16(x, n) _mm512_srai_epi16(x, (unsigned)(n))
#define PACK_UNSIGNED _mm512_packus_epi16
#define STORE_PIXELS store_avx512

/* Which red or green (64 and more) each byte of 64 pixels is, and which blue. */
static const uint8_t PLACES[3][64] = {
    {0, 64, 0, 1, 65, 1, 2, 66, 2, 3, 67, 3, 4, 68, 4, 5, 69, 5, 6, 70, 6, 7, 71, 7, 8, 72, 8, 9, 73, 9, 10, 74, 10,
     11, 75, 11, 12, 76, 12, 13, 77, 13, 14, 78, 14, 15, 79, 15, 16, 80, 16, 17, 81, 17, 18, 82, 18, 19, 83, 19, 20,
     84, 20, 21},
    {85, 21, 22, 86, 22, 23, 87, 23, 24, 88, 24, 25, 89, 25, 26, 90, 26, 27, 91, 27, 28, 92, 28, 29, 93, 29, 30, 94,
     30, 31, 95, 31, 32, 96, 32, 33, 97, 33, 34, 98, 34, 35, 99, 35, 36, 100, 36, 37, 101, 37, 38, 102, 38, 39, 103,
     39, 40, 104, 40, 41, 105, 41, 42, 106},
    {42, 43, 107, 43, 44, 108, 44, 45, 109, 45, 46, 110, 46, 47, 111, 47, 48, 112, 48, 49, 113, 49, 50, 114, 50, 51,
     115, 51, 52, 116, 52, 53, 117, 53, 54, 118, 54, 55, 119, 55, 56, 120, 56, 57, 121, 57, 58, 122, 58, 59, 123, 59,
     60, 124, 60, 61, 125, 61, 62, 126, 62, 63, 127, 63},
};

/* 64 pixels. */
FASTLOAD_TARGET_AVX512 INLINE void store_avx512(const __m512i channel[3], uint8_t *out)
{
    /* Of each 64 bytes, which are blue. */
    const __mmask64 blue[3] = {0x4924924924924924u, 0x2492492492492492u, 0x9249249249249249u};
    for (int third = 0; third < 3; third++) {
        const __m512i order = _mm512_loadu_si512(PLACES[third]);
        const __m512i pixels = _mm512_permutex2var_epi8(channel[0], order, channel[1]);
        _mm512_storeu_si512(out + 64 * third, _mm512_mask_permutexvar_epi8(pixels, blue[third], order, channel[2]));
    }
}

#include "colors_vector.h"

FASTLOAD_TARGET_AVX512 void idct_avx512(int16_t *group, const int16_t quant[64], uint8_t *out, size_t stride,
                                        enum extent extent)
{
    transform_group(group, quant, out, stride, extent);
}

FASTLOAD_TARGET_AVX512 void to_rgb_avx512(const struct colors *from, uint8_t *out, int n)
{
    to_rgb_row(from, out, n);
}

FASTLOAD_TARGET_AVX512 void interleave_avx512(const uint8_t *const from[3], uint8_t *out, int n)
{
    interleave_row(from, out, n);
}
#endif
