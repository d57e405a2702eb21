/* From the bytes of a PNG file to a row of a batch. All of the image data are inflated and checked; only the rows and
 * columns that a box needs are made.
 *
 *   bytes ─inflate─> filtered rows ─unfilter─> rows of samples ─> rows of pixels ─resizer─> rows of the result
 *
 * What comes out equals what Pillow decodes, makes RGB, cuts out and resizes, bit for bit.
 */
#include "inflate.h"
#include "png_header.h"
#include "resample.h"
#include "unfilter.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* A level or a colour of a file's palette: red, green, blue, and whether there is none. */
struct colors {
    uint8_t of[256][4];
};

static void name_colors(struct colors *colors, const struct png_header *h)
{
    memset(colors, 0, sizeof *colors);
    for (int i = 0; h->bits <= 8 && i < 1 << h->bits; i++) {
        const int is_missing = h->color == PNG_PALETTE && i >= h->colors;
        if (h->color == PNG_PALETTE && !is_missing)
            memcpy(colors->of[i], h->palette + 3 * i, 3);
        else
            memset(colors->of[i], i * 255 / ((1 << h->bits) - 1), 3);
        colors->of[i][3] = (uint8_t)is_missing;
    }
}

/* Samples that stand for a color, so many bits each. Returns whether one has none. */
INLINE int name_pixels(const struct colors *colors, const uint8_t *row, int left, int num, int bits, uint8_t *out)
{
    int missing = 0;
    for (int x = left; x < left + num; x++, out += 3) {
        const int sample = bits == 8 ? row[x] : row[x * bits / 8] >> (8 - bits - (x * bits & 7)) & ((1 << bits) - 1);
        memcpy(out, colors->of[sample], 4);
        missing |= colors->of[sample][3];
    }
    return missing;
}

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
static int convert_row(const struct png_header *h, const struct colors *colors, const uint8_t *row, int left, int num,
                       uint8_t *out, int level)
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
        return h->bits == 8   ? name_pixels(colors, row, left, num, 8, out)
               : h->bits == 4 ? name_pixels(colors, row, left, num, 4, out)
               : h->bits == 2 ? name_pixels(colors, row, left, num, 2, out)
                              : name_pixels(colors, row, left, num, 1, out);
    }
}

/* The filtered rows, behind a row of zeros. */
struct filtered {
    uint8_t *rows;
    size_t stride;
};

/* Inflates the image data and whatever else Pillow may stumble over. */
static int inflate_all(struct fastload_scratch *scratch, const uint8_t *bytes, const struct png_header *h,
                       struct filtered *f, int level)
{
    const uint64_t row = ((uint64_t)h->width * (uint64_t)(h->bits * png_samples(h->color)) + 7) / 8;
    f->stride = (size_t)row + 1;
    const size_t size = f->stride * (size_t)h->height;
    /* So that memory is claimed by data, not by a header alone. */
    if (size / INFLATE_MOST_RATIO > h->coded)
        return FASTLOAD_DAMAGED;
    const size_t longest = h->coded > h->text_length ? h->coded : h->text_length;
    uint8_t *coded = reserve(&scratch->entropy, longest + INFLATE_IN_PADDING);
    const size_t room = size > PNG_MOST_TEXT || !h->text ? size : PNG_MOST_TEXT;
    uint8_t *memory = reserve(&scratch->planes, f->stride + room + INFLATE_OUT_PADDING);
    if (!coded || !memory)
        return FASTLOAD_NO_MEMORY;
    f->rows = memory + f->stride;
    if (h->text) {
        memcpy(coded, h->text, h->text_length);
        if (inflate_stream(coded, h->text_length, f->rows, PNG_MOST_TEXT, level) < 0)
            return FASTLOAD_DAMAGED;
    }
    size_t held = 0;
    for (const uint8_t *at = bytes + h->data; held < h->coded; at += 12 + png_number(at)) {
        memcpy(coded + held, at + 8, png_number(at));
        held += png_number(at);
    }
    if (inflate_stream(coded, h->coded, f->rows, size, level) != (int64_t)size)
        return FASTLOAD_DAMAGED;
    for (size_t i = 0; i < size; i += f->stride)
        if (f->rows[i] > PNG_PAETH)
            return FASTLOAD_DAMAGED;
    memset(memory, 0, f->stride);
    return FASTLOAD_DONE;
}

/* From a PNG file to a row of a batch. Returns enum fastload_status. Unless it is FASTLOAD_DONE, the result holds
 * anything. Files in colour are not made grey: a target of one channel is for grey files. */
FASTLOAD_EXPORT int fastload_png_row(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                                     const struct fastload_request *request)
{
    struct png_header h;
    const int read = read_png_header(bytes, length, &h);
    if (read != FASTLOAD_DONE)
        return read == FASTLOAD_INCOMPLETE ? FASTLOAD_DAMAGED : read;
    if (check_request(request, h.height, h.width) != FASTLOAD_DONE)
        return FASTLOAD_BAD_ARGUMENT;
    if (request->target.channels == 1 && h.color != PNG_GREY && h.color != PNG_GREY_ALPHA)
        return FASTLOAD_COLORS;
    struct resizer r;
    struct filtered f;
    int status = resizer_begin(&r, scratch, request);
    if (status == FASTLOAD_DONE)
        status = inflate_all(scratch, bytes, &h, &f, r.level);
    if (status != FASTLOAD_DONE)
        return status;
    const int top = request->box[0] + r.rows.first, left = request->box[1] + r.columns.first, num = r.columns.in;
    const size_t apart = padded(num);
    uint8_t *pixels = reserve(&scratch->pixels, apart * ROWS_AT_ONCE);
    if (!pixels)
        return FASTLOAD_NO_MEMORY;
    struct colors colors;
    name_colors(&colors, &h);
    const int bits = h.bits * png_samples(h.color), pixel = bits < 8 ? 1 : bits / 8;
    const size_t bytes_of_row = ((size_t)(left + num) * (size_t)bits + 7) / 8;
    /* From the last row above that says nothing of the one above it. */
    int begin = top;
    while (begin > 0 && f.rows[(size_t)begin * f.stride] > PNG_SUB)
        begin--;
    unfilter_rows(f.rows + (size_t)begin * f.stride, f.stride, top - begin, bytes_of_row, pixel, r.level);
    const int is_ready = h.color == PNG_RGB && h.bits == 8;
    for (int y = 0; y < r.rows.in; y += ROWS_AT_ONCE) {
        const int rows = r.rows.in - y < ROWS_AT_ONCE ? r.rows.in - y : ROWS_AT_ONCE;
        uint8_t *const first = f.rows + (size_t)(top + y) * f.stride;
        unfilter_rows(first, f.stride, rows, bytes_of_row, pixel, r.level);
        if (is_ready) {
            resizer_push(&r, first + 1 + (size_t)3 * left, f.stride, rows);
            continue;
        }
        for (int i = 0; i < rows; i++)
            if (convert_row(&h, &colors, first + (size_t)i * f.stride + 1, left, num, pixels + i * apart, r.level))
                return FASTLOAD_COLORS;
        resizer_push(&r, pixels, apart, rows);
    }
    return FASTLOAD_DONE;
}

/* The size and kind of a PNG file. out: width, height, bits of a sample, colour as the file says it, and whether chunks
 * stand behind the image data. Returns enum fastload_status, FASTLOAD_INCOMPLETE where the file goes on; width to colour
 * are also given where the first chunk was understood, and 0 otherwise. */
FASTLOAD_EXPORT int fastload_png_size(const uint8_t *bytes, size_t length, int32_t out[5])
{
    struct png_header h;
    const int status = read_png_header(bytes, length, &h);
    out[0] = h.width;
    out[1] = h.height;
    out[2] = h.bits;
    out[3] = h.color;
    out[4] = h.is_behind;
    return status;
}
