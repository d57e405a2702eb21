/* Undoes the filters of a PNG file's rows. See png.h. */
#include "png.h"

#include <stdlib.h>

/* Of what is left, above, and left above, that which is nearest to left + above - left above. */
INLINE int nearest(int a, int b, int c)
{
    const int to_a = abs(b - c), to_b = abs(a - c), to_c = abs(a + b - 2 * c);
    const int first = to_b <= to_c ? b : c, least = to_b <= to_c ? to_b : to_c;
    return to_a <= least ? a : first;
}

/* Byte by byte. */
static void unfilter_bytes(uint8_t *row, const uint8_t *above, size_t bytes, size_t pixel, int filter)
{
    const size_t first = bytes < pixel ? bytes : pixel;
    switch (filter) {
    case PNG_SUB:
        for (size_t i = first; i < bytes; i++)
            row[i] = (uint8_t)(row[i] + row[i - pixel]);
        break;
    case PNG_UP:
        for (size_t i = 0; i < bytes; i++)
            row[i] = (uint8_t)(row[i] + above[i]);
        break;
    case PNG_AVERAGE:
        for (size_t i = 0; i < first; i++)
            row[i] = (uint8_t)(row[i] + above[i] / 2);
        for (size_t i = first; i < bytes; i++)
            row[i] = (uint8_t)(row[i] + (row[i - pixel] + above[i]) / 2);
        break;
    case PNG_PAETH:
        for (size_t i = 0; i < first; i++)
            row[i] = (uint8_t)(row[i] + above[i]);
        for (size_t i = first; i < bytes; i++)
            row[i] = (uint8_t)(row[i] + nearest(row[i - pixel], above[i], above[i - pixel]));
        break;
    default:
        break;
    }
}

#ifdef FASTLOAD_SSE2
#include <emmintrin.h>

INLINE __m128i load_pixel(const uint8_t *from)
{
    return _mm_unpacklo_epi8(_mm_loadl_epi64((const __m128i *)from), _mm_setzero_si128());
}

INLINE __m128i abs_sse2(__m128i x)
{
    return _mm_max_epi16(x, _mm_sub_epi16(_mm_setzero_si128(), x));
}

INLINE __m128i select_sse2(__m128i mask, __m128i yes, __m128i no)
{
    return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}

INLINE __m128i nearest_sse2(__m128i a, __m128i b, __m128i c)
{
    const __m128i a_way = _mm_sub_epi16(b, c), b_way = _mm_sub_epi16(a, c);
    const __m128i to_a = abs_sse2(a_way), to_b = abs_sse2(b_way), to_c = abs_sse2(_mm_add_epi16(a_way, b_way));
    const __m128i least = _mm_min_epi16(to_a, _mm_min_epi16(to_b, to_c));
    return select_sse2(_mm_cmpeq_epi16(least, to_a), a, select_sse2(_mm_cmpeq_epi16(least, to_b), b, c));
}

/* A pixel of 16 bits a channel at a time; its bytes are a constant to the compiler. */
INLINE void unfilter_pixels(uint8_t *row, const uint8_t *above, size_t bytes, size_t pixel, int filter)
{
    const __m128i low = _mm_set1_epi16(255);
    __m128i a = _mm_setzero_si128(), c = a;
    for (size_t i = 0; i + pixel <= bytes; i += pixel) {
        const __m128i x = load_pixel(row + i), b = load_pixel(above + i);
        const __m128i guess = filter == PNG_SUB       ? a
                              : filter == PNG_AVERAGE ? _mm_srli_epi16(_mm_add_epi16(a, b), 1)
                                                      : nearest_sse2(a, b, c);
        a = _mm_and_si128(_mm_add_epi16(x, guess), low);
        c = b;
        const int64_t packed = _mm_cvtsi128_si64(_mm_packus_epi16(a, a));
        memcpy(row + i, &packed, pixel);
    }
}
#endif

static void unfilter_row(uint8_t *row, const uint8_t *above, size_t bytes, int pixel, int filter)
{
#ifdef FASTLOAD_SSE2
    if ((pixel == 6 || pixel == 8) && filter != PNG_NONE && filter != PNG_UP) {
        if (pixel == 6)
            unfilter_pixels(row, above, bytes, 6, filter);
        else
            unfilter_pixels(row, above, bytes, 8, filter);
        return;
    }
#endif
    unfilter_bytes(row, above, bytes, (size_t)pixel, filter);
}

#ifdef FASTLOAD_X86
#include <immintrin.h>

enum { TOGETHER = 4 };

struct rows_avx2 {
    uint8_t *row[TOGETHER];
    const uint8_t *above;
    __m256i is_sub, is_up, is_average, is_paeth;
    __m256i last, last_above; /* pixels: left, and left above */
};

/* The next pixel of four rows, each a pixel behind the one above it: what a row has just made is above what the next is to
 * make. A quarter of a vector is a pixel of 16 bits a channel. Rows from `first` to `last` have a pixel in this step. */
FASTLOAD_TARGET_AVX2 INLINE void step_avx2(struct rows_avx2 *r, size_t step, size_t pixel, int first, int last)
{
    uint32_t bytes[TOGETHER], is_there[TOGETHER], above = 0;
    for (int k = 0; k < TOGETHER; k++) {
        const int there = k >= first && k <= last;
        bytes[k] = 0;
        is_there[k] = there ? 0x00FF00FF : 0;
        if (there)
            memcpy(&bytes[k], r->row[k] + (step - (size_t)k) * pixel, 4);
    }
    if (first == 0)
        memcpy(&above, r->above + step * pixel, 4);
    const __m256i x =
        _mm256_cvtepu8_epi16(_mm_setr_epi32((int)bytes[0], (int)bytes[1], (int)bytes[2], (int)bytes[3]));
    const __m256i a = r->last, c = r->last_above;
    const __m256i b = _mm256_blend_epi32(_mm256_permute4x64_epi64(a, 0x90),
                                         _mm256_cvtepu8_epi16(_mm_cvtsi32_si128((int)above)), 0x03);
    const __m256i a_way = _mm256_sub_epi16(b, c), b_way = _mm256_sub_epi16(a, c);
    const __m256i to_a = _mm256_abs_epi16(a_way), to_b = _mm256_abs_epi16(b_way);
    const __m256i to_c = _mm256_abs_epi16(_mm256_add_epi16(a_way, b_way));
    const __m256i least = _mm256_min_epi16(to_a, _mm256_min_epi16(to_b, to_c));
    const __m256i nearest = _mm256_blendv_epi8(_mm256_blendv_epi8(c, b, _mm256_cmpeq_epi16(least, to_b)), a,
                                               _mm256_cmpeq_epi16(least, to_a));
    const __m256i others = _mm256_or_si256(
        _mm256_or_si256(_mm256_and_si256(r->is_sub, a), _mm256_and_si256(r->is_up, b)),
        _mm256_and_si256(r->is_average, _mm256_srli_epi16(_mm256_add_epi16(a, b), 1)));
    const __m256i made = _mm256_and_si256(
        _mm256_add_epi16(_mm256_add_epi16(x, others), _mm256_and_si256(r->is_paeth, nearest)),
        _mm256_setr_epi64x((int64_t)(is_there[0] * 0x100000001ull), (int64_t)(is_there[1] * 0x100000001ull),
                           (int64_t)(is_there[2] * 0x100000001ull), (int64_t)(is_there[3] * 0x100000001ull)));
    r->last = made;
    r->last_above = b;
    const __m256i packed = _mm256_packus_epi16(made, made);
    const uint64_t pairs[2] = {(uint64_t)_mm_cvtsi128_si64(_mm256_castsi256_si128(packed)),
                               (uint64_t)_mm_cvtsi128_si64(_mm256_extracti128_si256(packed, 1))};
    for (int k = first; k <= last; k++) {
        const uint32_t out = (uint32_t)(pairs[k / 2] >> (32 * (k % 2)));
        memcpy(r->row[k] + (step - (size_t)k) * pixel, &out, pixel);
    }
}

FASTLOAD_TARGET_AVX2 INLINE void unfilter_together(uint8_t *rows, size_t stride, size_t width, size_t pixel)
{
    struct rows_avx2 r = {.above = rows + 1 - stride, .last = _mm256_setzero_si256(), .last_above = _mm256_setzero_si256()};
    int64_t filters[TOGETHER];
    for (int k = 0; k < TOGETHER; k++) {
        r.row[k] = rows + (size_t)k * stride + 1;
        filters[k] = r.row[k][-1];
    }
    const __m256i named = _mm256_setr_epi64x(filters[0], filters[1], filters[2], filters[3]);
    r.is_sub = _mm256_cmpeq_epi64(named, _mm256_set1_epi64x(PNG_SUB));
    r.is_up = _mm256_cmpeq_epi64(named, _mm256_set1_epi64x(PNG_UP));
    r.is_average = _mm256_cmpeq_epi64(named, _mm256_set1_epi64x(PNG_AVERAGE));
    r.is_paeth = _mm256_cmpeq_epi64(named, _mm256_set1_epi64x(PNG_PAETH));
    step_avx2(&r, 0, pixel, 0, 0);
    step_avx2(&r, 1, pixel, 0, 1);
    step_avx2(&r, 2, pixel, 0, 2);
    for (size_t step = TOGETHER - 1; step < width; step++)
        step_avx2(&r, step, pixel, 0, TOGETHER - 1);
    step_avx2(&r, width, pixel, 1, TOGETHER - 1);
    step_avx2(&r, width + 1, pixel, 2, TOGETHER - 1);
    step_avx2(&r, width + 2, pixel, 3, TOGETHER - 1);
}

/* Whether four rows have a filter that takes long row by row. */
static int are_slow(const uint8_t *rows, size_t stride)
{
    int slow = 0;
    for (int k = 0; k < TOGETHER; k++)
        slow |= rows[(size_t)k * stride] > PNG_UP;
    return slow;
}

/* Four rows, unless one by one is as fast. Returns whether it did. */
FASTLOAD_TARGET_AVX2 static int unfilter_avx2(uint8_t *rows, size_t stride, size_t bytes, int pixel)
{
    const size_t width = bytes / (size_t)pixel;
    if (width < TOGETHER || !are_slow(rows, stride))
        return 0;
    switch (pixel) {
    case 1:
        unfilter_together(rows, stride, width, 1);
        return 1;
    case 2:
        unfilter_together(rows, stride, width, 2);
        return 1;
    case 3:
        unfilter_together(rows, stride, width, 3);
        return 1;
    case 4:
        unfilter_together(rows, stride, width, 4);
        return 1;
    default: /* there is no room for pixels of 6 or 8 bytes */
        return 0;
    }
}
#endif

void unfilter_rows(uint8_t *rows, size_t stride, int num, size_t bytes, int pixel, int level)
{
    uint8_t *const end = rows + (size_t)num * stride;
    (void)level;
    while (rows < end) {
#ifdef FASTLOAD_X86
        if (level != FASTLOAD_PLAIN && (size_t)(end - rows) >= TOGETHER * stride &&
            unfilter_avx2(rows, stride, bytes, pixel)) {
            rows += TOGETHER * stride;
            continue;
        }
#endif
        unfilter_row(rows + 1, rows + 1 - stride, bytes, pixel, rows[0]);
        rows += stride;
    }
}
