/* The resize of resize.c by AVX-512 (VBMI, VNNI): the same sums of the same weights, so the same bytes.
 *
 * Lines go by output bytes instead of pixels. All that sixteen output bytes see mostly lies within 64 bytes of input:
 * these are loaded once, one permutation of bytes brings two taps of each output byte to their places, and one
 * instruction multiplies and adds them. The places and the weights in that order are computed once for all
 * lines of an image. Mirroring is only another order.
 *
 * Nothing is read outside the lines: where 64 bytes would go beyond the end of one, they begin earlier.
 */
#include "resize.h"

#include <string.h>

#ifdef PREP_WIDE
#include <immintrin.h>

#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))

static size_t whole(size_t nbytes) {
    return (nbytes + WIDE - 1) / WIDE * WIDE;
}

static int groups_of(int out_width) {
    return (3 * out_width + WIDE_GROUP - 1) / WIDE_GROUP;
}

size_t prep_wide_bytes(int out_width, int most_taps) {
    const size_t groups = (size_t)groups_of(out_width);
    return whole(groups * sizeof(int32_t)) + groups * WIDE * (1 + ((size_t)most_taps + 1) / 2);
}

/* How many of an output's weights to leave out, so that `taps` of them are all that are not 0: where resize.c begins
 * earlier, near the end of the lines, it is with zeros. */
static int leading(const struct axis *axis, int i) {
    const int16_t *const weight = axis->weight + (size_t)i * axis->stride;
    int skip = axis->stride - axis->taps;
    for (int k = 0; k < skip; k++)
        if (weight[k] != 0)
            skip = k;
    return skip;
}

int prep_wide_order(struct wide *wide, const struct axis *axis, int width, int out_width, int mirror, char *memory) {
    const int groups = wide->groups = groups_of(out_width), taps = axis->taps, pairs = wide->pairs = (taps + 1) / 2;
    const int most = 3 * width - WIDE, beyond = 3 * out_width;
    wide->start = (int32_t *)memory;
    wide->places = (uint8_t *)memory + whole((size_t)groups * sizeof(int32_t));
    wide->weights = (int16_t *)(wide->places + (size_t)groups * WIDE);
    if (most < 0)
        return 0;
    memset(wide->places, 0, (size_t)groups * WIDE * (1 + (size_t)pairs));
    for (int group = 0, at = 0; group < groups; group++, at += WIDE_GROUP) {
        uint32_t *const places = (uint32_t *)(wide->places + (size_t)group * WIDE);
        int16_t *const weights = wide->weights + (size_t)group * pairs * (WIDE / 2);
        const int end = at + WIDE_GROUP < beyond ? at + WIDE_GROUP : beyond;
        int start = most, last = 0, firsts[WIDE_GROUP];
        for (int pixel = at / 3, k = 0; 3 * pixel < end; pixel++) {
            const int i = mirror ? out_width - 1 - pixel : pixel, skip = leading(axis, i);
            const int first = 3 * (axis->first[i] + skip);
            const int16_t *const its = axis->weight + (size_t)i * axis->stride + skip;
            start = first < start ? first : start;
            last = first + 3 * taps > last ? first + 3 * taps : last;
            for (; k < end - at && at + k < 3 * pixel + 3; k++) {
                firsts[k] = first + (at + k) % 3;
                for (int tap = 0; tap < taps; tap++)
                    weights[tap / 2 * (WIDE / 2) + 2 * k + tap % 2] = its[tap];
            }
        }
        if (last - start > WIDE)
            return 0;
        for (int k = 0; k < end - at; k++) {
            const uint32_t place = (uint32_t)(firsts[k] - start);
            places[k] = place | (place + 3) << 16;
        }
        wide->start[group] = start;
    }
    return 1;
}

TARGET static inline __attribute__((always_inline)) void
lines_of(const struct wide *wide, int fraction_bits, const uint8_t *const in[4], uint8_t *const out[4], int pairs) {
    const __m512i half = _mm512_set1_epi32(1 << (fraction_bits - 1)), on = _mm512_set1_epi16(6);
    const __m128i shift = _mm_cvtsi32_si128(fraction_bits);
    const __mmask64 low = 0x5555555555555555; /* bytes widened */
    const int16_t *weights = wide->weights;
    for (int group = 0; group < wide->groups; group++) {
        const size_t from = (size_t)wide->start[group];
        const __m512i a = _mm512_loadu_si512(in[0] + from), b = _mm512_loadu_si512(in[1] + from);
        const __m512i c = _mm512_loadu_si512(in[2] + from), d = _mm512_loadu_si512(in[3] + from);
        __m512i places = _mm512_load_si512(wide->places + (size_t)group * WIDE);
        __m512i sa = half, sb = half, sc = half, sd = half;
        for (int pair = 0; pair < pairs; pair++, weights += WIDE / 2) {
            const __m512i w = _mm512_load_si512(weights);
            sa = _mm512_dpwssd_epi32(sa, _mm512_maskz_permutexvar_epi8(low, places, a), w);
            sb = _mm512_dpwssd_epi32(sb, _mm512_maskz_permutexvar_epi8(low, places, b), w);
            sc = _mm512_dpwssd_epi32(sc, _mm512_maskz_permutexvar_epi8(low, places, c), w);
            sd = _mm512_dpwssd_epi32(sd, _mm512_maskz_permutexvar_epi8(low, places, d), w);
            places = _mm512_add_epi16(places, on);
        }
        const size_t to = (size_t)group * WIDE_GROUP;
        _mm_storeu_si128((__m128i *)(out[0] + to), _mm512_cvtusepi32_epi8(_mm512_sra_epi32(sa, shift)));
        _mm_storeu_si128((__m128i *)(out[1] + to), _mm512_cvtusepi32_epi8(_mm512_sra_epi32(sb, shift)));
        _mm_storeu_si128((__m128i *)(out[2] + to), _mm512_cvtusepi32_epi8(_mm512_sra_epi32(sc, shift)));
        _mm_storeu_si128((__m128i *)(out[3] + to), _mm512_cvtusepi32_epi8(_mm512_sra_epi32(sd, shift)));
    }
}

TARGET void prep_wide_lines(const struct wide *wide, int fraction_bits, const uint8_t *const in[4],
                            uint8_t *const out[4]) {
    switch (wide->pairs) { /* loops of known length, as in resize.c */
    case 2: lines_of(wide, fraction_bits, in, out, 2); break;
    case 3: lines_of(wide, fraction_bits, in, out, 3); break;
    default: lines_of(wide, fraction_bits, in, out, wide->pairs);
    }
}

TARGET void prep_wide_columns(const struct axis *axis, int i, const uint8_t *ring, int mask, size_t pitch,
                              uint8_t *out, size_t nbytes) {
    const int16_t *weight = axis->weight + (size_t)i * axis->stride;
    const int first = axis->first[i], pairs = (axis->taps + 1) / 2;
    const __m512i zero = _mm512_setzero_si512(), half = _mm512_set1_epi32(1 << (axis->fraction_bits - 1));
    const __m128i shift = _mm_cvtsi32_si128(axis->fraction_bits);
    for (size_t at = 0; at < nbytes; at += WIDE) {
        __m512i s0 = half, s1 = half, s2 = half, s3 = half;
        for (int k = 0; k < pairs; k++) {
            int32_t pair;
            memcpy(&pair, weight + 2 * k, sizeof pair);
            const __m512i w = _mm512_set1_epi32(pair);
            const __m512i a = _mm512_load_si512(ring + (size_t)((first + 2 * k) & mask) * pitch + at);
            const __m512i b = _mm512_load_si512(ring + (size_t)((first + 2 * k + 1) & mask) * pitch + at);
            const __m512i low = _mm512_unpacklo_epi8(a, b), high = _mm512_unpackhi_epi8(a, b);
            s0 = _mm512_dpwssd_epi32(s0, _mm512_unpacklo_epi8(low, zero), w);
            s1 = _mm512_dpwssd_epi32(s1, _mm512_unpackhi_epi8(low, zero), w);
            s2 = _mm512_dpwssd_epi32(s2, _mm512_unpacklo_epi8(high, zero), w);
            s3 = _mm512_dpwssd_epi32(s3, _mm512_unpackhi_epi8(high, zero), w);
        }
        const __m512i bytes = _mm512_packus_epi16(
            _mm512_packus_epi32(_mm512_sra_epi32(s0, shift), _mm512_sra_epi32(s1, shift)),
            _mm512_packus_epi32(_mm512_sra_epi32(s2, shift), _mm512_sra_epi32(s3, shift)));
        const size_t rest = nbytes - at; /* never a byte after the row: it is another row's */
        _mm512_mask_storeu_epi8(out + at, rest >= WIDE ? ~(__mmask64)0 : ((__mmask64)1 << rest) - 1, bytes);
    }
}

#else

size_t prep_wide_bytes(int out_width, int most_taps) {
    (void)out_width, (void)most_taps;
    return 0;
}

int prep_wide_order(struct wide *wide, const struct axis *axis, int width, int out_width, int mirror, char *memory) {
    (void)wide, (void)axis, (void)width, (void)out_width, (void)mirror, (void)memory;
    return 0;
}

void prep_wide_lines(const struct wide *wide, int fraction_bits, const uint8_t *const in[4], uint8_t *const out[4]) {
    (void)wide, (void)fraction_bits, (void)in, (void)out;
}

void prep_wide_columns(const struct axis *axis, int i, const uint8_t *ring, int mask, size_t pitch, uint8_t *out,
                       size_t nbytes) {
    (void)axis, (void)i, (void)ring, (void)mask, (void)pitch, (void)out, (void)nbytes;
}

#endif
