/* A PNG file to all of its pixels, as libpng gives them to OpenCV, torchvision and TorchCodec.
 *
 * Nobody has looked at the file before, and libpng warns of what it finds wrong in chunks that change no pixel. So only
 * chunks are taken whose contents are known well, and all checksums are compared.
 */
#include "inflate.h"
#include "png.h"

#include <stdlib.h>

/* What pixels become. Numbers are those of fastload/native/png.py. */
enum layout { LAYOUT_GREY = 0, LAYOUT_RGB = 1, LAYOUT_BGR = 2, LAYOUT_RGBA = 3, LAYOUT_BGRA = 4, NUM_LAYOUTS };

/* Undone and converted while they are in the cache. */
enum { ROWS_TOGETHER = 16 };

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

/* How pixels are converted. */
struct conversion {
    int in, out;     /* bytes of a pixel, before and after; in 0: samples are numbers of colours, of `bits` each */
    int bits;
    int order[4];    /* which byte goes where */
    int weights[3];  /* of red, green and blue in 2**-15, where out is grey and in is not; otherwise 0 */
    uint8_t of[256][4]; /* see png_name_colors */
};

INLINE uint8_t weigh(const struct conversion *c, const uint8_t *rgb)
{
    return (uint8_t)((c->weights[0] * rgb[0] + c->weights[1] * rgb[1] + c->weights[2] * rgb[2]) >> 15);
}

static void name_colors(struct conversion *c, const struct png_header *h, int is_bgr)
{
    png_name_colors(h, c->of);
    for (int i = 0; i < 256; i++) {
        uint8_t *const of = c->of[i], red = of[0];
        if (c->out == 1 && h->color == PNG_PALETTE)
            of[0] = weigh(c, of);
        if (is_bgr) {
            of[0] = of[2];
            of[2] = red;
        }
    }
}

/* Returns FASTLOAD_DONE, or FASTLOAD_COLORS: these pixels do not become those. */
static int plan_conversion(struct conversion *c, const struct png_header *h, int layout, const int32_t weights[2],
                           int has_colors)
{
    static const int channels[NUM_LAYOUTS] = {1, 3, 3, 4, 4};
    const int is_bgr = layout == LAYOUT_BGR || layout == LAYOUT_BGRA;
    const int is_colored = h->color == PNG_RGB || h->color == PNG_RGB_ALPHA;
    memset(c, 0, sizeof *c);
    c->out = channels[layout];
    c->bits = h->bits;
    if (h->bits == 16 || (c->out == 4 && h->color != PNG_RGB_ALPHA && h->color != PNG_GREY_ALPHA))
        return FASTLOAD_COLORS;
    if (c->out == 1 && (is_colored || h->color == PNG_PALETTE)) {
        if (has_colors)
            return FASTLOAD_COLORS;
        c->weights[0] = weights[0];
        c->weights[1] = weights[1];
        c->weights[2] = (1 << 15) - weights[0] - weights[1];
    }
    if (h->color == PNG_PALETTE || h->bits < 8) {
        name_colors(c, h, is_bgr);
        return FASTLOAD_DONE;
    }
    c->in = png_samples(h->color);
    for (int k = 0; k < 3 && is_colored; k++)
        c->order[k] = is_bgr ? 2 - k : k;
    c->order[3] = c->in - 1;
    return FASTLOAD_DONE;
}

INLINE void weigh_pixels(const struct conversion *c, const uint8_t *row, int num, int in, uint8_t *out)
{
    for (int x = 0; x < num; x++)
        out[x] = weigh(c, row + x * in);
}

#ifdef FASTLOAD_X86
#include <immintrin.h>

/* Several pixels at once, as long as 16 bytes may be written. Returns how many it took. Reads 16 bytes from each. */
FASTLOAD_TARGET_AVX2 static int order_avx2(const struct conversion *c, const uint8_t *row, int num, uint8_t *out)
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

/* A row; behind it 16 bytes may be read. Returns whether a colour is missing. */
static int convert_row(const struct conversion *c, const uint8_t *row, int num, uint8_t *out, int level)
{
    int x = 0;
    (void)level;
    if (!c->in)
        return c->out == 1 ? png_name_pixels(c->of, row, 0, num, c->bits, 1, 1, out)
                           : png_name_pixels(c->of, row, 0, num, c->bits, 3, 3, out);
    if (c->weights[0]) {
        if (c->in == 3)
            weigh_pixels(c, row, num, 3, out);
        else
            weigh_pixels(c, row, num, 4, out);
        return 0;
    }
    if (c->in == c->out && (c->in == 1 || c->order[0] == 0)) {
        memcpy(out, row, (size_t)num * (size_t)c->in);
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

static int convert_rows(const struct conversion *c, const struct png_header *h, uint8_t *rows, uint8_t *out, int level)
{
    const size_t bytes = png_bytes_of_row(h->width, h->bits, h->color), stride = bytes + 1;
    const int bits = h->bits * png_samples(h->color);
    for (int y = 0; y < h->height; y += ROWS_TOGETHER) {
        const int num = h->height - y < ROWS_TOGETHER ? h->height - y : ROWS_TOGETHER;
        uint8_t *const first = rows + (size_t)y * stride;
        unfilter_rows(first, stride, num, bytes, bits < 8 ? 1 : bits / 8, level);
        for (int i = 0; i < num; i++, out += (size_t)h->width * (size_t)c->out)
            if (convert_row(c, first + (size_t)i * stride + 1, h->width, out, level))
                return FASTLOAD_COLORS;
    }
    return FASTLOAD_DONE;
}

/* Decodes a whole file. `out`: height * width pixels of the layout, one behind the other. `weights`: of red and green in
 * 2**-15, for grey of files in colour. Returns enum fastload_status. Unless it is FASTLOAD_DONE, `out` holds anything. */
FASTLOAD_EXPORT int fastload_png_whole(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length, uint8_t *out,
                                       int layout, const int32_t weights[2], int level)
{
    struct png_header h;
    struct conversion conversion;
    int has_colors = 0;
    if (layout < 0 || layout >= NUM_LAYOUTS || weights[0] < 1 || weights[1] < 1 || weights[0] + weights[1] > 1 << 15)
        return FASTLOAD_BAD_ARGUMENT;
    int status = read_png_header(bytes, length, &h);
    if (status != FASTLOAD_DONE)
        return status == FASTLOAD_INCOMPLETE ? FASTLOAD_DAMAGED : status;
    level = fastload_level(level);
    if (!is_png_enough(&h) || !check_chunks(bytes, &h, level, &has_colors))
        return FASTLOAD_DAMAGED;
    status = plan_conversion(&conversion, &h, layout, weights, has_colors);
    if (status != FASTLOAD_DONE)
        return status;
    const size_t stride = png_stride(&h);
    /* Not the scratch's: few images are so large, and it would keep the memory for ever. */
    uint8_t *const memory = malloc(stride * ((size_t)h.height + 1) + INFLATE_OUT_PADDING);
    if (!memory)
        return FASTLOAD_NO_MEMORY;
    memset(memory, 0, stride);
    status = inflate_png_rows(scratch, bytes, &h, memory + stride, level);
    if (status == FASTLOAD_DONE)
        status = convert_rows(&conversion, &h, memory + stride, out, level);
    free(memory);
    return status;
}
