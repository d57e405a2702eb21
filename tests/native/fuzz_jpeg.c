/* Feeds damaged JPEG files to the decoder; built with the library's sources under ASan and UBSan by fuzz.py.
 *
 * fuzz_jpeg SECONDS SEED FILE...
 *
 * Each round damages one of the files, byte by byte and segment by segment, and decodes a box of it to a row in memory
 * of just its size: of all elements, filters and layouts, on two instruction sets, which must agree. Where nothing is
 * resized the row must also be what libjpeg decodes by itself from the whole file. Some requests are none, and must be
 * refused. Prints how many rounds there were, how many ended in which status (the first: refused requests), and how
 * many rows were compared with libjpeg's. The file at which it fails, or on which it spends a minute, is written to
 * FUZZ_LAST, if the environment names it. */
#include "fastload.h"
#include "fuzz_damage.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include <jpeglib.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

struct fastload_scratch;
struct fastload_scratch *fastload_scratch_new(void);
void fastload_scratch_free(struct fastload_scratch *);
int fastload_jpeg_size(const uint8_t *, size_t, int32_t[4]);
int fastload_jpeg_row(struct fastload_scratch *, const uint8_t *, size_t, const int32_t[4], int32_t, int32_t, int32_t,
                      int32_t, int32_t, void *, int64_t, int64_t, int64_t, int32_t, const void *, int32_t);

/* Larger images only cost time. */
#define MOST_PIXELS (1 << 22)

struct request {
    int32_t box[4], height, width, filter, order, flip, element;
    int64_t row, column, channel;
    const uint8_t *table;
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

/* Any request for an image; one in sixteen is for what is not. */
static struct request draw_request(const int32_t header[4], const uint8_t *table)
{
    static const int32_t odd[] = {0, -1, INT32_MIN, INT32_MAX, 65536, -65536};
    struct request r = {.filter = (int32_t)draw(2), .order = (int32_t)draw(2), .flip = (int32_t)draw(2)};
    r.box[2] = 1 + (int32_t)draw((uint32_t)header[1]);
    r.box[3] = 1 + (int32_t)draw((uint32_t)header[0]);
    r.box[0] = (int32_t)draw((uint32_t)(header[1] - r.box[2] + 1));
    r.box[1] = (int32_t)draw((uint32_t)(header[0] - r.box[3] + 1));
    r.height = draw(2) ? r.box[2] : 1 + (int32_t)draw(draw(4) ? 80 : 4);
    r.width = draw(2) ? r.box[3] : 1 + (int32_t)draw(draw(4) ? 80 : 4);
    r.height = r.height > FASTLOAD_MAX_SIDE ? 1 : r.height;
    r.width = r.width > FASTLOAD_MAX_SIDE ? 1 : r.width;
    r.element = 1 << draw(3);
    r.table = r.element > 1 || draw(2) ? table : NULL;
    if (draw(16) == 0) {
        r.invalid = 1;
        switch (draw(6)) {
        case 0:
            r.box[draw(4)] = draw(2) ? odd[1 + draw(5)] : INT32_MAX - (int32_t)draw(70000);
            break;
        case 1:
            r.box[2 + draw(2)] = odd[draw(6)];
            break;
        case 2:
            *(draw(2) ? &r.height : &r.width) = draw(2) ? odd[draw(6)] : FASTLOAD_MAX_SIDE + 1;
            break;
        case 3:
            *(draw(2) ? &r.filter : &r.order) = draw(2) ? -1 : 2;
            break;
        case 4:
            r.element = draw(2) ? 3 : 0;
            break;
        default:
            r.element = 4;
            r.table = NULL;
        }
    }
    return r;
}

/* Lays the row out: planes or pixels, with gaps or without. Returns the bytes from its first to its last. */
static size_t lay_out(struct request *r)
{
    if (r->invalid)
        return 1;
    const int64_t gap = draw(4) ? 0 : (int64_t)(1 + draw(5)) * r->element, planes = draw(2);
    r->column = planes ? r->element : 3 * r->element + (draw(4) ? 0 : gap);
    r->row = r->width * r->column + gap;
    r->channel = planes ? r->height * r->row + gap : r->element;
    return (size_t)((r->height - 1) * r->row + (r->width - 1) * r->column + 2 * r->channel + r->element);
}

static void fail(const char *what, int first, int second)
{
    fprintf(stderr, "%s: %d and %d\n", what, first, second);
    keep();
    abort();
}

/* Whether a row that was not resized is what libjpeg decodes. */
static void compare(const struct request *r, const uint8_t *row, const uint8_t *image, int32_t image_width)
{
    for (int32_t y = 0; y < r->height; y++)
        for (int32_t x = 0; x < r->width; x++)
            for (int c = 0; c < 3; c++) {
                const int32_t from = r->flip ? r->width - 1 - x : x;
                const uint8_t *level =
                    image + ((size_t)(r->box[0] + y) * (size_t)image_width + (size_t)(r->box[1] + from)) * 3 + c;
                const uint8_t *wanted = r->table ? r->table + (256 * c + *level) * r->element : level;
                if (memcmp(row + y * r->row + x * r->column + c * r->channel, wanted, (size_t)r->element))
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
        header[0] = header[1] = 8;
    struct request r = draw_request(header, table);
    const size_t bytes = lay_out(&r);
    uint8_t *rows[2] = {calloc(bytes, 1), calloc(bytes, 1)};
    const int levels[2] = {FASTLOAD_BEST, (int)draw(2)};
    int status[2];
    for (int i = 0; i < 2; i++)
        status[i] = fastload_jpeg_row(scratch, data, size, r.box, r.height, r.width, r.filter, r.order, r.flip, rows[i],
                                      r.row, r.column, r.channel, r.element, r.table, levels[i]);
    if (status[0] != status[1] || (status[0] == FASTLOAD_DONE && memcmp(rows[0], rows[1], bytes)))
        fail("levels differ", status[0], status[1]);
    if (known != FASTLOAD_DONE ? status[0] != known : (status[0] == FASTLOAD_BAD_ARGUMENT) != r.invalid)
        fail("not what the header promised", status[0], known);
    if (status[0] == FASTLOAD_DONE && r.height == r.box[2] && r.width == r.box[3]) {
        uint8_t *image = whole_image(data, size, header[0], header[1]);
        if (!image)
            fail("libjpeg fails where the library does not", 0, 0);
        compare(&r, rows[0], image, header[0]);
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
