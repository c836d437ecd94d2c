/* The entropy decoding of a baseline JPEG, most of decoding it, in less time than libjpeg-turbo takes.
 *
 * libjpeg-turbo looks a code up, takes the bits of the number that follows it, extends its sign, and goes on with the
 * next code. Here one look-up tells how far a code and its number go, or two codes with theirs if INDEX_BITS hold them
 * (after stb_image's "fast AC"), so that the next look-up waits for nothing else; the numbers come out of a second
 * table meanwhile, and where they are not wanted, above and beside the rectangle, not at all. Bits come 64 at a time
 * (F. Giesen, "Reading bits in far too many ways", 2018, variant 4) out of a copy of the scan without stuffed zeros.
 * bench/cases/entropy.py compares the two.
 *
 * It stands in for libjpeg's `decode_mcu`; all else stays libjpeg's: markers, tables, inverse DCT, upsampling, colours.
 * `struct jpeg_entropy_decoder` is in no public header, but has begun like this in all releases since libjpeg 6b;
 * native/__init__.py asks for it only with releases that it knows, and not if the pixels are other ones.
 *
 * Hazards:
 * - The coefficients have to be those that libjpeg finds. What is not entirely in order is refused, and left to
 *   libjpeg: a code that does not exist, more than 64 coefficients, a scan that ends before its last MCU, a restart marker
 *   that is not just where it has to be.
 * - Nothing within an MCU looks at the end of the data: there is always room for the largest MCU (MCU_BYTES), and
 *   after it, a check finds whether it took more than there was. The content of that room does not matter.
 */
#include "entropy.h"
#include "vectors.h"

#include <string.h>
#ifdef PREP_WIDE
#include <immintrin.h>
#endif

struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr jpeg);
    boolean (*decode_mcu)(j_decompress_ptr jpeg, JBLOCKROW *blocks);
};

/* From zigzag order. The end of a block is like a run to a place beyond the 64th, and what it puts there, a 0, goes to
 * the 64th: that is still empty, since a full block has no such end. */
#define LAST8 63, 63, 63, 63, 63, 63, 63, 63
#define LAST64 LAST8, LAST8, LAST8, LAST8, LAST8, LAST8, LAST8, LAST8
static const uint8_t natural[192] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, LAST64, LAST64};

/* What an index holds for the next bits: a step, and the numbers in it (entropy.h).
 * A step is one code with its number or two of them. Bits 0 to 5: how many bits it takes, MOST_BITS at most; 6 and 7 are
 * 0. 8 to 15: how many coefficients it goes on, END more at the end of a block. UNSURE, which goes on too far for any
 * block: what is there is longer, or there is no such code. */
#define END 128
#define UNSURE 0xFF00
#define MOST_BITS 18 /* so that a refill is good for three steps */

#define BITS(step) ((uint8_t)(step))
#define ON(step) ((step) >> 8)

/* A code and what follows it. */
struct found {
    int bits, on, value; /* bits 0: there is no such code */
};

static inline struct found found(int length, int symbol, uint32_t raw) {
    const int run = symbol >> 4, size = symbol & 15;
    if (size == 0)
        return (struct found){length, run == 15 ? 16 : END, 0};
    const int value = raw >> (size - 1) ? (int)raw : (int)raw - (1 << size) + 1;
    return (struct found){length + size, run + 1, value};
}

static inline struct numbers numbers(struct found one) {
    const int16_t value = (int16_t)one.value;
    return (struct numbers){value, value, (uint8_t)(one.on < END ? one.on : 63), 0, NONE};
}

/* Make an index of one code each. Returns 0 if no prefix code has these lengths: libjpeg checks the tables that it uses
 * itself, and has the same limits, but nothing here is to be written on its word. */
static int make_one(struct codes *codes) {
    uint32_t code = 0;
    int count = 0;
    for (int k = 0; k < 1 << INDEX_BITS; k++)
        codes->steps[k] = UNSURE;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        codes->place[length] = count - (int)code;
        for (int k = 0; k < codes->bits[length]; k++, code++, count++) {
            if (count == sizeof codes->values || code >= (1u << length) - 1)
                return 0;
            const int symbol = codes->values[count], size = symbol & 15, spare = INDEX_BITS - length;
            if (spare < 0)
                continue;
            size_t at = (size_t)code << spare;
            if (size > spare) {
                const struct found one = found(length, symbol, 0);
                const struct numbers its = {0, 0, (uint8_t)one.on, (uint8_t)length, (uint8_t)(NONE - size)};
                for (int same = 0; same < 1 << spare; same++, at++) {
                    codes->steps[at] = (uint16_t)(one.bits > MOST_BITS ? UNSURE : one.bits | one.on << 8);
                    codes->numbers[at] = its;
                }
                continue;
            }
            for (uint32_t raw = 0; raw < 1u << size; raw++) {
                const struct found one = found(length, symbol, raw);
                const struct numbers its = numbers(one);
                for (int same = 0; same < 1 << (spare - size); same++, at++) {
                    codes->steps[at] = (uint16_t)(one.bits | one.on << 8);
                    codes->numbers[at] = its;
                }
            }
        }
        codes->limit[length] = code << (16 - length);
    }
    return 1;
}

/* Make it one of two codes, where it holds two. */
static void make_two(struct codes *codes) {
    uint16_t steps[1 << INDEX_BITS];
    struct numbers ones[1 << INDEX_BITS];
    memcpy(steps, codes->steps, sizeof steps);
    memcpy(ones, codes->numbers, sizeof ones);
    for (uint32_t k = 0; k < 1 << INDEX_BITS; k++) {
        const unsigned first = steps[k];
        if (ON(first) >= END || ones[k].spare != NONE)
            continue;
        /* Zeros are shifted in: it holds only as far as these do not count. */
        const uint32_t rest = k << BITS(first) & ((1 << INDEX_BITS) - 1);
        const unsigned next = steps[rest];
        if (ones[rest].spare != NONE || next == UNSURE || BITS(first) + BITS(next) > INDEX_BITS)
            continue;
        codes->steps[k] = (uint16_t)(first + next);
        codes->numbers[k].last = ones[rest].last;
    }
}

/* The code at the head of `window`, where the index is not enough. */
static __attribute__((noinline)) struct found look_closely(const struct codes *codes, uint64_t window) {
    const uint32_t ahead = (uint32_t)(window >> 48);
    int length = 1;
    while (length <= 16 && ahead >= codes->limit[length])
        length++;
    if (length > 16)
        return (struct found){0, 0, 0};
    const int symbol = codes->values[((int)(ahead >> (16 - length)) + codes->place[length]) & 255];
    const int size = symbol & 15;
    return found(length, symbol, size ? (uint32_t)(window << length >> (64 - size)) : 0);
}

/* The last value in a step at the head of `window`. Without a branch, since nothing foretells which kind it is: of a number
 * without bits, what is added is 0. */
static inline int last_value(uint64_t window, const struct numbers *its) {
    const uint64_t number = window << (its->length & 63);
    const uint64_t is_negative = (uint64_t)~((int64_t)number >> 63); /* all ones if it begins with a 0 */
    const uint64_t magnitude = (number ^ is_negative) >> 1 >> (its->spare & 63);
    return its->last + (int)((magnitude ^ is_negative) - is_negative);
}

static int next_byte(j_decompress_ptr jpeg) {
    struct jpeg_source_mgr *const source = jpeg->src;
    while (source->bytes_in_buffer == 0)
        source->fill_input_buffer(jpeg);
    source->bytes_in_buffer--;
    return *source->next_input_byte++;
}

#ifdef PREP_WIDE
/* Copy 64 bytes at a time, while there is nothing but data with stuffed zeros, and room for 64. */
__attribute__((target("avx512f,avx512bw,avx512vbmi2,popcnt"))) static uint8_t *
fill_wide(uint8_t *at, const uint8_t *full, struct jpeg_source_mgr *source) {
    const uint8_t *from = source->next_input_byte, *const end = from + source->bytes_in_buffer;
    while (full - at >= 64 && end - from > 64) {
        const __m512i bytes = _mm512_loadu_si512(from), after = _mm512_loadu_si512(from + 1);
        const __mmask64 marks = _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(-1));
        if (marks & _mm512_test_epi8_mask(after, after))
            break;
        _mm512_storeu_si512(at, _mm512_maskz_compress_epi8(~(marks << 1), bytes));
        at += 64 - __builtin_popcountll(marks << 1);
        from += 64 + (marks >> 63);
    }
    source->next_input_byte = from;
    source->bytes_in_buffer = (size_t)(end - from);
    return at;
}
#endif

/* Bring bytes into the room, to its end or to a marker. Only while there is no marker yet. */
static __attribute__((noinline)) void fill(struct entropy *self, j_decompress_ptr jpeg) {
    struct jpeg_source_mgr *const source = jpeg->src;
    const size_t kept = (size_t)(self->end - self->next);
    memmove(self->room, self->next, kept);
    uint8_t *at = self->room + kept, *const full = self->room + ROOM;
    while (at < full && self->marker == 0) {
        while (source->bytes_in_buffer == 0)
            source->fill_input_buffer(jpeg);
#ifdef PREP_WIDE
        if (self->is_wide)
            at = fill_wide(at, full, source);
#endif
        const size_t space = (size_t)(full - at), have = source->bytes_in_buffer, step = space < have ? space : have;
        const uint8_t *const from = source->next_input_byte, *const mark = memchr(from, 0xFF, step);
        const size_t plain = mark == NULL ? step : (size_t)(mark - from);
        memcpy(at, from, plain);
        at += plain;
        source->next_input_byte += plain;
        source->bytes_in_buffer -= plain;
        if (mark == NULL)
            continue;
        int byte, marks = -1;
        do {
            byte = next_byte(jpeg);
            marks++;
        } while (byte == 0xFF);
        /* libjpeg takes several 0xFF before a zero for one, but tries its fast decoder first, which leaves coefficients of
         * other data in the blocks. */
        if (byte == 0 && marks > 1)
            self->refuse((j_common_ptr)jpeg);
        if (byte == 0)
            *at++ = 0xFF;
        else
            self->marker = byte;
    }
    self->next = self->room;
    self->end = at;
}

/* How many bits of the segment are left, less than 0 if it has too few; known only where its marker is. */
static inline long left(const struct entropy *self) {
    return (long)(self->end - self->next) * 8 + self->held;
}

static int at_marker(struct entropy *self, j_decompress_ptr jpeg) {
    if (self->marker == 0)
        fill(self, jpeg);
    return self->marker && left(self) < 8;
}

static void begin_segment(struct entropy *self, j_decompress_ptr jpeg) {
    self->window = 0;
    self->held = 0;
    self->next = self->end = self->room;
    self->marker = 0;
    self->to_restart = self->restart;
    memset(self->last_dc, 0, sizeof self->last_dc);
    if (self->open != NULL)
        self->open(jpeg);
}

static __attribute__((noinline)) void restart(struct entropy *self, j_decompress_ptr jpeg) {
    if (!at_marker(self, jpeg) || (self->open == NULL && self->marker != JPEG_RST0 + (int)(self->restarts++ & 7)))
        self->refuse((j_common_ptr)jpeg);
    begin_segment(self, jpeg);
}

static inline uint64_t eight_bytes(const uint8_t *at) {
    uint64_t read;
    memcpy(&read, at, sizeof read);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    read = __builtin_bswap64(read);
#endif
    return read;
}

/* Where the bits come from. Those that `window` has beyond the `held` ones are the first at `next`. */
struct bits {
    uint64_t window;
    int held;
    const uint8_t *next;
};

static inline void refill(struct bits *bits) { /* then 56 are held at least */
    bits->window |= eight_bytes(bits->next) >> bits->held;
    bits->next += (63 - bits->held) >> 3;
    bits->held |= 56;
}

static inline void take(struct bits *bits, unsigned count) {
    bits->window <<= count & 63;
    bits->held -= (int)(uint8_t)count;
}

static inline size_t index_of(const struct bits *bits) {
    return bits->window >> (64 - INDEX_BITS);
}

/* The difference of a block's first coefficient. Returns 0 if there is no such code. */
static inline __attribute__((always_inline)) int first_coefficient(struct bits *bits, const struct codes *codes,
                                                                   int *difference) {
    refill(bits);
    const unsigned step = codes->steps[index_of(bits)];
    if (__builtin_expect(step == UNSURE, 0)) {
        const struct found one = look_closely(codes, bits->window);
        *difference = one.value;
        take(bits, one.bits);
        return one.bits;
    }
    *difference = last_value(bits->window, &codes->numbers[index_of(bits)]);
    take(bits, step);
    return 1;
}

/* The other coefficients, to `block` if it is `wanted`. Returns 0 if there is no such code or too many of them. */
static inline __attribute__((always_inline)) int other_coefficients(struct bits *bits, const struct codes *codes,
                                                                    JCOEF *block, const int wanted) {
    for (unsigned k = 1, after;;) {
        refill(bits);
#pragma GCC unroll 3
        for (int more = 56 / MOST_BITS; more > 0; more--, k = after) {
            const size_t index = index_of(bits);
            const unsigned step = codes->steps[index];
            after = k + ON(step);
            if (__builtin_expect(after > 64, 0) && (after < END || after >= END + 64)) {
                /* Not in the index; or two codes of which the second follows this block's last coefficient. */
                refill(bits);
                const struct found one = look_closely(codes, bits->window);
                after = k + (unsigned)one.on;
                if (one.bits == 0 || (after > 64 && after < END))
                    return 0;
                take(bits, one.bits);
                if (wanted)
                    block[natural[after - 1]] = (JCOEF)one.value;
                if (after >= 64)
                    return 1;
                k = after;
                break;
            }
            if (wanted) {
                const struct numbers *const its = &codes->numbers[index];
                block[natural[k + its->first_on - 1]] = its->first;
                block[natural[after - 1]] = (JCOEF)last_value(bits->window, its);
            }
            take(bits, step);
            if (after >= 64)
                return 1;
        }
    }
}

/* libjpeg's decode_mcu: the coefficients of one MCU into blocks of zeros; NULL for no blocks. */
static inline __attribute__((always_inline)) boolean decode(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
    struct entropy *const self = jpeg->client_data;
    if (self->restart && self->to_restart-- == 0) {
        restart(self, jpeg);
        self->to_restart--;
    }
    if (self->marker == 0 && self->end - self->next < MCU_BYTES)
        fill(self, jpeg);
    const int wanted = blocks != NULL && self->column >= self->first && self->column < self->beyond;
    struct bits bits = {self->window, self->held, self->next};
    for (int b = 0; b < self->blocks; b++) {
        const struct codes *const ac = self->block[b].ac;
        int difference;
        if (!first_coefficient(&bits, self->block[b].dc, &difference))
            goto refused;
        const int32_t level = *self->block[b].last_dc += difference;
        if (level > 1 << 28 || level < -(1 << 28))
            goto refused;
        if (wanted) {
            JCOEF *const block = *blocks[b];
            block[0] = (JCOEF)level;
            if (!other_coefficients(&bits, ac, block, 1))
                goto refused;
        } else if (!other_coefficients(&bits, ac, NULL, 0))
            goto refused;
    }
    self->window = bits.window;
    self->held = bits.held;
    self->next = bits.next;
    if (++self->column == self->columns)
        self->column = 0;
    if (self->marker && left(self) < 0)
        goto refused;
    return TRUE;
refused:
    self->refuse((j_common_ptr)jpeg);
    return FALSE;
}

static boolean decode_anywhere(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
    return decode(jpeg, blocks);
}

#if defined(__x86_64__)
__attribute__((target("bmi,bmi2"))) static boolean decode_bmi(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
    return decode(jpeg, blocks);
}
#endif

int prep_entropy_serves(const struct jpeg_decompress_struct *jpeg, int (*is_theirs)(const void *)) {
    /* A lossless one has come no further than jpeg_crop_scanline, which does not take it. */
    if (jpeg->progressive_mode || jpeg->arith_code || jpeg->data_precision != 8 || jpeg->entropy == NULL)
        return 0;
    const void *replaced;
    memcpy(&replaced, &jpeg->entropy->decode_mcu, sizeof replaced);
    if (!is_theirs(replaced))
        return 0;
    if (jpeg->comps_in_scan != jpeg->num_components || jpeg->blocks_in_MCU > D_MAX_BLOCKS_IN_MCU)
        return 0;
    const jpeg_component_info *const only = jpeg->cur_comp_info[0];
    return jpeg->comps_in_scan > 1 || (only->h_samp_factor == 1 && only->v_samp_factor == 1);
}

/* The codes of this table: `kept`, rebuilt if it holds another table; NULL if the table is no prefix code. */
static const struct codes *codes_of(struct codes *kept, const JHUFF_TBL *table, int two) {
    if (table == NULL)
        return NULL;
    if (!kept->made || memcmp(kept->bits, table->bits, sizeof kept->bits) ||
        memcmp(kept->values, table->huffval, sizeof kept->values)) {
        memcpy(kept->bits, table->bits, sizeof kept->bits);
        memcpy(kept->values, table->huffval, sizeof kept->values);
        kept->made = make_one(kept);
        if (kept->made && two)
            make_two(kept);
    }
    return kept->made ? kept : NULL;
}

int prep_entropy_take(struct entropy *self, j_decompress_ptr jpeg, unsigned first, unsigned beyond) {
    static _Thread_local struct code_tables tables;
    for (int b = 0; b < jpeg->blocks_in_MCU; b++) {
        const int part = jpeg->MCU_membership[b];
        const int dc = jpeg->cur_comp_info[part]->dc_tbl_no, ac = jpeg->cur_comp_info[part]->ac_tbl_no;
        if (dc < 0 || dc >= NUM_HUFF_TBLS || ac < 0 || ac >= NUM_HUFF_TBLS)
            return 0;
        self->block[b].dc = codes_of(&tables.dc[dc], jpeg->dc_huff_tbl_ptrs[dc], 0);
        self->block[b].ac = codes_of(&tables.ac[ac], jpeg->ac_huff_tbl_ptrs[ac], 1);
        self->block[b].last_dc = &self->last_dc[part];
        if (self->block[b].dc == NULL || self->block[b].ac == NULL)
            return 0;
    }
    self->is_wide = prep_vectors() == AVX512;
    self->blocks = jpeg->blocks_in_MCU;
    self->restart = jpeg->restart_interval;
    self->restarts = 0;
    self->column = 0;
    self->columns = jpeg->MCUs_per_row;
    self->first = first;
    self->beyond = beyond;
    begin_segment(self, jpeg);
    jpeg->entropy->decode_mcu = decode_anywhere;
#if defined(__x86_64__)
    if (prep_cpu() & CPU_BMI2)
        jpeg->entropy->decode_mcu = decode_bmi;
#endif
    return 1;
}

int prep_entropy_leave(struct entropy *self, j_decompress_ptr jpeg) {
    const int there = at_marker(self, jpeg);
    jpeg->unread_marker = self->marker;
    return there;
}
