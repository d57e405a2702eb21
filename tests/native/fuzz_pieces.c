/* Feeds made and damaged input to functions that fuzz_jpeg.c does not reach; built with the library's sources under
 * sanitizers by fuzz.py.
 *
 * fuzz_pieces SECONDS SEED png|distort|affine|table|cache|arrays|words|order|states [ROUNDS]
 *
 * png: files of any kind, damaged chunk by chunk and byte by byte, most with the right checksums again. What the library
 * decodes, libpng must decode without a warning to the same pixels, and each instruction set too.
 * distort: images of any strides, in memory of just their size; each instruction set must make the same.
 * affine: images of any size, in memory of just their size, and any numbers; the filters must make what is written here
 * without vectors and without a border.
 * table: columns in chunks, whose offsets are damaged; no value outside of the buffers may be read.
 * cache: tables that are filled, damaged, checked and used again, between pages that nobody may touch.
 * arrays, words, order, states: batches, random words, places of an epoch and states of generators; each instruction
 * set must make the same, and an order backwards what it was made of.
 *
 * Prints how many rounds there were, and: files that were decoded, that were refused, and of which a part was made; changed images
 * and refused ones, and pixels that were mixed; columns that were read, that are damaged, and rows that there are not; entries, caches that are damaged,
 * and that are used again; and a digest of what was made. Built without libpng it knows no PNG files. */
#define _GNU_SOURCE
#include "fuzz_damage.h"
#include "png.h"
#include "resample.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#ifdef FUZZ_WITH_LIBPNG
#include <png.h>
#include <setjmp.h>
#include <zlib.h>
#endif

struct fastload_scratch *fastload_scratch_new(void);
void fastload_scratch_free(struct fastload_scratch *);
int fastload_png_size(const uint8_t *, size_t, int64_t[9]);
int fastload_png_whole(struct fastload_scratch *, const uint8_t *, size_t, const uint8_t *, size_t, uint8_t *, int,
                       const int32_t[2]);
int fastload_png_begin(const uint8_t *, size_t, const uint8_t *, size_t, void *);
int fastload_png_row(struct fastload_scratch *, const void *, const uint8_t *, const struct fastload_request *);
void fastload_distort(int, const uint8_t *, const int64_t *, uint8_t *, const int64_t *, int64_t, int64_t, const float *,
                     int);
void fastload_distort_greys(const uint8_t *, const int64_t *, int64_t, int64_t, float *, int);
int fastload_affine(const uint8_t *, int, int, int, uint8_t *, int, int, const double[6], const uint8_t *);
int fastload_affine_filtered(const uint8_t *, int, int, int, uint8_t *, int, int, const double[6], const uint8_t *, int);
struct chunk {
    const uint8_t *values;
    int64_t num_values;
    const void *offsets;
    int64_t first;
};
struct column {
    const int64_t *ends;
    const struct chunk *chunks;
    int64_t num_chunks, size, offset_width, item, kind;
};
struct place {
    const uint8_t *values;
    int64_t length;
};
int64_t fastload_table_find(const struct column *, const int64_t *, int64_t, struct place *, int64_t[3]);
void fastload_table_copy(const struct column *, const struct place *, int64_t, uint8_t *);
struct key {
    uint64_t words[3];
};
struct line {
    struct key key;
    uint64_t value[2];
};
struct where {
    uint8_t *memory;
    uint64_t size;
    int64_t file;
};
int fastload_cache_begin(const struct where *);
uint64_t fastload_cache_find(const struct where *, const struct key *);
uint64_t fastload_cache_list(const struct where *, const struct line *, uint64_t, int);
struct step {
    int32_t kind, width;
    const void *values;
    int64_t first, second;
};
struct task {
    const uint8_t *source;
    int64_t source_strides[4];
    const int64_t *indices;
    uint8_t *target;
    int64_t target_strides[4], item, channels, sides[2], size[2];
    const uint8_t *fill, *table;
    const struct step *steps[2];
    int64_t num_steps[2];
};
int64_t fastload_arrays(const struct task *, int64_t);
void fastload_philox(const int64_t *, const int64_t *, int64_t, uint32_t, uint32_t, uint32_t, uint32_t, int64_t,
                     uint32_t *, double *);
void fastload_permute(int64_t *, int64_t, uint64_t, int, int, const uint64_t *, int, int);
struct states {
    uint8_t *places[4]; /* of random, NumPy, its Gaussian, torch */
    void *others[3];
};
struct run {
    const struct states *states;
    void *room;
    const int64_t *ids;
    int64_t first, stride, num, done;
    uint64_t prefix[4];
};
int64_t fastload_generators_room(void);
void fastload_generators_prepare(struct run *);
int fastload_generators_next_locked(struct run *);

static struct fastload_scratch *scratch;
static long counts[4];

static void fail(const char *what, long first, long second)
{
    fprintf(stderr, "%s: %ld and %ld\n", what, first, second);
    abort();
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#ifdef FUZZ_WITH_LIBPNG
/* PNG */

static void put_number(uint8_t *to, uint32_t number)
{
    for (int i = 0; i < 4; i++)
        to[i] = (uint8_t)(number >> (24 - 8 * i));
}

static void put_chunk(struct bytes *file, const char *name, const uint8_t *body, uint32_t size)
{
    uint8_t *at = file->data + file->size;
    put_number(at, size);
    memcpy(at + 4, name, 4);
    if (size)
        memcpy(at + 8, body, size);
    put_number(at + 8 + size, (uint32_t)crc32(0, at + 4, size + 4));
    file->size += 12 + (size_t)size;
}

enum { MOST_FILE = 1 << 17 };

/* Damages a stream, and gives it the checksum of what zlib still makes of it. */
static uLongf damaged_stream(uint8_t *stream, uLongf coded, size_t size)
{
    uint8_t *out = malloc(size + 64);
    z_stream z = {.next_in = stream + 2, .avail_in = (uInt)coded - 2, .next_out = out, .avail_out = (uInt)size + 64};
    for (uint32_t i = 1 + draw(2); i && coded > 8; i--)
        stream[2 + draw((uint32_t)coded - 6)] ^= (uint8_t)(1 << draw(8));
    inflateInit2(&z, -15);
    if (inflate(&z, Z_FINISH) == Z_STREAM_END && z.avail_in >= 4) {
        put_number(stream + coded - z.avail_in, (uint32_t)adler32(1, out, (uInt)z.total_out));
        coded -= z.avail_in - 4;
    }
    inflateEnd(&z);
    free(out);
    return coded;
}

static struct bytes made_png(void)
{
    static const uint8_t kinds[][2] = {{1, 0}, {2, 0}, {4, 0}, {8, 0}, {16, 0}, {8, 2},  {16, 2}, {1, 3},
                                       {2, 3}, {4, 3}, {8, 3}, {8, 4}, {16, 4}, {8, 6}, {16, 6}};
    static const char *const others[] = {"pHYs", "sRGB", "gAMA", "cHRM", "tEXt", "tRNS", "eXIf", "bKGD", "acTL", "iCCP"};
    const uint8_t *kind = kinds[draw(sizeof kinds / sizeof *kinds)];
    const uint32_t width = 1 + draw(draw(3) ? 40 : 200), height = 1 + draw(40);
    uint8_t first[13] = {0}, body[800];
    struct bytes file = {malloc(MOST_FILE), 8};
    memcpy(file.data, "\x89PNG\r\n\x1a\n", 8);
    put_number(first, width);
    put_number(first + 4, height);
    first[8] = kind[0];
    first[9] = kind[1];
    first[12] = draw(20) == 0;
    put_chunk(&file, "IHDR", first, 13);
    for (uint32_t i = 0; i < sizeof body; i++)
        body[i] = draw(3) ? 0 : (uint8_t)draw(256);
    const uint32_t num = draw(3);
    for (uint32_t i = 0; i < num; i++) {
        static const uint8_t gamma[4] = {0, 0, 0xB1, 0x8F};
        const char *name = others[draw(draw(2) ? 4 : 10)];
        put_chunk(&file, name, !strcmp(name, "gAMA") ? gamma : body,
                  !strcmp(name, "gAMA") ? 4 : !strcmp(name, "pHYs") ? 9 : !strcmp(name, "sRGB") ? 1 : draw(34));
    }
    if (kind[1] == 3 || (kind[1] != 0 && draw(10) == 0))
        put_chunk(&file, "PLTE", body, 3 * (draw(4) && kind[0] < 9 ? 1u << kind[0] : 1 + draw(256)));
    const size_t stride = ((size_t)width * kind[0] * (size_t)png_samples(kind[1]) + 7) / 8 + 1, size = stride * height;
    uint8_t *rows = malloc(size);
    for (size_t i = 0; i < size; i++)
        rows[i] = i % stride == 0 ? (uint8_t)draw(draw(300) ? 5 : 6) : (uint8_t)draw(1 + draw(draw(8) ? 3 : 255));
    uLongf coded = compressBound(size);
    uint8_t *stream = malloc(coded);
    compress2(stream, &coded, rows, draw(60) ? size : size - 1, (int)draw(10));
    if (draw(3) == 0)
        coded = damaged_stream(stream, coded, size);
    for (uLongf at = 0; at < coded;) {
        const uint32_t piece = draw(4) ? (uint32_t)(coded - at) : 1 + draw((uint32_t)(coded - at));
        put_chunk(&file, "IDAT", stream + at, piece);
        at += piece;
    }
    if (draw(20) == 0)
        put_chunk(&file, "tEXt", body, draw(30));
    put_chunk(&file, "IEND", NULL, 0);
    free(rows);
    free(stream);
    return file;
}

/* Damages a file, and makes the checksums of its chunks right again, or not. */
static struct bytes damaged_png(struct bytes *file)
{
    if (draw(2)) {
        struct bytes copy = {malloc(file->size), file->size};
        memcpy(copy.data, file->data, file->size);
        return copy;
    }
    size_t at[64], num = 0;
    for (size_t place = 8; place + 12 <= file->size && num < 64; place += 12 + png_number(file->data + place))
        at[num++] = place;
    const size_t which = draw((uint32_t)num), begin = at[which], size = 12 + (size_t)png_number(file->data + begin);
    const int mends = draw(3) != 0;
    switch (draw(8)) {
    case 0:
        remove_bytes(file, begin, size);
        break;
    case 1:
        insert(file, MOST_FILE, at[draw((uint32_t)num)], file->data + begin, size);
        break;
    case 2:
        file->size = draw((uint32_t)file->size);
        break;
    case 3: /* a length */
        put_number(file->data + begin, draw(2) ? draw(40) : (uint32_t)draw(0x7fffffff) * 2);
        break;
    default: /* a byte of a name or a body, mostly of the data */
        file->data[begin + 4 + draw((uint32_t)size - 8)] = draw(2) ? edge() : (uint8_t)draw(256);
        if (mends && size >= 12)
            put_number(file->data + begin + size - 4, (uint32_t)crc32(0, file->data + begin + 4, (uInt)size - 8));
    }
    struct bytes exact = {malloc(file->size ? file->size : 1), file->size};
    memcpy(exact.data, file->data, file->size);
    return exact;
}

struct reading {
    const struct bytes *file;
    size_t at;
    int warned;
};

static void read_on(png_structp png, png_bytep to, size_t size)
{
    struct reading *reading = png_get_io_ptr(png);
    if (size > reading->file->size - reading->at)
        png_error(png, "the end");
    memcpy(to, reading->file->data + reading->at, size);
    reading->at += size;
}

static void say_error(png_structp png, png_const_charp what)
{
    (void)what;
    longjmp(png_jmpbuf(png), 1);
}

static void note_warning(png_structp png, png_const_charp what)
{
    (void)what;
    ((struct reading *)png_get_error_ptr(png))->warned = 1;
}

/* RGB by libpng; NULL: it fails or warns. */
static uint8_t *by_libpng(const struct bytes *file, size_t width, size_t height)
{
    struct reading reading = {file, 0, 0};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reading, say_error, note_warning);
    png_infop info = png_create_info_struct(png);
    uint8_t *volatile pixels = malloc(width * height * 3);
    volatile int failed = 1;
    if (!setjmp(png_jmpbuf(png))) {
        png_set_read_fn(png, &reading, read_on);
        png_read_info(png, info);
        png_set_expand(png);
        png_set_strip_alpha(png);
        png_set_gray_to_rgb(png);
        png_read_update_info(png, info);
        for (size_t y = 0; y < height; y++)
            png_read_row(png, pixels + y * width * 3, NULL);
        png_read_end(png, info);
        failed = reading.warned;
    }
    png_destroy_read_struct(&png, &info, NULL);
    if (!failed)
        return pixels;
    free(pixels);
    return NULL;
}

/* The inflated image data of a file whose chunks are known, in memory of just their size; NULL where they are damaged. */
static uint8_t *inflated_rows(const struct bytes *file, const int64_t known[9])
{
    uint8_t *const coded = malloc((size_t)known[7] + 1), *rows = malloc((size_t)known[8]);
    size_t held = 0;
    for (const uint8_t *at = file->data + known[5]; held < (size_t)known[7]; at += 12 + png_number(at)) {
        memcpy(coded + held, at + 8, png_number(at));
        held += png_number(at);
    }
    uLongf size = (uLongf)known[8], used = (uLongf)held;
    if (uncompress2(rows, &size, coded, &used) != Z_OK || size != (uLongf)known[8] || used != held) {
        free(rows);
        rows = NULL;
    }
    free(coded);
    return rows;
}

static void try_png(void)
{
    static const int channels[] = {1, 3, 3, 4, 4};
    static const int32_t weights[2] = {9797, 19234};
    struct bytes made = made_png();
    const struct bytes file = damaged_png(&made);
    int64_t known[9];
    const int status_of_size = fastload_png_size(file.data, file.size, known);
    const size_t width = (size_t)known[0], height = (size_t)known[1], pixels = width * height, size = (size_t)known[8];
    const int is_known = status_of_size == FASTLOAD_DONE && pixels <= 1 << 18;
    uint8_t *const rows = is_known ? inflated_rows(&file, known) : NULL;
    counts[2] += is_known && !rows;
    for (int layout = 0; layout < 5 && rows; layout++) {
        uint8_t *out[3];
        int status[3];
        for (int level = 0; level < 3; level++) {
            out[level] = calloc(pixels * (size_t)channels[layout], 1);
            fastload_limit_level(level);
            status[level] = fastload_png_whole(scratch, file.data, file.size, rows, size, out[level], layout, weights);
            if (status[level] != status[0] || (!status[0] && memcmp(out[0], out[level], pixels * (size_t)channels[layout])))
                fail("levels differ", status[0], status[level]);
        }
        if (layout == 1) {
            uint8_t *expected = status[0] ? NULL : by_libpng(&file, width, height);
            if (!status[0] && (!expected || memcmp(expected, out[0], pixels * 3)))
                fail("libpng says otherwise", (long)width, expected != NULL);
            counts[status[0] ? 2 : 1]++;
            free(expected);
        }
        for (int level = 0; level < 3; level++)
            free(out[level]);
    }
    uint64_t kind[2048 / 8];
    if (rows && fastload_png_begin(file.data, file.size, rows, size, kind) == FASTLOAD_DONE) {
        struct fastload_request q = {.order = FASTLOAD_COLUMNS_FIRST};
        fastload_limit_level((int)draw(3));
        q.box[0] = (int)draw((uint32_t)height);
        q.box[1] = (int)draw((uint32_t)width);
        q.box[2] = q.size[0] = q.window[2] = (int)height - q.box[0];
        q.box[3] = q.size[1] = q.window[3] = (int)width - q.box[1];
        q.source[2] = (float)q.box[3];
        q.source[3] = (float)q.box[2];
        uint8_t *row = malloc((size_t)q.box[2] * (size_t)q.box[3] * 3);
        q.target = (struct target){.data = row, .row = 3 * (int64_t)q.box[3], .column = 3, .channel = 1, .element = 1,
                                   .channels = 3};
        fastload_png_row(scratch, kind, rows, &q);
        counts[3]++;
        free(row);
    }
    free(rows);
    free(file.data);
    free(made.data);
}

#endif
/* Colors */

static size_t lay_out(int64_t strides[3], int64_t height, int64_t width)
{
    const int64_t gap = draw(2) ? 0 : draw(9);
    if (draw(2)) {
        strides[0] = 3 * width + gap;
        strides[1] = 3;
        strides[2] = 1;
        return (size_t)((height - 1) * strides[0] + 3 * width);
    }
    strides[0] = width + gap;
    strides[1] = 1;
    strides[2] = (height - 1) * strides[0] + width + draw(5);
    return (size_t)(2 * strides[2] + (height - 1) * strides[0] + width);
}

static void try_distort(void)
{
    const int64_t height = 1 + draw(5), width = 1 + draw(draw(2) ? 40 : 700);
    int64_t from[3], to[3];
    const size_t size = lay_out(from, height, width), room = lay_out(to, height, width);
    uint8_t *image = malloc(size), *made[3];
    for (size_t i = 0; i < size; i++)
        image[i] = (uint8_t)draw(256);
    const int change = (int)draw(3), fused = (int)draw(2);
    const float given[3] = {(float)draw(2000) / 1000, (float)draw(2000) / 1000, (float)draw(1001) / 1000 - 0.5f};
    float *greys[3];
    for (int level = 0; level < 3; level++) {
        made[level] = calloc(room, 1);
        greys[level] = calloc((size_t)(height * width), sizeof(float));
        fastload_limit_level(level);
        fastload_distort(change, image, from, made[level], to, height, width, given, fused);
        counts[1]++;
        fastload_distort_greys(image, from, height, width, greys[level], fused);
        if (memcmp(made[0], made[level], room) || memcmp(greys[0], greys[level], (size_t)(height * width) * sizeof(float)))
            fail("levels differ", change, level);
    }
    fold(made[0], room);
    fold(greys[0], (size_t)(height * width) * sizeof(float));
    for (int level = 0; level < 3; level++) {
        free(made[level]);
        free(greys[level]);
    }
    free(image);
}

/* Rows of columns */

static void try_table(void)
{
    enum { CHUNKS = 4 };
    static const int64_t items[] = {1, 2, 4, 8};
    struct chunk chunks[CHUNKS];
    void *memory[2 * CHUNKS];
    int64_t ends[CHUNKS], rows[20], found[3], end = 0;
    struct column column = {ends, chunks, 1 + draw(CHUNKS), 1 + draw(5), draw(2) ? 4 : 8, items[draw(4)], draw(3)};
    const int has_offsets = draw(2) != 0;
    for (int i = 0; i < column.num_chunks; i++) {
        const int64_t num = draw(6), values = has_offsets ? draw(30) : num * column.size;
        memory[2 * i] = malloc((size_t)(values * column.item + 1));
        memset(memory[2 * i], 7, (size_t)(values * column.item + 1));
        memory[2 * i + 1] = malloc((size_t)((num + 1) * column.offset_width));
        int64_t at = 0;
        for (int64_t k = 0; k <= num && has_offsets; k++) {
            at += k ? draw((uint32_t)(values - at) + 1) : 0;
            const int64_t said = draw(15) ? at : draw(2) ? (int64_t)draw(40) - 5 : INT64_MIN + draw(3);
            const int32_t narrow = (int32_t)said;
            memcpy((uint8_t *)memory[2 * i + 1] + k * column.offset_width,
                   column.offset_width == 8 ? (const void *)&said : (const void *)&narrow, (size_t)column.offset_width);
        }
        chunks[i] = (struct chunk){draw(20) ? memory[2 * i] : NULL, values, has_offsets ? memory[2 * i + 1] : NULL,
                                   draw(30) ? 0 : draw(4)};
        ends[i] = end += num;
    }
    const int64_t num_rows = 1 + draw(20);
    struct place places[20];
    for (int64_t i = 0; i < num_rows; i++)
        rows[i] = draw(20) && end ? (int64_t)draw((uint32_t)end) : (int64_t)draw(40) - 10;
    const int64_t status = fastload_table_find(&column, rows, num_rows, places, found);
    counts[status == 0 ? 1 : status == -2 ? 2 : 3]++;
    if (status == 0) {
        const int64_t item = column.kind && column.item < 8 ? 8 : column.item;
        uint8_t *target = malloc((size_t)(found[0] * item + 1));
        fastload_table_copy(&column, places, num_rows, target);
        fold(target, (size_t)(found[0] * item));
        free(target);
    }
    for (int i = 0; i < 2 * column.num_chunks; i++)
        free(memory[i]);
}

/* The cache */

static void try_cache(void)
{
    enum { PAGE = 4096, PAGES = 48, SIZE = PAGE * PAGES };
    static uint8_t *around;
    static int file;
    if (!around) {
        around = mmap(NULL, SIZE + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        file = memfd_create("cache", 0);
        if (around == MAP_FAILED || file < 0)
            exit(2);
    }
    uint8_t *const memory = around + PAGE;
    if (ftruncate(file, 0) || ftruncate(file, SIZE) ||
        mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) != memory)
        exit(2);
    const struct where where = {memory, SIZE, file};
    struct line lines[1200];
    uint64_t places[1200];
    uint32_t num = 0;
    if (!fastload_cache_begin(&where))
        fail("a cache that does not begin", SIZE, 0);
    for (uint32_t i = draw(draw(20) ? 60 : 1200); i; i--) {
        const struct line line = {{{1 + draw(draw(4) ? 1u << 30 : 3), draw(1u << 30), draw(1u << 30)}},
                                  {draw(1u << 30), draw(1u << 30)}};
        if (!fastload_cache_list(&where, &line, 1, (int)draw(2)))
            continue; /* no room */
        const uint64_t place = fastload_cache_find(&where, &line.key);
        if (!place || place > SIZE - sizeof line.value)
            fail("an entry beyond the end", (long)place, SIZE);
        if (memcmp(memory + place, line.value, sizeof line.value))
            fail("another line", (long)place, 0);
        lines[num] = line;
        places[num++] = place;
        counts[1]++;
    }
    for (uint32_t i = 0; i < num; i++)
        if (fastload_cache_find(&where, &lines[i].key) != places[i])
            fail("an entry is not found", i, 0);
    counts[2]++;
}

/* Affine transforms */

static double a_cubic(double a, double b, double c, double d, double part)
{
    return b + part * (-a + c + part * (2 * (a - b) + c - d + part * (-a + b - c + d)));
}

static int at_least_0_below(int value, int end)
{
    return value < 0 ? 0 : value < end ? value : end - 1;
}

static int mixed_level(const uint8_t *image, int height, int width, int channels, double x, double y, int is_cubic)
{
    const int num = is_cubic ? 4 : 2, left = (int)floor(x - 0.5) - is_cubic, upper = (int)floor(y - 0.5) - is_cubic;
    const double right = x - 0.5 - floor(x - 0.5), down = y - 0.5 - floor(y - 0.5);
    double row[4];
    for (int i = 0; i < num; i++) {
        double v[4];
        const uint8_t *from = image + (size_t)at_least_0_below(upper + i, height) * (size_t)(width * channels);
        for (int j = 0; j < num; j++)
            v[j] = from[at_least_0_below(left + j, width) * channels];
        row[i] = is_cubic ? a_cubic(v[0], v[1], v[2], v[3], right) : v[0] + (v[1] - v[0]) * right;
    }
    const double found = is_cubic ? a_cubic(row[0], row[1], row[2], row[3], down) : row[0] + (row[1] - row[0]) * down;
    return found <= 0 ? 0 : found >= 255 ? 255 : (int)found;
}

static void try_affine(void)
{
    static const double strange[] = {0, -0.0, 0.5, 1, -1, 32767.5, -32768, 1e5, 1e300, -1e308, INFINITY, NAN, 5e-324};
    const int height = 1 + (int)draw(30), width = 1 + (int)draw(draw(2) ? 30 : 200), channels = draw(2) ? 3 : 1;
    const int rows = 1 + (int)draw(20), columns = 1 + (int)draw(draw(2) ? 20 : 200), is_cubic = (int)draw(2);
    const size_t size = (size_t)(height * width * channels), room = (size_t)(rows * columns * channels);
    uint8_t *image = malloc(size), *made = malloc(room), *fill = malloc((size_t)channels);
    for (size_t i = 0; i < size; i++)
        image[i] = (uint8_t)(draw(3) ? draw(256) : 255 * draw(2));
    for (int i = 0; i < channels; i++)
        fill[i] = (uint8_t)draw(256);
    double a[6];
    for (int i = 0; i < 6; i++) {
        const double number = ((double)draw(6001) - 3000) / (draw(2) ? 1000 : 1024);
        a[i] = draw(60) ? number * (i % 3 == 2 ? 20 : 1) : strange[draw(sizeof strange / sizeof *strange)];
    }
    const int is_known = fastload_affine(image, height, width, channels, made, rows, columns, a, fill) == FASTLOAD_DONE;
    fold(&is_known, sizeof is_known);
    if (is_known)
        fold(made, room);
    fastload_limit_level(FASTLOAD_AVX512);
    const int status = fastload_affine_filtered(image, height, width, channels, made, rows, columns, a, fill, is_cubic);
    counts[2 - is_known]++;
    for (int i = 0; i < rows * columns * channels && status == FASTLOAD_DONE; i++) {
        const int pixel = i / channels, channel = i % channels;
        const double column = pixel % columns + 0.5, row = pixel / columns + 0.5;
        const double x = a[0] * column + a[1] * row + a[2], y = a[3] * column + a[4] * row + a[5];
        const int is_outside = x < 0 || x >= width || y < 0 || y >= height;
        const int level =
            is_outside ? fill[channel] : mixed_level(image + channel, height, width, channels, x, y, is_cubic);
        counts[3] += !is_outside;
        if (made[i] != level)
            fail("a pixel is another", made[i], level);
    }
    free(image);
    free(made);
    free(fill);
}

/* What draws of the user's and the loader's need */

static uint64_t draw_wide(void)
{
    const uint64_t high = draw(0xFFFFFFFF);
    return high << 32 | draw(0xFFFFFFFF);
}

/* Checks that a level has made what the first one has, and adds that to the digest. */
static void check_level(int level, const void *first, const void *made, size_t size)
{
    if (level && memcmp(first, made, size))
        fail("levels differ", level, (long)size);
    if (!level)
        fold(first, size);
    counts[1 + level]++;
}

static void try_arrays(void)
{
    enum { MOST = 6 };
    static const int64_t items[] = {0, 1, 2, 4};
    const int64_t side = 16 + draw(30), channels = 1 + draw(4), item = items[draw(4)], width = item ? item : 1;
    const int64_t num = 1 + draw(MOST), of_pixels = draw(2), in_pixels = draw(2), pixels = channels * side * side;
    uint8_t *const images = malloc((size_t)(MOST * pixels)), *const table = malloc((size_t)(channels * 256 * width)), fill[4];
    int64_t indices[MOST], shifts[2][MOST];
    for (int64_t i = 0; i < MOST * pixels; i++)
        images[i] = (uint8_t)draw(256);
    for (int64_t i = 0; i < channels * 256 * width; i++)
        table[i] = (uint8_t)draw(256);
    for (int i = 0; i < 4; i++)
        fill[i] = (uint8_t)draw(256);
    for (int64_t i = 0; i < num; i++) {
        indices[i] = draw(MOST);
        shifts[0][i] = (int64_t)draw(24) - 12;
        shifts[1][i] = draw(2);
    }
    struct step steps[2];
    for (int i = 0; i < 2; i++) {
        const int kind = (int)draw(6);
        steps[i] = (struct step){kind, 8, shifts[kind == 5], -2 * (kind != 5), side};
    }
    struct task task = {.source = images, .source_strides = {pixels, side * side, side, 1}, .indices = indices,
                        .target_strides = {width * pixels, width * side * side, width * side, width}, .item = width,
                        .channels = channels, .sides = {side, side}, .size = {side, side}, .fill = fill,
                        .table = item ? table : NULL, .steps = {&steps[0], &steps[1]}, .num_steps = {1, 1}};
    const int64_t together[3] = {1, side * channels, channels};
    for (int i = 0; i < 3; i++) {
        task.source_strides[1 + i] = of_pixels ? together[i] : task.source_strides[1 + i];
        task.target_strides[1 + i] = in_pixels ? width * together[i] : task.target_strides[1 + i];
    }
    uint8_t *made[3];
    for (int level = 0; level < 3; level++) {
        task.target = made[level] = calloc((size_t)(num * pixels), (size_t)width);
        fastload_limit_level(level);
        const int64_t wrong = fastload_arrays(&task, num);
        if (wrong != -1)
            fail("a batch is refused", (long)wrong, steps[0].kind);
        check_level(level, made[0], made[level], (size_t)(num * pixels * width));
    }
    for (int level = 0; level < 3; level++)
        free(made[level]);
    free(images);
    free(table);
}

static void try_words(void)
{
    enum { MOST = 40 };
    static double made[3][MOST * 7];
    int64_t ids[MOST], repeats[MOST];
    const int64_t num = 1 + draw(MOST), of_words = 2 * (1 + draw(7)), turns = draw(2), are_units = draw(2);
    for (int64_t i = 0; i < num; i++) {
        ids[i] = (int64_t)draw_wide();
        repeats[i] = draw(0x7FFFFFFF);
    }
    const uint32_t key = draw(0xFFFFFFFF), purpose = draw(0xFFFFFFFF), first = draw(4000);
    for (int level = 0; level < 3; level++) {
        fastload_limit_level(level);
        fastload_philox(ids, turns ? repeats : NULL, num, key, ~key, purpose, first, of_words,
                        are_units ? NULL : (uint32_t *)made[level], are_units ? made[level] : NULL);
        check_level(level, made[0], made[level], (size_t)(num * of_words) * 4);
    }
}

static void try_order(void)
{
    enum { MOST = 500 };
    static const struct {
        uint64_t length;
        int low, high;
    } sizes[] = {{1, 1, 1}, {1000, 5, 5}, {(1ull << 40) + 17, 21, 20}};
    static int64_t values[MOST], made[3][MOST];
    const uint32_t kind = draw(3), num = 1 + draw(MOST);
    const uint64_t length = sizes[kind].length;
    uint64_t keys[8];
    for (int i = 0; i < 8; i++)
        keys[i] = draw_wide();
    for (uint32_t i = 0; i < num; i++)
        values[i] = (int64_t)(draw_wide() % length);
    for (int level = 0; level < 3; level++) {
        fastload_limit_level(level);
        memcpy(made[level], values, sizeof values);
        fastload_permute(made[level], num, length, sizes[kind].low, sizes[kind].high, keys, 8, 0);
        check_level(level, made[0], made[level], num * sizeof *values);
    }
    fastload_permute(made[0], num, length, sizes[kind].low, sizes[kind].high, keys, 8, 1);
    if (memcmp(made[0], values, num * sizeof *values))
        fail("not the way back", kind, num);
}

static void try_states(void)
{
    enum { MOST = 20, ALL = 2500 + 2500 + 16 + 2544 };
    static uint8_t made[3][MOST][ALL];
    int64_t ids[MOST];
    const int64_t num = 1 + draw(MOST), has_ids = draw(2);
    struct run begun = {.first = (int64_t)draw_wide() / 2, .stride = draw(1000), .num = num};
    for (int64_t i = 0; i < num; i++)
        ids[i] = (int64_t)draw_wide();
    for (int i = 0; i < 4; i++)
        begun.prefix[i] = draw_wide();
    for (int level = 0; level < 3; level++) {
        uint8_t *const memory = calloc(ALL, 1);
        const struct states states = {{memory, memory + 2500, memory + 5000, memory + 5016}, {NULL, NULL, NULL}};
        struct run run = begun;
        run.states = &states;
        run.room = malloc((size_t)fastload_generators_room());
        run.ids = has_ids ? ids : NULL;
        fastload_limit_level(level);
        fastload_generators_prepare(&run);
        for (int64_t i = 0; i < num; i++) {
            if (fastload_generators_next_locked(&run))
                fail("a run that ends early", (long)i, (long)num);
            memcpy(made[level][i], memory, ALL);
        }
        if (fastload_generators_next_locked(&run) != -1)
            fail("a run without an end", (long)num, 0);
        check_level(level, made[0], made[level], (size_t)num * ALL);
        free(run.room);
        free(memory);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } pieces[] = {
#ifdef FUZZ_WITH_LIBPNG
        {"png", try_png},
#endif
        {"distort", try_distort}, {"affine", try_affine}, {"table", try_table}, {"cache", try_cache},
        {"arrays", try_arrays},   {"words", try_words},   {"order", try_order}, {"states", try_states}};
    if (argc < 4)
        return 2;
    const double end = now() + atof(argv[1]);
    const long most = argc > 4 ? atol(argv[4]) : LONG_MAX;
    seed(strtoull(argv[2], NULL, 10));
    scratch = fastload_scratch_new();
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        if (!strcmp(argv[3], pieces[i].name)) {
            for (; now() < end && counts[0] < most; counts[0]++)
                pieces[i].run();
            printf("%s: %ld rounds; %ld %ld %ld; digest: %" PRIx64 "\n", argv[3], counts[0], counts[1], counts[2],
                   counts[3], digest);
        }
    fastload_scratch_free(scratch);
    return counts[0] ? 0 : 2;
}
