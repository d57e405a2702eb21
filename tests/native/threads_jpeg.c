/* Decodes JPEG files in many threads at a time; built with the library's sources under ThreadSanitizer by fuzz.py.
 *
 * threads_jpeg THREADS ROUNDS FILE...
 *
 * Each thread has a scratch and a row of its own, and goes through all files on each instruction set, resized, and
 * through records of them. All begin together, so that what is made on first use is made by several of them. Prints how
 * many images were decoded; exits with 1 if two threads got other pixels from a file, and with 66 for a data race. */
#include "resample.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fastload_scratch *fastload_scratch_new(void);
void fastload_scratch_free(struct fastload_scratch *);
int fastload_jpeg_size(const uint8_t *, size_t, int32_t[5]);
int fastload_jpeg_row(struct fastload_scratch *, const uint8_t *, size_t, const struct fastload_request *);
int fastload_record_of_jpeg(struct fastload_scratch *, const uint8_t *, size_t, uint8_t *, size_t, size_t *);

enum { SIDE = 24, ROW = 3 * SIDE * SIDE, MOST_FILES = 256, MOST_THREADS = 64, MOST_BYTES = 1 << 20 };

static uint8_t *files[MOST_FILES];
static size_t lengths[MOST_FILES];
static int num_files, num_rounds;
static pthread_barrier_t begin;

struct worker {
    pthread_t thread;
    uint64_t sums[MOST_FILES]; /* of the pixels of each file */
    long decoded;
};

/* Decode a file or a record, and add its pixels to a sum. */
static void decode(struct worker *own, struct fastload_scratch *scratch, const uint8_t *bytes, size_t length, int file)
{
    static const float none = 0;
    int32_t size[5];
    uint8_t row[ROW];
    if (fastload_jpeg_size(bytes, length, size) != FASTLOAD_DONE)
        return;
    struct fastload_request request = {
        .target = {row, 3 * SIDE, 3, 1, NULL, 1, 3},
        .source = {none, none, (float)size[0], (float)size[1]},
        .box = {0, 0, size[1], size[0]},
        .size = {SIDE, SIDE},
        .window = {0, 0, SIDE, SIDE},
        .filter = FASTLOAD_BILINEAR,
        .order = FASTLOAD_COLUMNS_FIRST,
    };
    if (fastload_jpeg_row(scratch, bytes, length, &request) != FASTLOAD_DONE)
        return;
    own->decoded++;
    for (int i = 0; i < ROW; i++)
        own->sums[file] = own->sums[file] * 1099511628211u + row[i];
}

static void *work(void *argument)
{
    struct worker *own = argument;
    struct fastload_scratch *scratch = fastload_scratch_new();
    uint8_t *record = malloc(MOST_BYTES);
    pthread_barrier_wait(&begin);
    for (int round = 0; round < num_rounds; round++)
        for (int file = 0; file < num_files; file++) {
            size_t length = 0;
            decode(own, scratch, files[file], lengths[file], file);
            if (fastload_record_of_jpeg(scratch, files[file], lengths[file], record, MOST_BYTES, &length) ==
                    FASTLOAD_DONE &&
                length <= MOST_BYTES)
                decode(own, scratch, record, length, file);
        }
    free(record);
    fastload_scratch_free(scratch);
    return NULL;
}

int main(int count, char **arguments)
{
    static struct worker workers[MOST_THREADS];
    int num_threads = count > 3 ? atoi(arguments[1]) : 0;
    num_files = count - 3;
    if (num_threads < 2 || num_threads > MOST_THREADS || num_files > MOST_FILES)
        return 2;
    num_rounds = atoi(arguments[2]);
    for (int i = 0; i < num_files; i++) {
        FILE *file = fopen(arguments[3 + i], "rb");
        files[i] = malloc(MOST_BYTES);
        if (!file)
            return 2;
        lengths[i] = fread(files[i], 1, MOST_BYTES, file);
        fclose(file);
    }
    pthread_barrier_init(&begin, NULL, (unsigned)num_threads);
    for (int i = 0; i < num_threads; i++)
        if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
            return 2;
    long decoded = 0;
    int differ = 0;
    for (int i = 0; i < num_threads; i++) {
        pthread_join(workers[i].thread, NULL);
        decoded += workers[i].decoded;
        differ |= memcmp(workers[i].sums, workers[0].sums, sizeof workers[0].sums) != 0;
    }
    printf("%ld images\n", decoded);
    return differ;
}
