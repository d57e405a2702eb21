/* Affine transforms of images, as Pillow makes them: the same pixels.
 *
 * In: packed pixels of 8 bits with 1 or 3 channels, and where each pixel of the result comes from: for its column x and
 * row y, the column a[0] x + a[1] y + a[2] and the row a[3] x + a[4] y + a[5]. Out: the result; pixels from outside of the
 * image get the color `fill`.
 *
 * Between pixels Pillow computes in double precision, and rounds each product and each sum (but for its builds for ARM,
 * which join them): so does this, by whichever instructions.
 */
#include "fastload.h"

#include <math.h>
#include <string.h>
#ifdef FASTLOAD_X86
#include <immintrin.h>
#endif

/* Pillow's numbers of its filters. */
enum resample {
    NEAREST = 0,
    BILINEAR = 2,
    BICUBIC = 3,
};

/* Pillow's numbers of fixed point have 16 bits behind the point. */
#define FIXED(value) ((int)floor((value) * 65536.0 + 0.5))

static int fits(const double a[6], int x, int y)
{
    return fabs(x * a[0] + y * a[1] + a[2]) < 32768.0 && fabs(x * a[3] + y * a[4] + a[5]) < 32768.0;
}

static inline void copy_pixel(uint8_t *to, const uint8_t *from, int channels)
{
    to[0] = from[0];
    if (channels == 3) {
        to[1] = from[1];
        to[2] = from[2];
    }
}

static inline void in_fixed_point(const uint8_t *from, int height, int width, int channels, uint8_t *to, int rows,
                                  int columns, const double a[6], const uint8_t *fill)
{
    /* From the middle of each pixel. fits() keeps sums below 2^31, but for the rounding of the steps: beyond it they wrap
     * around, as Pillow's do. */
    uint32_t x_step = (uint32_t)FIXED(a[0]), x_row = (uint32_t)FIXED(a[1]);
    uint32_t y_step = (uint32_t)FIXED(a[3]), y_row = (uint32_t)FIXED(a[4]);
    uint32_t x_begin = (uint32_t)FIXED(a[2] + a[0] * 0.5 + a[1] * 0.5);
    uint32_t y_begin = (uint32_t)FIXED(a[5] + a[3] * 0.5 + a[4] * 0.5);
    for (int row = 0; row < rows; row++, x_begin += x_row, y_begin += y_row) {
        uint32_t x = x_begin, y = y_begin;
        for (int column = 0; column < columns; column++, x += x_step, y += y_step, to += channels) {
            int at_x = (int32_t)x >> 16, at_y = (int32_t)y >> 16;
            int is_inside = ((unsigned)at_x < (unsigned)width) & ((unsigned)at_y < (unsigned)height);
            copy_pixel(to, is_inside ? from + ((int64_t)at_y * width + at_x) * channels : fill, channels);
        }
    }
}

static inline int place(double value)
{
    return value < 0.0 ? -1 : (int)value;
}

static inline void scaled(const uint8_t *from, int height, int width, int channels, uint8_t *to, int rows, int columns,
                          const double a[6], const uint8_t *fill)
{
    double y = a[5] + a[4] * 0.5;
    for (int row = 0; row < rows; row++, y += a[4]) {
        int at_y = place(y);
        double x = a[2] + a[0] * 0.5;
        for (int column = 0; column < columns; column++, x += a[0], to += channels) {
            int at_x = place(x);
            int is_inside = ((unsigned)at_x < (unsigned)width) & ((unsigned)at_y < (unsigned)height);
            copy_pixel(to, is_inside ? from + ((int64_t)at_y * width + at_x) * channels : fill, channels);
        }
    }
}

#ifdef FASTLOAD_X86
/* Where a pixel of the result comes from: the first of the neighbours, which may be outside of the image, and how far it
 * is behind their middle one, 0 to 1. */
struct origin {
    int x, y;
    double dx, dy;
};

/* What the pixels of a row of the result have in common. */
struct row {
    double a0, row_x, a2, a3, row_y, a5;
    int height, width;
};

static inline struct row row_of(int row, int height, int width, const double a[6])
{
    double y = row + 0.5;
    return (struct row){a[0], a[1] * y, a[2], a[3], a[4] * y, a[5], height, width};
}

/* Return whether a pixel comes from inside of the image, and from where; `reach`: neighbours before the place. */
static inline int find(struct origin *origin, int column, const struct row *row, int reach)
{
    double x = column + 0.5;
    double from_x = row->a0 * x + row->row_x + row->a2, from_y = row->a3 * x + row->row_y + row->a5;
    if (from_x < 0.0 || from_x >= row->width || from_y < 0.0 || from_y >= row->height)
        return 0;
    from_x -= 0.5;
    from_y -= 0.5;
    int at_x = (int)from_x - (from_x < 0.0), at_y = (int)from_y - (from_y < 0.0); /* -0.5 at least */
    origin->dx = from_x - at_x;
    origin->dy = from_y - at_y;
    origin->x = at_x - reach;
    origin->y = at_y - reach;
    return 1;
}

/* Beyond an edge its pixels go on. */
static inline int64_t clipped(int at, int length)
{
    return at < 0 ? 0 : at < length ? at : length - 1;
}

/* The channels of a pixel; the fourth number is another's. `last`: the offset of the image's last pixel, behind which
 * nothing may be read. */
FASTLOAD_TARGET_AVX2 static inline __m256d channels_at(const uint8_t *from, int64_t offset, int64_t last)
{
    uint32_t bytes;
    int is_last = offset == last;
    memcpy(&bytes, from + offset - is_last, 4);
    return _mm256_cvtepi32_pd(_mm_cvtepu8_epi32(_mm_cvtsi32_si128((int)(bytes >> (8 * is_last)))));
}

FASTLOAD_TARGET_AVX2 static inline __m256d between(__m256d first, __m256d second, __m256d part)
{
    return _mm256_add_pd(first, _mm256_mul_pd(_mm256_sub_pd(second, first), part));
}

FASTLOAD_TARGET_AVX2 static inline __m256d cubic(const __m256d v[4], __m256d part)
{
    __m256d second = _mm256_sub_pd(v[2], v[0]), apart = _mm256_sub_pd(v[0], v[1]);
    __m256d third = _mm256_sub_pd(_mm256_add_pd(_mm256_add_pd(apart, apart), v[2]), v[3]);
    /* -v[0] + v[1] is -apart, exactly. */
    __m256d fourth = _mm256_sub_pd(v[3], _mm256_add_pd(apart, v[2]));
    __m256d sum = _mm256_add_pd(third, _mm256_mul_pd(part, fourth));
    sum = _mm256_add_pd(second, _mm256_mul_pd(part, sum));
    return _mm256_add_pd(v[1], _mm256_mul_pd(part, sum));
}

/* The channels of neighbours, from the first of them: 16 bytes are read for four, 8 for two. */
FASTLOAD_TARGET_AVX2 static inline void neighbours(__m256d *levels, const uint8_t *from, int taps)
{
    __m128i bytes = taps == 4 ? _mm_loadu_si128((const __m128i *)from) : _mm_loadl_epi64((const __m128i *)from);
    for (int tap = 0; tap < taps; tap++) {
        /* Three bytes become the lowest of three numbers of 32 bits. */
        int first = 3 * tap, zeros = (int)0x80808000;
        __m128i places = _mm_setr_epi32(zeros | first, zeros | (first + 1), zeros | (first + 2), (int)0x80808080);
        levels[tap] = _mm256_cvtepi32_pd(_mm_shuffle_epi8(bytes, places));
    }
}

/* Of three channels, and at least two pixels. */
FASTLOAD_TARGET_AVX2 static inline __attribute__((always_inline)) void
filter(const uint8_t *from, int height, int width, uint8_t *to, int rows, int columns, const double a[6],
       const uint8_t *fill, int taps)
{
    const __m256d none = _mm256_setzero_pd(), most = _mm256_set1_pd(255.0);
    const int64_t last = ((int64_t)height * width - 1) * 3, line_bytes = (int64_t)width * 3;
    const int64_t last_read = last + 3 - (taps == 4 ? 16 : 8); /* by neighbours() */
    for (int number = 0; number < rows; number++) {
        const struct row row = row_of(number, height, width, a);
        for (int column = 0; column < columns; column++, to += 3) {
            struct origin at;
            if (!find(&at, column, &row, taps / 2 - 1)) {
                copy_pixel(to, fill, 3);
                continue;
            }
            const __m256d dx = _mm256_set1_pd(at.dx), dy = _mm256_set1_pd(at.dy);
            __m256d sums[4];
            int64_t offset = at.y * line_bytes + 3 * at.x;
            int is_within = at.x >= 0 && at.x + taps <= width && at.y >= 0 && at.y + taps <= height;
            is_within &= offset + (taps - 1) * line_bytes <= last_read;
            for (int line = 0; line < taps; line++) {
                __m256d levels[4];
                if (is_within)
                    neighbours(levels, from + offset + line * line_bytes, taps);
                else
                    for (int tap = 0; tap < taps; tap++) {
                        int64_t down = clipped(at.y + line, height) * line_bytes;
                        levels[tap] = channels_at(from, down + 3 * clipped(at.x + tap, width), last);
                    }
                sums[line] = taps == 4 ? cubic(levels, dx) : between(levels[0], levels[1], dx);
            }
            __m256d value = taps == 4 ? cubic(sums, dy) : between(sums[0], sums[1], dy);
            value = _mm256_min_pd(_mm256_max_pd(value, none), most);
            __m128i levels = _mm256_cvttpd_epi32(value);
            levels = _mm_packus_epi16(_mm_packus_epi32(levels, levels), levels);
            uint32_t bytes = (uint32_t)_mm_cvtsi128_si32(levels);
            memcpy(to, &bytes, 2);
            to[2] = (uint8_t)(bytes >> 16);
        }
    }
}

FASTLOAD_TARGET_AVX2 static void bilinear(const uint8_t *from, int height, int width, uint8_t *to, int rows, int columns,
                                          const double a[6], const uint8_t *fill)
{
    filter(from, height, width, to, rows, columns, a, fill, 2);
}

FASTLOAD_TARGET_AVX2 static void bicubic(const uint8_t *from, int height, int width, uint8_t *to, int rows, int columns,
                                         const double a[6], const uint8_t *fill)
{
    filter(from, height, width, to, rows, columns, a, fill, 4);
}
#endif

/* Returns DONE; or BAD_ARGUMENT, with nothing written, where Pillow would not compute in fixed point, and where it is not
 * slower: between pixels without AVX2, or of one channel. */
FASTLOAD_EXPORT int fastload_affine(const uint8_t *from, int height, int width, int channels, uint8_t *to, int rows,
                                    int columns, const double a[6], const uint8_t *fill, int resample, int level)
{
    if ((channels != 1 && channels != 3) || height < 1 || width < 1 || rows < 1 || columns < 1)
        return FASTLOAD_BAD_ARGUMENT;
    if (!(fits(a, 0, 0) && fits(a, columns, rows) && fits(a, 0, rows) && fits(a, columns, 0)))
        return FASTLOAD_BAD_ARGUMENT;
    if (resample != NEAREST) {
#ifdef FASTLOAD_X86
        int is_taken = channels == 3 && (int64_t)height * width > 1 && fastload_level(level) >= FASTLOAD_AVX2;
        if (is_taken && resample == BILINEAR)
            bilinear(from, height, width, to, rows, columns, a, fill);
        else if (is_taken && resample == BICUBIC)
            bicubic(from, height, width, to, rows, columns, a, fill);
        else
            return FASTLOAD_BAD_ARGUMENT;
        return FASTLOAD_DONE;
#else
        (void)level;
        return FASTLOAD_BAD_ARGUMENT;
#endif
    }
    int is_scaled = a[1] == 0 && a[3] == 0;
    /* With the channels as a constant. */
    if (is_scaled && channels == 3)
        scaled(from, height, width, 3, to, rows, columns, a, fill);
    else if (is_scaled)
        scaled(from, height, width, 1, to, rows, columns, a, fill);
    else if (channels == 3)
        in_fixed_point(from, height, width, 3, to, rows, columns, a, fill);
    else
        in_fixed_point(from, height, width, 1, to, rows, columns, a, fill);
    return FASTLOAD_DONE;
}
