/* See jpeg_header.h. */
#include "jpeg_header.h"

#include <string.h>

enum marker { SOF0 = 0xC0, SOF2 = 0xC2, SOF15 = 0xCF, DHT = 0xC4, JPG = 0xC8, DAC = 0xCC, SOI = 0xD8,
              DQT = 0xDB, DRI = 0xDD, APP0 = 0xE0, APP1 = 0xE1, APP2 = 0xE2, APP13 = 0xED, APP14 = 0xEE, APP15 = 0xEF, COM = 0xFE };

/* libjpeg's. */
#define MAX_SIDE 65500

/* What was seen that says which colours three components are. */
struct colors {
    int jfif, adobe, transform;
};

static int is_frame(int marker)
{
    return marker >= SOF0 && marker <= SOF15 && marker != DHT && marker != JPG && marker != DAC;
}

/* Grey, 4:4:4, 4:2:2, 4:4:0, 4:2:0 and 4:1:1, whose decoding of parts was tried. */
static int is_common(const uint8_t *component, int num)
{
    if (num == 1)
        return component[1] == 0x11 || component[1] == 0x21 || component[1] == 0x12 || component[1] == 0x22;
    const int first = component[1];
    return component[4] == 0x11 && component[7] == 0x11 &&
           (first == 0x11 || first == 0x21 || first == 0x12 || first == 0x22 || first == 0x41);
}

static int read_frame(const uint8_t *body, size_t size, int marker, struct jpeg_header *header)
{
    if (size < 6)
        return FASTLOAD_NOT_JPEG;
    header->height = body[1] << 8 | body[2];
    header->width = body[3] << 8 | body[4];
    header->components = body[5];
    header->progressive = marker == SOF2;
    if (size != 6 + (size_t)3 * body[5] || header->height == 0 || header->width == 0)
        return FASTLOAD_NOT_JPEG;
    if (marker > SOF2 || body[0] != 8)
        return FASTLOAD_CODING;
    if (body[5] != 1 && body[5] != 3)
        return FASTLOAD_COLORS;
    if (!is_common(body + 6, body[5]))
        return FASTLOAD_SAMPLING;
    if ((int64_t)header->width * header->height > FASTLOAD_MAX_PIXELS)
        return FASTLOAD_TOO_LARGE;
    for (int c = 0; c < header->components; c++) {
        struct jpeg_component *component = &header->component[c];
        const uint8_t *from = body + 6 + 3 * c;
        component->id = from[0];
        component->h = header->components == 1 ? 1 : from[1] >> 4;
        component->v = header->components == 1 ? 1 : from[1] & 15;
        component->quant = from[2];
    }
    return FASTLOAD_DONE;
}

/* These return 0 where the segment is not as it must be. */
static int read_quant(const uint8_t *body, size_t size, struct jpeg_header *header)
{
    while (size) {
        const int wide = body[0] >> 4, place = body[0] & 15;
        const size_t bytes = wide ? 129 : 65;
        if (wide > 1 || place >= JPEG_TABLES || size < bytes)
            return 0;
        header->quant[place] = body + 1;
        header->is_wide[place] = (uint8_t)wide;
        body += bytes;
        size -= bytes;
    }
    return 1;
}

static int read_huffman(const uint8_t *body, size_t size, struct jpeg_header *header)
{
    while (size) {
        if (size < 17 || body[0] >> 4 > 1 || (body[0] & 15) >= JPEG_TABLES)
            return 0;
        size_t num = 0;
        for (int length = 1; length <= 16; length++)
            num += body[length];
        if (num > 256 || size < 17 + num)
            return 0;
        header->huffman[body[0] >> 4][body[0] & 15] = body + 1;
        body += 17 + num;
        size -= 17 + num;
    }
    return 1;
}

int is_valid_huffman(const uint8_t *table, int is_dc)
{
    uint32_t code = 0, num = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        code += table[length - 1];
        num += table[length - 1];
        if (table[length - 1] && code >= 1u << length)
            return 0;
    }
    for (uint32_t i = 0; is_dc && i < num; i++)
        if (table[16 + i] > 15)
            return 0;
    return 1;
}

static int read_scan(const uint8_t *body, size_t size, struct jpeg_header *header)
{
    const int num = header->components;
    if (size != 4 + 2 * (size_t)num || body[0] != num || body[1 + 2 * num] != 0 || body[2 + 2 * num] != 63 ||
        body[3 + 2 * num] != 0)
        return 0;
    for (int c = 0; c < num; c++) {
        struct jpeg_component *component = &header->component[c];
        for (int other = 0; other < c; other++)
            if (header->component[other].id == component->id)
                return 0;
        const int dc = body[2 + 2 * c] >> 4, ac = body[2 + 2 * c] & 15;
        if (body[1 + 2 * c] != component->id || dc >= JPEG_TABLES || ac >= JPEG_TABLES ||
            component->quant >= JPEG_TABLES || !header->quant[component->quant] || !header->huffman[0][dc] ||
            !header->huffman[1][ac] || !is_valid_huffman(header->huffman[0][dc], 1) ||
            !is_valid_huffman(header->huffman[1][ac], 0))
            return 0;
        component->dc = (uint8_t)dc;
        component->ac = (uint8_t)ac;
    }
    return 1;
}

static int begins_with(const uint8_t *body, size_t size, const char *name, size_t num)
{
    return size >= num && !memcmp(body, name, num);
}

static uint32_t number_at(const uint8_t *at, int bytes, int little_endian)
{
    uint32_t number = 0;
    for (int i = 0; i < bytes; i++)
        number |= (uint32_t)at[i] << 8 * (little_endian ? i : bytes - 1 - i);
    return number;
}

/* Whether the first directory of EXIF data gives the upright orientation, or none. */
static int is_exif_upright(const uint8_t *body, size_t size)
{
    const int little = size >= 14 && !memcmp(body + 6, "II*\0", 4);
    if (size < 14 || memcmp(body, "Exif\0", 6) || !(little || !memcmp(body + 6, "MM\0*", 4)))
        return 0;
    const uint64_t first = 8 + (uint64_t)number_at(body + 10, 4, little);
    if (first > size)
        return 0;
    const uint32_t num = number_at(body + first - 2, 2, little);
    if (!num || first + 12 * (uint64_t)num > size)
        return 0;
    for (const uint8_t *entry = body + first, *end = entry + 12 * num; entry < end; entry += 12)
        if (number_at(entry, 2, little) == 0x0112 && /* the orientation: one 16-bit number */
            (number_at(entry + 2, 2, little) != 3 || number_at(entry + 4, 4, little) != 1 ||
             number_at(entry + 8, 2, little) != 1))
            return 0;
    return 1;
}

/* Photoshop's resources. Returns 0 where one ends before the length of its name, over which Pillow stumbles. */
static int has_whole_names(const uint8_t *body, size_t size)
{
    uint64_t at = 14;
    while (at + 4 <= size && !memcmp(body + at, "8BIM", 4)) {
        at += 6;
        if (at >= size)
            return at > size;
        at += 1 + (uint64_t)body[at];
        at += at & 1;
        if (at + 4 > size)
            return 1;
        at += 4 + ((uint64_t)body[at] << 24 | (uint64_t)body[at + 1] << 16 | (uint64_t)body[at + 2] << 8 | body[at + 3]);
        at += at & 1;
    }
    return 1;
}

/* Returns 0 for a segment that is too short for what its name says, which Pillow does not open; and for versions and
 * colors of which libjpeg warns that it does not know them. */
static int read_application(int marker, const uint8_t *body, size_t size, struct colors *colors)
{
    const int jfif = marker == APP0 && begins_with(body, size, "JFIF", 4);
    const int adobe = marker == APP14 && begins_with(body, size, "Adobe", 5);
    if (jfif && size >= 14 && body[4] == 0) {
        colors->jfif = 1;
        if (body[5] != 1)
            return 0;
    }
    if (adobe && size >= 12) {
        if (body[11] > 1)
            return 0;
        colors->adobe = 1;
        colors->transform = body[11];
    }
    if (marker == APP2 && begins_with(body, size, "ICC_PROFILE", 12))
        return size >= 14;
    if (marker == APP13 && begins_with(body, size, "Photoshop 3.0", 14))
        return has_whole_names(body, size);
    return size >= 7 || !(jfif || adobe);
}

/* libjpeg's rules. */
static int is_rgb(const struct jpeg_header *header, const struct colors *colors)
{
    const struct jpeg_component *c = header->component;
    if (header->components != 3 || colors->jfif)
        return 0;
    return colors->adobe ? colors->transform == 0 : c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B';
}

/* A segment that may stand before any scan. */
static int read_table(int marker, const uint8_t *body, size_t size, struct jpeg_header *header)
{
    if (marker == DQT)
        return read_quant(body, size, header);
    if (marker == DHT)
        return read_huffman(body, size, header);
    if (marker != DRI)
        return marker == COM || (marker >= APP0 && marker <= APP15);
    header->restart_interval = size == 2 ? body[0] << 8 | body[1] : 0;
    return size == 2;
}

int read_tables(const uint8_t *bytes, size_t length, size_t *at, struct jpeg_header *header)
{
    for (size_t left; left = length - *at, left >= 2;) {
        const uint8_t *const from = bytes + *at;
        if (from[0] != 0xFF)
            return 0;
        if (from[1] == JPEG_EOI || from[1] == JPEG_SOS)
            return from[1];
        if (left < 4)
            break;
        const size_t size = (size_t)from[2] << 8 | from[3];
        if (size < 2)
            return 0;
        if (size > left - 2)
            break;
        if (!read_table(from[1], from + 4, size - 2, header))
            return 0;
        *at += 2 + size;
    }
    return -1;
}

int read_jpeg_header(const uint8_t *bytes, size_t length, struct jpeg_header *header)
{
    memset(header, 0, sizeof *header);
    header->status = FASTLOAD_NOT_JPEG;
    if (length < 4 || bytes[0] != 0xFF || bytes[1] != SOI)
        return header->status;
    struct colors colors = {0, 0, 0};
    int found = -1; /* the frame header's status */
    int num_exif = 0;
    header->is_upright = 1;
    int valid = 1;  /* the segments that libjpeg would read */
    size_t at = 2;
    while (length - at >= 4) {
        const int marker = bytes[at + 1];
        const size_t size = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (bytes[at] != 0xFF || size < 2)
            return header->status;
        if (size > length - at - 2)
            break;
        const uint8_t *const body = bytes + at + 4;
        if (is_frame(marker)) {
            if (found >= 0)
                return header->status;
            found = read_frame(body, size - 2, marker, header);
            if (found == FASTLOAD_NOT_JPEG)
                return header->status;
        } else if (marker == JPEG_SOS) {
            if (found >= 0)
                header->status = found;
            header->scan_header = at;
            header->scan = at + 2 + size;
            header->is_valid = found == FASTLOAD_DONE && valid && header->width <= MAX_SIDE &&
                               header->height <= MAX_SIDE;
            header->is_sequential = header->is_valid && !header->progressive && read_scan(body, size - 2, header);
            header->is_rgb = is_rgb(header, &colors);
            return header->status;
        } else if (marker == DQT || marker == DHT || marker == DRI || marker == DAC) {
            /* Of DAC libjpeg checks what only arithmetic coding uses. */
            valid = read_table(marker, body, size - 2, header) && valid;
        } else if (marker >= APP0 && marker <= APP15) {
            if (!read_application(marker, body, size - 2, &colors))
                return header->status;
            /* torchvision does not read the segment's name, and takes all but XMP for EXIF. */
            if (marker == APP1 && !begins_with(body, size - 2, "http://ns.adobe.com/", 20))
                header->is_upright = !num_exif++ && is_exif_upright(body, size - 2);
        } else if (marker != COM) {
            return header->status;
        }
        at += 2 + size;
    }
    header->incomplete = 1;
    return header->status;
}
