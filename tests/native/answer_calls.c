/* Calls functions of the library for emulator.py, which writes to the standard input and reads from the output:
 *
 *   in:  int64 of: bytes of the name, arguments, buffers, pointers; the name; for each argument whether it is a buffer,
 *        and its number; for each buffer its size, and its bytes; for each pointer: in which buffer, at which byte, and
 *        to which buffer
 *   out: int64 of the result; the bytes of each buffer
 *
 * Integers are passed as 64 bits, of which functions take what they need: so both processors' conventions have it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_ARGUMENTS 12
#define MOST_BUFFERS 64

#define FUNCTIONS(of)                                                                                                  \
    of(fastload_arrays) of(fastload_distort) of(fastload_distort_greys)                                                \
    of(fastload_generators_bytes)                                                                                      \
    of(fastload_generators_next_locked) of(fastload_generators_prepare) of(fastload_generators_read)                   \
    of(fastload_generators_room) of(fastload_generators_write) of(fastload_image_row)                                  \
    of(fastload_jpeg_can_wait) of(fastload_jpeg_of_record) of(fastload_jpeg_row) of(fastload_jpeg_size)                \
    of(fastload_permute) of(fastload_philox) of(fastload_processor_level) of(fastload_record_of_jpeg)                  \
    of(fastload_scratch_free) of(fastload_scratch_new) of(fastload_table_copy) of(fastload_table_find)

#define DECLARE(name) void name(void);
FUNCTIONS(DECLARE)

typedef int64_t any_function(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t,
                             int64_t, int64_t);

static const struct {
    const char *name;
    void (*function)(void);
} TABLE[] = {
#define ENTRY(name) {#name, name},
    FUNCTIONS(ENTRY)};

static void read_all(void *to, size_t size)
{
    if (fread(to, 1, size, stdin) != size)
        exit(feof(stdin) ? 0 : 1);
}

int main(void)
{
    for (;;) {
        int64_t counts[4], argument[MOST_ARGUMENTS] = {0}, size[MOST_BUFFERS], pointer[3], kinds[2 * MOST_ARGUMENTS];
        char name[64] = {0};
        uint8_t *buffer[MOST_BUFFERS];
        read_all(counts, sizeof counts);
        if (counts[0] >= 64 || counts[1] > MOST_ARGUMENTS || counts[2] > MOST_BUFFERS)
            return 1;
        read_all(name, (size_t)counts[0]);
        read_all(kinds, (size_t)counts[1] * 16);
        for (int64_t i = 0; i < counts[2]; i++) {
            read_all(&size[i], 8);
            buffer[i] = aligned_alloc(64, ((size_t)size[i] + 64) / 64 * 64);
            if (!buffer[i])
                return 1;
            read_all(buffer[i], (size_t)size[i]);
        }
        for (int64_t i = 0; i < counts[3]; i++) {
            read_all(pointer, sizeof pointer);
            memcpy(buffer[pointer[0]] + pointer[1], &buffer[pointer[2]], sizeof *buffer);
        }
        for (int64_t i = 0; i < counts[1]; i++)
            argument[i] = kinds[2 * i] ? (int64_t)(intptr_t)buffer[kinds[2 * i + 1]] : kinds[2 * i + 1];
        any_function *function = NULL;
        for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
            if (!strcmp(name, TABLE[i].name))
                function = (any_function *)TABLE[i].function;
        if (!function)
            return 1;
        const int64_t result = function(argument[0], argument[1], argument[2], argument[3], argument[4], argument[5],
                                        argument[6], argument[7], argument[8], argument[9], argument[10], argument[11]);
        fwrite(&result, 8, 1, stdout);
        for (int64_t i = 0; i < counts[2]; i++) {
            fwrite(buffer[i], 1, (size_t)size[i], stdout);
            free(buffer[i]);
        }
        fflush(stdout);
    }
}
