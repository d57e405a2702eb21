/* See scans.h. */
#include "scans.h"

#include <string.h>

/* libjpeg's. */
#define MOST_LOW 13

struct state {
    struct jpeg_header *header;
    int8_t known[3][64];     /* of each coefficient, the bits that are still to come; -1: all */
    const uint8_t *quant[3]; /* the table that was there at a component's first scan: it holds for all */
};

static uint32_t divide_up(uint32_t a, uint32_t b)
{
    return (a + b - 1) / b;
}

/* Of a component, as far as a scan that has it together with others, or a scan of its own, sends them. */
static uint64_t count_blocks(const struct jpeg_header *header, int c, int is_alone)
{
    const struct jpeg_component *const component = &header->component[c], *const largest = &header->component[0];
    const uint32_t width = (uint32_t)header->width, height = (uint32_t)header->height;
    if (is_alone)
        return (uint64_t)divide_up(width * component->h, 8u * largest->h) *
               divide_up(height * component->v, 8u * largest->v);
    return (uint64_t)divide_up(width, 8u * largest->h) * component->h * divide_up(height, 8u * largest->v) *
           component->v;
}

/* The bits of a table's largest value. */
static int most_bits(const uint8_t *table)
{
    int num = 0, most = 0;
    for (int length = 0; length < 16; length++)
        num += table[length];
    for (int i = 0; i < num; i++)
        most = most > (table[16 + i] & 15) ? most : table[16 + i] & 15;
    return most;
}

/* Whether differences of DC values, of which libjpeg keeps the sum in 32 bits and fails where it becomes too large,
 * cannot come to that. */
static int is_bounded(const uint8_t *table, uint64_t blocks)
{
    return blocks * ((1u << most_bits(table)) - 1) <= INT32_MAX;
}

/* Whether the tables that a component needs are there, and values do not reach beyond 16 bits. */
static int check_tables(const struct state *s, const struct scan *scan, int i)
{
    const struct jpeg_component *component = &s->header->component[scan->component[i]];
    const uint8_t *const dc = scan->dc[i], *const ac = scan->ac[i];
    if (component->quant >= JPEG_TABLES || !s->header->quant[component->quant])
        return 0;
    if (scan->first == 0 && !scan->is_refining &&
        (!dc || !is_valid_huffman(dc, 1) ||
         !is_bounded(dc, count_blocks(s->header, scan->component[i], scan->num == 1))))
        return 0;
    return scan->last == 0 ||
           (ac && is_valid_huffman(ac, 0) && (scan->is_refining || most_bits(ac) + scan->low <= 15));
}

/* Whether a scan sends what is to come next of each of its coefficients. */
static int check_order(struct state *s, const struct scan *scan, int c)
{
    const int expected = scan->is_refining ? scan->low + 1 : -1;
    int8_t *const known = s->known[c];
    if (scan->first > 0 && known[0] < 0)
        return 0;
    for (int k = scan->first; k <= scan->last; k++) {
        if (known[k] != expected)
            return 0;
        known[k] = (int8_t)scan->low;
    }
    return 1;
}

/* Whether libjpeg takes such a scan, and decodes it as any encoder means it. */
static int check_scan(struct state *s, const struct scan *scan, int high)
{
    const int alone = scan->num == 1;
    if (s->header->progressive
            ? (scan->first == 0 ? scan->last != 0 : scan->first > scan->last || scan->last > 63 || !alone) ||
                  (high && high != scan->low + 1) || scan->low > MOST_LOW
            : scan->first != 0 || scan->last != 63 || high || scan->low)
        return 0;
    uint64_t blocks = 0;
    for (int i = 0; i < scan->num; i++) {
        const int c = scan->component[i];
        const uint8_t *const quant = s->header->quant[s->header->component[c].quant % JPEG_TABLES];
        if (!check_tables(s, scan, i) || !check_order(s, scan, c) || (s->quant[c] && s->quant[c] != quant))
            return 0;
        s->quant[c] = quant;
        blocks += count_blocks(s->header, c, alone);
    }
    /* A bit for each block, at least: so memory is claimed by data, not by a header alone. */
    return scan->first > 0 || blocks / 8 <= scan->end - scan->begin;
}

/* Reads a scan's header. Returns 0 where it is not as it must be. */
static int read_scan(const struct jpeg_header *header, const uint8_t *body, size_t size, struct scan *scan, int *high)
{
    const int num = size ? body[0] : 0;
    if (num < 1 || num > header->components || size != 4 + 2 * (size_t)num)
        return 0;
    memset(scan, 0, sizeof *scan);
    scan->num = num;
    for (int i = 0, c = 0; i < num; i++, c++) {
        while (c < header->components && header->component[c].id != body[1 + 2 * i])
            c++;
        const int dc = body[2 + 2 * i] >> 4, ac = body[2 + 2 * i] & 15;
        if (c == header->components || dc >= JPEG_TABLES || ac >= JPEG_TABLES)
            return 0;
        scan->component[i] = (uint8_t)c;
        scan->dc[i] = header->huffman[0][dc];
        scan->ac[i] = header->huffman[1][ac];
    }
    scan->first = body[1 + 2 * num];
    scan->last = body[2 + 2 * num];
    *high = body[3 + 2 * num] >> 4;
    scan->is_refining = *high != 0;
    scan->low = body[3 + 2 * num] & 15;
    scan->interval = (unsigned)header->restart_interval;
    return 1;
}

/* Where the next marker but restarts stands; NULL: the bytes end before. */
static const uint8_t *find_marker(const uint8_t *from, const uint8_t *end)
{
    while (end - from >= 2) {
        const uint8_t *const mark = memchr(from, 0xFF, (size_t)(end - from - 1));
        if (!mark)
            return NULL;
        if (mark[1] != 0 && (mark[1] < JPEG_RST0 || mark[1] > JPEG_RST0 + 7))
            return mark;
        from = mark + 2;
    }
    return NULL;
}

/* At the end of the image. */
static int is_complete(const struct state *s)
{
    for (int c = 0; c < s->header->components; c++) {
        for (int k = 0; k < 64; k++)
            if (s->known[c][k] != 0)
                return 0;
        if (s->quant[c] != s->header->quant[s->header->component[c].quant])
            return 0;
    }
    return 1;
}

int read_scans(const uint8_t *bytes, size_t length, struct jpeg_header *header, struct scans *scans)
{
    struct state s = {.header = header};
    memset(s.known, -1, sizeof s.known);
    const struct jpeg_component *const c = header->component;
    if (!header->is_valid || (header->components == 3 && (c[0].id == c[1].id || c[0].id == c[2].id ||
                                                          c[1].id == c[2].id)))
        return FASTLOAD_DAMAGED;
    size_t at = header->scan_header;
    for (scans->num = 0;;) {
        const int marker = read_tables(bytes, length, &at, header);
        if (marker == JPEG_EOI) {
            scans->end = at + 2;
            return is_complete(&s) ? FASTLOAD_DONE : FASTLOAD_DAMAGED;
        }
        if (marker <= 0)
            return marker ? FASTLOAD_INCOMPLETE : FASTLOAD_DAMAGED;
        if (length - at < 4)
            return FASTLOAD_INCOMPLETE;
        const size_t size = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (size < 2 || scans->num == MOST_SCANS)
            return FASTLOAD_DAMAGED;
        if (size > length - at - 2)
            return FASTLOAD_INCOMPLETE;
        struct scan *const scan = &scans->scan[scans->num++];
        int high;
        if (!read_scan(header, bytes + at + 4, size - 2, scan, &high))
            return FASTLOAD_DAMAGED;
        scan->begin = at + 2 + size;
        const uint8_t *const end = find_marker(bytes + scan->begin, bytes + length);
        if (!end)
            return FASTLOAD_INCOMPLETE;
        at = scan->end = (size_t)(end - bytes);
        if (!check_scan(&s, scan, high))
            return FASTLOAD_DAMAGED;
    }
}
