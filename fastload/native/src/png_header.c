/* See png_header.h. */
#include "png_header.h"
#include "inflate.h"

#include <string.h>

/* Of a name as a number. */
#define NAME(a, b, c, d) ((uint32_t)(a) << 24 | (uint32_t)(b) << 16 | (uint32_t)(c) << 8 | (uint32_t)(d))

/* Half of Pillow's PngImagePlugin.MAX_TEXT_MEMORY, in units of PNG_MOST_TEXT. */
#define MOST_TEXTS 32

struct chunk {
    uint32_t name, size;
    const uint8_t *body;
};

static int is_name(const uint8_t *from)
{
    for (int i = 0; i < 4; i++)
        if ((from[i] & 0xDF) < 'A' || (from[i] & 0xDF) > 'Z')
            return 0;
    return 1;
}

static int read_first(const struct chunk *chunk, struct png_header *h)
{
    const uint8_t *const body = chunk->body;
    if (chunk->name != NAME('I', 'H', 'D', 'R') || chunk->size != 13)
        return FASTLOAD_NOT_PNG;
    const uint32_t width = png_number(body), height = png_number(body + 4);
    const int bits = body[8], color = body[9];
    /* The first pair of letters of each colour: which numbers of bits it may have. */
    const int known = color == PNG_GREY      ? bits == 1 || bits == 2 || bits == 4 || bits == 8 || bits == 16
                      : color == PNG_PALETTE ? bits == 1 || bits == 2 || bits == 4 || bits == 8
                      : color == PNG_RGB || color == PNG_GREY_ALPHA || color == PNG_RGB_ALPHA ? bits == 8 || bits == 16
                                                                                               : 0;
    if (!known || body[10] || body[11] || body[12] > 1 || !width || !height || width > INT32_MAX || height > INT32_MAX)
        return FASTLOAD_NOT_PNG;
    h->width = (int)width;
    h->height = (int)height;
    h->bits = bits;
    h->color = color;
    if ((uint64_t)width * height > FASTLOAD_MAX_PIXELS)
        return FASTLOAD_TOO_LARGE;
    return body[12] || (color == PNG_GREY && bits == 16) ? FASTLOAD_CODING : FASTLOAD_DONE;
}

/* Keeps a zlib stream that may be too long when inflated. One is enough: an image has but one profile. */
static int keep_text(struct png_header *h, const uint8_t *from, size_t length)
{
    if (length <= PNG_MOST_TEXT / INFLATE_MOST_RATIO)
        return FASTLOAD_DONE;
    if (h->text)
        return FASTLOAD_NOT_PNG;
    h->text = from;
    h->text_length = length;
    return FASTLOAD_DONE;
}

/* Pillow keeps texts in the same dictionary as what it goes by itself. */
static int is_safe_key(const uint8_t *key, size_t length)
{
    static const char *const own[] = {"bbox", "interlace", "transparency"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (length == strlen(own[i]) && memcmp(key, own[i], length) == 0)
            return 0;
    return 1;
}

/* A key, a zero, and what it stands for. */
static int read_text(const struct chunk *chunk, struct png_header *h, unsigned *texts)
{
    const uint8_t *const zero = chunk->size ? memchr(chunk->body, 0, chunk->size) : NULL;
    const size_t key = zero ? (size_t)(zero - chunk->body) : chunk->size, rest = chunk->size - key;
    const int is_plain = chunk->name == NAME('t', 'E', 'X', 't');
    *texts += is_plain ? chunk->size / PNG_MOST_TEXT + 1 : 1;
    if (!is_safe_key(chunk->body, key) || *texts > MOST_TEXTS)
        return FASTLOAD_NOT_PNG;
    if (is_plain)
        return FASTLOAD_DONE;
    if (!zero || rest < 2)
        return FASTLOAD_NOT_PNG;
    if (chunk->name != NAME('i', 'T', 'X', 't'))
        return zero[1] ? FASTLOAD_NOT_PNG : keep_text(h, zero + 2, rest - 2);
    /* Behind the key of these: whether it is compressed, and how; the language and the key in it; the text. */
    if (chunk->size > PNG_MOST_TEXT)
        return FASTLOAD_NOT_PNG;
    if (!zero[1] || chunk->size <= PNG_MOST_TEXT / INFLATE_MOST_RATIO)
        return FASTLOAD_DONE;
    const uint8_t *const end = chunk->body + chunk->size;
    const uint8_t *at = rest > 3 ? zero + 3 : end;
    for (int i = 0; i < 2; i++) {
        const uint8_t *const next = memchr(at, 0, (size_t)(end - at));
        if (!next)
            return FASTLOAD_NOT_PNG;
        at = next + 1;
    }
    return keep_text(h, at, (size_t)(end - at));
}

/* A chunk between the first and the last that is not image data. */
static int read_other(const struct chunk *chunk, struct png_header *h, unsigned *texts)
{
    const uint32_t size = chunk->size;
    switch (chunk->name) {
    case NAME('P', 'L', 'T', 'E'):
        if (h->data || h->palette || h->color == PNG_GREY || h->color == PNG_GREY_ALPHA || size % 3 || !size || size > 768)
            return FASTLOAD_NOT_PNG;
        h->palette = chunk->body;
        h->colors = (int)size / 3;
        return FASTLOAD_DONE;
    case NAME('t', 'R', 'N', 'S'):
        return FASTLOAD_COLORS;
    case NAME('a', 'c', 'T', 'L'):
    case NAME('f', 'c', 'T', 'L'):
    case NAME('f', 'd', 'A', 'T'):
        return FASTLOAD_CODING;
    case NAME('i', 'C', 'C', 'P'):
    case NAME('z', 'T', 'X', 't'):
    case NAME('i', 'T', 'X', 't'):
    case NAME('t', 'E', 'X', 't'):
        return read_text(chunk, h, texts);
    case NAME('g', 'A', 'M', 'A'):
        return size < 4 ? FASTLOAD_NOT_PNG : FASTLOAD_DONE;
    case NAME('c', 'H', 'R', 'M'):
        return size < 32 ? FASTLOAD_NOT_PNG : FASTLOAD_DONE;
    case NAME('s', 'R', 'G', 'B'):
        return size < 1 ? FASTLOAD_NOT_PNG : FASTLOAD_DONE;
    case NAME('p', 'H', 'Y', 's'):
        return size < 9 ? FASTLOAD_NOT_PNG : FASTLOAD_DONE;
    default: /* a small first letter: it may be left unread */
        return chunk->name >> 24 & 0x20 ? FASTLOAD_DONE : FASTLOAD_NOT_PNG;
    }
}

int read_png_header(const uint8_t *bytes, size_t length, struct png_header *h)
{
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
    unsigned texts = 0;
    int status = FASTLOAD_DONE, is_over = 0;
    memset(h, 0, sizeof *h);
    if (length < 8 || memcmp(bytes, signature, 8) != 0)
        return FASTLOAD_NOT_PNG;
    for (size_t at = 8; status == FASTLOAD_DONE;) {
        if (length - at < 12)
            return FASTLOAD_INCOMPLETE;
        const struct chunk chunk = {png_number(bytes + at + 4), png_number(bytes + at), bytes + at + 8};
        if (!is_name(bytes + at + 4) || chunk.size > INT32_MAX)
            return FASTLOAD_NOT_PNG;
        if (chunk.size > length - at - 12)
            return FASTLOAD_INCOMPLETE;
        const int is_data = chunk.name == NAME('I', 'D', 'A', 'T');
        /* From the image data on Pillow checks none. */
        if (!is_data && !h->data && crc32_of(bytes + at + 4, 4 + (size_t)chunk.size) != png_number(chunk.body + chunk.size))
            return FASTLOAD_NOT_PNG;
        if (!h->width)
            status = read_first(&chunk, h);
        else if (is_data) {
            if (is_over || (h->color == PNG_PALETTE && !h->palette))
                return FASTLOAD_NOT_PNG;
            h->data = h->data ? h->data : at;
            h->coded += chunk.size;
        } else if (chunk.name == NAME('I', 'E', 'N', 'D')) {
            h->last = at;
            return h->data && !chunk.size ? FASTLOAD_DONE : FASTLOAD_NOT_PNG;
        } else {
            is_over = h->data != 0;
            h->is_behind = is_over;
            status = read_other(&chunk, h, &texts);
        }
        at += 12 + (size_t)chunk.size;
    }
    return status;
}
