/* The resize of resize.c by AVX2: the same sums of the same weights, so the same bytes. */
#include "resize.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#define TARGET __attribute__((target("avx2")))

TARGET static inline __attribute__((always_inline)) void
lines_of(const struct axis *axis, int width, int mirror, const uint8_t *const in[4], uint8_t *const out[4], int quads) {
    /* 16 bytes hold five pixels; interleave the channels of the first and second, third and fourth, widened. */
    const __m256i one = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i two = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    const __m256i half = _mm256_set1_epi32(1 << (axis->fraction_bits - 1));
    const __m128i shift = _mm_cvtsi32_si128(axis->fraction_bits);
    for (int at = 0; at < width; at++) { /* ascending, since each store spills one byte */
        int i = mirror ? width - 1 - at : at;
        size_t from = (size_t)axis->first[i] * 3;
        const int16_t *weight = axis->weight + (size_t)i * axis->stride;
        __m256i ab = half, cd = half;
        for (int q = 0; q < quads; q++, from += 12, weight += 4) {
            int32_t pair[2];
            memcpy(pair, weight, sizeof pair);
            const __m256i w1 = _mm256_set1_epi32(pair[0]), w2 = _mm256_set1_epi32(pair[1]);
            __m256i p = _mm256_loadu2_m128i((const __m128i *)(in[1] + from), (const __m128i *)(in[0] + from));
            __m256i r = _mm256_loadu2_m128i((const __m128i *)(in[3] + from), (const __m128i *)(in[2] + from));
            ab = _mm256_add_epi32(ab, _mm256_madd_epi16(_mm256_shuffle_epi8(p, one), w1));
            cd = _mm256_add_epi32(cd, _mm256_madd_epi16(_mm256_shuffle_epi8(r, one), w1));
            ab = _mm256_add_epi32(ab, _mm256_madd_epi16(_mm256_shuffle_epi8(p, two), w2));
            cd = _mm256_add_epi32(cd, _mm256_madd_epi16(_mm256_shuffle_epi8(r, two), w2));
        }
        __m256i bytes = _mm256_packus_epi32(_mm256_sra_epi32(ab, shift), _mm256_sra_epi32(cd, shift));
        bytes = _mm256_packus_epi16(bytes, bytes);
        uint64_t ac = (uint64_t)_mm256_extract_epi64(bytes, 0), bd = (uint64_t)_mm256_extract_epi64(bytes, 2);
        uint32_t a = (uint32_t)ac, b = (uint32_t)bd, c = (uint32_t)(ac >> 32), d = (uint32_t)(bd >> 32);
        memcpy(out[0] + 3 * at, &a, 4);
        memcpy(out[1] + 3 * at, &b, 4);
        memcpy(out[2] + 3 * at, &c, 4);
        memcpy(out[3] + 3 * at, &d, 4);
    }
}

TARGET void prep_avx2_lines(const struct axis *axis, int width, int mirror, const uint8_t *const in[4],
                            uint8_t *const out[4]) {
    switch (axis->stride) { /* loops of known length: most images are reduced less than twofold */
    case 4: lines_of(axis, width, mirror, in, out, 1); break;
    case 8: lines_of(axis, width, mirror, in, out, 2); break;
    default: lines_of(axis, width, mirror, in, out, axis->stride / 4);
    }
}

TARGET void prep_avx2_columns(const struct axis *axis, int i, const uint8_t *ring, int mask, size_t pitch, uint8_t *out,
                              size_t nbytes) {
    const int16_t *weight = axis->weight + (size_t)i * axis->stride;
    const int first = axis->first[i], pairs = (axis->taps + 1) / 2;
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (axis->fraction_bits - 1));
    const __m128i shift = _mm_cvtsi32_si128(axis->fraction_bits);
    for (size_t at = 0; at < nbytes; at += 32) {
        __m256i s0 = half, s1 = half, s2 = half, s3 = half;
        for (int k = 0; k < pairs; k++) {
            int32_t pair;
            memcpy(&pair, weight + 2 * k, sizeof pair);
            const __m256i w = _mm256_set1_epi32(pair);
            __m256i a = _mm256_load_si256((const __m256i *)(ring + (size_t)((first + 2 * k) & mask) * pitch + at));
            __m256i b = _mm256_load_si256((const __m256i *)(ring + (size_t)((first + 2 * k + 1) & mask) * pitch + at));
            __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
            s0 = _mm256_add_epi32(s0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), w));
            s1 = _mm256_add_epi32(s1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), w));
            s2 = _mm256_add_epi32(s2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), w));
            s3 = _mm256_add_epi32(s3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), w));
        }
        __m256i bytes = _mm256_packus_epi16(
            _mm256_packus_epi32(_mm256_sra_epi32(s0, shift), _mm256_sra_epi32(s1, shift)),
            _mm256_packus_epi32(_mm256_sra_epi32(s2, shift), _mm256_sra_epi32(s3, shift)));
        if (nbytes - at >= 32) {
            _mm256_storeu_si256((__m256i *)(out + at), bytes);
        } else { /* never a byte after the row: it is another row's */
            uint8_t rest[32];
            _mm256_storeu_si256((__m256i *)rest, bytes);
            memcpy(out + at, rest, nbytes - at);
        }
    }
}

#else

void prep_avx2_lines(const struct axis *axis, int width, int mirror, const uint8_t *const in[4],
                     uint8_t *const out[4]) {
    (void)axis, (void)width, (void)mirror, (void)in, (void)out;
}

void prep_avx2_columns(const struct axis *axis, int i, const uint8_t *ring, int mask, size_t pitch, uint8_t *out,
                       size_t nbytes) {
    (void)axis, (void)i, (void)ring, (void)mask, (void)pitch, (void)out, (void)nbytes;
}

#endif
