/* Feeds damaged JPEG files to the decoder; built with the library's sources under ASan and UBSan by fuzz.py.
 *
 * fuzz_jpeg SECONDS SEED FILE...
 *
 * Each round damages one of the files, and decodes a box of it to a row in memory of just its size, on two instruction
 * sets, which must agree. Prints how many rounds there were, and how many ended in which status. The damaged file is
 * written to FUZZ_LAST, if the environment names it, before it is decoded: so a crash leaves it behind. */
#include "fastload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct fastload_scratch;
struct fastload_scratch *fastload_scratch_new(void);
void fastload_scratch_free(struct fastload_scratch *);
int fastload_jpeg_size(const uint8_t *, size_t, int32_t[4]);
int fastload_jpeg_row(struct fastload_scratch *, const uint8_t *, size_t, const int32_t[4], int32_t, int32_t, int32_t,
                      int32_t, int32_t, void *, int64_t, int64_t, int64_t, int32_t, const void *, int32_t);

static uint64_t state;

static uint32_t draw(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return below ? (uint32_t)(state >> 33) % below : 0;
}

struct bytes {
    uint8_t *data;
    size_t size;
};

static struct bytes read_file(const char *path)
{
    struct bytes found = {NULL, 0};
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        perror(path);
        exit(2);
    }
    found.size = (size_t)ftell(file);
    rewind(file);
    found.data = malloc(found.size + 1);
    found.size = fread(found.data, 1, found.size, file);
    fclose(file);
    return found;
}

/* A place: anywhere, among the headers, or just behind a marker. */
static size_t place(const uint8_t *data, size_t size)
{
    size_t at = draw((uint32_t)size);
    if (draw(3) == 0)
        at = draw(size < 800 ? (uint32_t)size : 800);
    if (draw(3) == 0)
        while (at + 4 < size && data[at++] != 0xFF)
            ;
    return at < size ? at : size - 1;
}

static size_t damage(uint8_t *data, size_t size, size_t room, const struct bytes *other)
{
    static const uint8_t edges[] = {0, 1, 2, 3, 4, 0x11, 0x12, 0x21, 0x22, 0x3F, 0x40, 0x7F, 0x80, 0xC0, 0xC2, 0xC4,
                                    0xD0, 0xD7, 0xD9, 0xDA, 0xDB, 0xDD, 0xFE, 0xFF};
    for (uint32_t left = draw(4) + 1; left && size; left--) {
        const size_t at = place(data, size), rest = size - at;
        size_t run = draw(draw(8) ? 16 : 2000) + 1;
        switch (draw(9)) {
        case 0:
            data[at] = (uint8_t)draw(256);
            break;
        case 1:
            data[at] ^= (uint8_t)(1 << draw(8));
            break;
        case 2:
            data[at] = edges[draw(sizeof edges)];
            break;
        case 3: /* take away */
            run = run < rest ? run : rest;
            memmove(data + at, data + at + run, rest - run);
            size -= run;
            break;
        case 4: /* repeat */
            run = run < rest ? run : rest;
            if (size + run > room)
                break;
            memmove(data + at + run, data + at, rest);
            size += run;
            break;
        case 5: /* a marker */
            data[at] = 0xFF;
            if (rest > 1)
                data[at + 1] = edges[draw(sizeof edges)];
            break;
        case 6: /* a part of another file */
            run = run < rest ? run : rest;
            if (other->size > run)
                memcpy(data + at, other->data + place(other->data, other->size - run), run);
            break;
        case 7: /* noise */
            for (size_t i = 0; i < run && i < rest; i++)
                data[at + i] = (uint8_t)draw(256);
            break;
        default: /* cut */
            if (draw(4) == 0)
                size = at;
        }
    }
    return size;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    const double end = now() + atof(argv[1]);
    state = strtoull(argv[2], NULL, 10) * 2654435761u + 1;
    const int num = argc - 3;
    struct bytes *files = malloc((size_t)num * sizeof *files);
    for (int i = 0; i < num; i++)
        files[i] = read_file(argv[3 + i]);
    struct fastload_scratch *scratch = fastload_scratch_new();
    float table[3 * 256];
    for (int i = 0; i < 3 * 256; i++)
        table[i] = (float)i;
    long rounds = 0, counts[8] = {0};
    const char *last = getenv("FUZZ_LAST");
    for (; now() < end; rounds++) {
        const struct bytes *from = &files[draw((uint32_t)num)];
        const size_t room = from->size + 8192;
        uint8_t *work = malloc(room);
        memcpy(work, from->data, from->size);
        const size_t size = damage(work, from->size, room, &files[draw((uint32_t)num)]);
        uint8_t *exact = malloc(size ? size : 1);
        memcpy(exact, work, size);
        free(work);
        if (last) {
            FILE *file = fopen(last, "wb");
            if (file) {
                fwrite(exact, 1, size, file);
                fclose(file);
            }
        }
        int32_t header[4];
        const int known = fastload_jpeg_size(exact, size, header);
        /* Larger ones only cost time. */
        if (known == FASTLOAD_DONE && (int64_t)header[0] * header[1] <= 1 << 22) {
            int32_t box[4];
            box[2] = 1 + (int32_t)draw((uint32_t)header[1]);
            box[3] = 1 + (int32_t)draw((uint32_t)header[0]);
            box[0] = (int32_t)draw((uint32_t)(header[1] - box[2] + 1));
            box[1] = (int32_t)draw((uint32_t)(header[0] - box[3] + 1));
            if (draw(20) == 0)
                box[draw(4)] += (int32_t)draw(2000) - 1000;
            const int32_t height = draw(4) ? 1 + (int32_t)draw(80) : box[2];
            const int32_t width = 1 + (int32_t)draw(draw(4) ? 80 : 4);
            const int32_t filter = (int32_t)draw(2), order = (int32_t)draw(2), flip = (int32_t)draw(2);
            const int element = draw(2) ? 4 : 1;
            const int planes = (int)draw(2);
            const int64_t column = planes ? element : 3 * element, line = width * column;
            const int64_t channel = planes ? height * line : element;
            const size_t bytes = height > 0 ? (size_t)height * (size_t)width * 3 * (size_t)element : 1;
            uint8_t *rows[2] = {calloc(bytes, 1), calloc(bytes, 1)};
            int status[2];
            const int levels[2] = {FASTLOAD_BEST, (int)draw(2)};
            for (int i = 0; i < 2; i++)
                status[i] = fastload_jpeg_row(scratch, exact, size, box, height, width, filter, order, flip, rows[i],
                                              line, column, channel, element, element == 4 ? table : NULL, levels[i]);
            if (status[0] != status[1] || (status[0] == FASTLOAD_DONE && memcmp(rows[0], rows[1], bytes))) {
                fprintf(stderr, "levels differ: status %d and %d\n", status[0], status[1]);
                abort();
            }
            if (status[0] >= 0)
                counts[status[0]]++;
            free(rows[0]);
            free(rows[1]);
        } else {
            counts[known]++;
        }
        free(exact);
    }
    printf("%ld rounds; by status:", rounds);
    for (int i = 0; i < 8; i++)
        printf(" %ld", counts[i]);
    printf("\n");
    fastload_scratch_free(scratch);
    for (int i = 0; i < num; i++)
        free(files[i].data);
    free(files);
    return 0;
}
