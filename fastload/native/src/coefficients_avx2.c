/* Unpacking and packing blocks with AVX2. See coefficients.h. */
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

/* Where the set bits of each byte are, in order; what comes behind has no meaning. A ninth place, as no row may be
 * empty. */
#define SET_0(...) {__VA_ARGS__},
#define SET_1(...) SET_0(__VA_ARGS__) SET_0(0, __VA_ARGS__)
#define SET_2(...) SET_1(__VA_ARGS__) SET_1(1, __VA_ARGS__)
#define SET_3(...) SET_2(__VA_ARGS__) SET_2(2, __VA_ARGS__)
#define SET_4(...) SET_3(__VA_ARGS__) SET_3(3, __VA_ARGS__)
#define SET_5(...) SET_4(__VA_ARGS__) SET_4(4, __VA_ARGS__)
#define SET_6(...) SET_5(__VA_ARGS__) SET_5(5, __VA_ARGS__)
#define SET_7(...) SET_6(__VA_ARGS__) SET_6(6, __VA_ARGS__)
static const uint8_t COMPRESS[256][9] = {SET_7(0) SET_7(7, 0)};

/* As REORDER, of each byte in zigzag order: which it is of 16 bytes of two rows. */
static const uint8_t ZIGZAG[4][4][16] = {
    ALL_QUARTERS(0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5),
    ALL_QUARTERS(12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28),
    ALL_QUARTERS(35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51),
    ALL_QUARTERS(58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63)};

/* Those bytes of 64 that `mask` names, and up to 8 more. Returns how many it names. */
FASTLOAD_TARGET_AVX2 static inline int compress(const uint8_t *from, uint64_t mask, uint8_t *to)
{
    uint8_t *const begin = to;
    for (; mask; mask >>= 8, from += 8) {
        const __m128i places = _mm_loadl_epi64((const __m128i *)COMPRESS[mask & 255]);
        _mm_storel_epi64((__m128i *)to, _mm_shuffle_epi8(_mm_loadl_epi64((const __m128i *)from), places));
        to += __builtin_popcountll(mask & 255);
    }
    return (int)(to - begin);
}

/* Of 32 bytes, which are not less than `least`. */
FASTLOAD_TARGET_AVX2 static inline __m256i reach(__m256i bytes, int least)
{
    return _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, _mm256_set1_epi8((char)least)), bytes);
}

FASTLOAD_TARGET_AVX2 static inline uint64_t mask_of(__m256i low, __m256i high)
{
    return (uint64_t)(uint32_t)_mm256_movemask_epi8(high) << 32 | (uint32_t)_mm256_movemask_epi8(low);
}

/* Adds a block, whose levels are here saturated to 8 bits, in zigzag order. */
FASTLOAD_TARGET_AVX2 static inline void pack_block(struct parts *parts, const int16_t *block, const __m256i levels[2])
{
    const __m256i escape = _mm256_set1_epi8(LEVEL_ESCAPE & 15), zero = _mm256_setzero_si256();
    __m256i magnitudes[2], escapes[2];
    uint8_t nibbles[64], found[64 + 8];
    for (int i = 0; i < 2; i++) {
        magnitudes[i] = _mm256_abs_epi8(levels[i]);
        escapes[i] = reach(magnitudes[i], -LEVEL_ESCAPE);
        _mm256_storeu_si256((__m256i *)(nibbles + 32 * i),
                            _mm256_and_si256(_mm256_blendv_epi8(levels[i], escape, escapes[i]), _mm256_set1_epi8(15)));
    }
    const uint64_t no_dc = ~(uint64_t)1, escaped = mask_of(escapes[0], escapes[1]) & no_dc;
    const uint64_t mask = ~mask_of(_mm256_cmpeq_epi8(levels[0], zero), _mm256_cmpeq_epi8(levels[1], zero)) & no_dc;
    add_mask(parts, mask, (uint16_t)block[0]);
    const int num = compress(nibbles, mask, found);
    found[num] = 0; /* the other half of the last byte */
    for (int i = 0; i < num; i += 32) {
        const __m256i some = _mm256_loadu_si256((const __m256i *)(found + i));
        const __m256i pairs = _mm256_maddubs_epi16(some, _mm256_set1_epi16(16 << 8 | 1));
        _mm_storeu_si128((__m128i *)(parts->levels + parts->num_levels + i / 2),
                         _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
    }
    parts->num_levels += (size_t)(num + 1) / 2;
    if (escaped) {
        uint8_t bytes[64];
        memcpy(bytes, levels, sizeof bytes);
        const int edge = -ESCAPE_WIDE - 1;
        const uint64_t edges = mask_of(reach(magnitudes[0], edge), reach(magnitudes[1], edge)) & no_dc;
        if (__builtin_expect(edges != 0, 0))
            pack_wide(parts, block, edges, bytes);
        parts->num_escapes += (size_t)compress(bytes, escaped, parts->escapes + parts->num_escapes);
    }
}

FASTLOAD_TARGET_AVX2 void pack_avx2(struct parts *parts, int num, int16_t *group)
{
    for (int i = 0; i < num; i++) {
        __m256i levels[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int two = 0; two < 4; two++) {
            const int16_t *const rows = group + 2 * two * 8 * GROUP + 8 * i;
            const __m128i bytes = _mm_packs_epi16(_mm_loadu_si128((const __m128i *)rows),
                                                  _mm_loadu_si128((const __m128i *)(rows + 8 * GROUP)));
            for (int half = 0; half < 2; half++) {
                const __m256i order = _mm256_loadu2_m128i((const __m128i *)ZIGZAG[2 * half + 1][two],
                                                          (const __m128i *)ZIGZAG[2 * half][two]);
                levels[half] = _mm256_or_si256(levels[half],
                                               _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bytes), order));
            }
        }
        pack_block(parts, group + 8 * i, levels);
    }
    memset(group, 0, GROUP_SIZE * sizeof *group);
}
#endif
