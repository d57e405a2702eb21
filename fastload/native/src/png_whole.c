/* A PNG file to all of its pixels, as libpng gives them to OpenCV, torchvision and TorchCodec.
 *
 * Nobody has looked at the file before, and libpng warns of what it finds wrong in chunks that change no pixel. So only
 * chunks are taken whose contents are known well, and all checksums are compared.
 */
#include "png.h"

/* Of a chunk's length, name and sum. */
enum { AROUND = 12 };

/* Chunks that say how large a pixel is, and that colours are sRGB's, as they are written everywhere. */
static const struct known {
    char name[5];
    uint8_t size;
    uint8_t any; /* so many bytes at the beginning */
    uint8_t is_of_colors;
    uint8_t body[32];
} known[] = {
    {"pHYs", 9, 8, 0, {[8] = 1}},
    {"sRGB", 1, 0, 1, {0}},
    {"gAMA", 4, 0, 1, {0, 0, 0xB1, 0x8F}},
    {"cHRM", 32, 0, 1, {0, 0, 0x7A, 0x26, 0, 0, 0x80, 0x84, 0, 0, 0xFA, 0, 0, 0, 0x80, 0xE8,
                        0, 0, 0x75, 0x30, 0, 0, 0xEA, 0x60, 0, 0, 0x3A, 0x98, 0, 0, 0x17, 0x70}},
};
enum { NUM_KNOWN = sizeof known / sizeof *known };

/* Compares all checksums, and looks at the chunks that read_png_header leaves unread. Returns whether libpng finds nothing
 * wrong. `has_colors`: whether the file says what its colours are, which changes what is grey of them. */
static int check_chunks(const uint8_t *bytes, const struct png_header *h, int level, int *has_colors)
{
    int found[NUM_KNOWN] = {0};
    *has_colors = 0;
    if (h->is_behind || (h->palette && (h->color != PNG_PALETTE || h->colors > 1 << h->bits)))
        return 0;
    for (size_t at = 8; at <= h->last; at += AROUND + (size_t)png_number(bytes + at)) {
        const uint8_t *const chunk = bytes + at, *const name = chunk + 4, *const body = chunk + 8;
        const uint32_t size = png_number(chunk);
        if (crc32_of(name, (size_t)size + 4, level) != png_number(body + size))
            return 0;
        if (at == 8 || at >= h->data || body == h->palette)
            continue;
        int i = 0;
        while (i < NUM_KNOWN && memcmp(name, known[i].name, 4) != 0)
            i++;
        if (i == NUM_KNOWN || found[i]++ || size != known[i].size ||
            memcmp(body + known[i].any, known[i].body + known[i].any, size - known[i].any) != 0)
            return 0;
        if (known[i].is_of_colors && h->palette && body > h->palette)
            return 0;
        *has_colors |= known[i].is_of_colors;
    }
    return 1;
}

/* Decodes a whole file, whose image data are inflated. `out`: height * width pixels of the layout, one behind the other.
 * `weights`: of red and green in 2**-15, for grey of files in colour. Returns enum fastload_status. Unless it is
 * FASTLOAD_DONE, `out` holds anything. */
FASTLOAD_EXPORT int fastload_png_whole(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                                       const uint8_t *filtered, size_t size, uint8_t *out, int layout,
                                       const int32_t weights[2])
{
    struct png_header h;
    struct png_conversion conversion;
    struct png_rows source;
    int has_colors = 0;
    if (layout < 0 || layout >= PNG_NUM_LAYOUTS || weights[0] < 1 || weights[1] < 1 || weights[0] + weights[1] > 1 << 15)
        return FASTLOAD_BAD_ARGUMENT;
    int status = read_png_header(bytes, length, &h);
    if (status != FASTLOAD_DONE)
        return status == FASTLOAD_INCOMPLETE ? FASTLOAD_DAMAGED : status;
    const int level = fastload_level;
    if (!are_png_rows(&h, filtered, size) || !check_chunks(bytes, &h, level, &has_colors))
        return FASTLOAD_DAMAGED;
    status = h.bits == 16 ? FASTLOAD_COLORS : png_plan(&conversion, &h, layout, weights);
    if (status != FASTLOAD_DONE)
        return status;
    if (conversion.weights[0] && has_colors)
        return FASTLOAD_COLORS;
    status = png_rows_begin(&source, scratch, &h, filtered, 0, h.width, level);
    for (int y = 0, num; y < h.height && status == FASTLOAD_DONE; y += num) {
        num = h.height - y < PNG_ROWS_AT_ONCE ? h.height - y : PNG_ROWS_AT_ONCE;
        const uint8_t *const rows = png_rows_next(&source, num);
        for (int i = 0; i < num; i++, out += (size_t)h.width * (size_t)conversion.out)
            if (png_convert(&conversion, rows + (size_t)i * source.stride, 0, h.width, out, level))
                return FASTLOAD_COLORS;
    }
    return status;
}
