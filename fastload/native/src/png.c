/* From the inflated image data of a PNG file to a row of a batch: only the rows and columns that a box needs are made.
 *
 *   filtered rows ─unfilter─> rows of samples ─convert─> rows of pixels ─resizer─> rows of the result
 *
 * What comes out equals what Pillow decodes, makes RGB, cuts out and resizes, bit for bit. It cannot fail on a file's
 * account, but for a palette that lacks a color: what Pillow's load raises errors for was found when the file was read.
 */
#include "png.h"
#include "resample.h"

/* What of a file is kept beside its rows. Only this library makes it, so nothing in it is checked again. */
struct fastload_png {
    struct png_header header; /* but for its places in the file */
    struct png_conversion to_rgb;
};
enum { FASTLOAD_PNG_BYTES = 2048 }; /* fastload/native/png.py has as many for it */
_Static_assert(sizeof(struct fastload_png) <= FASTLOAD_PNG_BYTES, "struct fastload_png has become larger");

/* Checks the inflated image data of a file, and prepares for making pixels of them. `out`: FASTLOAD_PNG_BYTES. Returns enum
 * fastload_status. */
FASTLOAD_EXPORT int fastload_png_begin(const uint8_t *bytes, size_t length, const uint8_t *filtered, size_t size,
                                       struct fastload_png *out)
{
    const int status = read_png_header(bytes, length, &out->header);
    if (status != FASTLOAD_DONE)
        return status == FASTLOAD_INCOMPLETE ? FASTLOAD_DAMAGED : status;
    if (!are_png_rows(&out->header, filtered, size))
        return FASTLOAD_DAMAGED;
    return png_plan(&out->to_rgb, &out->header, PNG_TO_RGB, NULL);
}

/* Whether a request wants grey levels as they are in the file. */
static int wants_levels(const struct png_header *h, const struct fastload_request *r)
{
    return h->color == PNG_GREY && h->bits == 8 && r->target.channels == 1 && r->target.column == 1 &&
           r->target.element == 1 && !r->target.table && !r->flips && r->source[0] == 0 && r->source[1] == 0 &&
           r->source[2] == (float)r->box[3] && r->source[3] == (float)r->box[2] && r->size[0] == r->box[2] &&
           r->size[1] == r->box[3];
}

/* From inflated rows to a row of a batch. Returns enum fastload_status; FASTLOAD_COLORS where the palette lacks a color,
 * or the file is in colour and the target has one channel. Unless it is FASTLOAD_DONE, the result holds anything. */
FASTLOAD_EXPORT int fastload_png_row(struct fastload_scratch *scratch, const struct fastload_png *png,
                                     const uint8_t *filtered, const struct fastload_request *request)
{
    const struct png_header *const h = &png->header;
    if (check_request(request, h->height, h->width) != FASTLOAD_DONE)
        return FASTLOAD_BAD_ARGUMENT;
    if (request->target.channels == 1 && h->color != PNG_GREY && h->color != PNG_GREY_ALPHA)
        return FASTLOAD_COLORS;
    struct resizer r;
    struct png_rows source;
    int status = resizer_begin(&r, scratch, request);
    if (status != FASTLOAD_DONE)
        return status;
    const int top = request->box[0] + r.rows.first, left = request->box[1] + r.columns.first, num = r.columns.in;
    /* From the last row above that says nothing of the one above it. */
    int begin = top;
    while (begin > 0 && filtered[(size_t)begin * png_stride(h)] > PNG_SUB)
        begin--;
    status = png_rows_begin(&source, scratch, h, filtered, begin, left + num, r.level);
    const size_t apart = padded(num);
    uint8_t *const pixels = reserve(&scratch->pixels, apart * PNG_ROWS_AT_ONCE);
    if (status != FASTLOAD_DONE || !pixels)
        return FASTLOAD_NO_MEMORY;
    const int is_plain = wants_levels(h, request), is_rgb = png->to_rgb.is_same;
    for (int y = begin, rows; y < top + r.rows.in; y += rows) {
        const int end = y < top ? top : top + r.rows.in;
        rows = end - y < PNG_ROWS_AT_ONCE ? end - y : PNG_ROWS_AT_ONCE;
        const uint8_t *const first = png_rows_next(&source, rows);
        for (int i = 0; i < rows && y >= top && !is_rgb; i++) {
            const uint8_t *const row = first + (size_t)i * source.stride;
            if (is_plain)
                memcpy(request->target.data + (y - top + i) * request->target.row, row + left, (size_t)num);
            else if (png_convert(&png->to_rgb, row, left, num, pixels + i * apart, r.level))
                return FASTLOAD_COLORS;
        }
        if (y >= top && is_rgb)
            resizer_push(&r, first + (size_t)3 * left, source.stride, rows);
        else if (y >= top && !is_plain)
            resizer_push(&r, pixels, apart, rows);
    }
    return FASTLOAD_DONE;
}

/* The size and kind of a PNG file. out: width, height, bits of a sample, colour as the file says it, whether chunks stand
 * behind the image data; where the first chunk of image data begins, and the last of all; how many bytes the image data
 * have, and inflated. Returns enum fastload_status, FASTLOAD_INCOMPLETE where the file goes on; width to colour are also
 * given where the first chunk was understood, and 0 otherwise. */
FASTLOAD_EXPORT int fastload_png_size(const uint8_t *bytes, size_t length, int64_t out[9])
{
    struct png_header h;
    const int read = read_png_header(bytes, length, &h);
    const int status = read == FASTLOAD_DONE && !is_png_enough(&h) ? FASTLOAD_DAMAGED : read;
    const int64_t found[9] = {h.width, h.height, h.bits, h.color, h.is_behind, (int64_t)h.data, (int64_t)h.last,
                               (int64_t)h.coded, status ? 0 : (int64_t)(png_stride(&h) * (size_t)h.height)};
    memcpy(out, found, sizeof found);
    return status;
}
