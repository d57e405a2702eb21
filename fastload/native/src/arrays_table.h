/* Looking up bytes in tables of 256 values: one byte after the other, or 64 at once. */
#ifndef FASTLOAD_ARRAYS_TABLE_H
#define FASTLOAD_ARRAYS_TABLE_H

#include "fastload.h"

#include <string.h>

#ifdef FASTLOAD_X86
#include <immintrin.h>
#endif

/* From bytes at a distance of `stride` to values at the same. */
typedef void look_up_function(const uint8_t *table, const uint8_t *from, int64_t num, int64_t stride, uint8_t *to);
/* 64 at once, with a stride of 1. Measured against a gather of AVX2: 4 times as fast, and that gather is slower than
 * loads of one value after the other. stream: past the caches. */
typedef void look_up_64_function(const uint8_t *bytes, const uint8_t *from, int64_t num, int stream, uint8_t *to);

struct lookup {
    const uint8_t *table; /* [channels, 256] of items */
    const uint8_t *bytes; /* [channels, 4, 256]: the items' bytes apart */
    int64_t channels;
    int64_t item;
    int same; /* all channels have the same table */
    look_up_function *one_by_one;
    look_up_64_function *at_once; /* NULL: there is none */
    int stream;
};

/* Unrolled by hand: gcc's -O3 does not, and takes 1.6 times as long. */
#define LOOK_UP(item)                                                                                                  \
    static void look_up_##item(const uint8_t *table, const uint8_t *from, int64_t num, int64_t stride, uint8_t *to)    \
    {                                                                                                                  \
        int64_t i = 0;                                                                                                 \
        for (; i + 4 <= num; i += 4, from += 4 * stride, to += 4 * stride * item)                                      \
            for (int64_t k = 0; k < 4; k++)                                                                            \
                memcpy(to + k * stride * item, table + from[k * stride] * item, item);                                 \
        for (; i < num; i++, from += stride, to += stride * item)                                                      \
            memcpy(to, table + *from * item, item);                                                                    \
    }
LOOK_UP(1)
LOOK_UP(2)
LOOK_UP(4)
#undef LOOK_UP

#ifdef FASTLOAD_X86
/* A mask of the first bytes of a register. */
FASTLOAD_TARGET_AVX512
static inline __mmask64 first_ones(int64_t num)
{
    return num >= 64 ? ~(__mmask64)0 : num <= 0 ? 0 : ((__mmask64)1 << num) - 1;
}

/* The 256 bytes of a table are four registers; two instructions each look 7 bits up in two of them. */
FASTLOAD_TARGET_AVX512
static inline __m512i look_up_64(const __m512i table[4], __m512i values)
{
    __m512i low = _mm512_permutex2var_epi8(table[0], values, table[1]);
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(values),
                                _mm512_permutex2var_epi8(table[2], values, table[3]));
}

/* Store the first `num` bytes of some registers, or all of them. */
FASTLOAD_TARGET_AVX512
static inline void store(const __m512i *results, int count, int64_t num, int stream, uint8_t *to)
{
    if (num < 64 * count)
        for (int part = 0; part < count; part++)
            _mm512_mask_storeu_epi8(to + 64 * part, first_ones(num - 64 * part), results[part]);
    else if (stream)
        for (int part = 0; part < count; part++)
            _mm512_stream_si512((void *)(to + 64 * part), results[part]);
    else
        for (int part = 0; part < count; part++)
            _mm512_storeu_si512(to + 64 * part, results[part]);
}

FASTLOAD_TARGET_AVX512
static void look_up_1_avx512(const uint8_t *bytes, const uint8_t *from, int64_t num, int stream, uint8_t *to)
{
    __m512i table[4];
    for (int part = 0; part < 4; part++)
        table[part] = _mm512_loadu_si512(bytes + 64 * part);
    for (int64_t i = 0; i < num; i += 64) {
        __m512i values = _mm512_maskz_loadu_epi8(first_ones(num - i), from + i);
        __m512i result = look_up_64(table, values);
        store(&result, 1, num - i, stream, to + i);
    }
}

/* Interleaving works within 128 bits: before it, values are put where it takes them to their places. */
FASTLOAD_TARGET_AVX512
static void look_up_2_avx512(const uint8_t *bytes, const uint8_t *from, int64_t num, int stream, uint8_t *to)
{
    __m512i table[2][4];
    for (int byte = 0; byte < 2; byte++)
        for (int part = 0; part < 4; part++)
            table[byte][part] = _mm512_loadu_si512(bytes + 256 * byte + 64 * part);
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    for (int64_t i = 0; i < num; i += 64) {
        __m512i values = _mm512_maskz_loadu_epi8(first_ones(num - i), from + i);
        values = _mm512_permutexvar_epi64(order, values);
        __m512i low = look_up_64(table[0], values), high = look_up_64(table[1], values);
        __m512i results[2] = {_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high)};
        store(results, 2, 2 * (num - i), stream, to + 2 * i);
    }
}

FASTLOAD_TARGET_AVX512
static void look_up_4_avx512(const uint8_t *bytes, const uint8_t *from, int64_t num, int stream, uint8_t *to)
{
    __m512i table[4][4];
    for (int byte = 0; byte < 4; byte++)
        for (int part = 0; part < 4; part++)
            table[byte][part] = _mm512_loadu_si512(bytes + 256 * byte + 64 * part);
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    for (int64_t i = 0; i < num; i += 64) {
        __m512i values = _mm512_maskz_loadu_epi8(first_ones(num - i), from + i);
        __m512i apart[4], results[4];
        values = _mm512_permutexvar_epi32(order, values);
        for (int byte = 0; byte < 4; byte++)
            apart[byte] = look_up_64(table[byte], values);
        __m512i low0 = _mm512_unpacklo_epi8(apart[0], apart[1]), high0 = _mm512_unpackhi_epi8(apart[0], apart[1]);
        __m512i low1 = _mm512_unpacklo_epi8(apart[2], apart[3]), high1 = _mm512_unpackhi_epi8(apart[2], apart[3]);
        results[0] = _mm512_unpacklo_epi16(low0, low1);
        results[1] = _mm512_unpackhi_epi16(low0, low1);
        results[2] = _mm512_unpacklo_epi16(high0, high1);
        results[3] = _mm512_unpackhi_epi16(high0, high1);
        store(results, 4, 4 * (num - i), stream, to + 4 * i);
    }
}
#endif

/* How much memory lookup_of needs; a multiple of 64. */
static size_t lookup_bytes(int64_t channels)
{
    return (size_t)channels * 1024;
}

/* Return how values are looked up. memory: of lookup_bytes(channels). stream: write past the caches, where the
 * processor can; to be ended by end_stream(). */
static struct lookup lookup_of(const uint8_t *table, int64_t channels, int64_t item, uint8_t *memory, int stream)
{
    look_up_function *plain = item == 1 ? look_up_1 : item == 2 ? look_up_2 : look_up_4;
    struct lookup lookup = {table, memory, channels, item, 1, plain, NULL, stream};
    for (int64_t channel = 1; channel < channels; channel++)
        lookup.same &= !memcmp(table, table + channel * 256 * item, (size_t)(256 * item));
#ifdef FASTLOAD_X86
    if (fastload_level == FASTLOAD_AVX512) {
        lookup.at_once = item == 1 ? look_up_1_avx512 : item == 2 ? look_up_2_avx512 : look_up_4_avx512;
        for (int64_t channel = 0; channel < channels; channel++)
            for (int64_t byte = 0; byte < item; byte++)
                for (int64_t value = 0; value < 256; value++)
                    memory[(channel * 4 + byte) * 256 + value] = table[(channel * 256 + value) * item + byte];
    }
#endif
    return lookup;
}

/* Let all that was streamed be seen before what is written from now on. */
static void end_stream(const struct lookup *lookup)
{
#ifdef FASTLOAD_X86
    if (lookup->at_once && lookup->stream)
        _mm_sfence();
#else
    (void)lookup;
#endif
}

/* Look up values of one channel, `stride` bytes from one to the next. */
static inline void look_up(const struct lookup *lookup, int64_t channel, const uint8_t *from, int64_t num,
                           int64_t stride, uint8_t *to)
{
    if (lookup->at_once && stride == 1)
        lookup->at_once(lookup->bytes + channel * 1024, from, num, lookup->stream && (uintptr_t)to % 64 == 0, to);
    else
        lookup->one_by_one(lookup->table + channel * 256 * lookup->item, from, num, stride, to);
}

/* Look up the values of pixels, in the table of its channel each. */
static void look_up_pixels(const struct lookup *lookup, const uint8_t *from, int64_t num, uint8_t *to)
{
    int64_t channels = lookup->channels;
    if (lookup->same)
        look_up(lookup, 0, from, num * channels, 1, to);
    else
        for (int64_t channel = 0; channel < channels; channel++)
            look_up(lookup, channel, from + channel, num, channels, to + channel * lookup->item);
}

#endif
