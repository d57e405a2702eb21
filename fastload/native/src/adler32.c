/* Adler-32. See inflate.h. */
#include "inflate.h"

#define BASE 65521
/* As many bytes can be added before sums of 32 bits have to be reduced; a multiple of BLOCK. */
#define MOST 5536
#define BLOCK 32

/* Column by column, so that compilers make vectors of it. */
static void add_plain(uint32_t *first, uint32_t *second, const uint8_t *bytes, size_t blocks)
{
    uint32_t sum[BLOCK] = {0}, before[BLOCK] = {0}, a = 0, b = 0;
    for (size_t i = 0; i < blocks; i++, bytes += BLOCK)
        for (int k = 0; k < BLOCK; k++) {
            before[k] += sum[k];
            sum[k] += bytes[k];
        }
    for (int k = 0; k < BLOCK; k++) {
        a += sum[k];
        b += BLOCK * before[k] + (uint32_t)(BLOCK - k) * sum[k];
    }
    *second += (uint32_t)(blocks * BLOCK) * *first + b;
    *first += a;
}

#ifdef FASTLOAD_X86
#include <immintrin.h>

FASTLOAD_TARGET_AVX2 static uint32_t sum_of(__m256i x)
{
    __m128i half = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    return (uint32_t)_mm_cvtsi128_si32(_mm_add_epi32(half, _mm_shuffle_epi32(half, 0xB1)));
}

FASTLOAD_TARGET_AVX2 static void add_avx2(uint32_t *first, uint32_t *second, const uint8_t *bytes, size_t blocks)
{
    const __m256i weights = _mm256_setr_epi8(32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14,
                                             13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1);
    const __m256i one = _mm256_set1_epi16(1), zero = _mm256_setzero_si256();
    __m256i sum = zero, before = zero, weighed = zero;
    for (size_t i = 0; i < blocks; i++, bytes += BLOCK) {
        const __m256i x = _mm256_loadu_si256((const __m256i *)bytes);
        before = _mm256_add_epi32(before, sum);
        sum = _mm256_add_epi32(sum, _mm256_sad_epu8(x, zero));
        weighed = _mm256_add_epi32(weighed, _mm256_madd_epi16(_mm256_maddubs_epi16(x, weights), one));
    }
    *second += (uint32_t)(blocks * BLOCK) * *first + BLOCK * sum_of(before) + sum_of(weighed);
    *first += sum_of(sum);
}
#endif

uint32_t adler32_of(uint32_t sum, const uint8_t *bytes, size_t length, int level)
{
    uint32_t first = sum & 0xFFFF, second = sum >> 16;
    (void)level;
    while (length) {
        const size_t now = length < MOST ? length : MOST, blocks = now / BLOCK;
#ifdef FASTLOAD_X86
        if (level != FASTLOAD_PLAIN)
            add_avx2(&first, &second, bytes, blocks);
        else
#endif
            add_plain(&first, &second, bytes, blocks);
        for (size_t i = blocks * BLOCK; i < now; i++)
            second += first += bytes[i];
        first %= BASE;
        second %= BASE;
        bytes += now;
        length -= now;
    }
    return second << 16 | first;
}
