/* Feeds damaged JPEG files to the decoder; built with the library's sources under ASan and UBSan by fuzz.py.
 *
 * fuzz_jpeg SECONDS SEED FILE...
 *
 * Each round damages one of the files, byte by byte and segment by segment, and decodes a box of it to a row in memory
 * of just its size: of all elements, filters, windows and layouts, on two instruction sets, which must agree. Where nothing is
 * resized the row must also be what libjpeg decodes by itself from the whole file. Some requests are none, and must be
 * refused. Prints how many rounds there were, how many ended in which status (the first: refused requests), and how
 * many rows were compared with libjpeg's. The file at which it fails, or on which it spends a minute, is written to
 * FUZZ_LAST, if the environment names it. */
#include "fuzz_damage.h"
#include "resample.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <jpeglib.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

struct fastload_scratch *fastload_scratch_new(void);
void fastload_scratch_free(struct fastload_scratch *);
int fastload_jpeg_size(const uint8_t *, size_t, int32_t[4]);
int fastload_jpeg_row(struct fastload_scratch *, const uint8_t *, size_t, const struct fastload_request *);

/* Larger images only cost time. */
#define MOST_PIXELS (1 << 22)

struct request {
    struct fastload_request q;
    int invalid; /* it must be refused */
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

static struct bytes at_hand;

/* Called at a failure, in whatever state: writing a file before each decoding takes ten times as long as decoding it. */
static void keep(void)
{
    const char *path = getenv("FUZZ_LAST");
    FILE *file = path ? fopen(path, "wb") : NULL;
    if (!file)
        return;
    fwrite(at_hand.data, 1, at_hand.size, file);
    fclose(file);
}

static void on_alarm(int number)
{
    (void)number;
    keep();
    _exit(3);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct failure {
    struct jpeg_error_mgr errors;
    jmp_buf leave;
};

static void leave(j_common_ptr cinfo)
{
    longjmp(((struct failure *)cinfo->err)->leave, 1);
}

static void say_nothing(j_common_ptr cinfo, int level)
{
    (void)cinfo;
    (void)level;
}

/* What libjpeg decodes, with warnings ignored, as Pillow ignores them: [height, width, 3]; NULL: an error. */
static uint8_t *whole_image(const uint8_t *data, size_t size, int32_t width, int32_t height)
{
    struct jpeg_decompress_struct cinfo;
    struct failure failure;
    uint8_t *volatile pixels = malloc((size_t)3 * width * height);
    cinfo.err = jpeg_std_error(&failure.errors);
    failure.errors.error_exit = leave;
    failure.errors.emit_message = say_nothing;
    if (setjmp(failure.leave)) {
        jpeg_destroy_decompress(&cinfo);
        free(pixels);
        return NULL;
    }
    jpeg_create_decompress(&cinfo);
    jpeg_mem_src(&cinfo, data, (unsigned long)size);
    jpeg_read_header(&cinfo, TRUE);
    cinfo.out_color_space = JCS_RGB;
    jpeg_start_decompress(&cinfo);
    while (cinfo.output_scanline < cinfo.output_height) {
        JSAMPROW row = pixels + (size_t)3 * width * cinfo.output_scanline;
        jpeg_read_scanlines(&cinfo, &row, 1);
    }
    jpeg_destroy_decompress(&cinfo);
    return pixels;
}

/* Any part of something, often all of it. */
static void draw_part(int32_t part[4], int32_t height, int32_t width)
{
    part[2] = draw(3) ? 1 + (int32_t)draw((uint32_t)height) : height;
    part[3] = draw(3) ? 1 + (int32_t)draw((uint32_t)width) : width;
    part[0] = (int32_t)draw((uint32_t)(height - part[2] + 1));
    part[1] = (int32_t)draw((uint32_t)(width - part[3] + 1));
}

static float draw_float(float most)
{
    return draw(4) ? most * (float)draw(10000) / 10000 : draw(2) ? most : 0;
}

/* Any request for an image; one in sixteen is for what is not. */
static struct request draw_request(const int32_t header[4], const uint8_t *table)
{
    static const int32_t odd[] = {0, -1, INT32_MIN, INT32_MAX, 65536, -65536};
    static const float odder[] = {-1, -0.001f, 1e9f, NAN, INFINITY, -INFINITY};
    struct request r = {.q = {.filter = (int32_t)draw(FASTLOAD_NUM_FILTERS),
                              .order = (int32_t)draw(2),
                              .flips = (int32_t)draw(4)}};
    struct fastload_request *q = &r.q;
    draw_part(q->box, header[1], header[0]);
    for (int i = 0; i < 2; i++) {
        q->size[i] = draw(2) ? q->box[2 + i] : 1 + (int32_t)draw(draw(4) ? 80 : 4);
        q->size[i] = q->size[i] > FASTLOAD_MAX_SIDE ? 1 : q->size[i];
        const float side = (float)q->box[3 - i], one = draw_float(side), other = draw_float(side);
        q->source[i] = draw(3) ? 0 : one < other ? one : other;
        q->source[2 + i] = q->source[i] == 0 ? side : one < other ? other : one;
    }
    draw_part(q->window, q->size[0], q->size[1]);
    q->target.element = 1 << draw(3);
    q->target.table = q->target.element > 1 || draw(2) ? table : NULL;
    q->target.channels = q->target.table ? 3 : header[2] == 1 && draw(2) ? 1 : draw(2) ? 3 : 4;
    if (draw(16) == 0) {
        r.invalid = 1;
        switch (draw(8)) {
        case 0:
            q->box[draw(4)] = draw(2) ? odd[1 + draw(5)] : INT32_MAX - (int32_t)draw(70000);
            break;
        case 1:
            (draw(2) ? q->box : q->window)[2 + draw(2)] = odd[draw(6)];
            break;
        case 2:
            q->size[draw(2)] = draw(2) ? odd[draw(6)] : FASTLOAD_MAX_SIDE + 1;
            break;
        case 3:
            *(draw(2) ? &q->filter : &q->order) = draw(2) ? -1 : FASTLOAD_NUM_FILTERS;
            break;
        case 4:
            q->target.element = draw(2) ? 3 : 0;
            q->target.channels = 3;
            break;
        case 5:
            q->target.channels = draw(2) ? 0 : 2;
            break;
        case 6:
            q->source[draw(4)] = odder[draw(6)];
            break;
        default:
            q->flips = draw(2) ? -1 : 4;
        }
    }
    return r;
}

/* Lays the row out: planes or pixels, with gaps or without. Returns the bytes from its first to its last. */
static size_t lay_out(struct request *r)
{
    struct target *t = &r->q.target;
    const int32_t height = r->q.window[2], width = r->q.window[3];
    if (r->invalid) {
        t->column = 4;
        t->channel = 1;
        return 1;
    }
    const int64_t gap = draw(4) ? 0 : (int64_t)(1 + draw(5)) * t->element, planes = t->channels != 4 && draw(2);
    t->column = planes ? t->element : t->channels * t->element + (t->channels == 4 || draw(4) ? 0 : gap);
    t->row = width * t->column + gap;
    t->channel = planes ? height * t->row + gap : t->element;
    return (size_t)((height - 1) * t->row + (width - 1) * t->column + (t->channels - 1) * t->channel + t->element);
}

static void fail(const char *what, int first, int second)
{
    fprintf(stderr, "%s: %d and %d\n", what, first, second);
    keep();
    abort();
}

/* Whether a row that was not resized is what libjpeg decodes. */
static void compare(const struct fastload_request *q, const uint8_t *row, const uint8_t *image, int32_t image_width)
{
    const struct target *t = &q->target;
    for (int32_t y = 0; y < q->window[2]; y++)
        for (int32_t x = 0; x < q->window[3]; x++)
            for (int c = 0; c < t->channels; c++) {
                const int32_t up = q->flips & FASTLOAD_UPSIDE_DOWN ? q->window[2] - 1 - y : y;
                const int32_t across = q->flips & FASTLOAD_LEFT_RIGHT ? q->window[3] - 1 - x : x;
                const int32_t from_y = q->box[0] + (int32_t)q->source[1] + q->window[0] + up;
                const int32_t from_x = q->box[1] + (int32_t)q->source[0] + q->window[1] + across;
                static const uint8_t last = 255;
                const uint8_t *level = c == 3 ? &last : image + ((size_t)from_y * (size_t)image_width + (size_t)from_x) * 3 + c;
                const uint8_t *wanted = t->table ? (const uint8_t *)t->table + (256 * c + *level) * t->element : level;
                if (memcmp(row + y * t->row + x * t->column + c * t->channel, wanted, (size_t)t->element))
                    fail("a pixel is not libjpeg's", y, x);
            }
}

/* Decodes one box of a file. Returns the status; counts what was compared. */
static int decode(struct fastload_scratch *scratch, const uint8_t *data, size_t size, const uint8_t *table, long *same)
{
    int32_t header[4];
    const int known = fastload_jpeg_size(data, size, header);
    if (known == FASTLOAD_DONE && (int64_t)header[0] * header[1] > MOST_PIXELS)
        return FASTLOAD_TOO_LARGE;
    if (known != FASTLOAD_DONE)
        header[0] = header[1] = header[2] = 8;
    struct request r = draw_request(header, table);
    const size_t bytes = lay_out(&r);
    uint8_t *rows[2] = {calloc(bytes, 1), calloc(bytes, 1)};
    const int levels[2] = {FASTLOAD_BEST, (int)draw(2)};
    int status[2];
    for (int i = 0; i < 2; i++) {
        r.q.target.data = rows[i];
        r.q.level = levels[i];
        status[i] = fastload_jpeg_row(scratch, data, size, &r.q);
    }
    if (status[0] != status[1] || (status[0] == FASTLOAD_DONE && memcmp(rows[0], rows[1], bytes)))
        fail("levels differ", status[0], status[1]);
    if (known != FASTLOAD_DONE ? status[0] != known : (status[0] == FASTLOAD_BAD_ARGUMENT) != r.invalid)
        fail("not what the header promised", status[0], known);
    int copied = 1;
    for (int i = 0; i < 2; i++) {
        const float begin = r.q.source[i];
        copied = copied && begin == (float)(int)begin && r.q.source[2 + i] - begin == (float)r.q.size[1 - i];
    }
    if (status[0] == FASTLOAD_DONE && copied) {
        uint8_t *image = whole_image(data, size, header[0], header[1]);
        if (!image)
            fail("libjpeg fails where the library does not", 0, 0);
        compare(&r.q, rows[0], image, header[0]);
        free(image);
        ++*same;
    }
    free(rows[0]);
    free(rows[1]);
    return status[0];
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    const double end = now() + atof(argv[1]);
    seed(strtoull(argv[2], NULL, 10));
    const uint32_t num = (uint32_t)argc - 3;
    struct bytes *files = malloc(num * sizeof *files);
    for (uint32_t i = 0; i < num; i++)
        files[i] = read_file(argv[3 + i]);
    struct fastload_scratch *scratch = fastload_scratch_new();
    uint8_t *table = malloc((size_t)3 * 256 * 4);
    for (int i = 0; i < 3 * 256 * 4; i++)
        table[i] = (uint8_t)draw(256);
    long rounds = 0, same = 0, counts[9] = {0};
    signal(SIGALRM, on_alarm);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_set_death_callback(keep);
#endif
    for (; now() < end; rounds++) {
        at_hand = damaged_copy(&files[draw(num)], &files[draw(num)]);
        alarm(60);
        counts[1 + decode(scratch, at_hand.data, at_hand.size, table, &same)]++;
        free(at_hand.data);
    }
    alarm(0);
    printf("%ld rounds; by status:", rounds);
    for (int i = 0; i < 9; i++)
        printf(" %ld", counts[i]);
    printf("; compared: %ld\n", same);
    at_hand = (struct bytes){NULL, 0};
    fastload_scratch_free(scratch);
    free(table);
    for (uint32_t i = 0; i < num; i++)
        free(files[i].data);
    free(files);
    return 0;
}
