/* See png.h. */
#include "png.h"
#include "inflate.h"

int is_png_enough(const struct png_header *h)
{
    return png_stride(h) * (size_t)h->height / INFLATE_MOST_RATIO <= h->coded;
}

int inflate_png_rows(struct fastload_scratch *scratch, const uint8_t *bytes, const struct png_header *h, uint8_t *rows,
                     int level)
{
    const size_t stride = png_stride(h), size = stride * (size_t)h->height;
    if (!is_png_enough(h))
        return FASTLOAD_DAMAGED;
    uint8_t *coded = reserve(&scratch->entropy, h->coded + INFLATE_IN_PADDING);
    if (!coded)
        return FASTLOAD_NO_MEMORY;
    size_t held = 0;
    for (const uint8_t *at = bytes + h->data; held < h->coded; at += 12 + png_number(at)) {
        memcpy(coded + held, at + 8, png_number(at));
        held += png_number(at);
    }
    if (inflate_stream(coded, h->coded, rows, size, level) != (int64_t)size)
        return FASTLOAD_DAMAGED;
    for (size_t i = 0; i < size; i += stride)
        if (rows[i] > PNG_PAETH)
            return FASTLOAD_DAMAGED;
    return FASTLOAD_DONE;
}

void png_name_colors(const struct png_header *h, uint8_t of[256][4])
{
    memset(of, 0, 256 * sizeof *of);
    for (int i = 0; h->bits <= 8 && i < 1 << h->bits; i++) {
        const int is_missing = h->color == PNG_PALETTE && i >= h->colors;
        if (h->color == PNG_PALETTE && !is_missing)
            memcpy(of[i], h->palette + 3 * i, 3);
        else
            memset(of[i], i * 255 / ((1 << h->bits) - 1), 3);
        of[i][3] = (uint8_t)is_missing;
    }
}
