/* Affine transforms of images by the nearest pixel, as Pillow makes them: the same pixels.
 *
 * In: packed pixels of 8 bits with 1 or 3 channels, and where each pixel of the result comes from: for its column x and
 * row y, the column a[0] x + a[1] y + a[2] and the row a[3] x + a[4] y + a[5]. Out: the result; pixels from outside of the
 * image get the color `fill`.
 */
#include "affine.h"

/* Pillow's numbers of fixed point have 16 bits behind the point. */
#define FIXED(value) ((int)floor((value) * 65536.0 + 0.5))

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
    /* From the middle of each pixel. affine_is_known() keeps sums below 2^31, but for the rounding of the steps: beyond it they wrap
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

/* Returns DONE; or BAD_ARGUMENT, with nothing written, where Pillow would not compute in fixed point. */
FASTLOAD_EXPORT int fastload_affine(const uint8_t *from, int height, int width, int channels, uint8_t *to, int rows,
                                    int columns, const double a[6], const uint8_t *fill)
{
    if (!affine_is_known(height, width, channels, rows, columns, a))
        return FASTLOAD_BAD_ARGUMENT;
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
