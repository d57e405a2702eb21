/* See coded.h. */
#include "coded.h"

static void start_interval(struct coded *coded, uint32_t restart)
{
    coded->reader.at = coded->data + (restart ? coded->restarts[restart - 1] : 0);
    coded->reader.bits = 0;
    coded->reader.num_bits = 0;
    coded->end = coded->data + coded->restarts[restart];
    coded->restart = restart;
    coded->left = coded->interval ? coded->interval : UINT32_MAX;
}

int next_interval(struct coded *coded)
{
    if (used(&coded->reader) != coded->end || coded->restart + 1 >= coded->num_restarts)
        return 0;
    start_interval(coded, coded->restart + 1);
    return 1;
}

int is_at_end(const struct coded *coded)
{
    return used(&coded->reader) == coded->end && coded->restart + 1 == coded->num_restarts;
}

/* Copies coded data without the zeros stuffed behind 0xFF, and notes where restart markers stood. */
static int unstuff(struct coded *coded, const uint8_t *from, size_t length, struct fastload_scratch *scratch)
{
    uint8_t *data = reserve(&scratch->entropy, length + CODED_PADDING);
    uint32_t *restarts = reserve(&scratch->restarts, (length / 2 + 1) * sizeof *restarts);
    if (!data || !restarts)
        return FASTLOAD_NO_MEMORY;
    const uint8_t *const end = from + length;
    uint8_t *to = data;
    uint32_t num = 0;
    for (;;) {
        const uint8_t *mark = memchr(from, 0xFF, (size_t)(end - from));
        if (!mark || end - mark < 2)
            return FASTLOAD_DAMAGED;
        memcpy(to, from, (size_t)(mark - from));
        to += mark - from;
        from = mark + 2;
        if (mark[1] == 0) {
            *to++ = 0xFF;
            continue;
        }
        restarts[num] = (uint32_t)(to - data);
        coded->marker = mark[1];
        if (mark[1] < JPEG_RST0 || mark[1] > JPEG_RST0 + 7)
            break;
        if (mark[1] != (JPEG_RST0 | (num & 7)))
            return FASTLOAD_DAMAGED;
        num++;
    }
    memset(to, 0, CODED_PADDING);
    coded->data = data;
    coded->restarts = restarts;
    coded->num_restarts = num + 1;
    return FASTLOAD_DONE;
}

int coded_begin(struct coded *coded, struct fastload_scratch *scratch, const uint8_t *from, size_t length,
                unsigned interval)
{
    memset(coded, 0, sizeof *coded);
    if (length > UINT32_MAX / 2)
        return FASTLOAD_TOO_LARGE;
    const int status = unstuff(coded, from, length, scratch);
    if (status != FASTLOAD_DONE)
        return status;
    if (!interval && coded->num_restarts > 1)
        return FASTLOAD_DAMAGED;
    coded->interval = interval;
    start_interval(coded, 0);
    return FASTLOAD_DONE;
}

void make_symbols(struct symbols *symbols, const uint8_t *from)
{
    size_t size = 16;
    for (int length = 0; length < 16; length++)
        size += from[length];
    memcpy(symbols->table, from, size);
    memset(symbols->table + size, 0, sizeof symbols->table - size);
    uint32_t code = 0;
    int32_t next = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        symbols->offset[length] = next - (int32_t)code;
        code += from[length - 1];
        next += from[length - 1];
        symbols->limit[length] = code << (16 - length);
    }
    symbols->limit[0] = 0;
    symbols->offset[0] = 0;
    symbols->limit[17] = UINT32_MAX;
}
