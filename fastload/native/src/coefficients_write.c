/* Records to JPEG files. See coefficients.h. */
#include "coefficients.h"
#include "coded.h"

#include <stdlib.h>
#include <string.h>

/* Where the caller wants bytes. Those that find no room are counted all the same. */
struct output {
    uint8_t *bytes;
    size_t capacity, size;
};

static void put(struct output *out, const void *bytes, size_t num)
{
    if (out->size + num <= out->capacity)
        memcpy(out->bytes + out->size, bytes, num);
    out->size += num;
}

/* Memory for all coefficients of an image, to be freed. `length`: of the record, in which a block has two bits
 * at least: a header alone shall not cost memory. Returns enum fastload_status. */
static int keep_all(struct picture *p, size_t length, int16_t **kept)
{
    size_t blocks = 0;
    for (int c = 0; c < p->num; c++)
        blocks += (size_t)blocks_across(p, c) * (size_t)blocks_down(p, c);
    if (blocks / 4 > length)
        return FASTLOAD_DAMAGED;
    *kept = malloc(blocks * 64 * sizeof **kept);
    if (!*kept)
        return FASTLOAD_NO_MEMORY;
    int16_t *next = *kept;
    for (int c = 0; c < p->num; c++) {
        p->plane[c].kept = next;
        next += (size_t)blocks_across(p, c) * (size_t)blocks_down(p, c) * 64;
    }
    return FASTLOAD_DONE;
}

/* Huffman codes as they are written, by symbol. Length 0: there is none. */
struct encoder {
    uint16_t code[256];
    uint8_t length[256];
};

static void make_encoder(struct encoder *e, const uint8_t *table)
{
    memset(e, 0, sizeof *e);
    uint32_t code = 0;
    for (int length = 1, next = 0; length <= 16; length++, code <<= 1)
        for (int i = 0; i < table[length - 1]; i++, code++, next++) {
            const uint8_t symbol = table[16 + next];
            if (e->length[symbol])
                continue;
            e->code[symbol] = (uint16_t)code;
            e->length[symbol] = (uint8_t)length;
        }
}

struct writer {
    struct output *out;
    uint64_t bits; /* the last num of it wait */
    int num;
    int is_missing; /* a symbol has no code */
};

static void write_bits(struct writer *w, uint32_t bits, int num)
{
    w->bits = w->bits << num | bits;
    w->num += num;
    for (; w->num >= 8; w->num -= 8) {
        const uint8_t byte = (uint8_t)(w->bits >> (w->num - 8));
        put(w->out, (uint8_t[]){byte, 0}, byte == 0xFF ? 2 : 1);
    }
}

static void write_value(struct writer *w, const struct encoder *e, int run, int value)
{
    const uint32_t magnitude = (uint32_t)abs(value);
    const int size = magnitude ? 32 - __builtin_clz(magnitude) : 0, symbol = run << 4 | size;
    if (size > 15 || !e->length[symbol]) {
        w->is_missing = 1;
        return;
    }
    write_bits(w, e->code[symbol], e->length[symbol]);
    if (size)
        write_bits(w, (uint32_t)(value < 0 ? value - 1 : value) & ((1u << size) - 1), size);
}

static void write_block(struct writer *w, const struct encoder *dc, const struct encoder *ac, const int16_t *block,
                        int *previous)
{
    write_value(w, dc, 0, block[0] - *previous);
    *previous = block[0];
    int run = 0;
    for (int k = 1; k < 64; k++) {
        const int level = block[ZIGZAG_PLACES[k]];
        if (!level) {
            run++;
            continue;
        }
        for (; run > 15; run -= 16)
            write_value(w, ac, 15, 0);
        write_value(w, ac, run, level);
        run = 0;
    }
    if (run)
        write_value(w, ac, 0, 0);
}

static void fill_byte(struct writer *w)
{
    if (w->num)
        write_bits(w, (1u << (8 - w->num)) - 1, 8 - w->num);
}

static int write_scan(struct output *out, const struct picture *p, const struct jpeg_header *header)
{
    struct encoder encoders[3][2];
    for (int c = 0; c < p->num; c++) {
        make_encoder(&encoders[c][0], header->huffman[0][header->component[c].dc]);
        make_encoder(&encoders[c][1], header->huffman[1][header->component[c].ac]);
    }
    struct writer w = {out, 0, 0, 0};
    int previous[3] = {0}, restart = 0, left = header->restart_interval;
    for (int mcu = 0; mcu < p->mcus * p->mcu_rows; mcu++) {
        if (header->restart_interval && left-- == 0) {
            fill_byte(&w);
            put(out, (uint8_t[]){0xFF, (uint8_t)(JPEG_RST0 + restart)}, 2);
            restart = (restart + 1) % 8;
            left = header->restart_interval - 1;
            memset(previous, 0, sizeof previous);
        }
        for (int c = 0; c < p->num; c++) {
            const struct plane *plane = &p->plane[c];
            for (int i = 0; i < plane->v * plane->h; i++) {
                const int row = mcu / p->mcus * plane->v + i / plane->h;
                const int column = mcu % p->mcus * plane->h + i % plane->h;
                write_block(&w, &encoders[c][0], &encoders[c][1],
                            plane->kept + ((size_t)row * blocks_across(p, c) + column) * 64, &previous[c]);
            }
        }
    }
    fill_byte(&w);
    put(out, (uint8_t[]){0xFF, JPEG_EOI}, 2);
    return !w.is_missing;
}

/* From a record to a JPEG file with the same header and coefficients. `size` becomes its bytes; where these are more
 * than `capacity`, `out` holds anything. Returns enum fastload_status: FASTLOAD_DAMAGED for what is no record, or a
 * damaged one. */
FASTLOAD_EXPORT int fastload_jpeg_of_record(struct fastload_scratch *scratch, const uint8_t *bytes, size_t length,
                                            uint8_t *out, size_t capacity, size_t *size)
{
    struct record record;
    struct jpeg_header header;
    if (read_record(bytes, length, &record, &header) != FASTLOAD_DONE)
        return FASTLOAD_DAMAGED;
    struct picture p;
    const int whole[4] = {0, 0, header.height, header.width};
    int16_t *kept = NULL;
    int status = picture_begin(&p, scratch, &header, whole, fastload_level);
    if (status == FASTLOAD_DONE)
        status = keep_all(&p, length, &kept);
    if (status != FASTLOAD_DONE)
        return status;
    for (int row = 0; row < p.mcu_rows && status == FASTLOAD_DONE; row++)
        status = record_row(&record, &p, row);
    struct output output = {out, capacity, 0};
    if (status == FASTLOAD_DONE) {
        put(&output, record.header, record.header_size);
        if (!write_scan(&output, &p, &header))
            status = FASTLOAD_DAMAGED;
    }
    *size = output.size;
    free(kept);
    return status;
}
