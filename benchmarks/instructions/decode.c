/* Decodes JPEG files to pixels by the native library, or by libjpeg-turbo: decode WHO REPEATS < REQUESTS
 *
 * WHO: fastload or turbo. A request is a line: top, left, height and width of a box, height and width of the result (of
 * fastload alone: libjpeg-turbo does not resize), and the file. Decoded are all files, one after the other, REPEATS
 * times. Prints a hash of the pixels. */
#include "resample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#define MOST_FILES 1024

struct fastload_scratch *fastload_scratch_new(void);
int fastload_jpeg_row(struct fastload_scratch *, const uint8_t *, size_t, const struct fastload_request *);

struct request {
    uint8_t *bytes;
    size_t length;
    int box[4], size[2];
};

static void fail(const char *what)
{
    fprintf(stderr, "decode: %s\n", what);
    exit(1);
}

static size_t by_fastload(struct fastload_scratch *scratch, const struct request *r, uint8_t *out)
{
    struct fastload_request request = {
        .target = {out, 3 * r->size[1], 3, 1, NULL, 1, 3},
        .source = {0, 0, (float)r->box[3], (float)r->box[2]},
        .order = FASTLOAD_TALL_ROWS_FIRST,
        .level = FASTLOAD_BEST,
        .window = {0, 0, r->size[0], r->size[1]},
    };
    memcpy(request.box, r->box, sizeof r->box);
    memcpy(request.size, r->size, sizeof r->size);
    if (fastload_jpeg_row(scratch, r->bytes, r->length, &request) != FASTLOAD_DONE)
        fail("the library leaves a file to another decoder");
    return (size_t)3 * (size_t)r->size[0] * (size_t)r->size[1];
}

/* A box begins and ends at a multiple of the columns of a MCU, or a few columns more. */
static size_t by_turbo(struct jpeg_decompress_struct *c, const struct request *r, uint8_t *out)
{
    jpeg_mem_src(c, r->bytes, r->length);
    jpeg_read_header(c, TRUE);
    c->out_color_space = JCS_RGB;
    jpeg_start_decompress(c);
    const JDIMENSION top = (JDIMENSION)r->box[0], height = (JDIMENSION)r->box[2];
    JDIMENSION left = (JDIMENSION)r->box[1], width = (JDIMENSION)r->box[3];
    const int is_whole = height == c->output_height && width == c->output_width;
    if (!is_whole)
        jpeg_crop_scanline(c, &left, &width);
    if (top && jpeg_skip_scanlines(c, top) != top)
        fail("libjpeg-turbo cannot skip rows");
    for (JDIMENSION y = 0; y < height;) {
        uint8_t *rows[4];
        for (JDIMENSION i = 0; i < 4; i++)
            rows[i] = out + (size_t)(y + i) * 3 * width;
        y += jpeg_read_scanlines(c, rows, height - y < 4 ? height - y : 4);
    }
    if (is_whole)
        jpeg_finish_decompress(c);
    else
        jpeg_abort_decompress(c);
    return (size_t)3 * width * height;
}

int main(int argc, char **argv)
{
    static struct request requests[MOST_FILES];
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr errors;
    int num = 0, b[6];
    char path[1024];
    size_t most = 0;
    if (argc != 3)
        return 2;
    while (num < MOST_FILES && scanf("%d %d %d %d %d %d %1023[^\n]", b, b + 1, b + 2, b + 3, b + 4, b + 5, path) == 7) {
        struct request *r = &requests[num++];
        FILE *file = fopen(path, "rb");
        if (!file || fseek(file, 0, SEEK_END))
            fail(path);
        r->length = (size_t)ftell(file);
        rewind(file);
        r->bytes = malloc(r->length);
        if (!r->bytes || fread(r->bytes, 1, r->length, file) != r->length)
            fail(path);
        fclose(file);
        memcpy(r->box, b, sizeof r->box);
        memcpy(r->size, b + 4, sizeof r->size);
        const size_t box = (size_t)3 * ((size_t)b[3] + 64) * ((size_t)b[2] + 4), made = (size_t)3 * (size_t)(b[4] * b[5]);
        most = box > most ? box : most;
        most = made > most ? made : most;
    }
    uint8_t *out = malloc(most);
    struct fastload_scratch *scratch = fastload_scratch_new();
    if (!out || !scratch || !num)
        fail("no memory, or no requests");
    c.err = jpeg_std_error(&errors);
    jpeg_create_decompress(&c);
    const int is_turbo = !strcmp(argv[1], "turbo");
    uint64_t hash = 14695981039346656037u;
    for (int repeat = 0; repeat < atoi(argv[2]); repeat++)
        for (int i = 0; i < num; i++) {
            const size_t size = is_turbo ? by_turbo(&c, &requests[i], out) : by_fastload(scratch, &requests[i], out);
            for (size_t k = 0; repeat == 0 && k < size; k++)
                hash = (hash ^ out[k]) * 1099511628211u;
        }
    printf("%016llx\n", (unsigned long long)hash);
    return 0;
}
