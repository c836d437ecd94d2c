/* Decode a rectangle of a JPEG with libjpeg-turbo: same pixels as a whole decode, nothing decoded that can be left out.
 *
 * Rows above the rectangle are entropy-decoded only (jpeg_skip_scanlines), columns beside it get no inverse DCT
 * (jpeg_crop_scanline), rows below are not looked at: the frame header is made to claim fewer rows, as the pure path
 * does (prepserver/transform/header.py, `extent`). Huffman decoding of the usual kind is our own (entropy.c). The
 * result counts only if neither of them complained; on any warning or error the caller takes the pure path, whose
 * verdict holds.
 *
 * libjpeg is not linked. `prep_bind` takes its functions from the library that Pillow brings (see native/__init__.py);
 * the headers that this is compiled with need only have the same ABI, which jpeg_CreateDecompress checks once more.
 *
 * Hazards:
 * - longjmp out of libjpeg: everything that must survive lives in `struct decoder`, never in a local variable.
 * - libjpeg's struct is kept from image to image, one in a thread: making one asks the CPU for its features, which on a
 *   virtual machine takes 10 us. It keeps Huffman and quantisation tables, too, and a file without its own would take
 *   the last file's, but a row must be a function of its own file: hence `spoil_tables` and `has_its_tables`.
 * - jpeg_skip_scanlines to the very end of an image decodes nothing of what it skips, and so finds no damage there:
 *   the last row is always read.
 * - A progressive image whose last scans are missing is smoothed across blocks, with neighbours that are left out here:
 *   it is refused.
 * - Upsampling looks one chroma sample to each side and takes the edge of the cropped part for the image's edge:
 *   hence the margin.
 */
#define _GNU_SOURCE /* dladdr */
#include "entropy.h"
#include "kernels.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#define ALL_FUNCTIONS(F)                                                                                               \
    F(jpeg_std_error)                                                                                                  \
    F(jpeg_CreateDecompress)                                                                                           \
    F(jpeg_read_header)                                                                                                \
    F(jpeg_has_multiple_scans)                                                                                         \
    F(jpeg_start_decompress)                                                                                           \
    F(jpeg_crop_scanline)                                                                                              \
    F(jpeg_skip_scanlines)                                                                                             \
    F(jpeg_read_scanlines)                                                                                             \
    F(jpeg_finish_decompress)                                                                                          \
    F(jpeg_abort_decompress)                                                                                           \
    F(jpeg_destroy_decompress)

#define DECLARE(name) static __typeof__(&name) lib_##name;
ALL_FUNCTIONS(DECLARE)

struct chunk {
    const JOCTET *at;
    size_t size;
};

/* The segments under a part of an indexed scan, row after row, where they lie. */
struct segments {
    const uint8_t *at, *length; /* of the next one: its bytes, and how many there are, in the index */
    unsigned in_row, rows;      /* how many are left of a row of the part, and of its rows */
    unsigned of_row, between;   /* segments in a row of the part, and from its end to the next one's begin */
};

struct decoder {
    struct entropy entropy; /* first: prep_entropy_take finds it by jpeg->client_data */
    struct jpeg_decompress_struct *jpeg;
    struct jpeg_source_mgr source;
    jmp_buf refused;
    struct chunk chunks[4];
    int next_chunk, n_chunks;
    struct segments *segments; /* follow the chunks, for our own entropy decoding; NULL for none */
    JOCTET height[2];
};

/* Which source this was made from: an old build in a checkout must not be taken for the present one. */
#ifndef PREP_SOURCE
#define PREP_SOURCE ""
#endif
const char prep_source[] = PREP_SOURCE;

/* And by what: hatch_build.py looks for it before it takes a build for its own. */
#ifndef PREP_BUILD
#define PREP_BUILD ""
#endif
const char prep_build[] = PREP_BUILD;

static const JOCTET end_of_image[2] = {0xFF, JPEG_EOI};

static void refuse(j_common_ptr jpeg) {
    longjmp(((struct decoder *)jpeg->client_data)->refused, 1);
}

static void refuse_warning(j_common_ptr jpeg, int level) {
    if (level < 0)
        refuse(jpeg);
}

static void no_text(j_common_ptr jpeg) {
    (void)jpeg;
}

static void no_source_step(j_decompress_ptr jpeg) {
    (void)jpeg;
}

static boolean next_chunk(j_decompress_ptr jpeg) {
    struct decoder *self = jpeg->client_data;
    do {
        if (self->next_chunk == self->n_chunks)
            refuse((j_common_ptr)jpeg); /* truncated */
        self->source.next_input_byte = self->chunks[self->next_chunk].at;
        self->source.bytes_in_buffer = self->chunks[self->next_chunk].size;
        self->next_chunk++;
    } while (self->source.bytes_in_buffer == 0);
    return TRUE;
}

static size_t length_of(const uint8_t *in_index) {
    return in_index[0] | (size_t)in_index[1] << 8;
}

/* Make the next segment the source. The part has enough of them; `prep_scan` has checked their lengths. */
static void open_segment(j_decompress_ptr jpeg) {
    struct decoder *const self = jpeg->client_data;
    struct segments *const segments = self->segments;
    if (segments->in_row == 0) {
        if (--segments->rows == 0)
            refuse((j_common_ptr)jpeg);
        for (unsigned k = 0; k < segments->between; k++, segments->length += 2)
            segments->at += length_of(segments->length);
        segments->in_row = segments->of_row;
    }
    segments->in_row--;
    self->source.next_input_byte = segments->at;
    self->source.bytes_in_buffer = length_of(segments->length);
    segments->at += self->source.bytes_in_buffer;
    segments->length += 2;
}

static void skip_bytes(j_decompress_ptr jpeg, long count) {
    struct jpeg_source_mgr *source = jpeg->src;
    while (count > 0) {
        size_t step = (size_t)count < source->bytes_in_buffer ? (size_t)count : source->bytes_in_buffer;
        source->next_input_byte += step;
        source->bytes_in_buffer -= step;
        count -= (long)step;
        if (count > 0)
            next_chunk(jpeg);
    }
}

static boolean refuse_resync(j_decompress_ptr jpeg, int desired) {
    (void)desired;
    refuse((j_common_ptr)jpeg);
    return FALSE;
}

static int next_byte(struct decoder *self) {
    if (self->source.bytes_in_buffer == 0)
        next_chunk(self->jpeg);
    self->source.bytes_in_buffer--;
    return *self->source.next_input_byte++;
}

/* Whether the next marker in the data that is left over is the end of the image. */
static int ends_next(struct decoder *self) {
    int marker = self->jpeg->unread_marker;
    while (marker == 0) {
        const JOCTET *at = memchr(self->source.next_input_byte, 0xFF, self->source.bytes_in_buffer);
        if (at == NULL) {
            next_chunk(self->jpeg);
            continue;
        }
        self->source.bytes_in_buffer -= (size_t)(at + 1 - self->source.next_input_byte);
        self->source.next_input_byte = at + 1;
        do
            marker = next_byte(self);
        while (marker == 0xFF);
    }
    return marker == JPEG_EOI;
}

/* The place of a subsampling in the caller's set: 0 grey, 1..5 as below, -1 any other. */
static int subsampling(const struct jpeg_decompress_struct *jpeg) {
    static const int luma[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}}; /* 444 422 420 440 411 */
    const jpeg_component_info *part = jpeg->comp_info;
    if (jpeg->num_components == 1 && jpeg->jpeg_color_space == JCS_GRAYSCALE)
        return 0;
    if (jpeg->num_components != 3 || jpeg->jpeg_color_space != JCS_YCbCr)
        return -1;
    if (part[1].h_samp_factor != 1 || part[1].v_samp_factor != 1 || part[2].h_samp_factor != 1 ||
        part[2].v_samp_factor != 1)
        return -1;
    for (int k = 0; k < 5; k++)
        if (part[0].h_samp_factor == luma[k][0] && part[0].v_samp_factor == luma[k][1])
            return k + 1;
    return -1;
}

/* Whether all scans of a progressive image are there. If not, libjpeg smooths across blocks, and would take the edge of
 * the cropped part for the image's. */
static int complete(const struct jpeg_decompress_struct *jpeg) {
    if (!jpeg->progressive_mode)
        return 1;
    if (jpeg->coef_bits == NULL)
        return 0;
    for (int part = 0; part < jpeg->num_components; part++)
        for (int k = 0; k < DCTSIZE2; k++)
            if (jpeg->coef_bits[part][k] != 0)
                return 0;
    return 1;
}

/* The library that all of libjpeg's functions are of. */
static const void *library_base;

/* Whether `function` is of that library. */
static int is_of_library(const void *function) {
    static _Thread_local const void *last; /* dladdr takes microseconds, and it is always the same function */
    Dl_info of;
    if (function == NULL || (function != last && (dladdr(function, &of) == 0 || of.dli_fbase != library_base)))
        return 0;
    last = function;
    return 1;
}

/* Take libjpeg's functions from `library` or what it depends on. Returns NULL, or what is missing. */
const char *prep_bind(const char *library) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    Dl_info of;
    if (handle == NULL)
        return "its file cannot be loaded";
    const void *function = dlsym(handle, "jpeg_read_header");
    if (function == NULL || dladdr(function, &of) == 0)
        return "no jpeg_read_header";
    library_base = of.dli_fbase;
#define FIND(name)                                                                                                     \
    if ((*(void **)&lib_##name = dlsym(handle, #name)) == NULL)                                                        \
        return "no " #name;                                                                                            \
    memcpy(&function, &lib_##name, sizeof function);                                                                   \
    if (!is_of_library(function))                                                                                      \
        return #name " is of another library than jpeg_read_header";
    ALL_FUNCTIONS(FIND)
    prep_bind_rewrite(handle);
    return NULL;
}

/* The path of the library that `prep_bind` found them in. */
const char *prep_bound_to(void) {
    Dl_info of;
    const void *function;
    memcpy(&function, &lib_jpeg_read_header, sizeof function);
    return dladdr(function, &of) ? of.dli_fname : "";
}

/* What a thread keeps. */
struct kept {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    int made;
};

static pthread_key_t kept_key;
static int has_key = 0;

static void forget(void *thread_ends) {
    struct kept *const kept = thread_ends;
    lib_jpeg_destroy_decompress(&kept->jpeg);
    free(kept);
}

static void make_key(void) {
    has_key = pthread_key_create(&kept_key, forget) == 0;
}

/* This thread's, made if need be but for libjpeg's part; NULL if there is no memory. */
static struct kept *keep(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    struct kept *kept = has_key ? pthread_getspecific(kept_key) : NULL;
    if (kept == NULL && has_key && (kept = calloc(1, sizeof *kept)) != NULL && pthread_setspecific(kept_key, kept)) {
        free(kept);
        kept = NULL;
    }
    return kept;
}

/* Make the last file's tables such that libjpeg takes none of them: no Huffman code has 255 of each length. (With an
 * empty one it decodes zeros without a word.) */
static void spoil_tables(struct jpeg_decompress_struct *jpeg) {
    for (int k = 0; k < NUM_QUANT_TBLS; k++)
        if (jpeg->quant_tbl_ptrs[k] != NULL)
            jpeg->quant_tbl_ptrs[k]->quantval[0] = 0;
    for (int k = 0; k < NUM_HUFF_TBLS; k++) {
        if (jpeg->dc_huff_tbl_ptrs[k] != NULL)
            memset(jpeg->dc_huff_tbl_ptrs[k]->bits, 0xFF, sizeof jpeg->dc_huff_tbl_ptrs[k]->bits);
        if (jpeg->ac_huff_tbl_ptrs[k] != NULL)
            memset(jpeg->ac_huff_tbl_ptrs[k]->bits, 0xFF, sizeof jpeg->ac_huff_tbl_ptrs[k]->bits);
    }
}

/* Whether the file has brought the quantisation tables that it names: libjpeg would take a spoilt one. Huffman tables it
 * refuses itself, scan by scan. */
static int has_its_tables(const struct jpeg_decompress_struct *jpeg) {
    for (int k = 0; k < jpeg->num_components; k++) {
        const int table = jpeg->comp_info[k].quant_tbl_no;
        if (table < 0 || table >= NUM_QUANT_TBLS || jpeg->quant_tbl_ptrs[table] == NULL ||
            jpeg->quant_tbl_ptrs[table]->quantval[0] == 0)
            return 0;
    }
    return 1;
}

#define OTHER_WAY (-2)

static int own_entropy = 0;

/* Say whether entropy decoding is to be our own from now on (entropy.c), where it can, or libjpeg's. */
void prep_use_own_entropy(int wish) {
    own_entropy = wish;
}

/* Shared by the functions below, with `self->chunks` and `self->segments` set. Returns as they do, or OTHER_WAY:
 * there are segments, but libjpeg's entropy decoding is needed, which wants them joined. */
static int decode(struct decoder *self, unsigned claimed, int left_over, unsigned width, unsigned subsamplings,
                  unsigned scale, unsigned top, unsigned bottom, unsigned left, unsigned right, unsigned pitch,
                  uint8_t *out) {
    struct kept *const kept = keep();
    if (kept == NULL)
        return -1;
    struct jpeg_decompress_struct *const jpeg = self->jpeg = &kept->jpeg;
    self->next_chunk = 0;
    self->source = (struct jpeg_source_mgr){NULL,       0,          no_source_step, next_chunk,
                                            skip_bytes, refuse_resync, no_source_step};
    if (!kept->made) {
        jpeg->err = lib_jpeg_std_error(&kept->errors);
        kept->errors.error_exit = refuse;
        kept->errors.emit_message = refuse_warning;
        kept->errors.output_message = no_text;
    }
    jpeg->client_data = self;
    if (setjmp(self->refused)) {
        if (kept->made)
            lib_jpeg_abort_decompress(jpeg);
        return -1;
    }
    if (!kept->made) {
        lib_jpeg_CreateDecompress(jpeg, JPEG_LIB_VERSION, sizeof *jpeg);
        kept->made = 1;
    }
    jpeg->src = &self->source;
    spoil_tables(jpeg);
    lib_jpeg_read_header(jpeg, TRUE);
    /* A sequential image of several scans is rare, and its last tables are some that libjpeg has never checked. */
    if (!has_its_tables(jpeg) || (lib_jpeg_has_multiple_scans(jpeg) && !jpeg->progressive_mode))
        refuse((j_common_ptr)jpeg);
    const int kind = subsampling(jpeg);
    if (jpeg->image_width != width || jpeg->image_height != claimed || kind < 0 || !(subsamplings >> kind & 1))
        refuse((j_common_ptr)jpeg);
    jpeg->out_color_space = JCS_EXT_RGB;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg->do_fancy_upsampling = TRUE;
    jpeg->scale_num = 1;
    jpeg->scale_denom = scale;
    lib_jpeg_start_decompress(jpeg);
    /* From here on, rows and columns are those of the image at 1/scale. */
    const JDIMENSION columns = jpeg->output_width, rows = jpeg->output_height;
    if (!complete(jpeg) || columns != (width + scale - 1) / scale || rows != (claimed + scale - 1) / scale ||
        right > columns || bottom > rows)
        refuse((j_common_ptr)jpeg);

    JDIMENSION margin = (JDIMENSION)jpeg->max_h_samp_factor;
    JDIMENSION from = left > margin ? left - margin : 0;
    JDIMENSION count = (right + margin < columns ? right + margin : columns) - from;
    lib_jpeg_crop_scanline(jpeg, &from, &count); /* `from` moves left to an MCU, the right end stays */
    if (from > left || from + jpeg->output_width < right || jpeg->output_width > pitch)
        refuse((j_common_ptr)jpeg);
    const int taken = own_entropy && prep_entropy_serves(jpeg, is_of_library);
    if (!taken && self->segments != NULL) {
        lib_jpeg_abort_decompress(jpeg);
        return OTHER_WAY;
    }
    if (self->segments != NULL && self->source.bytes_in_buffer)
        refuse((j_common_ptr)jpeg); /* the scan begins elsewhere than the index says */
    if (taken) {
        /* As jpeg_crop_scanline says which columns of MCUs get an inverse DCT. */
        const unsigned across = jpeg->comps_in_scan > 1 ? (unsigned)jpeg->max_h_samp_factor : 1;
        const unsigned unit = across * (unsigned)jpeg->min_DCT_scaled_size;
        self->entropy.refuse = refuse;
        self->entropy.open = self->segments != NULL ? open_segment : NULL;
        if (!prep_entropy_take(&self->entropy, jpeg, from / unit, (from + jpeg->output_width + unit - 1) / unit))
            refuse((j_common_ptr)jpeg);
    }
    if (top > 0)
        lib_jpeg_skip_scanlines(jpeg, top);
    if (jpeg->output_scanline != top)
        refuse((j_common_ptr)jpeg);
    while (jpeg->output_scanline < bottom) {
        JSAMPROW row = out + (size_t)(jpeg->output_scanline - top) * pitch * 3;
        lib_jpeg_read_scanlines(jpeg, &row, 1);
    }
    /* The pure path decodes all rows claimed, and so finds what is wrong with them. */
    if (jpeg->output_scanline < rows) {
        JSAMPROW row = out + (size_t)(bottom - top) * pitch * 3;
        if (rows - jpeg->output_scanline > 1)
            lib_jpeg_skip_scanlines(jpeg, rows - 1 - jpeg->output_scanline);
        lib_jpeg_read_scanlines(jpeg, &row, 1);
    }
    if (jpeg->output_scanline != rows)
        refuse((j_common_ptr)jpeg);
    int clean = 1;
    if (self->segments != NULL) /* each ended as it has to, and that was the last one */
        clean = prep_entropy_leave(&self->entropy, jpeg) && self->segments->rows == 1 && self->segments->in_row == 0;
    else if (taken)
        clean = prep_entropy_leave(&self->entropy, jpeg) ? jpeg->unread_marker == JPEG_EOI : left_over;
    if (left_over)
        clean = clean && ends_next(self);
    else if (!taken)
        lib_jpeg_finish_decompress(jpeg);
    lib_jpeg_abort_decompress(jpeg);
    return clean ? (int)from : -1;
}

/* Decode columns [left, right) of rows [top, bottom) of the image at 1/scale into `out`, lines of `pitch` pixels, 3
 * bytes RGB each.
 *
 * data:           the JPEG; only `length` bytes are looked at.
 * height_at:      where the two bytes of the height are.
 * claimed:        rows that the frame header is to claim; at least `bottom` times `scale`.
 * left_over:      0: this is the whole image, it must be clean to its end. 1: data may be left over before the
 *                 marker of its end. 2: the same, and that marker is to be added after `length`.
 * width:          of the image, as the caller read it.
 * subsamplings:   set of bits: for which subsamplings this may be done.
 * scale:          1, 2, 4 or 8: what the inverse DCT makes smaller.
 * pitch:          room for right - left and MARGIN pixels more, or the whole width.
 * out:            room for bottom - top + 1 lines.
 *
 * Returns the column of the image that is the first in `out`, `left` or a little less; -1 if libjpeg complained or
 * the JPEG is not of a kind that this is for.
 */
int prep_region(const uint8_t *data, size_t length, size_t height_at, unsigned claimed, int left_over, unsigned width,
                unsigned subsamplings, unsigned scale, unsigned top, unsigned bottom, unsigned left, unsigned right,
                unsigned pitch, uint8_t *out) {
    struct decoder self;
    if (top >= bottom || bottom > claimed || left >= right || right > width || claimed > 0xFFFF || scale < 1 ||
        scale > 8 || (scale & (scale - 1)) || height_at > length || length - height_at < 2)
        return -1;
    self.height[0] = (JOCTET)(claimed >> 8);
    self.height[1] = (JOCTET)(claimed & 0xFF);
    self.chunks[0] = (struct chunk){data, height_at};
    self.chunks[1] = (struct chunk){self.height, 2};
    self.chunks[2] = (struct chunk){data + height_at + 2, length - height_at - 2};
    self.chunks[3] = (struct chunk){end_of_image, 2};
    self.segments = NULL;
    self.n_chunks = left_over == 2 ? 4 : 3;
    return decode(&self, claimed, left_over, width, subsamplings, scale, top, bottom, left, right, pitch, out);
}

/* Join the segments in `work` after its first `filled` bytes, and renumber their markers unless it is the `whole`
 * image. Returns how many bytes it holds then, with room to look ahead. */
static size_t join(struct segments segments, uint8_t *work, size_t filled, int whole) {
    unsigned marks = 0;
    for (unsigned row = 0; row < segments.rows; row++) {
        for (unsigned k = 0; k < segments.of_row; k++, segments.length += 2) {
            const size_t length = length_of(segments.length);
            memcpy(work + filled, segments.at, length);
            segments.at += length;
            filled += length;
            if (!whole)
                work[filled - 1] = (uint8_t)(JPEG_RST0 + (marks++ & 7));
        }
        if (row + 1 < segments.rows)
            for (unsigned k = 0; k < segments.between; k++, segments.length += 2)
                segments.at += length_of(segments.length);
    }
    if (!whole)
        work[filled - 1] = JPEG_EOI; /* the last byte of the last marker, as of all others */
    memset(work + filled, 0, MARGIN_BYTES); /* libjpeg's fast Huffman decoder wants room to look ahead */
    return filled + MARGIN_BYTES;
}

/* Decode a rectangle of an indexed JPEG (prepserver/protocol/packed.py), as prepserver/transform/scans.py cuts it out
 * and `prep_region` decodes that: the segments under it, and what upsampling looks at around it, after the header and a
 * frame of their size. Our own entropy decoding takes the segments from where they lie; for libjpeg's they are joined.
 * Only of a record of which `prep_is_true` holds: of another one any pixels may come.
 *
 * record, jpeg_at:  where the whole JPEG, of `size` bytes, begins.
 * lengths_at:       in `record`: `segments` times two bytes, little-endian: of each segment with the marker at its end.
 * height_at:        where the two bytes of the height are; the width follows.
 * scan_at:          where the first segment begins.
 * height, width:    of the image. unit_height, unit_width: of an MCU, pixels. interval: MCUs in a segment.
 * work, work_bytes: room for `size` and MARGIN_BYTES.
 * The others as for `prep_region`; `pitch` has room for whole segments and MARGIN pixels more, or `width`.
 *
 * Returns the column of the image that is the first in `out`; -1 if libjpeg complained or something does not fit.
 */
int prep_scan(const uint8_t *record, size_t lengths_at, size_t jpeg_at, size_t size, unsigned segments,
              unsigned height_at, unsigned scan_at, unsigned height, unsigned width, unsigned unit_height,
              unsigned unit_width, unsigned interval, unsigned subsamplings, unsigned top, unsigned bottom,
              unsigned left, unsigned right, unsigned pitch, uint8_t *work, size_t work_bytes, uint8_t *out) {
    struct decoder self;
    const uint8_t *const jpeg = record + jpeg_at, *lengths = record + lengths_at;
    if (top >= bottom || bottom > height || left >= right || right > width || height > 0xFFFF || width > 0xFFFF ||
        unit_height < 8 || unit_height > 32 || unit_width < 8 || unit_width > 32 || interval < 1 || interval > 0xFFFF ||
        scan_at < 8 || height_at < 4 || height_at > scan_at - 4 || scan_at > size || work_bytes < MARGIN_BYTES ||
        work_bytes - MARGIN_BYTES < size)
        return -1;
    const unsigned segment_width = unit_width * interval, across = (width + segment_width - 1) / segment_width;
    if (segments == 0 || segments % across || segments / across != (height + unit_height - 1) / unit_height)
        return -1;
    const unsigned sample_height = unit_height / 8, sample_width = unit_width / 8;
    const unsigned margin_rows = sample_height > 1 ? sample_height : 0;
    const unsigned margin_columns = sample_width > 1 ? sample_width : 0;
    const unsigned last_row = bottom + margin_rows < height ? bottom + margin_rows : height;
    const unsigned first_unit = (top > margin_rows ? top - margin_rows : 0) / unit_height;
    const unsigned end_unit = (last_row + unit_height - 1) / unit_height;
    const unsigned beyond = right + margin_columns < width ? right + margin_columns : width;
    unsigned first = (left > margin_columns ? left - margin_columns : 0) / segment_width;
    const unsigned end = (beyond + segment_width - 1) / segment_width;
    const unsigned last_column = end * segment_width < width ? end * segment_width : width;
    /* Fewer than three samples of chroma in a row are not interpolated at all. */
    if (first && last_column - first * segment_width <= 2 * sample_width)
        first--;
    const unsigned part_top = first_unit * unit_height, part_left = first * segment_width;
    const unsigned claimed = last_row - part_top, columns = last_column - part_left;

    size_t begins = 0, at = scan_at; /* the part's first segment, and the end of the segments so far */
    const unsigned first_segment = first_unit * across + first;
    for (unsigned k = 0; k < segments; k++) {
        const size_t length = length_of(lengths + 2 * (size_t)k);
        if (k == first_segment)
            begins = at;
        if (length < 2 || length > size - at)
            return -1;
        at += length;
    }
    if (at != size)
        return -1;
    /* Then it is decoded as it is: no size or marker that was damaged is to be made good. */
    const int whole = first == 0 && end == across && first_unit == 0 && last_row == height;
    memcpy(work, jpeg, scan_at);
    if (!whole) {
        work[height_at] = (uint8_t)(claimed >> 8);
        work[height_at + 1] = (uint8_t)claimed;
        work[height_at + 2] = (uint8_t)(columns >> 8);
        work[height_at + 3] = (uint8_t)columns;
    }
    struct segments part = {
        .at = jpeg + begins,
        .length = lengths + 2 * (size_t)first_segment,
        .in_row = end - first,
        .rows = end_unit - first_unit,
        .of_row = end - first,
        .between = across - (end - first),
    };
    self.chunks[0] = (struct chunk){work, scan_at};
    self.n_chunks = 1;
    self.segments = own_entropy ? &part : NULL;
    int from = OTHER_WAY;
    if (own_entropy)
        from = decode(&self, claimed, 0, columns, subsamplings, 1, top - part_top, bottom - part_top, left - part_left,
                      right - part_left, pitch, out);
    if (from == OTHER_WAY) {
        self.segments = NULL;
        self.chunks[0].size = join(part, work, scan_at, whole);
        from = decode(&self, claimed, 0, columns, subsamplings, 1, top - part_top, bottom - part_top, left - part_left,
                      right - part_left, pitch, out);
    }
    return from < 0 ? -1 : from + (int)part_left;
}
