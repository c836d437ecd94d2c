/* A part of stored YUV 4:2:0 planes as RGB: what prepserver/transform/stored.py does, number for number. */
#include "kernels.h"
#include "vectors.h"

/* Columns at a time: what chroma adds to them stays in the nearest cache. Even. */
#define STRIP 512

/* One line of `count` pixels: brightness, and what chroma adds to each colour. */
static inline __attribute__((always_inline)) void add(const uint8_t *luma, const int16_t added[3][STRIP], int from,
                                                      int count, uint8_t *out) {
    for (int x = 0; x < count; x++)
        for (int colour = 0; colour < 3; colour++) {
            const int16_t sum = (int16_t)(luma[x] + added[colour][from + x]);
            out[3 * x + colour] = (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
        }
}

/* What `count` samples of chroma add to two columns each. */
static inline __attribute__((always_inline)) void spread(const uint8_t *blue, const uint8_t *red, int count,
                                                         int16_t added[3][STRIP]) {
    for (int x = 0; x < count; x++) {
        const int32_t b = blue[x] - 128, r = red[x] - 128;
        added[0][2 * x] = added[0][2 * x + 1] = (int16_t)((91881 * r + 32768) >> 16);
        added[1][2 * x] = added[1][2 * x + 1] = (int16_t)((-22554 * b - 46802 * r + 32768) >> 16);
        added[2][2 * x] = added[2][2 * x + 1] = (int16_t)((116130 * b + 32768) >> 16);
    }
}

#if defined(__x86_64__)
#define AVX2_TARGET __attribute__((target("avx2")))
AVX2_TARGET static void avx2_add(const uint8_t *luma, const int16_t added[3][STRIP], int from, int count,
                                 uint8_t *out) {
    add(luma, added, from, count, out);
}

AVX2_TARGET static void avx2_spread(const uint8_t *blue, const uint8_t *red, int count, int16_t added[3][STRIP]) {
    spread(blue, red, count, added);
}
#endif

/* Write the part [top, bottom) x [left, right) of an image of height x width to `out`, without gaps.
 *
 * Its planes lie at `at` in `record`, which has `size` bytes. Returns 1 if done, 0 if the numbers contradict each
 * other. */
int prep_yuv(const uint8_t *record, size_t size, size_t at, int height, int width, int top, int left, int bottom,
             int right, uint8_t *out) {
    if (height < 1 || width < 1 || height > 65535 || width > 65535 || top < 0 || left < 0 || top >= bottom ||
        left >= right || bottom > height || right > width)
        return 0;
    const size_t half_width = ((size_t)width + 1) / 2, half = half_width * (((size_t)height + 1) / 2);
    const size_t whole = (size_t)height * (size_t)width;
    if (at > size || size - at < whole + 2 * half)
        return 0;
    const uint8_t *const luma = record + at, *const blue = luma + whole, *const red = blue + half;
    const int columns = right - left;
#if defined(__x86_64__)
    const int fast = prep_vectors() >= AVX2;
#endif
    int16_t added[3][STRIP];
    for (int line = top / 2; 2 * line < bottom; line++)
        for (int begin = left & ~1; begin < right; begin += STRIP) {
            const int end = begin + STRIP < right ? begin + STRIP : right, from = begin < left ? left : begin;
            const size_t chroma = (size_t)line * half_width + (size_t)begin / 2;
#if defined(__x86_64__)
            if (fast)
                avx2_spread(blue + chroma, red + chroma, (end - begin + 1) / 2, added);
            else
#endif
                spread(blue + chroma, red + chroma, (end - begin + 1) / 2, added);
            for (int y = 2 * line < top ? top : 2 * line; y < 2 * line + 2 && y < bottom; y++) {
                const uint8_t *const pixels = luma + (size_t)y * (size_t)width + (size_t)from;
                uint8_t *const to = out + 3 * ((size_t)(y - top) * (size_t)columns + (size_t)(from - left));
#if defined(__x86_64__)
                if (fast)
                    avx2_add(pixels, (const int16_t(*)[STRIP])added, from - begin, end - from, to);
                else
#endif
                    add(pixels, (const int16_t(*)[STRIP])added, from - begin, end - from, to);
            }
        }
    return 1;
}
