/* From the bytes of a PNG file to a row of a batch, in two steps: all of the image data are inflated and checked, and
 * kept; later, only the rows and columns that a box needs are made.
 *
 *   bytes ─inflate─> filtered rows ─unfilter─> rows of samples ─> rows of pixels ─resizer─> rows of the result
 *
 * What comes out equals what Pillow decodes, makes RGB, cuts out and resizes, bit for bit. The second step cannot fail
 * on a file's account, but for a palette that lacks a color: what Pillow's load raises errors for, the first has found.
 */
#include "inflate.h"
#include "png.h"
#include "resample.h"

/* The result of the first step, in one piece. Only this library makes it, so nothing in it is checked again. */
struct fastload_inflated {
    int32_t width, height;
    int32_t bits, color;   /* as struct png_header has them */
    uint8_t of[256][4];    /* a level or a colour of the palette: red, green, blue, and whether there is none */
    uint8_t rows[];        /* a row of zeros, and the filtered rows; then INFLATE_OUT_PADDING */
};

/* Of pixels of `step` bytes three: the first, and two that are `apart`. */
INLINE void pick_bytes(const uint8_t *row, int num, int step, int apart, uint8_t *out)
{
    for (int x = 0; x < num; x++, row += step, out += 3) {
        out[0] = row[0];
        out[1] = row[apart];
        out[2] = row[2 * apart];
    }
}

#ifdef FASTLOAD_X86
#include <immintrin.h>

/* Pixels of four bytes without their last. Returns how many it took. Writes 4 bytes more. */
FASTLOAD_TARGET_AVX2 static int pick_avx2(const uint8_t *row, int num, uint8_t *out)
{
    const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    int x = 0;
    for (; x + 4 <= num; x += 4)
        _mm_storeu_si128((__m128i *)(out + 3 * x),
                         _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(row + 4 * x)), order));
    return x;
}
#endif

/* `num` pixels of a row, from `left` on, to bytes of red, green and blue; behind them 16 bytes may be written. Returns
 * whether a color is missing. */
static int convert_row(const struct fastload_inflated *h, const uint8_t *row, int left, int num, uint8_t *out, int level)
{
    const int wide = h->bits == 16 ? 2 : 1, step = wide * png_samples(h->color);
    const uint8_t *from = row + (size_t)step * left;
    (void)level;
    switch (h->color) {
    case PNG_GREY_ALPHA:
        if (wide == 2)
            pick_bytes(from, num, 4, 0, out);
        else
            pick_bytes(from, num, 2, 0, out);
        return 0;
    case PNG_RGB:
        if (wide == 2)
            pick_bytes(from, num, 6, 2, out);
        else
            memcpy(out, from, (size_t)3 * num);
        return 0;
    case PNG_RGB_ALPHA:
        if (wide == 2)
            pick_bytes(from, num, 8, 2, out);
        else {
#ifdef FASTLOAD_X86
            const int done = level == FASTLOAD_PLAIN ? 0 : pick_avx2(from, num, out);
#else
            const int done = 0;
#endif
            pick_bytes(from + 4 * done, num - done, 4, 1, out + 3 * done);
        }
        return 0;
    default:
        return png_name_pixels(h->of, row, left, num, h->bits, 3, 4, out);
    }
}

static size_t size_of(const struct png_header *h)
{
    return sizeof(struct fastload_inflated) + png_stride(h) * ((size_t)h->height + 1) +
           INFLATE_OUT_PADDING;
}

/* Inflates the image data. `out`: as many bytes as fastload_png_size says.
 * Returns enum fastload_status. */
FASTLOAD_EXPORT int fastload_png_inflate(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                                         struct fastload_inflated *out, int level)
{
    struct png_header h;
    int status = read_png_header(bytes, length, &h);
    if (status == FASTLOAD_DONE)
        status = inflate_png_rows(scratch, bytes, &h, out->rows + png_stride(&h), fastload_level(level));
    if (status != FASTLOAD_DONE)
        return status == FASTLOAD_INCOMPLETE ? FASTLOAD_DAMAGED : status;
    out->width = h.width;
    out->height = h.height;
    out->bits = h.bits;
    out->color = h.color;
    png_name_colors(&h, out->of);
    memset(out->rows, 0, png_stride(&h));
    return FASTLOAD_DONE;
}

/* Whether a request wants grey levels as they are in the file. */
static int wants_levels(const struct fastload_inflated *h, const struct fastload_request *r)
{
    return h->color == PNG_GREY && h->bits == 8 && r->target.channels == 1 && r->target.column == 1 &&
           r->target.element == 1 && !r->target.table && !r->flips && r->source[0] == 0 && r->source[1] == 0 &&
           r->source[2] == (float)r->box[3] && r->source[3] == (float)r->box[2] && r->size[0] == r->box[2] &&
           r->size[1] == r->box[3];
}

/* From inflated rows to a row of a batch. Returns enum fastload_status; FASTLOAD_COLORS where the palette lacks a color,
 * or the file is in colour and the target has one channel. Unless it is FASTLOAD_DONE, the result holds anything. */
FASTLOAD_EXPORT int fastload_inflated_row(struct fastload_scratch *scratch, const struct fastload_inflated *h,
                                          const struct fastload_request *request)
{
    if (check_request(request, h->height, h->width) != FASTLOAD_DONE)
        return FASTLOAD_BAD_ARGUMENT;
    if (request->target.channels == 1 && h->color != PNG_GREY && h->color != PNG_GREY_ALPHA)
        return FASTLOAD_COLORS;
    struct resizer r;
    const int status = resizer_begin(&r, scratch, request);
    if (status != FASTLOAD_DONE)
        return status;
    const int top = request->box[0] + r.rows.first, left = request->box[1] + r.columns.first, num = r.columns.in;
    const int bits = h->bits * png_samples(h->color), pixel = bits < 8 ? 1 : bits / 8;
    const size_t bytes_of_row = ((size_t)(left + num) * (size_t)bits + 7) / 8;
    const size_t full = png_bytes_of_row(h->width, h->bits, h->color) + 1, stride = bytes_of_row + 1, apart = padded(num);
    const uint8_t *const filtered = h->rows + full;
    /* From the last row above that says nothing of the one above it. */
    int begin = top;
    while (begin > 0 && filtered[(size_t)begin * full] > PNG_SUB)
        begin--;
    uint8_t *pixels = reserve(&scratch->pixels, apart * ROWS_AT_ONCE);
    /* A copy, since other threads may read the rows, and filters are undone in place: the row above the next ones, these
     * ones, and what vectors read behind them. */
    uint8_t *above = reserve(&scratch->planes, stride * (ROWS_AT_ONCE + 1) + ROW_PADDING);
    if (!pixels || !above)
        return FASTLOAD_NO_MEMORY;
    uint8_t *const first = above + stride;
    const int is_plain = wants_levels(h, request);
    memset(above, 0, stride);
    for (int y = begin; y < top + r.rows.in;) {
        const int end = y < top ? top : top + r.rows.in, rows = end - y < ROWS_AT_ONCE ? end - y : ROWS_AT_ONCE;
        for (int i = 0; i < rows; i++)
            memcpy(first + (size_t)i * stride, filtered + (size_t)(y + i) * full, stride);
        unfilter_rows(first, stride, rows, bytes_of_row, pixel, r.level);
        if (y >= top && is_plain)
            for (int i = 0; i < rows; i++)
                memcpy(request->target.data + (y - top + i) * request->target.row, first + (size_t)i * stride + 1 + left,
                       (size_t)num);
        else if (y >= top && h->color == PNG_RGB && h->bits == 8)
            resizer_push(&r, first + 1 + (size_t)3 * left, stride, rows);
        else if (y >= top) {
            for (int i = 0; i < rows; i++)
                if (convert_row(h, first + (size_t)i * stride + 1, left, num, pixels + i * apart, r.level))
                    return FASTLOAD_COLORS;
            resizer_push(&r, pixels, apart, rows);
        }
        memcpy(above, first + (size_t)(rows - 1) * stride, stride);
        y += rows;
    }
    return FASTLOAD_DONE;
}

/* The size and kind of a PNG file. out: width, height, bits of a sample, colour as the file says it, whether chunks stand
 * behind the image data; where the first chunk of image data begins, and the last of all; and how many bytes the result of
 * fastload_png_inflate takes. Returns enum fastload_status, FASTLOAD_INCOMPLETE where the file goes on; width to colour
 * are also given where the first chunk was understood, and 0 otherwise. */
FASTLOAD_EXPORT int fastload_png_size(const uint8_t *bytes, size_t length, int64_t out[8])
{
    struct png_header h;
    const int read = read_png_header(bytes, length, &h);
    const int status = read == FASTLOAD_DONE && !is_png_enough(&h) ? FASTLOAD_DAMAGED : read;
    out[0] = h.width;
    out[1] = h.height;
    out[2] = h.bits;
    out[3] = h.color;
    out[4] = h.is_behind;
    out[5] = (int64_t)h.data;
    out[6] = (int64_t)h.last;
    out[7] = status == FASTLOAD_DONE ? (int64_t)size_of(&h) : 0;
    return status;
}
