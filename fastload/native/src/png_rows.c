/* See png.h. */
#include "png.h"
#include "resample.h"

/* No deflated stream has more bytes in each of its own: 258 take at least two bits. */
#define MOST_RATIO 1032

int is_png_enough(const struct png_header *h)
{
    return png_stride(h) * (size_t)h->height / MOST_RATIO <= h->coded;
}

int are_png_rows(const struct png_header *h, const uint8_t *filtered, size_t size)
{
    const size_t stride = png_stride(h);
    if (size != stride * (size_t)h->height)
        return 0;
    for (size_t i = 0; i < size; i += stride)
        if (filtered[i] > PNG_PAETH)
            return 0;
    return 1;
}

int png_rows_begin(struct png_rows *r, struct fastload_scratch *scratch, const struct png_header *h, const uint8_t *filtered,
                   int first, int columns, int level)
{
    const int bits = h->bits * png_samples(h->color);
    r->full = png_stride(h);
    r->stride = png_bytes_of_row(columns, h->bits, h->color) + 1;
    r->filtered = filtered + (size_t)first * r->full;
    r->pixel = bits < 8 ? 1 : bits / 8;
    r->held = 0;
    r->level = level;
    r->copy = reserve(&scratch->planes, r->stride * (PNG_ROWS_AT_ONCE + 1) + ROW_PADDING);
    if (!r->copy)
        return FASTLOAD_NO_MEMORY;
    memset(r->copy, 0, r->stride);
    return FASTLOAD_DONE;
}

const uint8_t *png_rows_next(struct png_rows *r, int num)
{
    uint8_t *const rows = r->copy + r->stride;
    if (r->held)
        memcpy(r->copy, r->copy + (size_t)r->held * r->stride, r->stride);
    for (int i = 0; i < num; i++, r->filtered += r->full)
        memcpy(rows + (size_t)i * r->stride, r->filtered, r->stride);
    unfilter_rows(rows, r->stride, num, r->stride - 1, r->pixel, r->level);
    r->held = num;
    return rows + 1;
}

INLINE uint8_t weigh(const struct png_conversion *c, const uint8_t *rgb)
{
    return (uint8_t)((c->weights[0] * rgb[0] + c->weights[1] * rgb[1] + c->weights[2] * rgb[2]) >> 15);
}

static void name_colors(struct png_conversion *c, const struct png_header *h, int is_bgr)
{
    for (int i = 0; i < 1 << h->bits; i++) {
        uint8_t *const of = c->of[i];
        of[3] = h->color == PNG_PALETTE && i >= h->colors;
        if (h->color == PNG_PALETTE && !of[3])
            for (int k = 0; k < 3; k++)
                of[k] = h->palette[3 * i + (is_bgr ? 2 - k : k)];
        else
            memset(of, i * 255 / ((1 << h->bits) - 1), 3);
        if (c->weights[0] && !of[3])
            of[0] = weigh(c, h->palette + 3 * i);
    }
}

int png_plan(struct png_conversion *c, const struct png_header *h, int layout, const int32_t weights[2])
{
    static const int channels[PNG_NUM_LAYOUTS] = {1, 3, 3, 4, 4};
    const int is_bgr = layout == PNG_TO_BGR || layout == PNG_TO_BGRA, wide = h->bits == 16 ? 2 : 1;
    const int is_colored = h->color == PNG_RGB || h->color == PNG_RGB_ALPHA;
    memset(c, 0, sizeof *c);
    c->out = channels[layout];
    c->bits = h->bits;
    if (c->out == 4 && h->color != PNG_RGB_ALPHA && h->color != PNG_GREY_ALPHA)
        return FASTLOAD_COLORS;
    if (c->out == 1 && (is_colored || h->color == PNG_PALETTE)) {
        c->weights[0] = weights[0];
        c->weights[1] = weights[1];
        c->weights[2] = (1 << 15) - weights[0] - weights[1];
    }
    if (h->color == PNG_PALETTE || h->bits < 8) {
        name_colors(c, h, is_bgr);
        return FASTLOAD_DONE;
    }
    c->in = wide * png_samples(h->color);
    for (int k = 0; k < 3 && is_colored; k++)
        c->order[k] = wide * (is_bgr ? 2 - k : k);
    c->order[3] = c->in - wide;
    c->is_same = !c->weights[0] && c->in == c->out && (c->in == 1 || (wide == 1 && !is_bgr));
    return FASTLOAD_DONE;
}

/* Samples of so many bits, each to `out` bytes of what it stands for; `copied` of them are written. */
INLINE int name_each(const struct png_conversion *c, const uint8_t *row, int left, int num, int bits, int out, size_t copied,
                     uint8_t *to)
{
    int missing = 0;
    for (int x = left; x < left + num; x++, to += out) {
        const int sample = bits == 8 ? row[x] : row[x * bits / 8] >> (8 - bits - (x * bits & 7)) & ((1 << bits) - 1);
        memcpy(to, c->of[sample], copied);
        missing |= c->of[sample][3];
    }
    return missing;
}

/* With the number of bits as a constant. */
INLINE int name_pixels(const struct png_conversion *c, const uint8_t *row, int left, int num, int out, size_t copied,
                       uint8_t *to)
{
    switch (c->bits) {
    case 8:
        return name_each(c, row, left, num, 8, out, copied, to);
    case 4:
        return name_each(c, row, left, num, 4, out, copied, to);
    case 2:
        return name_each(c, row, left, num, 2, out, copied, to);
    default:
        return name_each(c, row, left, num, 1, out, copied, to);
    }
}

#ifdef FASTLOAD_X86
#include <immintrin.h>

/* Several pixels at once, as long as 16 bytes may be written. Returns how many it took. */
FASTLOAD_TARGET_AVX2 static int order_avx2(const struct png_conversion *c, const uint8_t *row, int num, uint8_t *out)
{
    const int together = 16 / (c->in > c->out ? c->in : c->out);
    int8_t places[16];
    for (int i = 0; i < 16; i++)
        places[i] = (int8_t)(i / c->out < together ? i / c->out * c->in + c->order[i % c->out] : -1);
    const __m128i order = _mm_loadu_si128((const __m128i *)places);
    int x = 0;
    for (; (num - x) * c->out >= 16; x += together)
        _mm_storeu_si128((__m128i *)(out + x * c->out),
                         _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(row + x * c->in)), order));
    return x;
}
#endif

int png_convert(const struct png_conversion *c, const uint8_t *row, int left, int num, uint8_t *out, int level)
{
    int x = 0;
    (void)level;
    if (!c->in && c->out == 1)
        return name_pixels(c, row, left, num, 1, 1, out);
    if (!c->in) { /* four bytes are copied sooner than three, but for the last pixel */
        const int missing = name_pixels(c, row, left, num - 1, 3, 4, out);
        return name_pixels(c, row, left + num - 1, 1, 3, 3, out + 3 * (num - 1)) | missing;
    }
    row += (size_t)left * (size_t)c->in;
    if (c->is_same) {
        memcpy(out, row, (size_t)num * (size_t)c->in);
        return 0;
    }
    if (c->weights[0]) {
        for (; x < num; x++, row += c->in)
            out[x] = weigh(c, row);
        return 0;
    }
#ifdef FASTLOAD_X86
    if (level != FASTLOAD_PLAIN)
        x = order_avx2(c, row, num, out);
#endif
    for (; x < num; x++)
        for (int k = 0; k < c->out; k++)
            out[x * c->out + k] = row[x * c->in + c->order[k]];
    return 0;
}
