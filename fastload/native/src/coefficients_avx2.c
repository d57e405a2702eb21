/* Unpacking blocks with AVX2. See coefficients.h. */
#include "coefficients.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>
#include <string.h>

/* Where each of 8 places takes its byte from, where the bits of m say which places have one; 128: a zero. */
#define BITS(m)                                                                                                        \
    (((m) & 1) + ((m) >> 1 & 1) + ((m) >> 2 & 1) + ((m) >> 3 & 1) + ((m) >> 4 & 1) + ((m) >> 5 & 1) + ((m) >> 6 & 1))
#define FROM(m, place) ((m) >> (place) & 1 ? BITS((m) & ((1 << (place)) - 1)) : 128)
#define FROM_8(m) {FROM(m, 0), FROM(m, 1), FROM(m, 2), FROM(m, 3), FROM(m, 4), FROM(m, 5), FROM(m, 6), FROM(m, 7)}
#define ROWS_4(m) FROM_8(m), FROM_8((m) + 1), FROM_8((m) + 2), FROM_8((m) + 3)
#define ROWS_16(m) ROWS_4(m), ROWS_4((m) + 4), ROWS_4((m) + 8), ROWS_4((m) + 12)
#define ROWS_64(m) ROWS_16(m), ROWS_16((m) + 16), ROWS_16((m) + 32), ROWS_16((m) + 48)
static const uint8_t EXPAND[256][8] = {ROWS_64(0), ROWS_64(64), ROWS_64(128), ROWS_64(192)};

/* Which of 16 bytes in zigzag order each byte of two rows is, for each 16 of the 64; 128: of another 16. */
#define IN(quarter, k) ((k) / 16 == (quarter) ? (k) % 16 : 128)
#define TWO_ROWS(quarter, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)                                              \
    {IN(quarter, a), IN(quarter, b), IN(quarter, c), IN(quarter, d), IN(quarter, e), IN(quarter, f), IN(quarter, g),   \
     IN(quarter, h), IN(quarter, i), IN(quarter, j), IN(quarter, k), IN(quarter, l), IN(quarter, m), IN(quarter, n),   \
     IN(quarter, o), IN(quarter, p)}
#define ALL_QUARTERS(...)                                                                                              \
    {TWO_ROWS(0, __VA_ARGS__), TWO_ROWS(1, __VA_ARGS__), TWO_ROWS(2, __VA_ARGS__), TWO_ROWS(3, __VA_ARGS__)}
static const uint8_t REORDER[4][4][16] = {
    ALL_QUARTERS(0, 1, 5, 6, 14, 15, 27, 28, 2, 4, 7, 13, 16, 26, 29, 42),
    ALL_QUARTERS(3, 8, 12, 17, 25, 30, 41, 43, 9, 11, 18, 24, 31, 40, 44, 53),
    ALL_QUARTERS(10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38, 46, 51, 55, 60),
    ALL_QUARTERS(21, 34, 37, 47, 50, 56, 59, 61, 35, 36, 48, 49, 57, 58, 62, 63)};

/* Eight bytes: those at `from` go where the bits of `places` are set. */
FASTLOAD_TARGET_AVX2 static inline __m128i expand(const void *from, unsigned places)
{
    return _mm_shuffle_epi8(_mm_loadl_epi64(from), _mm_loadl_epi64((const __m128i *)EXPAND[places & 255]));
}

/* The levels of a block, one after the other, 8 bits each; wide ones are ESCAPE_WIDE. Returns which they are. */
FASTLOAD_TARGET_AVX2 static inline uint64_t unpack_levels(struct streams *s, int num, uint8_t levels[80])
{
    const __m256i low = _mm256_set1_epi8(15), eight = _mm256_set1_epi8(8), wide = _mm256_set1_epi8((char)ESCAPE_WIDE);
    uint64_t found = 0;
    for (int i = 0; i < num; i += 32) {
        const __m256i pairs = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(s->levels + i / 2)));
        const __m256i nibbles = _mm256_and_si256(_mm256_or_si256(pairs, _mm256_slli_epi16(pairs, 4)), low);
        const __m256i is_escape = _mm256_cmpeq_epi8(nibbles, eight);
        uint32_t escaped = (uint32_t)_mm256_movemask_epi8(is_escape);
        if (num - i < 32)
            escaped &= (1u << (num - i)) - 1;
        const uint8_t *const from = s->escapes;
        const int first = __builtin_popcount(escaped & 255), second = __builtin_popcount(escaped & 0xFFFF);
        const int third = __builtin_popcount(escaped & 0xFFFFFF);
        const __m128i a = _mm_unpacklo_epi64(expand(from, escaped), expand(from + first, escaped >> 8));
        const __m128i b = _mm_unpacklo_epi64(expand(from + second, escaped >> 16), expand(from + third, escaped >> 24));
        const __m256i escapes = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
        const __m256i small = _mm256_sub_epi8(_mm256_xor_si256(nibbles, eight), eight);
        const __m256i made = _mm256_blendv_epi8(small, escapes, is_escape);
        found |= (uint64_t)((uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(made, wide)) & escaped) << i;
        _mm256_storeu_si256((__m256i *)(levels + i), made);
        s->escapes += __builtin_popcount(escaped);
    }
    return found;
}

FASTLOAD_TARGET_AVX2 static inline void store_rows(const uint8_t *levels, uint64_t mask, int16_t *block)
{
    __m128i quarters[4];
    for (int i = 0; i < 4; i++, mask >>= 16) {
        const uint8_t *const behind = levels + __builtin_popcount(mask & 255);
        quarters[i] = _mm_unpacklo_epi64(expand(levels, (unsigned)mask), expand(behind, (unsigned)(mask >> 8)));
        levels = behind + __builtin_popcount(mask >> 8 & 255);
    }
    for (int i = 0; i < 4; i++, block += 2 * GROUP * 8) {
        __m128i rows = _mm_setzero_si128();
        for (int quarter = 0; quarter < 4; quarter++)
            rows = _mm_or_si128(rows, _mm_shuffle_epi8(quarters[quarter],
                                                       _mm_loadu_si128((const __m128i *)REORDER[i][quarter])));
        _mm_storeu_si128((__m128i *)block, _mm_cvtepi8_epi16(rows));
        _mm_storeu_si128((__m128i *)(block + GROUP * 8), _mm_cvtepi8_epi16(_mm_unpackhi_epi64(rows, rows)));
    }
}

FASTLOAD_TARGET_AVX2 uint64_t unpack_avx2(struct streams *s, int num, int16_t *group)
{
    uint64_t masks = 0;
    for (int i = 0; i < num; i++) {
        const uint8_t *const dc = s->dc + 2 * s->at;
        const uint64_t mask = next_mask(s);
        const int levels_num = __builtin_popcountll(mask);
        uint8_t levels[80];
        if (mask == UNPACK_DAMAGED || s->levels_end - s->levels < (levels_num + 1) / 2)
            return UNPACK_DAMAGED;
        const uint64_t wide = unpack_levels(s, levels_num, levels);
        s->levels += (levels_num + 1) / 2;
        if (s->escapes > s->escapes_end || s->wide_end - s->wide < 2 * __builtin_popcountll(wide))
            return UNPACK_DAMAGED;
        if (group)
            store_rows(levels, mask, group + 8 * i);
        if (__builtin_expect(wide != 0, 0))
            for (uint64_t places = _pdep_u64(wide, mask); places; places &= places - 1, s->wide += 2)
                if (group)
                    memcpy(group + 8 * i + GROUP_PLACES[__builtin_ctzll(places)], s->wide, 2);
        if (group)
            memcpy(group + 8 * i, dc, 2);
        masks |= mask;
    }
    return masks;
}

#else
typedef int no_avx2_here; /* ISO C wants something in a file */
#endif
