/* Damaged copies of JPEG files, for fuzz_jpeg.c: of any bytes, and of what their segments mean. */
#ifndef FUZZ_DAMAGE_H
#define FUZZ_DAMAGE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* So much may a copy be longer. */
#define ROOM 8192
#define MOST_PARTS 64

enum { DHT = 0xC4, RST = 0xD0, SOI = 0xD8, EOI = 0xD9, SOS = 0xDA, DQT = 0xDB, DRI = 0xDD };

struct bytes {
    uint8_t *data;
    size_t size;
};

/* A segment; with the coded data behind it, where it begins a scan. */
struct part {
    size_t at, size; /* from the marker on */
    size_t end;      /* of the coded data */
    int marker;
};

static uint64_t state;

static inline void seed(uint64_t number)
{
    state = number * 2654435761u + 1;
}

static inline uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return below ? (uint32_t)(state >> 33) % below : 0;
}

/* Of all results, to compare those of two processors. */
static uint64_t digest = 14695981039346656037u;

static inline void fold(const void *bytes, size_t num)
{
    for (size_t i = 0; i < num; i++)
        digest = (digest ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
}

static inline int is_frame(int marker)
{
    return marker >= 0xC0 && marker <= 0xCF && marker != DHT && marker != 0xC8 && marker != 0xCC;
}

static inline int find_parts(const struct bytes *file, struct part parts[MOST_PARTS])
{
    const uint8_t *data = file->data;
    int num = 0;
    for (size_t at = 2; num < MOST_PARTS && at + 4 <= file->size && data[at] == 0xFF && data[at + 1] != EOI;) {
        struct part part = {at, 2 + ((size_t)data[at + 2] << 8 | data[at + 3]), 0, data[at + 1]};
        if (part.size > file->size - at)
            break;
        part.end = at + part.size;
        if (part.marker == SOS)
            while (part.end + 1 < file->size &&
                   (data[part.end] != 0xFF || data[part.end + 1] == 0 || (data[part.end + 1] & 0xF8) == RST))
                part.end++;
        parts[num++] = part;
        at = part.end;
    }
    return num;
}

/* Puts `num` bytes, which may be some of the file's own, at a place. The file has ROOM more bytes than it first had. */
static inline void insert(struct bytes *file, size_t most, size_t at, const uint8_t *from, size_t num)
{
    if (file->size + num > most || at > file->size)
        return;
    uint8_t *copy = malloc(num ? num : 1);
    memcpy(copy, from, num);
    memmove(file->data + at + num, file->data + at, file->size - at);
    memcpy(file->data + at, copy, num);
    file->size += num;
    free(copy);
}

static inline void remove_bytes(struct bytes *file, size_t at, size_t num)
{
    memmove(file->data + at, file->data + at + num, file->size - at - num);
    file->size -= num;
}

static const uint8_t EDGES[] = {0,    1,    2,    3,    4,    0x11, 0x12, 0x21, 0x22, 0x3F, 0x40, 0x41,
                                0x7F, 0x80, 0xC0, 0xC2, 0xC4, 0xD0, 0xD7, 0xD9, 0xDA, 0xDB, 0xDD, 0xFE, 0xFF};

static inline uint8_t edge(void)
{
    return EDGES[draw(sizeof EDGES)];
}

/* What a frame says: sides, and of the components their numbers, samplings and tables. */
static inline void damage_frame(uint8_t *body, size_t size)
{
    static const uint8_t samplings[] = {0x11, 0x21, 0x12, 0x22, 0x41, 0x14, 0x42, 0x13, 0x31, 0x44, 0x00, 0x1F};
    if (size < 9)
        return;
    const size_t component = 6 + 3 * draw((uint32_t)(size - 6) / 3);
    const uint32_t side = 1 + 2 * draw(2), length = (uint32_t)body[side] << 8 | body[side + 1];
    const uint32_t lengths[] = {1, 2, 7, 8, 9, 16, 17, length - 1, length + 1, length + 8, 2 * length, length / 2, 65500};
    const uint32_t other = lengths[draw(sizeof lengths / sizeof *lengths)];
    switch (draw(5)) {
    case 0:
        body[side] = (uint8_t)(other >> 8);
        body[side + 1] = (uint8_t)other;
        break;
    case 1:
        body[component + 1] = samplings[draw(sizeof samplings)];
        break;
    case 2:
        body[component] = (uint8_t)draw(4);
        break;
    case 3:
        body[component + 2] = (uint8_t)draw(5);
        break;
    default:
        body[draw(2) ? 0 : 5] = edge();
    }
}

/* A short segment of any kind, often right in what it says of itself, before another. */
static inline void insert_segment(struct bytes *file, size_t most, size_t at)
{
    static const uint8_t markers[] = {DHT, DQT, DRI, 0xCC, 0xE0, 0xEE, 0xFE, 0xE2, 0xC0, 0xC1, 0xDC, 0xC8, 0xDE, 0x01};
    uint8_t segment[4 + 150] = {0xFF, markers[draw(sizeof markers)]}, *const body = segment + 4;
    const int marker = segment[1];
    size_t size = draw(20);
    for (size_t i = 0; i < sizeof segment - 4; i++)
        body[i] = draw(4) ? 0 : (uint8_t)draw(draw(2) ? 4 : 256);
    if (marker == DHT && draw(2)) {
        size = 17;
        body[0] = (uint8_t)(draw(2) << 4 | draw(5));
        for (int length = 1; length <= 16; length++)
            size += body[length] = (uint8_t)draw(length < 8 ? (uint32_t)length / 2 + 1 : 8);
    } else if (marker == DQT && draw(2))
        size = body[0] >> 4 ? 129 : 65;
    else if (marker == DRI && draw(2))
        size = 2;
    else if (marker == 0xCC && draw(2))
        size = 2 * draw(3);
    else if (marker == 0xE0 || marker == 0xEE)
        memcpy(body, marker == 0xE0 ? "JFIF" : "Adobe", 5);
    const size_t said = size + 2 + (draw(8) ? 0 : draw(5) - 2u);
    segment[2] = (uint8_t)(said >> 8);
    segment[3] = (uint8_t)said;
    insert(file, most, at, segment, 4 + size);
}

/* What a part means: lengths, sides, codes, the order of parts, restarts. */
static inline void damage_part(struct bytes *file, size_t most, const struct bytes *other)
{
    struct part parts[MOST_PARTS], others[MOST_PARTS];
    const int num = find_parts(file, parts);
    if (!num)
        return;
    const struct part *part = &parts[draw((uint32_t)num)];
    uint8_t *body = file->data + part->at + 4;
    const size_t size = part->size < 4 ? 0 : part->size - 4, coded = part->end - part->at - part->size;
    const size_t within = part->at + part->size + (coded ? draw((uint32_t)coded) : 0);
    const uint8_t mark[] = {0xFF, draw(4) ? (uint8_t)(RST + draw(8)) : draw(2) ? EOI : edge()};
    const uint8_t interval[] = {0xFF, DRI, 0, 4, 0, (uint8_t)draw(20)};
    switch (draw(11)) {
    case 0:
        remove_bytes(file, part->at, part->end - part->at);
        break;
    case 1:
        insert(file, most, parts[draw((uint32_t)num)].at, file->data + part->at, part->end - part->at);
        break;
    case 2: { /* a length that is not the segment's */
        const size_t lengths[] = {0, 1, 2, 3, part->size - 3, part->size - 1, part->size + 60, 0xFFFF,
                                  file->size - part->at - 2, file->size - part->at - 1};
        const size_t length = lengths[draw(10)];
        file->data[part->at + 2] = (uint8_t)(length >> 8);
        file->data[part->at + 3] = (uint8_t)length;
        break;
    }
    case 3: /* a shorter or longer segment that says so */
        if (size > 1) {
            const size_t length = part->size - 3;
            file->data[part->at + 2] = (uint8_t)(length >> 8);
            file->data[part->at + 3] = (uint8_t)length;
            remove_bytes(file, part->at + part->size - 1, 1);
        }
        break;
    case 4:
        if (size)
            body[draw((uint32_t)size)] = draw(2) ? edge() : (uint8_t)draw(256);
        break;
    case 5: /* codes of other lengths, as many as before */
        if (part->marker == DHT && size > 17) {
            uint8_t *less = body + 1 + draw(16), *more = body + 1 + draw(16);
            *more = (uint8_t)(*more + (*less > 0));
            *less = (uint8_t)(*less - (*less > 0));
            if (draw(2))
                body[17 + draw((uint32_t)size - 17)] = (uint8_t)draw(256);
        }
        break;
    case 6:
        insert(file, most, part->at, interval, sizeof interval);
        break;
    case 9:
        insert_segment(file, most, part->at);
        break;
    case 7: /* a restart marker, an end or another marker among coded data; or one byte less of them */
        if (draw(3))
            insert(file, most, within, mark, sizeof mark);
        else if (coded)
            remove_bytes(file, within, 1);
        break;
    case 8: { /* the part of another file */
        const int num_others = find_parts(other, others);
        for (int i = 0; i < num_others; i++)
            if (others[i].marker == part->marker) {
                const struct part *from = &others[i];
                remove_bytes(file, part->at, part->end - part->at);
                insert(file, most, part->at, other->data + from->at, from->end - from->at);
                break;
            }
        break;
    }
    default:
        for (int i = 0; i < num; i++)
            if (is_frame(parts[i].marker)) {
                damage_frame(file->data + parts[i].at + 4, parts[i].size < 4 ? 0 : parts[i].size - 4);
                break;
            }
    }
}

/* A place: anywhere, among the headers, or just behind a marker. */
static inline size_t place(const uint8_t *data, size_t size)
{
    size_t at = draw((uint32_t)size);
    if (draw(3) == 0)
        at = draw(size < 800 ? (uint32_t)size : 800);
    if (draw(3) == 0)
        while (at + 4 < size && data[at++] != 0xFF)
            ;
    return at < size ? at : size - 1;
}

static inline void damage_bytes(struct bytes *file, size_t most, const struct bytes *other)
{
    uint8_t *data = file->data;
    const size_t at = place(data, file->size), rest = file->size - at;
    size_t run = draw(draw(8) ? 16 : 2000) + 1;
    run = run < rest ? run : rest;
    switch (draw(9)) {
    case 0:
        data[at] = (uint8_t)draw(256);
        break;
    case 1:
        data[at] ^= (uint8_t)(1 << draw(8));
        break;
    case 2:
        data[at] = edge();
        break;
    case 3:
        remove_bytes(file, at, run);
        break;
    case 4:
        insert(file, most, at, data + at, run);
        break;
    case 5: /* a marker */
        data[at] = 0xFF;
        if (rest > 1)
            data[at + 1] = edge();
        break;
    case 6: /* a part of another file */
        if (other->size > run)
            memcpy(data + at, other->data + place(other->data, other->size - run), run);
        break;
    case 7: /* noise */
        for (size_t i = 0; i < run; i++)
            data[at + i] = (uint8_t)draw(256);
        break;
    default: /* cut */
        if (draw(4) == 0)
            file->size = at;
    }
}

/* Returns a damaged copy, in memory of just its size; the caller frees it. */
static inline struct bytes damaged_copy(const struct bytes *from, const struct bytes *other)
{
    const size_t most = from->size + ROOM;
    struct bytes work = {malloc(most), from->size};
    memcpy(work.data, from->data, from->size);
    /* Little of it: what is damaged much is refused at its first bytes. */
    do {
        if (draw(2))
            damage_part(&work, most, other);
        else
            damage_bytes(&work, most, other);
    } while (work.size && draw(2));
    struct bytes exact = {malloc(work.size ? work.size : 1), work.size};
    memcpy(exact.data, work.data, work.size);
    free(work.data);
    return exact;
}

#endif
