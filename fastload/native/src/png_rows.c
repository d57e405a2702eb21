/* See png_rows.h. */
#include "png_rows.h"
#include "inflate.h"
#include "unfilter.h"

#include <string.h>

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
