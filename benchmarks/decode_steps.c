/* What each step of decoding costs: decode_steps LEVEL REPEATS FILE... prints a line for each file and step:
 *
 *   kind of data (file or record), step, nanoseconds of the processor (the minimum of the repeats), pixels, bytes
 *
 * Steps hold those before them. Built by benchmarks/decoders.py with the sources of the library. */
#include "coefficients.h"
#include "entropy.h"
#include "resample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct fastload_scratch *fastload_scratch_new(void);
int fastload_record_of_jpeg(struct fastload_scratch *, const uint8_t *, size_t, uint8_t *, size_t, size_t *);

enum step { HEADER, PASS_OVER, COEFFICIENTS, SAMPLES, PIXELS, NUM_STEPS };
static const char *const NAMES[NUM_STEPS] = {"header", "codes alone", "coefficients", "samples", "pixels"};

struct data {
    const uint8_t *bytes;
    size_t size;
    int is_record;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

/* Returns whether the file could be decoded. `kept` and `row` have room for any of the files. */
static int run(struct fastload_scratch *scratch, const struct data *data, enum step step, int level, int16_t *kept,
               uint8_t *row)
{
    struct jpeg_header header;
    struct record record;
    struct picture p;
    struct entropy entropy;
    if (data->is_record ? read_record(data->bytes, data->size, &record, &header)
                        : read_jpeg_header(data->bytes, data->size, &header))
        return 0;
    if (!header.is_sequential)
        return 0;
    if (step == HEADER)
        return 1;
    const int whole[4] = {0, 0, header.height, header.width};
    if (picture_begin(&p, scratch, &header, whole, fastload_level(level)))
        return 0;
    if (!data->is_record && entropy_begin(&entropy, scratch, &header, data->bytes, data->size))
        return 0;
    for (int c = 0; step == COEFFICIENTS && c < p.num; c++) {
        p.plane[c].kept = kept;
        kept += (size_t)blocks_across(&p, c) * (size_t)blocks_down(&p, c) * 64;
    }
    for (int mcu_row = 0, y = 0; mcu_row < p.mcu_rows; mcu_row++) {
        if (data->is_record ? record_row(&record, &p, mcu_row) : entropy_row(&entropy, &p, mcu_row, step > PASS_OVER))
            return 0;
        if (step <= COEFFICIENTS)
            continue;
        for (const int ready = finish_mcu_row(&p, mcu_row); step == PIXELS && y < ready; y++)
            picture_row(&p, y, row);
    }
    return 1;
}

static void measure(struct fastload_scratch *scratch, const struct data *data, int level, int repeats)
{
    struct jpeg_header header;
    struct record record;
    if (data->is_record)
        read_record(data->bytes, data->size, &record, &header);
    else
        read_jpeg_header(data->bytes, data->size, &header);
    const size_t pixels = (size_t)header.width * (size_t)header.height;
    int16_t *kept = malloc(3 * 2 * (pixels + 64 * ((size_t)header.width + (size_t)header.height + 64)));
    uint8_t *row = malloc(padded(header.width) + ROW_PADDING);
    for (enum step step = HEADER; step < NUM_STEPS; step++) {
        if (step == PASS_OVER && data->is_record)
            continue; /* there are no codes */
        double best = 1e18;
        for (int i = 0; i < repeats; i++) {
            const double began = now();
            if (!run(scratch, data, step, level, kept, row))
                exit(3);
            const double taken = now() - began;
            best = taken < best ? taken : best;
        }
        printf("%s\t%s\t%.0f\t%zu\t%zu\n", data->is_record ? "record" : "file", NAMES[step], best, pixels, data->size);
    }
    free(kept);
    free(row);
}

int main(int num, char **arguments)
{
    struct fastload_scratch *scratch = fastload_scratch_new();
    for (int i = 3; i < num; i++) {
        FILE *file = fopen(arguments[i], "rb");
        if (!file || fseek(file, 0, SEEK_END))
            return 2;
        const size_t size = (size_t)ftell(file), capacity = 16 * size + (1 << 20);
        uint8_t *bytes = malloc(size), *packed = malloc(capacity);
        rewind(file);
        if (fread(bytes, 1, size, file) != size)
            return 2;
        fclose(file);
        size_t record = 0;
        if (fastload_record_of_jpeg(scratch, bytes, size, packed, capacity, &record) == FASTLOAD_DONE &&
            record <= capacity) {
            measure(scratch, &(struct data){bytes, size, 0}, atoi(arguments[1]), atoi(arguments[2]));
            measure(scratch, &(struct data){packed, record, 1}, atoi(arguments[1]), atoi(arguments[2]));
        }
        free(bytes);
        free(packed);
    }
    return 0;
}
