/* The kernels of resample.h for AVX2. See there why sums of parts are exact.
 *
 * A weight is high * 2**15 + low, with 0 <= low < 2**15, so that both fit vpmaddwd, which multiplies 16-bit numbers and
 * adds neighbouring products.
 */
#include "resample.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>

#define LOW_BITS 15
#define LOW_MASK ((1 << LOW_BITS) - 1)

/* Column tables: for each pair of results and each four taps, two vectors: low and high parts. Each 128-bit half
 * belongs to one of the results and has its four weights twice. */
static size_t pairs(int n)
{
    return (size_t)(n + 3) / 4 * 2;
}

static size_t column_bytes(const struct axis *columns)
{
    return pairs(columns->out) * (columns->taps / 4) * 64;
}

/* Row tables: for each result and each two taps, two words: low and high parts of both. */
size_t tables_avx2(const struct axis *columns, const struct axis *rows)
{
    return column_bytes(columns) + (size_t)rows->out * rows->taps * 4 + 64;
}

void fill_tables_avx2(struct resizer *r, void *tables)
{
    const struct axis *columns = &r->columns, *rows = &r->rows;
    const int fours = columns->taps / 4;
    int16_t *to = r->column_tables = tables;
    for (int x = 0; x < (int)(pairs(columns->out) * 2); x++) {
        const int from = x < columns->out ? x : columns->out - 1;
        for (int q = 0; q < fours; q++) {
            const int32_t *weight = columns->weight + (size_t)from * columns->taps + 4 * q;
            int16_t *low = to + ((size_t)(x / 2) * fours + q) * 32 + 8 * (x & 1);
            for (int t = 0; t < 4; t++) {
                low[t] = low[t + 4] = (int16_t)(weight[t] & LOW_MASK);
                low[t + 16] = low[t + 20] = (int16_t)(weight[t] >> LOW_BITS);
            }
        }
    }
    to = r->row_tables = (uint8_t *)tables + column_bytes(columns);
    for (size_t i = 0; i < (size_t)rows->out * rows->taps; i += 2, to += 4) {
        to[0] = (int16_t)(rows->weight[i] & LOW_MASK);
        to[1] = (int16_t)(rows->weight[i + 1] & LOW_MASK);
        to[2] = (int16_t)(rows->weight[i] >> LOW_BITS);
        to[3] = (int16_t)(rows->weight[i + 1] >> LOW_BITS);
    }
}

/* The sums of two results: red, green, blue and nothing, for each. */
FASTLOAD_TARGET_AVX2 static inline __m256i two_columns(const uint8_t *left, const uint8_t *right, const __m256i *table,
                                                       int fours)
{
    /* Four pixels of three bytes to four reds, four greens, four blues. */
    const __m256i by_channel = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -128, -128, -128, -128));
    const __m256i zero = _mm256_setzero_si256();
    __m256i low_rg = zero, high_rg = zero, low_b = zero, high_b = zero;
    for (int q = 0; q < fours; q++, left += 12, right += 12, table += 2) {
        const __m256i pixels =
            _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)left)),
                                                        _mm_loadu_si128((const __m128i *)right), 1),
                                by_channel);
        const __m256i rg = _mm256_unpacklo_epi8(pixels, zero), b = _mm256_unpackhi_epi8(pixels, zero);
        const __m256i low = _mm256_load_si256(table), high = _mm256_load_si256(table + 1);
        low_rg = _mm256_add_epi32(low_rg, _mm256_madd_epi16(rg, low));
        low_b = _mm256_add_epi32(low_b, _mm256_madd_epi16(b, low));
        high_rg = _mm256_add_epi32(high_rg, _mm256_madd_epi16(rg, high));
        high_b = _mm256_add_epi32(high_b, _mm256_madd_epi16(b, high));
    }
    const __m256i rg = _mm256_add_epi32(low_rg, _mm256_slli_epi32(high_rg, LOW_BITS));
    const __m256i b = _mm256_add_epi32(low_b, _mm256_slli_epi32(high_b, LOW_BITS));
    const __m256i sums = _mm256_add_epi32(_mm256_hadd_epi32(rg, b), _mm256_set1_epi32(1 << (WEIGHT_BITS - 1)));
    return _mm256_srai_epi32(sums, WEIGHT_BITS);
}

FASTLOAD_TARGET_AVX2 static void columns_of_row(const struct resizer *r, const uint8_t *row, uint8_t *out)
{
    const struct axis *axis = &r->columns;
    const int fours = axis->taps / 4, last = axis->out - 1;
    const int32_t *start = axis->start;
    const __m256i *table = r->column_tables;
    /* Two results in each half, the halves being (0, 2) and (1, 3), to the twelve bytes of four pixels. */
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
    const __m128i three = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -128, -128, -128, -128);
    for (int x = 0; x <= last; x += 4, out += 12, table += 4 * (size_t)fours) {
        const uint8_t *from[4];
        for (int i = 0; i < 4; i++)
            from[i] = row + 3 * (size_t)start[x + i <= last ? x + i : last];
        const __m256i first = two_columns(from[0], from[1], table, fours);
        const __m256i second = two_columns(from[2], from[3], table + 2 * (size_t)fours, fours);
        const __m256i words = _mm256_packs_epi32(first, second);
        const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(words, words), order);
        _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(_mm256_castsi256_si128(bytes), three));
    }
}

void columns_avx2(const struct resizer *r, const struct strip *strip)
{
    for (int i = 0; i < strip->num; i++)
        columns_of_row(r, strip->in + i * strip->in_stride, strip->out + i * strip->out_stride);
}

FASTLOAD_TARGET_AVX2 void rows_avx2(const struct resizer *r, int y, uint8_t *out)
{
    const struct axis *axis = &r->rows;
    const size_t stride = r->kept_stride;
    const int count = axis->count[y], n = 3 * r->kept_width;
    const uint8_t *in = r->kept + (size_t)axis->start[y] * stride;
    const int32_t *table = (const int32_t *)r->row_tables + (size_t)y * axis->taps;
    const __m256i zero = _mm256_setzero_si256();
    for (int x = 0; x < n; x += 32) {
        __m256i low[4], high[4];
        for (int i = 0; i < 4; i++) {
            low[i] = _mm256_set1_epi32(1 << (WEIGHT_BITS - 1));
            high[i] = zero;
        }
        for (int t = 0; t < count; t += 2) {
            /* Behind an odd count comes a row with the weight 0: the same again. */
            const uint8_t *from = in + (size_t)t * stride + x;
            const __m256i a = _mm256_loadu_si256((const __m256i *)from);
            const __m256i b = _mm256_loadu_si256((const __m256i *)(t + 1 < count ? from + stride : from));
            const __m256i low_weights = _mm256_set1_epi32(table[t]), high_weights = _mm256_set1_epi32(table[t + 1]);
            const __m256i left = _mm256_unpacklo_epi8(a, b), right = _mm256_unpackhi_epi8(a, b);
            const __m256i words[4] = {_mm256_unpacklo_epi8(left, zero), _mm256_unpackhi_epi8(left, zero),
                                      _mm256_unpacklo_epi8(right, zero), _mm256_unpackhi_epi8(right, zero)};
            for (int i = 0; i < 4; i++) {
                low[i] = _mm256_add_epi32(low[i], _mm256_madd_epi16(words[i], low_weights));
                high[i] = _mm256_add_epi32(high[i], _mm256_madd_epi16(words[i], high_weights));
            }
        }
        for (int i = 0; i < 4; i++)
            low[i] = _mm256_srai_epi32(_mm256_add_epi32(low[i], _mm256_slli_epi32(high[i], LOW_BITS)), WEIGHT_BITS);
        const __m256i bytes =
            _mm256_packus_epi16(_mm256_packs_epi32(low[0], low[1]), _mm256_packs_epi32(low[2], low[3]));
        _mm256_storeu_si256((__m256i *)(out + x), bytes);
    }
}
#endif
