/* Turn decoded pixels as an EXIF orientation says (prepserver/transform/orientation.py, `turned`).
 *
 * An upright pixel (y, x) lies at `from + y * line + x * pixel`, where one of the two steps is the stored image's from
 * line to line and the other is a pixel's 3 bytes, either of them perhaps backwards. `plain` is just that. By SSSE3, it
 * goes by tiles of 4 x 4 pixels. Nothing is read or written outside the two images.
 */
#include "kernels.h"
#include "vectors.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* So many lines at a time, so that stored lines that become columns are read a cache line at a time. */
#define LINES 16

struct turn {
    const uint8_t *from;
    ptrdiff_t line, pixel;
    uint8_t *out;
    size_t pitch; /* of `out` */
};

/* Lines [top, bottom), columns [left, right) of the upright image. */
static void plain(const struct turn *turn, int top, int bottom, int left, int right) {
    for (int x = left; x < right; x++)
        for (int y = top; y < bottom; y++)
            memcpy(turn->out + (size_t)y * turn->pitch + (size_t)x * 3, turn->from + y * turn->line + x * turn->pixel,
                   3);
}

#if defined(__x86_64__)
#define TARGET __attribute__((target("sse4.1")))

TARGET static inline __m128i load(const uint8_t *at) {
    int32_t last;
    memcpy(&last, at + 8, sizeof last);
    return _mm_insert_epi32(_mm_loadl_epi64((const __m128i *)at), last, 2);
}

TARGET static inline void store(uint8_t *at, __m128i pixels) {
    const int32_t last = _mm_extract_epi32(pixels, 2);
    _mm_storel_epi64((__m128i *)at, pixels);
    memcpy(at + 8, &last, sizeof last);
}

/* As `plain`, of whole tiles. */
TARGET static void tiles(const struct turn *turn, int top, int bottom, int left, int right) {
    const ptrdiff_t line = turn->line, pixel = turn->pixel;
    const int swapped = line == 3 || line == -3;
    const ptrdiff_t along = swapped ? line : pixel, lowest = along < 0 ? 3 * along : 0; /* of four stored pixels */
    const __m128i spread = along < 0 ? _mm_setr_epi8(9, 10, 11, -1, 6, 7, 8, -1, 3, 4, 5, -1, 0, 1, 2, -1)
                                     : _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    const __m128i joined = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    for (int x = left; x < right; x += 4)
        for (int y = top; y < bottom; y += 4) {
            const uint8_t *const from = turn->from + y * line + x * pixel + lowest;
            uint8_t *const to = turn->out + (size_t)y * turn->pitch + (size_t)x * 3;
            const ptrdiff_t across = swapped ? pixel : line;
            const __m128i a = _mm_shuffle_epi8(load(from), spread);
            const __m128i b = _mm_shuffle_epi8(load(from + across), spread);
            const __m128i c = _mm_shuffle_epi8(load(from + 2 * across), spread);
            const __m128i d = _mm_shuffle_epi8(load(from + 3 * across), spread);
            __m128i rows[4] = {a, b, c, d};
            if (swapped) {
                const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
                const __m128i ef = _mm_unpackhi_epi32(a, b), gh = _mm_unpackhi_epi32(c, d);
                rows[0] = _mm_unpacklo_epi64(ab, cd);
                rows[1] = _mm_unpackhi_epi64(ab, cd);
                rows[2] = _mm_unpacklo_epi64(ef, gh);
                rows[3] = _mm_unpackhi_epi64(ef, gh);
            }
            for (int k = 0; k < 4; k++)
                store(to + (size_t)k * turn->pitch, _mm_shuffle_epi8(rows[k], joined));
        }
}
#endif

/* Make the upright image, (height, width, 3) without gaps, of the stored one that begins at `in`, `pitch` bytes from
 * line to line.
 *
 * height, width: of the upright image.
 * out:           does not overlap the stored image.
 *
 * Returns 1, or 0 if the sizes or the orientation make no sense.
 */
int prep_turn(const uint8_t *in, size_t pitch, int orientation, int height, int width, uint8_t *out) {
    const int swapped = orientation >= 5;
    const int from_below = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    const int from_right = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    if (height < 1 || width < 1 || height > 65535 || width > 65535 || orientation < 1 || orientation > 8 ||
        pitch > PTRDIFF_MAX / 65536 || pitch < (size_t)(swapped ? height : width) * 3)
        return 0;
    struct turn turn = {in, swapped ? 3 : (ptrdiff_t)pitch, swapped ? (ptrdiff_t)pitch : 3, out, (size_t)width * 3};
    if (from_below) {
        turn.from += turn.line * (height - 1);
        turn.line = -turn.line;
    }
    if (from_right) {
        turn.from += turn.pixel * (width - 1);
        turn.pixel = -turn.pixel;
    }
    for (int top = 0; top < height; top += LINES) {
        const int bottom = top + LINES < height ? top + LINES : height;
        int down = top, right = 0; /* how far the tiles go */
#if defined(__x86_64__)
        if (prep_vectors() >= AVX2) {
            down = bottom - (bottom - top) % 4;
            right = width - width % 4;
            tiles(&turn, top, down, 0, right);
        }
#endif
        plain(&turn, top, down, right, width);
        plain(&turn, down, bottom, 0, width);
    }
    return 1;
}
