/* Feeds damaged JPEG files and records to the decoder; built with the library's sources under sanitizers by fuzz.py.
 *
 * fuzz_jpeg SECONDS SEED FILE...
 *
 * Ends after as many rounds as FUZZ_ROUNDS says, if the environment names it: the same on each machine.
 *
 * Each round damages one of the files, byte by byte and segment by segment, or makes up a record of any coefficients, or
 * damages one; and decodes a box of it to a row in memory of just its size: of all elements, filters, windows and
 * layouts, on each instruction set, which must agree. Where nothing is resized the row must also be what libjpeg
 * decodes by itself from the whole file. Some requests are none, and must be refused. Files become records, and these
 * files again, with the same coefficients; and libjpeg must accept the files whose decoding may be put off.
 *
 * Prints how many rounds there were, how many decodings ended in which status (the first: refused requests), how
 * many rows were compared with libjpeg's, how often the rest was tried, and a digest of all results. Built without
 * libjpeg it compares nothing with it. The bytes at which it fails, or on which it spends a minute, are written to FUZZ_LAST, if the environment
 * names it. */
#include "fuzz_records.h"
#include "resample.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#ifdef FUZZ_WITH_LIBJPEG
#include <setjmp.h>

#include <jpeglib.h>
#endif

#if defined(__has_feature)
#if __has_feature(memory_sanitizer)
#define UNDER_MSAN
#endif
#endif
/* Of the sanitizers, whose headers not every compiler brings. */
void __sanitizer_set_death_callback(void (*)(void));
void __msan_check_mem_is_initialized(const volatile void *, size_t);

struct fastload_scratch *fastload_scratch_new(void);
void fastload_scratch_free(struct fastload_scratch *);
int fastload_jpeg_size(const uint8_t *, size_t, int32_t[5]);
int fastload_jpeg_row(struct fastload_scratch *, const uint8_t *, size_t, const struct fastload_request *);
int fastload_record_of_jpeg(struct fastload_scratch *, const uint8_t *, size_t, uint8_t *, size_t, size_t *);
int fastload_jpeg_of_record(struct fastload_scratch *, const uint8_t *, size_t, uint8_t *, size_t, size_t *);
int fastload_jpeg_can_wait(const uint8_t *, size_t, int64_t[4]);

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

#ifdef FUZZ_WITH_LIBJPEG
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
#endif

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
static inline void compare(const struct fastload_request *q, const uint8_t *row, const uint8_t *image, int32_t image_width)
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

/* What is decoded: a JPEG file or a record. */
struct subject {
    struct bytes bytes;
    const struct bytes *jpeg; /* what libjpeg is to decode to the same; NULL: nothing is known of it */
    int must_work;
};

/* What was done. */
static struct {
    long rounds, counts[9], compared, records, returned, waited;
} done;

static struct fastload_scratch *scratch;
static uint8_t *table;

/* Memory must have been written. */
#ifdef UNDER_MSAN
#define check_written(row, bytes) __msan_check_mem_is_initialized(row, bytes)
#else
#define check_written(row, bytes) (void)0
#endif

static int are_copied(const struct request *r)
{
    int copied = 1;
    for (int i = 0; i < 2; i++) {
        const float begin = r->q.source[i];
        copied = copied && begin == (float)(int)begin && r->q.source[2 + i] - begin == (float)r->q.size[1 - i];
    }
    return copied;
}

/* Decodes one box with each instruction set. */
static void decode(const struct subject *subject)
{
    const uint8_t *const data = subject->bytes.data;
    const size_t size = subject->bytes.size;
    int32_t header[5];
    const int known = fastload_jpeg_size(data, size, header);
    if (known == FASTLOAD_DONE && (int64_t)header[0] * header[1] > MOST_PIXELS)
        return;
    if (known != FASTLOAD_DONE)
        header[0] = header[1] = header[2] = 8;
    struct request r = draw_request(header, table);
    const size_t bytes = lay_out(&r);
    uint8_t *rows[3];
    int status[3];
    for (int level = 0; level < 3; level++) {
        rows[level] = calloc(bytes, 1);
        r.q.target.data = rows[level];
        fastload_limit_level(level);
        status[level] = fastload_jpeg_row(scratch, data, size, &r.q);
        if (status[level] == FASTLOAD_DONE)
            check_written(rows[level], bytes);
        if (status[level] != status[0] || (status[0] == FASTLOAD_DONE && memcmp(rows[level], rows[0], bytes)))
            fail("levels differ", status[0], status[level]);
    }
    fold(status, sizeof *status);
    if (status[0] == FASTLOAD_DONE)
        fold(rows[0], bytes);
    if (known != FASTLOAD_DONE ? status[0] != known : (status[0] == FASTLOAD_BAD_ARGUMENT) != r.invalid)
        fail("not what the header promised", status[0], known);
    if (subject->must_work && status[0] != FASTLOAD_DONE && !r.invalid)
        fail("a good record is refused", status[0], 0);
#ifdef FUZZ_WITH_LIBJPEG
    if (status[0] == FASTLOAD_DONE && subject->jpeg && are_copied(&r)) {
        uint8_t *image = whole_image(subject->jpeg->data, subject->jpeg->size, header[0], header[1]);
        if (!image)
            fail("libjpeg fails where the library does not", 0, 0);
        compare(&r.q, rows[0], image, header[0]);
        free(image);
        done.compared++;
    }
#endif
    for (int level = 0; level < 3; level++)
        free(rows[level]);
    done.counts[1 + status[0]]++;
}

typedef int conversion(struct fastload_scratch *, const uint8_t *, size_t, uint8_t *, size_t, size_t *);

/* In memory of just the size, which too small an output tells. Data are NULL unless the conversion worked. */
static struct bytes convert(conversion *to, const struct bytes *from, int *status)
{
    struct bytes made = {NULL, 0};
    const size_t less = draw(3000);
    uint8_t *const small = malloc(less + 1);
    fastload_limit_level((int)draw(3));
    *status = to(scratch, from->data, from->size, small, less, &made.size);
    free(small);
    if (*status != FASTLOAD_DONE)
        return made;
    size_t again;
    made.data = malloc(made.size);
    fastload_limit_level((int)draw(3));
    const int second = to(scratch, from->data, from->size, made.data, made.size, &again);
    if (second != FASTLOAD_DONE || again != made.size)
        fail("a conversion that differs the second time", (int)again, (int)made.size);
    check_written(made.data, made.size);
    fold(made.data, made.size);
    return made;
}

/* From a file to a record and back to a file with the same pixels, and from that to the same record. */
static void pack_and_unpack(const struct bytes *file)
{
    int status, unpacked, repacked;
    const struct bytes record = convert(fastload_record_of_jpeg, file, &status);
    if (!record.data)
        return;
    done.records++;
    decode(&(struct subject){record, file, 1});
    const struct bytes back = convert(fastload_jpeg_of_record, &record, &unpacked);
    /* It may use codes that stand for the same, of which the table of a damaged file has but one. */
    if (unpacked != FASTLOAD_DONE && unpacked != FASTLOAD_DAMAGED)
        fail("a record cannot be unpacked", unpacked, 0);
    if (back.data) {
        const struct bytes again = convert(fastload_record_of_jpeg, &back, &repacked);
        if (!again.data || again.size != record.size || memcmp(again.data, record.data, again.size))
            fail("other coefficients come back", repacked, 0);
        free(again.data);
        done.returned++;
    }
    free(back.data);
    free(record.data);
}

/* libjpeg may not fail on a file of which can_wait() says so. */
static void check_promise(const struct bytes *file)
{
    int64_t known[4]; /* where the image ends, its width and height */
    const int status = fastload_jpeg_can_wait(file->data, file->size, known);
    fold(&status, sizeof status);
#ifdef FUZZ_WITH_LIBJPEG
    if (status != FASTLOAD_DONE || known[1] * known[2] > MOST_PIXELS >> 4)
        return;
    uint8_t *image = whole_image(file->data, (size_t)known[0], (int)known[1], (int)known[2]);
    if (!image)
        fail("libjpeg fails on a file that may wait", 0, 0);
    free(image);
    done.waited++;
#endif
}

/* A record from nothing, or one that was made of a file, and damaged. */
static void try_record(const struct bytes *file)
{
    int status;
    struct bytes record = {NULL, 0};
    const int from_file = draw(4) == 0;
    if (from_file)
        record = convert(fastload_record_of_jpeg, file, &status);
    if (!record.data)
        record = made_record();
    at_hand = record;
    struct bytes back = {NULL, 0};
    if (!from_file && draw(2)) {
        back = convert(fastload_jpeg_of_record, &record, &status);
        /* Of levels that no file of 8 bits has the library's decoder knows nothing. */
        decode(&(struct subject){record, back.data ? &back : NULL, 1});
        if (back.data) {
            decode(&(struct subject){back, &back, 0});
            pack_and_unpack(&back);
            const struct bytes damaged = damaged_copy(&back, file);
            at_hand = damaged;
            decode(&(struct subject){damaged, &damaged, 0});
            check_promise(&damaged);
            free(damaged.data);
        }
    } else {
        const struct bytes damaged = damaged_record(&record);
        at_hand = damaged;
        decode(&(struct subject){damaged, NULL, 0});
        back = convert(fastload_jpeg_of_record, &damaged, &status);
        if (back.data)
            decode(&(struct subject){damaged, &back, 1});
        free(damaged.data);
    }
    free(back.data);
    free(record.data);
}

static void try_file(const struct bytes *file, const struct bytes *other)
{
    at_hand = damaged_copy(file, other);
    const struct bytes damaged = at_hand;
    decode(&(struct subject){damaged, &damaged, 0});
    if (damaged.size < 1 << 15) {
        pack_and_unpack(&damaged);
        check_promise(&damaged);
    }
    free(damaged.data);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    const double end = now() + atof(argv[1]);
    const long most = getenv("FUZZ_ROUNDS") ? atol(getenv("FUZZ_ROUNDS")) : LONG_MAX;
    seed(strtoull(argv[2], NULL, 10));
    const uint32_t num = (uint32_t)argc - 3;
    struct bytes *files = malloc(num * sizeof *files);
    for (uint32_t i = 0; i < num; i++)
        files[i] = read_file(argv[3 + i]);
    scratch = fastload_scratch_new();
    table = malloc((size_t)3 * 256 * 4);
    for (int i = 0; i < 3 * 256 * 4; i++)
        table[i] = (uint8_t)draw(256);
    signal(SIGALRM, on_alarm);
#if defined(__SANITIZE_ADDRESS__) || defined(UNDER_MSAN)
    __sanitizer_set_death_callback(keep);
#endif
    for (; now() < end && done.rounds < most; done.rounds++) {
        const struct bytes *file = &files[draw(num)], *other = &files[draw(num)];
        alarm(60);
        if (draw(2))
            try_record(file);
        else
            try_file(file, other);
    }
    at_hand = (struct bytes){NULL, 0};
    alarm(0);
    printf("%ld rounds; by status:", done.rounds);
    for (int i = 0; i < 9; i++)
        printf(" %ld", done.counts[i]);
    printf("; compared: %ld; to records: %ld, and back: %ld; may wait: %ld; digest: %" PRIx64 "\n", done.compared,
           done.records, done.returned, done.waited, digest);
    fastload_scratch_free(scratch);
    free(table);
    for (uint32_t i = 0; i < num; i++)
        free(files[i].data);
    free(files);
    return 0;
}
