/* Coefficient records made up from nothing, and damaged ones, for fuzz_jpeg.c.
 *
 * A made record is valid, but nothing like a picture: any tables, any coefficients, codes of any length, and streams
 * that the library would have written shorter. The JPEG file with its coefficients is the library's to make: so come
 * files whose Huffman codes are right, and whose numbers are as large as they can be.
 */
#ifndef FUZZ_RECORDS_H
#define FUZZ_RECORDS_H

#include "coefficients.h"
#include "fuzz_damage.h"

#define MOST_MADE (1 << 20)

static inline void put_bytes(struct bytes *to, const void *from, size_t num)
{
    if (to->size + num > MOST_MADE)
        abort();
    memcpy(to->data + to->size, from, num);
    to->size += num;
}

static inline void put_byte(struct bytes *to, uint32_t byte)
{
    put_bytes(to, &(uint8_t){(uint8_t)byte}, 1);
}

static inline void put_pair(struct bytes *to, uint32_t number) /* as in JPEG files: the upper byte first */
{
    put_byte(to, number >> 8);
    put_byte(to, number);
}

static inline void set_little(uint8_t *to, size_t number, int num)
{
    for (int i = 0; i < num; i++)
        to[i] = (uint8_t)(number >> 8 * i);
}

static inline void put_quant(struct bytes *to)
{
    for (uint32_t place = 0; place < 4; place++) {
        const uint32_t wide = draw(4) == 0, kind = draw(5), constant = draw(2) ? 1 : draw(wide ? 65536 : 256);
        put_pair(to, 0xFF00 | DQT);
        put_pair(to, wide ? 131 : 67);
        put_byte(to, wide << 4 | place);
        for (int k = 0; k < 64; k++) {
            const uint32_t level = kind == 0 ? draw(wide ? 65536 : 256) : kind == 1 ? 1 + draw(30) : constant;
            if (wide)
                put_pair(to, level);
            else
                put_byte(to, level);
        }
    }
}

/* A Huffman table with codes for the first `num` of the symbols, or fewer of them. Its codes are the leaves of a tree
 * that grows at random; the last one, all ones, is left out. */
static inline void put_codes(struct bytes *to, uint32_t place, uint8_t *symbols, uint32_t num)
{
    uint32_t leaves[17] = {1}, total = 1, deepest = 0;
    const uint32_t skewed = draw(3);
    while (total < num + 1) {
        uint32_t depth = draw(skewed ? 16 : 9);
        if (skewed == 2) /* a few codes of a few bits, and many long ones */
            depth = deepest < 16 && draw(2) ? deepest : 6 + draw(10);
        if (!leaves[depth])
            continue;
        leaves[depth]--;
        leaves[depth + 1] += 2;
        total++;
        deepest = depth + 1 > deepest ? depth + 1 : deepest;
    }
    leaves[deepest]--;
    if (draw(6) == 0)
        for (uint32_t i = 0; i < 3; i++) {
            const uint32_t depth = 1 + draw(16), fewer = leaves[depth] ? draw(leaves[depth]) : 0;
            leaves[depth] -= fewer;
            num -= fewer;
        }
    for (uint32_t i = num - 1; i > 0; i--) {
        const uint32_t other = draw(i + 1);
        const uint8_t symbol = symbols[i];
        symbols[i] = symbols[other];
        symbols[other] = symbol;
    }
    /* The shortest code for sixteen zeros: then the bits looked at at once are more places than a block has. */
    for (uint32_t i = 0; i < num && num > 16 && skewed == 2; i++)
        if (symbols[i] == 0xF0) {
            symbols[i] = symbols[0];
            symbols[0] = 0xF0;
        }
    put_pair(to, 0xFF00 | DHT);
    put_pair(to, 19 + num);
    put_byte(to, place);
    for (int length = 1; length <= 16; length++)
        put_byte(to, leaves[length]);
    put_bytes(to, symbols, num);
}

static inline void put_header(struct bytes *to)
{
    static const uint8_t jfif[] = {0xFF, 0xE0, 0, 16, 'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0};
    static const uint8_t ids[][3] = {{1, 2, 3}, {'R', 'G', 'B'}, {0, 1, 2}, {200, 7, 255}};
    static const uint8_t samplings[] = {0x11, 0x21, 0x12, 0x22, 0x41};
    const uint32_t num = draw(4) ? 3 : 1, order = draw(4), small = 1 + draw(draw(2) ? 20 : 100);
    const uint32_t height = draw(2) ? small : 1 + draw(20), width = draw(4) ? 1 + draw(draw(2) ? 20 : 100) : draw(800) + 1;
    put_pair(to, 0xFF00 | SOI);
    if (draw(3) == 0)
        put_bytes(to, jfif, sizeof jfif);
    if (draw(3) == 0) {
        put_bytes(to, "\xFF\xEE\0\x0E""Adobe\0\x64\0\0\0\0", 15);
        put_byte(to, draw(2)); /* of 2 libjpeg warns, and the library leaves it to others */
    }
    put_quant(to);
    put_pair(to, 0xFFC0 + draw(2));
    put_pair(to, 8 + 3 * num);
    put_byte(to, 8);
    put_pair(to, height);
    put_pair(to, width);
    put_byte(to, num);
    for (uint32_t c = 0; c < num; c++) {
        put_byte(to, ids[order][c]);
        put_byte(to, c ? 0x11 : samplings[draw(num == 1 ? 4 : 5)]);
        put_byte(to, draw(4));
    }
    for (uint32_t place = 0; place < 2; place++) {
        uint8_t symbols[256];
        uint32_t some = 0;
        for (uint32_t i = 0; i < 16; i++)
            symbols[i] = (uint8_t)i;
        put_codes(to, place, symbols, draw(3) ? 16 : 12);
        const uint32_t all = draw(2);
        for (uint32_t i = 0; i < 256; i++)
            if (all || (i & 15) <= 10)
                symbols[some++] = (uint8_t)i;
        put_codes(to, 16 | place, symbols, some);
    }
    if (draw(3) == 0) {
        put_pair(to, 0xFF00 | DRI);
        put_pair(to, 4);
        put_pair(to, draw(8) ? 1 + draw(12) : 0);
    }
    put_pair(to, 0xFF00 | SOS);
    put_pair(to, 6 + 2 * num);
    put_byte(to, num);
    for (uint32_t c = 0; c < num; c++) {
        put_byte(to, ids[order][c]);
        put_byte(to, draw(2) << 4 | draw(2));
    }
    put_bytes(to, "\0\x3F\0", 3);
}

/* Which coefficients a record has. */
struct style {
    uint32_t density; /* of 64 */
    uint32_t first, last; /* places in zigzag order, between which they are */
    uint32_t levels, dc;
};

static inline struct style draw_style(void)
{
    return (struct style){draw(2) ? draw(65) : 1 + draw(6), draw(4) ? 1 : 1 + draw(63), draw(2) ? 64 : 1 + draw(draw(2) ? 10 : 64), draw(7), draw(5)};
}

static inline int draw_level(uint32_t kind)
{
    const int sign = draw(2) ? 1 : -1;
    switch (kind) {
    case 0:
    case 1:
        return sign * (int)(1 + draw(7));
    case 2:
        return sign * (int)(1 + draw(140));
    case 3:
        return sign * (int)(1 + draw(1023));
    case 4:
        return sign * 1023;
    case 5:
        return draw_level(draw(5));
    default: {
        const int edges[] = {-8, -7, 7, 8, -128, -127, 127, 128, -129, 1024, -1024, 32767, -32767, -32768};
        return draw(8) ? draw_level(draw(4)) : edges[draw(14)];
    }
    }
}

static inline int draw_dc(uint32_t kind, int before)
{
    const int step = (int)draw(4095) - 2047, next = before + (draw(3) ? step : step < 0 ? -2047 : 2047);
    switch (kind) {
    case 0:
    case 1:
        return (int)draw(2048) - 1024;
    case 2:
        return draw(2) ? 2047 : -2047;
    case 3:
        return next == (int16_t)next ? next : before;
    default:
        return draw(16) ? before : (int)draw(65536) - 32768;
    }
}

struct segment {
    uint8_t streams[4][SEGMENT * 128]; /* masks, levels, escapes, wide levels */
    size_t num[4];
    uint8_t sizes[SEGMENT / 2], dc[SEGMENT * 2];
};

static inline int put_level(struct segment *s, int level)
{
    if (level > -8 && level < 8 && draw(16))
        return level & 15;
    const int wide = level < -127 || level > 127 || draw(16) == 0;
    s->streams[2][s->num[2]++] = (uint8_t)(wide ? -128 : level);
    if (wide) {
        s->streams[3][s->num[3]++] = (uint8_t)level;
        s->streams[3][s->num[3]++] = (uint8_t)((unsigned)level >> 8);
    }
    return 8;
}

static inline void put_segment_of(struct bytes *to, int num, const struct style *style, int *dc)
{
    struct segment s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < num; i++) {
        uint64_t mask = 0;
        uint32_t count = 0, size = 0;
        for (uint32_t k = style->first; k < style->last; k++) {
            const int level = draw(64) < style->density ? draw_level(style->levels) : 0;
            if (!level)
                continue;
            mask |= (uint64_t)1 << k;
            size = k / 8 + 1;
            uint8_t *const pair = &s.streams[1][s.num[1] + count / 2];
            const uint32_t nibble = (uint32_t)put_level(&s, level);
            *pair = (uint8_t)(count % 2 ? (*pair & 15) | nibble << 4 : nibble | draw(16) << 4);
            count++;
        }
        s.num[1] += (count + 1) / 2;
        size += draw(16) ? 0 : draw(9 - size);
        for (uint32_t at = 0; at < size; at++)
            s.streams[0][s.num[0]++] = (uint8_t)(mask >> 8 * at);
        s.sizes[i / 2] = (uint8_t)(s.sizes[i / 2] | size << (i % 2 ? 4 : 0));
        *dc = draw_dc(style->dc, *dc);
        set_little(s.dc + 2 * i, (size_t)*dc, 2);
    }
    for (int i = 0; i < 3; i++) {
        put_byte(to, (uint32_t)s.num[i]);
        put_byte(to, (uint32_t)s.num[i] >> 8);
    }
    put_bytes(to, s.sizes, (size_t)(num + 1) / 2);
    put_bytes(to, s.streams[0], s.num[0]);
    put_bytes(to, s.dc, (size_t)2 * num);
    for (int i = 1; i < 4; i++)
        put_bytes(to, s.streams[i], s.num[i]);
    for (uint32_t i = draw(8) ? 0 : draw(9); i > 0; i--)
        put_byte(to, draw(256));
}

/* Returns a record in memory of just its size; the caller frees it. */
static inline struct bytes made_record(void)
{
    struct bytes work = {malloc(MOST_MADE), RECORD_FIXED};
    struct jpeg_header header;
    memcpy(work.data, RECORD_MAGIC, 4);
    put_header(&work);
    const size_t begin = work.size;
    if (read_jpeg_header(work.data + RECORD_FIXED, begin - RECORD_FIXED, &header) != FASTLOAD_DONE ||
        !header.is_sequential)
        abort();
    const size_t num = count_segments(&header), segments = begin + 4 * num;
    work.size = segments;
    size_t place = 0;
    const struct style style = draw_style();
    const int h = header.component[0].h, v = header.component[0].v;
    const int mcus = (header.width + 8 * h - 1) / (8 * h), mcu_rows = (header.height + 8 * v - 1) / (8 * v);
    for (int c = 0; c < header.components; c++)
        for (int row = 0; row < mcu_rows * header.component[c].v; row++) {
            const int across = mcus * header.component[c].h;
            int dc = 0;
            for (int first = 0; first < across; first += SEGMENT) {
                set_little(work.data + begin + 4 * place++, work.size - segments, 4);
                put_segment_of(&work, across - first < SEGMENT ? across - first : SEGMENT, &style, &dc);
            }
        }
    if (place != num)
        abort();
    set_little(work.data + 4, begin - RECORD_FIXED, 4);
    set_little(work.data + 8, 4 * num, 4);
    set_little(work.data + 12, work.size - segments, 4);
    for (int i = 0; i < RECORD_PADDING; i++)
        put_byte(&work, draw(4) ? 0 : 0xFF);
    struct bytes exact = {malloc(work.size), work.size};
    memcpy(exact.data, work.data, work.size);
    free(work.data);
    return exact;
}

static inline size_t little(const uint8_t *from)
{
    return from[0] | (size_t)from[1] << 8 | (size_t)from[2] << 16 | (size_t)from[3] << 24;
}

/* Once, in place. */
static inline void damage_record(uint8_t *data, size_t size)
{
    static const uint32_t edges[] = {0, 1, 2, 31, 32, 63, 64, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF};
    const size_t begin = RECORD_FIXED + little(data + 4), index = little(data + 8), bytes = little(data + 12);
    if (size < RECORD_FIXED || begin > size || index > size - begin || bytes > size - begin - index || index < 4)
        return;
    uint8_t *const entry = data + begin + 4 * draw((uint32_t)index / 4), *const segments = data + begin + index;
    const size_t at = little(entry);
    switch (draw(8)) {
    case 0:
        data[draw(draw(4) ? (uint32_t)begin : RECORD_FIXED)] = draw(2) ? edge() : (uint8_t)draw(256);
        break;
    case 1: /* where a segment begins */
        set_little(entry, draw(2) ? edges[draw(14)] : at + draw(9) - 4, 4);
        break;
    case 2: /* or ends: the numbers stay in order */
        set_little(entry, draw((uint32_t)bytes + 1), 4);
        break;
    case 3: /* how long the streams of a segment are */
        if (at + 6 < bytes) {
            uint8_t *const number = segments + at + 2 * draw(3);
            set_little(number, draw(2) ? number[0] + draw(5) - 2u + 256u * number[1] : edges[draw(14)], 2);
        }
        break;
    case 4: /* how long masks are */
        if (at + 6 + SEGMENT / 2 < bytes)
            segments[at + 6 + draw(SEGMENT / 2)] = (uint8_t)draw(256);
        break;
    case 5: /* what the streams say */
    case 6:
        for (uint32_t i = 1 + draw(8); i > 0 && at < bytes; i--)
            segments[at + draw((uint32_t)(bytes - at < 600 ? bytes - at : 600))] = draw(2) ? 0x88 : (uint8_t)draw(256);
        break;
    default: {
        uint8_t *const number = data + 4 * (1 + draw(3)); /* in this order with every compiler */
        set_little(number, draw(2) ? edges[draw(14)] : draw((uint32_t)size), 4);
    }
    }
}

/* Returns a damaged copy, in memory of just its size; the caller frees it. */
static inline struct bytes damaged_record(const struct bytes *from)
{
    struct bytes copy = {malloc(from->size), from->size};
    memcpy(copy.data, from->data, from->size);
    do
        damage_record(copy.data, copy.size);
    while (draw(2));
    if (draw(20) == 0)
        copy.size = draw((uint32_t)copy.size);
    struct bytes exact = {malloc(copy.size ? copy.size : 1), copy.size};
    memcpy(exact.data, copy.data, copy.size);
    free(copy.data);
    return exact;
}

#endif
