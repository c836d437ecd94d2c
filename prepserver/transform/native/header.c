/* A JPEG's header as prepserver/transform/header.py reads it (`read_header`), number for number; in Python that takes
 * as long as all else that is not decoding. Reads nothing outside `data`; the caller judges whatever is odd.
 * And whether what a record says of its JPEG is true, as prepserver/transform/segments.py finds it (`is_true`).
 */
#include "kernels.h"

#include <string.h>

#define MOST_ENTRIES 512
#define MOST_SEGMENTS 1024

static unsigned two(const uint8_t *at) {
    return (unsigned)at[0] << 8 | at[1];
}

/* Markers without a length, which have no place in a header. */
static int is_bare(unsigned marker) {
    return marker == 0x00 || marker == 0x01 || marker == 0xFF || (marker >= 0xD0 && marker <= 0xD9);
}

static int is_frame(unsigned marker) {
    return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/* The orientation in a TIFF block of EXIF data, as prepserver/transform/orientation.py reads it (`from_exif`). */
static int32_t orientation(const uint8_t *block, size_t size) {
    if (size < 8 || block[0] != block[1] || (block[0] != 'I' && block[0] != 'M'))
        return 1;
    const int little = block[0] == 'I';
#define TWO(at) (little ? (size_t)block[(at) + 1] << 8 | block[at] : (size_t)block[at] << 8 | block[(at) + 1])
    const size_t start = little ? TWO(6) << 16 | TWO(4) : TWO(4) << 16 | TWO(6);
    if (start > size - 2)
        return 1;
    const size_t entries = TWO(start);
    for (size_t k = 0, at = start + 2; k < entries && k < MOST_ENTRIES && at + 12 <= size; k++, at += 12)
        if (TWO(at) == 0x0112) {
            const size_t value = TWO(at + 8);
            return TWO(at + 2) == 3 && value >= 1 && value <= 8 ? (int32_t)value : 1;
        }
    return 1;
}

static int is_factor(unsigned number) {
    return number >= 1 && number <= 4;
}

/* Puts the header of `data` into `out`, NUMBERS of them. Returns 1, or 0 if it is not a plain one. */
int prep_header(const uint8_t *data, size_t size, int32_t *out) {
    size_t at = 2, frame = 0;
    if (size < 4 || size > INT32_MAX || data[0] != 0xFF || data[1] != 0xD8)
        return 0;
    memset(out, 0, NUMBERS * sizeof *out);
    out[ORIENTATION] = 1;
    while (at + 4 <= size && data[at] == 0xFF) {
        const unsigned marker = data[at + 1];
        const size_t after = at + 2 + two(data + at + 2);
        if (is_bare(marker) || after > size || after < at + 4)
            return 0;
        if (marker == 0xDA) {
            if (frame == 0 || after < at + 5)
                return 0;
            const unsigned components = data[frame + 9];
            unsigned across = 0, down = 0;
            for (unsigned k = 0; k < components; k++) {
                const unsigned sampling = data[frame + 11 + 3 * k];
                if (!is_factor(sampling >> 4) || !is_factor(sampling & 15))
                    return 0;
                across = sampling >> 4 > across ? sampling >> 4 : across;
                down = (sampling & 15) > down ? sampling & 15 : down;
            }
            out[HEIGHT] = (int32_t)two(data + frame + 5);
            out[WIDTH] = (int32_t)two(data + frame + 7);
            out[COMPONENTS] = (int32_t)components;
            out[HEIGHT_AT] = (int32_t)(frame + 5);
            out[SCAN_AT] = (int32_t)after;
            out[TRIMMABLE] = data[frame + 1] <= 0xC1 && data[frame + 4] == 8 && data[at + 4] == components &&
                             (components == 3 || (components == 1 && out[INTERVAL] == 0));
            out[UNIT_HEIGHT] = (int32_t)(8 * down);
            out[UNIT_WIDTH] = (int32_t)(8 * across);
            return out[HEIGHT] && out[WIDTH] && components;
        }
        if (is_frame(marker)) {
            if (frame || after < at + 10 || after < at + 10 + 3 * (size_t)data[at + 9])
                return 0;
            frame = at;
        } else if (marker == 0xE1 && at + 10 <= size && memcmp(data + at + 4, "Exif\0", 6) == 0) {
            out[ORIENTATION] = orientation(data + at + 10, after > at + 10 ? after - at - 10 : 0);
        } else if (marker == 0xDD && after == at + 6) {
            out[INTERVAL] = (int32_t)two(data + at + 4);
        }
        at = after;
    }
    return 0;
}

/* The next byte other than 0 that follows a 0xFF at or after `at`, such as a marker; `at` is moved to it. 0 for none. */
static unsigned next_marker(const uint8_t *data, size_t size, size_t *at) {
    while (*at < size) {
        const uint8_t *const mark = memchr(data + *at, 0xFF, size - *at);
        if (mark == NULL || (*at = (size_t)(mark - data) + 1) == size)
            return 0;
        if (data[*at])
            return data[*at];
    }
    return 0;
}

static int is_restart(unsigned marker) {
    return marker >= 0xD0 && marker <= 0xD7;
}

/* header.py, `cut_at`: where the first `count` segments between restart markers end, if only such markers come that far
 * and the scan ends with the end of the image; or else 0. */
size_t prep_cut(const uint8_t *data, size_t size, size_t scan_at, size_t count) {
    size_t at = scan_at;
    if (count == 0 || count > MOST_SEGMENTS)
        return 0;
    for (size_t k = 0; k < count; k++)
        if (!is_restart(next_marker(data, size, &at)))
            return 0;
    const size_t cut = at - 1;
    unsigned after;
    do
        after = next_marker(data, size, &at);
    while (is_restart(after) || after == 0xFF);
    return after == 0xD9 ? cut : 0;
}

/* How many bytes 0xFF are not followed by a stuffed zero. Sums that fit into a byte: for vectors. */
static size_t count_markers(const uint8_t *data, size_t size) {
    size_t found = 0, at = 0;
    for (; size - at > 128; at += 128) {
        uint8_t some = 0;
        for (size_t k = at; k < at + 128; k++)
            some += (uint8_t)((data[k] == 0xFF) & (data[k + 1] != 0));
        found += some;
    }
    for (; at + 1 < size; at++)
        found += (data[at] == 0xFF) & (data[at + 1] != 0);
    return found;
}

/* segments.py, `is_true`: whether the JPEG has the header that is said and, from `scan_at` to its end, these segments:
 * each ends with its marker, and there is no other one. The numbers as for `prep_scan`. */
int prep_is_true(const uint8_t *record, size_t lengths_at, size_t jpeg_at, size_t size, unsigned segments,
                 unsigned height_at, unsigned scan_at, unsigned height, unsigned width, unsigned unit_height,
                 unsigned unit_width, unsigned interval) {
    const uint8_t *const jpeg = record + jpeg_at, *const lengths = record + lengths_at;
    int32_t header[NUMBERS];
    if (scan_at > size || prep_header(jpeg, scan_at, header) != 1)
        return 0;
    const int is_grey = header[COMPONENTS] == 1; /* whose MCUs are blocks, whatever its sampling factors say */
    if ((!is_grey && header[COMPONENTS] != 3) || jpeg[header[HEIGHT_AT] - 4] > 0xC1 ||
        (unsigned)header[HEIGHT_AT] != height_at || (unsigned)header[SCAN_AT] != scan_at ||
        (unsigned)header[HEIGHT] != height || (unsigned)header[WIDTH] != width ||
        (is_grey ? 8 : (unsigned)header[UNIT_HEIGHT]) != unit_height ||
        (is_grey ? 8 : (unsigned)header[UNIT_WIDTH]) != unit_width || (unsigned)header[INTERVAL] != interval)
        return 0;
    if (count_markers(jpeg + scan_at, size - scan_at) != segments) /* first: it brings the bytes into the CPU's cache */
        return 0;
    size_t at = scan_at;
    for (unsigned k = 0; k < segments; k++) {
        const size_t length = lengths[2 * (size_t)k] | (size_t)lengths[2 * (size_t)k + 1] << 8;
        if (length < 2 || length > size - at)
            return 0;
        at += length;
        if (jpeg[at - 2] != 0xFF || jpeg[at - 1] != (k + 1 < segments ? 0xD0 + (k & 7) : 0xD9))
            return 0;
    }
    return at == size;
}
