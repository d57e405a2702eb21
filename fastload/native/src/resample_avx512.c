/* The kernels of resample.h for AVX-512 with VBMI and VNNI. See there why sums of parts are exact.
 *
 * A weight is the sum of three signed bytes, in units of 1, 2**8 and 2**16, so that vpdpbusd multiplies and adds four
 * taps at once. 16 results (bytes of a row, whatever their channel) are computed together; their sources lie within
 * 128 bytes unless the image becomes about six times narrower, and one permutation gathers four taps of each of them.
 */
#include "resample.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>

/* Column tables: for each 16 results one vector that gathers, then for each four taps one vector for each part of the
 * weights; at the end, for each 16 results, the byte where their sources begin. */
static size_t groups(int n)
{
    return ((size_t)3 * n + 15) / 16;
}

static size_t group_bytes(const struct axis *columns)
{
    return (size_t)(1 + 3 * (columns->taps / 4)) * 64;
}

static size_t column_bytes(const struct axis *columns)
{
    const size_t num = groups(columns->out);
    return columns->taps ? num * group_bytes(columns) + (num * 4 + 63) / 64 * 64 : 0;
}

/* Row tables: for each result and each four taps, three words: the parts of their weights. */
size_t tables_avx512(const struct axis *columns, const struct axis *rows)
{
    const size_t best = column_bytes(columns) + (size_t)rows->out * rows->taps * 3 + 64;
    const size_t wide = tables_avx2(columns, rows) + (size_t)rows->out * rows->taps * 3 + 64;
    return best > wide ? best : wide;
}

/* Four weights to three words of four signed bytes. */
static void split(const int32_t *weight, uint32_t word[3])
{
    word[0] = word[1] = word[2] = 0;
    for (int t = 0; t < 4; t++) {
        const int32_t first = (int8_t)weight[t];
        const int32_t rest = (weight[t] - first) / 256;
        const int32_t second = (int8_t)rest;
        const int32_t third = (rest - second) / 256;
        word[0] |= (uint32_t)(uint8_t)first << 8 * t;
        word[1] |= (uint32_t)(uint8_t)second << 8 * t;
        word[2] |= (uint32_t)(uint8_t)third << 8 * t;
    }
}

static void fill_columns(struct resizer *r, uint8_t *tables)
{
    const struct axis *axis = &r->columns;
    const int fours = axis->taps / 4, n = 3 * axis->out;
    const size_t num = groups(axis->out), bytes = group_bytes(axis);
    int32_t *begin = (int32_t *)(tables + num * bytes);
    r->column_tables = tables;
    for (size_t g = 0; g < num; g++) {
        const int first = (int)(16 * g / 3), behind = (int)(16 * g + 15) / 3;
        const int end = behind < axis->out ? behind : axis->out - 1;
        /* Places rise with x, or fall where the row is flipped. */
        const int32_t a = axis->start[first], b = axis->start[end];
        begin[g] = 3 * (a < b ? a : b);
        const int reach = 3 * (a < b ? b - a : a - b) + 12;
        if (reach > r->reach)
            r->reach = reach;
    }
    /* Four taps are for images that hardly become narrower: there a group never reaches further than 64 bytes. */
    if (r->reach > 128 || (axis->taps == 4 && r->reach > 64)) {
        r->wide_columns = 1;
        return;
    }
    for (int x = 0; x < (int)(16 * num + 2) / 3; x++) {
        const int from = x < axis->out ? x : axis->out - 1;
        for (int q = -1; q < fours; q++) {
            uint32_t word[3];
            if (q >= 0)
                split(axis->weight + (size_t)from * axis->taps + 4 * q, word);
            for (int i = 3 * x; i < 3 * x + 3 && i < (int)(16 * num); i++) {
                uint32_t *to = (uint32_t *)(tables + (size_t)(i / 16) * bytes) + i % 16;
                const int channel = i < n ? i - 3 * x : 0;
                if (q < 0)
                    *to = (uint32_t)(3 * axis->start[from] - begin[i / 16] + channel) * 0x01010101u + 0x09060300u;
                else
                    for (int part = 0; part < 3; part++)
                        to[16 * (1 + 3 * q + part)] = word[part];
            }
        }
    }
}

void fill_tables_avx512(struct resizer *r, void *tables)
{
    const struct axis *rows = &r->rows;
    uint8_t *behind = tables;
    if (r->columns.taps) {
        fill_columns(r, tables);
        behind += column_bytes(&r->columns);
        if (r->wide_columns) {
            fill_tables_avx2(r, tables);
            behind = (uint8_t *)tables + (tables_avx2(&r->columns, rows) + 63) / 64 * 64;
        }
    }
    uint32_t *to = r->row_tables = behind;
    for (size_t i = 0; i < (size_t)rows->out * rows->taps; i += 4, to += 3)
        split(rows->weight + i, to);
}

FASTLOAD_TARGET_AVX512 static inline __m512i combine(__m512i first, __m512i second, __m512i third)
{
    const __m512i upper = _mm512_add_epi32(second, _mm512_slli_epi32(third, 8));
    return _mm512_srai_epi32(_mm512_add_epi32(first, _mm512_slli_epi32(upper, 8)), WEIGHT_BITS);
}

/* One group of 16 results in all rows of a strip. `fours` and `narrow` are constants where it matters. */
FASTLOAD_TARGET_AVX512 INLINE void
column_group(const struct strip *strip, int32_t begin, size_t group, const __m512i *table, int fours, int narrow)
{
    const __m512i half = _mm512_set1_epi32(1 << (WEIGHT_BITS - 1)), zero = _mm512_setzero_si512();
    const __m512i places = _mm512_load_si512(table++);
    const uint8_t *row = strip->in + begin;
    uint8_t *out = strip->out + 16 * group;
    const size_t in_stride = strip->in_stride, out_stride = strip->out_stride;
    for (int left = strip->num; left > 0; left--, row += in_stride, out += out_stride) {
        __m512i first = half, second = zero, third = zero;
        for (int q = 0; q < fours; q++) {
            const __m512i near = _mm512_loadu_si512(row + 12 * q);
            const __m512i taps =
                narrow ? _mm512_permutexvar_epi8(places, near)
                       : _mm512_permutex2var_epi8(near, places, _mm512_loadu_si512(row + 12 * q + 64));
            first = _mm512_dpbusd_epi32(first, taps, _mm512_load_si512(table + 3 * q));
            second = _mm512_dpbusd_epi32(second, taps, _mm512_load_si512(table + 3 * q + 1));
            third = _mm512_dpbusd_epi32(third, taps, _mm512_load_si512(table + 3 * q + 2));
        }
        const __m512i sums = _mm512_max_epi32(combine(first, second, third), zero);
        _mm_storeu_si128((__m128i *)out, _mm512_cvtusepi32_epi8(sums));
    }
}

FASTLOAD_TARGET_AVX512 void columns_avx512(const struct resizer *r, const struct strip *strip)
{
    const struct axis *axis = &r->columns;
    const int fours = axis->taps / 4, narrow = r->reach <= 64;
    const size_t num = groups(axis->out);
    const __m512i *table = r->column_tables;
    const int32_t *begin = (const int32_t *)((const uint8_t *)table + num * group_bytes(axis));
    for (size_t g = 0; g < num; g++, table += 1 + 3 * (size_t)fours) {
        if (fours == 1)
            column_group(strip, begin[g], g, table, 1, 1);
        else if (fours == 2 && narrow)
            column_group(strip, begin[g], g, table, 2, 1);
        else
            column_group(strip, begin[g], g, table, fours, 0);
    }
}

FASTLOAD_TARGET_AVX512 void rows_avx512(const struct resizer *r, int y, uint8_t *out)
{
    const struct axis *axis = &r->rows;
    const size_t stride = r->kept_stride;
    const int count = axis->count[y], n = 3 * r->kept_width;
    const uint8_t *in = r->kept + (size_t)axis->start[y] * stride;
    const int32_t *table = (const int32_t *)r->row_tables + (size_t)y * (axis->taps / 4) * 3;
    const __m512i half = _mm512_set1_epi32(1 << (WEIGHT_BITS - 1)), zero = _mm512_setzero_si512();
    for (int x = 0; x < n; x += 64) {
        __m512i sums[4][3];
        for (int i = 0; i < 4; i++) {
            sums[i][0] = half;
            sums[i][1] = sums[i][2] = zero;
        }
        for (int t = 0; t < count; t += 4) {
            /* Rows behind the count have the weight 0: the last one again. */
            __m512i from[4];
            for (int i = 0; i < 4; i++)
                from[i] = _mm512_loadu_si512(in + (size_t)(t + i < count ? t + i : count - 1) * stride + x);
            const __m512i a = _mm512_unpacklo_epi8(from[0], from[1]), b = _mm512_unpacklo_epi8(from[2], from[3]);
            const __m512i c = _mm512_unpackhi_epi8(from[0], from[1]), d = _mm512_unpackhi_epi8(from[2], from[3]);
            const __m512i taps[4] = {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b),
                                     _mm512_unpacklo_epi16(c, d), _mm512_unpackhi_epi16(c, d)};
            for (int part = 0; part < 3; part++) {
                const __m512i weights = _mm512_set1_epi32(table[t / 4 * 3 + part]);
                for (int i = 0; i < 4; i++)
                    sums[i][part] = _mm512_dpbusd_epi32(sums[i][part], taps[i], weights);
            }
        }
        __m512i found[4];
        for (int i = 0; i < 4; i++)
            found[i] = combine(sums[i][0], sums[i][1], sums[i][2]);
        const __m512i bytes = _mm512_packus_epi16(_mm512_packs_epi32(found[0], found[1]),
                                                  _mm512_packs_epi32(found[2], found[3]));
        _mm512_storeu_si512(out + x, bytes);
    }
}
#endif
