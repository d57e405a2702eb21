/* See png.h. */
#include "png.h"

/* Of a name as a number. */
#define NAME(a, b, c, d) ((uint32_t)(a) << 24 | (uint32_t)(b) << 16 | (uint32_t)(c) << 8 | (uint32_t)(d))

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

/* A chunk between the first and the last that is not image data. */
static int read_other(const struct chunk *chunk, struct png_header *h)
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
    default: /* a small first letter: it may be left unread */
        return chunk->name >> 24 & 0x20 ? FASTLOAD_DONE : FASTLOAD_NOT_PNG;
    }
}

int read_png_header(const uint8_t *bytes, size_t length, struct png_header *h)
{
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};
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
            status = read_other(&chunk, h);
        }
        at += 12 + (size_t)chunk.size;
    }
    return status;
}
