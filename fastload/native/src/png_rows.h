/* A PNG file's image data to its rows, whose filters are to be undone. */
#ifndef FASTLOAD_PNG_ROWS_H
#define FASTLOAD_PNG_ROWS_H

#include "png_header.h"
#include "scratch.h"

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

#endif
