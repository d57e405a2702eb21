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

/* Whether `size` bytes of inflated image data are all rows of an image, each with a filter that is known. */
int are_png_rows(const struct png_header *h, const uint8_t *filtered, size_t size);

/* Undoes the filters of rows that nobody changes, in a copy. */
struct png_rows {
    const uint8_t *filtered; /* the next row */
    size_t full, stride;     /* from a row to the next: there, and of the copy, where a row may end sooner */
    int pixel, held, level;  /* bytes of a pixel, at least 1; rows in the copy */
    uint8_t *copy;           /* the row above those, and PNG_ROWS_AT_ONCE of them */
};
#define PNG_ROWS_AT_ONCE 16

/* `filtered`: of all rows; `first`: which the next one is, of which no filter needs the one above; `columns`: how many are
 * wanted, from the left. Returns enum fastload_status. */
int png_rows_begin(struct png_rows *r, struct fastload_scratch *scratch, const struct png_header *h, const uint8_t *filtered,
                   int first, int columns, int level);

/* The next `num` rows, PNG_ROWS_AT_ONCE at most: r->stride from one to the next; behind each ROW_PADDING bytes may be read. */
const uint8_t *png_rows_next(struct png_rows *r, int num);

/* What pixels become. Numbers are those of fastload/native/png.py. */
enum png_layout { PNG_L = 0, PNG_TO_RGB = 1, PNG_TO_BGR = 2, PNG_TO_RGBA = 3, PNG_TO_BGRA = 4, PNG_NUM_LAYOUTS };

/* How pixels are converted. */
struct png_conversion {
    int in, out;        /* bytes of a pixel, before and after; in 0: samples are numbers of colours, of `bits` each */
    int bits;
    int order[4];       /* which byte goes where */
    int is_same;        /* each goes where it is */
    int weights[3];     /* of red, green and blue in 2**-15, where out is grey and in is not; otherwise 0 */
    uint8_t of[256][4]; /* what a number stands for, and whether the palette lacks it */
};

/* Of 16 bits the upper 8 are taken. `weights`: of red and green; for PNG_L of files in colour. Returns enum fastload_status:
 * FASTLOAD_COLORS for a layout with an alpha channel, which the file lacks. */
int png_plan(struct png_conversion *c, const struct png_header *h, int layout, const int32_t weights[2]);

/* `num` pixels of a row, from `left` on, behind which 16 bytes may be read. Returns whether the palette lacks a colour. */
int png_convert(const struct png_conversion *c, const uint8_t *row, int left, int num, uint8_t *out, int level);

enum png_filter { PNG_NONE = 0, PNG_SUB = 1, PNG_UP = 2, PNG_AVERAGE = 3, PNG_PAETH = 4 };

/* Undoes, in place, `num` rows that lie one behind the other: each a byte that names its filter, and stride - 1 others, of
 * which the first `bytes` are wanted. The row above the first must be undone, if the first one's filter looks at it; and
 * there must be memory for it. `pixel`: bytes of a pixel, at least one. Reads 8 bytes behind the last row. */
void unfilter_rows(uint8_t *rows, size_t stride, int num, size_t bytes, int pixel, int level);

#endif
