/* Affine transforms of images with the filters BILINEAR and BICUBIC, as Pillow makes them: the same pixels.
 *
 * In and out: as in affine.c. Each pixel of the result is mixed of 2 x 2 or 4 x 4 pixels around its place, in double
 * precision and in Pillow's order of operations, then cut to an integer. Four numbers at a time: the channels of a pixel,
 * or four grey pixels. With AVX2 alone: without it Pillow is as fast.
 *
 * The image is first copied, with the pixels of its edges repeated around it, so that no place needs a case of its own.
 */
#include "affine.h"

#ifdef FASTLOAD_X86
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#define AVX2 FASTLOAD_TARGET_AVX2 static inline
#define BLOCK 64
#define LANES 4

/* What is transformed, and how. */
struct affine {
    const uint8_t *from; /* the copy */
    int pixel, stride;   /* of the copy, in bytes: from a pixel to the next, and from a row */
    int height, width;   /* of the image */
    int columns;         /* of the result */
    const double *a;
    const uint8_t *fill;
};

/* Where some pixels of the result come from. */
struct places {
    int32_t at[BLOCK];                /* the first of the pixels to mix, in the copy; -1: outside of the image */
    double right[BLOCK], down[BLOCK]; /* how far from one of them to the next: 0 to 1 */
};

/* A pixel of the copy has four bytes, the last of no use, or is one grey. */
static void copy_with_border(const uint8_t *from, int height, int width, int channels, int border, uint8_t *to)
{
    const int pixel = channels == 3 ? 4 : 1;
    for (int row = -border; row < height + border; row++) {
        int nearest = row < 0 ? 0 : row < height ? row : height - 1;
        const uint8_t *source = from + (int64_t)nearest * width * channels;
        uint8_t *out = to + border * pixel, *last = out + (int64_t)(width - 1) * pixel;
        if (channels == 3) {
            for (int column = 0; column < width - 1; column++)
                memcpy(out + column * 4, source + column * 3, 4);
            memcpy(last, source + (width - 1) * 3, 3);
            last[3] = 0;
        } else {
            memcpy(out, source, (size_t)width);
        }
        for (int i = 1; i <= border; i++) {
            memcpy(out - i * pixel, out, (size_t)pixel);
            memcpy(last + i * pixel, last, (size_t)pixel);
        }
        to += (int64_t)(width + 2 * border) * pixel;
    }
}

/* Find the places of BLOCK pixels of a row; without branches, so that compilers make vectors of the loop. */
AVX2 void find_places(const struct affine *affine, int row, int column, struct places *to)
{
    const double *a = affine->a;
    const double y_middle = row + 0.5;
    for (int i = 0; i < BLOCK; i++) {
        double x_middle = column + i + 0.5;
        double x = a[0] * x_middle + a[1] * y_middle + a[2], y = a[3] * x_middle + a[4] * y_middle + a[5];
        int is_outside = (x < 0.0) | (x >= affine->width) | (y < 0.0) | (y >= affine->height);
        /* From the middle of a pixel: -0.5 is the least. Rounded down. */
        x -= 0.5;
        y -= 0.5;
        int left = (int)x - (x < 0.0), upper = (int)y - (y < 0.0);
        to->right[i] = x - left;
        to->down[i] = y - upper;
        /* The border begins at -1 for the linear filter; and at -2 for the cubic one, which takes one pixel more before. */
        uint32_t at = (uint32_t)(upper + 1) * (uint32_t)affine->stride + (uint32_t)((left + 1) * affine->pixel);
        to->at[i] = (int32_t)at | -is_outside;
    }
}

/* -- a row of pixels: two, or four --------------------------------------------------------------------------------- */

AVX2 __m256d line(__m128i a, __m128i b, __m256d part)
{
    return _mm256_add_pd(_mm256_cvtepi32_pd(a), _mm256_mul_pd(_mm256_cvtepi32_pd(_mm_sub_epi32(b, a)), part));
}

/* b + part * (slope + part * (square - part * minus_cube)): a number and its negative are rounded alike. */
AVX2 __m256d polynomial(__m256d b, __m256d slope, __m256d square, __m256d minus_cube, __m256d part)
{
    __m256d sum = _mm256_sub_pd(square, _mm256_mul_pd(part, minus_cube));
    sum = _mm256_add_pd(slope, _mm256_mul_pd(part, sum));
    return _mm256_add_pd(b, _mm256_mul_pd(part, sum));
}

/* The cubic through b and c. Sums of integers are exact in any order. */
AVX2 __m256d cubic(__m128i a, __m128i b, __m128i c, __m128i d, __m256d part)
{
    __m128i fall = _mm_sub_epi32(a, b), minus_cube = _mm_add_epi32(fall, _mm_sub_epi32(c, d));
    __m128i square = _mm_add_epi32(fall, minus_cube), slope = _mm_sub_epi32(c, a);
    return polynomial(_mm256_cvtepi32_pd(b), _mm256_cvtepi32_pd(slope), _mm256_cvtepi32_pd(square),
                      _mm256_cvtepi32_pd(minus_cube), part);
}

/* The four channels of a pixel. */
AVX2 __m128i channels_at(const uint8_t *from)
{
    int32_t pixel;
    memcpy(&pixel, from, 4);
    return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(pixel));
}

AVX2 __m256d row_of_colors(const uint8_t *from, __m256d part, int is_cubic)
{
    __m128i a = channels_at(from), b = channels_at(from + 4);
    return is_cubic ? cubic(a, b, channels_at(from + 8), channels_at(from + 12), part) : line(a, b, part);
}

/* For four pixels of the result: from four bytes at each of their places. */
AVX2 __m256d row_of_greys(const uint8_t *from, __m128i at, __m256d part, int is_cubic)
{
    const __m128i levels = _mm_set1_epi32(255);
    __m128i found = _mm_i32gather_epi32((const int *)from, at, 1);
    __m128i a = _mm_and_si128(found, levels), b = _mm_and_si128(_mm_srli_epi32(found, 8), levels);
    if (!is_cubic)
        return line(a, b, part);
    return cubic(a, b, _mm_and_si128(_mm_srli_epi32(found, 16), levels), _mm_srli_epi32(found, 24), part);
}

/* -- rows, mixed --------------------------------------------------------------------------------------------------- */

AVX2 __m256d line_of_rows(__m256d a, __m256d b, __m256d part)
{
    return _mm256_add_pd(a, _mm256_mul_pd(_mm256_sub_pd(b, a), part));
}

AVX2 __m256d cubic_of_rows(__m256d a, __m256d b, __m256d c, __m256d d, __m256d part)
{
    __m256d fall = _mm256_sub_pd(a, b), minus_cube = _mm256_sub_pd(_mm256_add_pd(fall, c), d);
    __m256d square = _mm256_sub_pd(_mm256_add_pd(_mm256_add_pd(fall, fall), c), d);
    return polynomial(b, _mm256_sub_pd(c, a), square, minus_cube, part);
}

/* Rounded towards zero and cut to 0 ... 255. */
AVX2 int32_t four_levels(__m256d mixed)
{
    __m128i found = _mm256_cvttpd_epi32(mixed);
    found = _mm_packus_epi32(found, found);
    return _mm_cvtsi128_si32(_mm_packus_epi16(found, found));
}

AVX2 void fill_colors(const struct affine *affine, const struct places *places, int num, uint8_t *to, int is_cubic)
{
    for (int i = 0; i < num; i++, to += 3) {
        if (places->at[i] < 0) {
            memcpy(to, affine->fill, 3);
            continue;
        }
        const __m256d right = _mm256_set1_pd(places->right[i]), down = _mm256_set1_pd(places->down[i]);
        __m256d row[4];
        for (int j = 0; j < (is_cubic ? 4 : 2); j++)
            row[j] = row_of_colors(affine->from + places->at[i] + (int64_t)j * affine->stride, right, is_cubic);
        int32_t pixel = four_levels(is_cubic ? cubic_of_rows(row[0], row[1], row[2], row[3], down)
                                             : line_of_rows(row[0], row[1], down));
        memcpy(to, &pixel, 3);
    }
}

AVX2 void fill_greys(const struct affine *affine, const struct places *places, int num, uint8_t *to, int is_cubic)
{
    for (int i = 0; i < num; i += LANES) {
        /* What is outside takes any pixel, here the first. */
        const __m128i at = _mm_max_epi32(_mm_loadu_si128((const __m128i *)&places->at[i]), _mm_setzero_si128());
        const __m256d right = _mm256_loadu_pd(&places->right[i]), down = _mm256_loadu_pd(&places->down[i]);
        __m256d row[4];
        for (int j = 0; j < (is_cubic ? 4 : 2); j++)
            row[j] = row_of_greys(affine->from + (int64_t)j * affine->stride, at, right, is_cubic);
        uint32_t pixels = (uint32_t)four_levels(is_cubic ? cubic_of_rows(row[0], row[1], row[2], row[3], down)
                                                         : line_of_rows(row[0], row[1], down));
        for (int j = i; j < i + LANES && j < num; j++, pixels >>= 8)
            to[j] = places->at[j] < 0 ? affine->fill[0] : (uint8_t)pixels;
    }
}

/* With the kind as constants. */
FASTLOAD_TARGET_AVX2 static void fill_rows(const struct affine *affine, int rows, int channels, int is_cubic, uint8_t *to)
{
    struct places places;
    for (int row = 0; row < rows; row++)
        for (int done = 0; done < affine->columns; done += BLOCK) {
            int num = affine->columns - done < BLOCK ? affine->columns - done : BLOCK;
            find_places(affine, row, done, &places);
            if (channels == 3 && is_cubic)
                fill_colors(affine, &places, num, to, 1);
            else if (channels == 3)
                fill_colors(affine, &places, num, to, 0);
            else if (is_cubic)
                fill_greys(affine, &places, num, to, 1);
            else
                fill_greys(affine, &places, num, to, 0);
            to += (int64_t)num * channels;
        }
}
#endif

/* Returns DONE; NO_MEMORY; or BAD_ARGUMENT, with nothing written, for what the library leaves to Pillow. */
FASTLOAD_EXPORT int fastload_affine_filtered(const uint8_t *from, int height, int width, int channels, uint8_t *to,
                                             int rows, int columns, const double a[6], const uint8_t *fill, int is_cubic)
{
#ifdef FASTLOAD_X86
    const int border = is_cubic ? 2 : 1, pixel = channels == 3 ? 4 : 1;
    if (fastload_level < FASTLOAD_AVX2 || !affine_is_known(height, width, channels, rows, columns, a) ||
        (int64_t)height * width > FASTLOAD_MAX_PIXELS)
        return FASTLOAD_BAD_ARGUMENT;
    const size_t stride = ((size_t)width + 2 * (size_t)border) * (size_t)pixel;
    const size_t size = stride * ((size_t)height + 2 * (size_t)border);
    uint8_t *copy = malloc(size + 4); /* greys are read in fours */
    if (copy == NULL)
        return FASTLOAD_NO_MEMORY;
    memset(copy + size, 0, 4);
    copy_with_border(from, height, width, channels, border, copy);
    struct affine affine = {copy, pixel, (int)stride, height, width, columns, a, fill};
    fill_rows(&affine, rows, channels, is_cubic, to);
    free(copy);
    return FASTLOAD_DONE;
#else
    (void)from, (void)height, (void)width, (void)channels, (void)to, (void)rows, (void)columns, (void)a, (void)fill;
    (void)is_cubic;
    return FASTLOAD_BAD_ARGUMENT;
#endif
}
