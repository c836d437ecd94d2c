/* Decode a rectangle of a JPEG with libjpeg-turbo: same pixels as a whole decode, nothing decoded that can be left out.
 *
 * Rows above the rectangle are entropy-decoded only (jpeg_skip_scanlines), columns beside it get no inverse DCT
 * (jpeg_crop_scanline), rows below are not looked at: the frame header is made to claim fewer rows, as the pure path
 * does (prepserver/transform/header.py, `extent`). The result counts only if libjpeg had nothing to say; on any
 * warning or error the caller takes the pure path, whose verdict holds.
 *
 * libjpeg is not linked. `prep_bind` takes its functions from the library that Pillow brings (see native/__init__.py);
 * the headers that this is compiled with need only have the same ABI, which jpeg_CreateDecompress checks once more.
 *
 * Hazards:
 * - longjmp out of libjpeg: everything that must survive lives in `struct decoder`, never in a local variable.
 * - A fresh jpeg_decompress_struct each call: a reused one keeps Huffman and quantisation tables, and a file without
 *   its own would take the last file's. A row must be a function of its own file.
 * - jpeg_skip_scanlines to the very end of an image decodes nothing of what it skips, and so finds no damage there:
 *   the last row is always read.
 * - A progressive image whose last scans are missing is smoothed across blocks, with neighbours that are left out here:
 *   it is refused.
 * - Upsampling looks one chroma sample to each side and takes the edge of the cropped part for the image's edge:
 *   hence the margin.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <dlfcn.h>
#include <setjmp.h>
#include <string.h>

/* Ubuntu's headers are for ABI 80; wheels of Pillow hold ABI 62. libjpeg-turbo's one jpeglib.h serves all. */
#include <jconfig.h>
#define JCONFIG_INCLUDED
#undef JPEG_LIB_VERSION
#define JPEG_LIB_VERSION 62
#include <jpeglib.h>
#ifndef LIBJPEG_TURBO_VERSION_NUMBER
#error "jpeglib.h is not libjpeg-turbo's"
#endif

#define ALL_FUNCTIONS(F)                                                                                               \
    F(jpeg_std_error)                                                                                                  \
    F(jpeg_CreateDecompress)                                                                                           \
    F(jpeg_read_header)                                                                                                \
    F(jpeg_start_decompress)                                                                                           \
    F(jpeg_crop_scanline)                                                                                              \
    F(jpeg_skip_scanlines)                                                                                             \
    F(jpeg_read_scanlines)                                                                                             \
    F(jpeg_finish_decompress)                                                                                          \
    F(jpeg_destroy_decompress)

#define DECLARE(name) static __typeof__(&name) lib_##name;
ALL_FUNCTIONS(DECLARE)

/* Columns that may be decoded beyond those asked for: to the next MCU (at most 32 pixels) and a sample of chroma on
 * either side. native/__init__.py has the same number. */
#define MARGIN 40

struct chunk {
    const JOCTET *at;
    size_t size;
};

struct decoder {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    jmp_buf refused;
    struct chunk chunks[4];
    int next_chunk, n_chunks;
    JOCTET height[2];
};

/* Which source this was made from: an old build in a checkout must not be taken for the present one. */
#ifndef PREP_SOURCE
#define PREP_SOURCE ""
#endif
const char prep_source[] = PREP_SOURCE;

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
        next_chunk(&self->jpeg);
    self->source.bytes_in_buffer--;
    return *self->source.next_input_byte++;
}

/* Whether the next marker in the data that is left over is the end of the image. */
static int ends_next(struct decoder *self) {
    int marker = self->jpeg.unread_marker;
    while (marker == 0) {
        const JOCTET *at = memchr(self->source.next_input_byte, 0xFF, self->source.bytes_in_buffer);
        if (at == NULL) {
            next_chunk(&self->jpeg);
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

/* Take libjpeg's functions from `library` or what it depends on. Returns NULL, or what is missing. */
const char *prep_bind(const char *library) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL)
        return "its file cannot be loaded";
#define FIND(name)                                                                                                     \
    if ((*(void **)&lib_##name = dlsym(handle, #name)) == NULL)                                                        \
        return "no " #name;
    ALL_FUNCTIONS(FIND)
    return NULL;
}

/* Decode columns [left, right) of rows [top, bottom) into `out`, lines of `pitch` pixels, 3 bytes RGB each.
 *
 * data:           the JPEG; only `length` bytes are looked at.
 * height_at:      where the two bytes of the height are.
 * claimed:        rows that the frame header is to claim; at least `bottom`.
 * left_over:      0: this is the whole image, it must be clean to its end. 1: data may be left over before the
 *                 marker of its end. 2: the same, and that marker is to be put behind `length`.
 * width:          of the image, as the caller read it.
 * subsamplings:   set of bits: for which subsamplings this may be done.
 * pitch:          room for right - left and MARGIN pixels more, or `width`.
 * out:            room for bottom - top + 1 lines.
 *
 * Returns the column of the image that is the first in `out`, `left` or a little less; -1 if libjpeg complained or
 * the JPEG is not of a kind that this is for.
 */
int prep_region(const uint8_t *data, size_t length, size_t height_at, unsigned claimed, int left_over, unsigned width,
                unsigned subsamplings, unsigned top, unsigned bottom, unsigned left, unsigned right, unsigned pitch,
                uint8_t *out) {
    struct decoder self;
    struct jpeg_decompress_struct *const jpeg = &self.jpeg;
    if (top >= bottom || bottom > claimed || left >= right || right > width || claimed > 0xFFFF ||
        height_at > length || length - height_at < 2)
        return -1;
    self.height[0] = (JOCTET)(claimed >> 8);
    self.height[1] = (JOCTET)(claimed & 0xFF);
    self.chunks[0] = (struct chunk){data, height_at};
    self.chunks[1] = (struct chunk){self.height, 2};
    self.chunks[2] = (struct chunk){data + height_at + 2, length - height_at - 2};
    self.chunks[3] = (struct chunk){end_of_image, 2};
    self.n_chunks = left_over == 2 ? 4 : 3;
    self.next_chunk = 0;
    self.source = (struct jpeg_source_mgr){NULL,       0,          no_source_step, next_chunk,
                                           skip_bytes, refuse_resync, no_source_step};
    memset(jpeg, 0, sizeof *jpeg); /* destroying it is harmless even if creating it failed */
    jpeg->err = lib_jpeg_std_error(&self.errors);
    self.errors.error_exit = refuse;
    self.errors.emit_message = refuse_warning;
    self.errors.output_message = no_text;
    jpeg->client_data = &self;
    if (setjmp(self.refused)) {
        lib_jpeg_destroy_decompress(jpeg);
        return -1;
    }
    lib_jpeg_CreateDecompress(jpeg, JPEG_LIB_VERSION, sizeof *jpeg);
    jpeg->src = &self.source;
    lib_jpeg_read_header(jpeg, TRUE);
    const int kind = subsampling(jpeg);
    if (jpeg->image_width != width || jpeg->image_height != claimed || kind < 0 || !(subsamplings >> kind & 1))
        refuse((j_common_ptr)jpeg);
    jpeg->out_color_space = JCS_EXT_RGB;
    jpeg->dct_method = JDCT_ISLOW;
    jpeg->do_fancy_upsampling = TRUE;
    lib_jpeg_start_decompress(jpeg);
    if (!complete(jpeg))
        refuse((j_common_ptr)jpeg);

    JDIMENSION margin = (JDIMENSION)jpeg->max_h_samp_factor;
    JDIMENSION from = left > margin ? left - margin : 0;
    JDIMENSION count = (right + margin < width ? right + margin : width) - from;
    lib_jpeg_crop_scanline(jpeg, &from, &count); /* `from` moves left to an MCU, the right end stays */
    if (from > left || from + jpeg->output_width < right || jpeg->output_width > pitch)
        refuse((j_common_ptr)jpeg);
    if (top > 0)
        lib_jpeg_skip_scanlines(jpeg, top);
    if (jpeg->output_scanline != top)
        refuse((j_common_ptr)jpeg);
    while (jpeg->output_scanline < bottom) {
        JSAMPROW row = out + (size_t)(jpeg->output_scanline - top) * pitch * 3;
        lib_jpeg_read_scanlines(jpeg, &row, 1);
    }
    /* The pure path decodes all rows claimed, and so finds what is wrong with them. */
    if (jpeg->output_scanline < claimed) {
        JSAMPROW row = out + (size_t)(bottom - top) * pitch * 3;
        if (claimed - jpeg->output_scanline > 1)
            lib_jpeg_skip_scanlines(jpeg, claimed - 1 - jpeg->output_scanline);
        lib_jpeg_read_scanlines(jpeg, &row, 1);
    }
    if (jpeg->output_scanline != claimed)
        refuse((j_common_ptr)jpeg);
    int clean = 1;
    if (left_over)
        clean = ends_next(&self);
    else
        lib_jpeg_finish_decompress(jpeg);
    lib_jpeg_destroy_decompress(jpeg);
    return clean ? (int)from : -1;
}
