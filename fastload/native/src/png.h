/* PNG files: their chunks, the rows of their image data, and what samples stand for.
 *
 * Pillow has opened the file: it has compared the checksums of the chunks before the image data, and read what they say.
 * Here only those that change the pixels are read. */
#ifndef FASTLOAD_PNG_H
#define FASTLOAD_PNG_H

#include "scratch.h"

#include <string.h>

enum png_color { PNG_GREY = 0, PNG_RGB = 2, PNG_PALETTE = 3, PNG_GREY_ALPHA = 4, PNG_RGB_ALPHA = 6 };

struct png_header {
    int width, height;
    int bits;  /* of a sample */
    int color; /* enum png_color */
    int is_behind; /* chunks other than the last stand behind the image data */
    const uint8_t *palette; /* bytes of red, green and blue */
    int colors;             /* of the palette */
    size_t data, last;      /* where the first chunk of image data begins, and the last of all */
    size_t coded;           /* bytes of image data in all chunks */
};

static inline uint32_t png_number(const uint8_t *from)
{
    return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static inline int png_samples(int color)
{
    return color == PNG_RGB ? 3 : color == PNG_GREY_ALPHA ? 2 : color == PNG_RGB_ALPHA ? 4 : 1;
}

/* Reads all chunks. FASTLOAD_INCOMPLETE: all is well, and the end is missing.
 * Width and height, bits and color are set as soon as they are known; 0 before. */
int read_png_header(const uint8_t *bytes, size_t length, struct png_header *header);

/* Without the byte that names the filter. */
static inline size_t png_bytes_of_row(int width, int bits, int color)
{
    return (size_t)(((uint64_t)width * (uint64_t)(bits * png_samples(color)) + 7) / 8);
}

/* From one row to the next. */
static inline size_t png_stride(const struct png_header *h)
{
    return png_bytes_of_row(h->width, h->bits, h->color) + 1;
}

/* Whether the image data can fill the image: so memory is claimed by data, not by a header alone. */
int is_png_enough(const struct png_header *h);

/* Inflates and checks all image data of a file whose chunks were read. `rows`: for all rows, and INFLATE_OUT_PADDING.
 * Returns enum fastload_status. */
int inflate_png_rows(struct fastload_scratch *scratch, const uint8_t *bytes, const struct png_header *h, uint8_t *rows,
                     int level);

enum png_filter { PNG_NONE = 0, PNG_SUB = 1, PNG_UP = 2, PNG_AVERAGE = 3, PNG_PAETH = 4 };

/* Undoes, in place, `num` rows that lie one behind the other: each a byte that names its filter, and stride - 1 others, of
 * which the first `bytes` are wanted. The row above the first must be undone, if the first one's filter looks at it; and
 * there must be memory for it. `pixel`: bytes of a pixel, at least one. Reads 8 bytes behind the last row. */
void unfilter_rows(uint8_t *rows, size_t stride, int num, size_t bytes, int pixel, int level);

/* Names what samples of up to 8 bits stand for: red, green, blue, and whether the palette lacks it. */
void png_name_colors(const struct png_header *h, uint8_t of[256][4]);

/* To pixels of `step` bytes, of which so many are copied, from samples of so many bits each: what they stand for. Returns
 * whether the palette lacks one. */
INLINE int png_name_each(const uint8_t of[256][4], const uint8_t *row, int left, int num, int bits, int step, size_t copied,
                         uint8_t *out)
{
    int missing = 0;
    for (int x = left; x < left + num; x++, out += step) {
        const int sample = bits == 8 ? row[x] : row[x * bits / 8] >> (8 - bits - (x * bits & 7)) & ((1 << bits) - 1);
        memcpy(out, of[sample], copied);
        missing |= of[sample][3];
    }
    return missing;
}

/* With the number of bits as a constant. */
INLINE int png_name_pixels(const uint8_t of[256][4], const uint8_t *row, int left, int num, int bits, int step,
                           size_t copied, uint8_t *out)
{
    if (bits == 8)
        return png_name_each(of, row + left, 0, num, 8, step, copied, out);
    return bits == 4   ? png_name_each(of, row, left, num, 4, step, copied, out)
           : bits == 2 ? png_name_each(of, row, left, num, 2, step, copied, out)
                       : png_name_each(of, row, left, num, 1, step, copied, out);
}

#endif
