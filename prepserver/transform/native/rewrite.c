/* Move the coefficients of a JPEG into one sequential scan with restart markers, as jpegtran does: no pixel changes.
 *
 * Only `prepserver pack` calls this. It takes its functions from the library that `prep_bind` found (region.c). Whatever
 * libjpeg has something to say about is refused, and so is a progressive image that lacks scans: decoders smooth it, and
 * would not smooth the result.
 *
 * Everything that must survive a longjmp out of libjpeg lives in `struct job`, never in a local variable.
 */
#include "kernels.h"
#include "turbo.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SCANS 500 /* usual are 10; each scan of a hostile file costs as much as decoding it */
#define FIRST_ROOM 65536

#define ALL_FUNCTIONS(F)                                                                                               \
    F(jpeg_std_error)                                                                                                  \
    F(jpeg_CreateDecompress)                                                                                           \
    F(jpeg_read_header)                                                                                                \
    F(jpeg_read_coefficients)                                                                                          \
    F(jpeg_finish_decompress)                                                                                          \
    F(jpeg_destroy_decompress)                                                                                         \
    F(jpeg_CreateCompress)                                                                                             \
    F(jpeg_copy_critical_parameters)                                                                                   \
    F(jpeg_write_coefficients)                                                                                         \
    F(jpeg_finish_compress)                                                                                            \
    F(jpeg_destroy_compress)

#define DECLARE(name) static __typeof__(&name) lib_##name;
ALL_FUNCTIONS(DECLARE)

static int is_bound = 0;

/* Take libjpeg's functions from an open library; without all of them, nothing is rewritten. */
void prep_bind_rewrite(void *library) {
    is_bound = 1;
#define FIND(name)                                                                                                     \
    if ((*(void **)&lib_##name = dlsym(library, #name)) == NULL)                                                       \
        is_bound = 0;
    ALL_FUNCTIONS(FIND)
}

struct job {
    struct jpeg_decompress_struct in;
    struct jpeg_compress_struct out;
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    struct jpeg_source_mgr source;
    struct jpeg_destination_mgr to;
    jmp_buf refused;
    uint8_t *made;
    size_t room;
};

static void refuse(j_common_ptr jpeg) {
    struct job *const job = jpeg->client_data;
    longjmp(job->refused, 1);
}

static void refuse_warning(j_common_ptr jpeg, int level) {
    if (level < 0)
        refuse(jpeg);
}

static void no_text(j_common_ptr jpeg) {
    (void)jpeg;
}

static void count_scans(j_common_ptr jpeg) {
    const struct job *const job = jpeg->client_data;
    if (job->in.input_scan_number > MOST_SCANS)
        refuse(jpeg);
}

static void no_source_step(j_decompress_ptr jpeg) {
    (void)jpeg;
}

static boolean truncated(j_decompress_ptr jpeg) {
    refuse((j_common_ptr)jpeg);
    return FALSE;
}

static void skip_bytes(j_decompress_ptr jpeg, long count) {
    if (count <= 0)
        return;
    if ((size_t)count > jpeg->src->bytes_in_buffer)
        refuse((j_common_ptr)jpeg);
    jpeg->src->next_input_byte += count;
    jpeg->src->bytes_in_buffer -= (size_t)count;
}

static boolean refuse_resync(j_decompress_ptr jpeg, int desired) {
    (void)desired;
    refuse((j_common_ptr)jpeg);
    return FALSE;
}

static void no_more_room(j_compress_ptr jpeg) {
    (void)jpeg;
}

/* Make the output twice as large. */
static boolean grow(j_compress_ptr jpeg) {
    struct job *const job = jpeg->client_data;
    uint8_t *const larger = realloc(job->made, 2 * job->room);
    if (larger == NULL)
        refuse((j_common_ptr)jpeg);
    job->made = larger;
    job->to.next_output_byte = larger + job->room;
    job->to.free_in_buffer = job->room;
    job->room *= 2;
    return TRUE;
}

static int is_complete(const struct jpeg_decompress_struct *jpeg) {
    if (!jpeg->progressive_mode)
        return 1;
    for (int part = 0; part < jpeg->num_components; part++)
        for (int k = 0; k < DCTSIZE2; k++)
            if (jpeg->coef_bits == NULL || jpeg->coef_bits[part][k] != 0)
                return 0;
    return 1;
}

static void rewrite(struct job *job, unsigned interval) {
    struct jpeg_decompress_struct *const in = &job->in;
    struct jpeg_compress_struct *const out = &job->out;
    in->src = &job->source;
    in->progress = &job->progress;
    out->dest = &job->to;
    lib_jpeg_read_header(in, TRUE);
    jvirt_barray_ptr *const coefficients = lib_jpeg_read_coefficients(in);
    if (!is_complete(in))
        refuse((j_common_ptr)in);
    lib_jpeg_copy_critical_parameters(in, out);
    out->optimize_coding = TRUE;
    out->restart_interval = interval;
    lib_jpeg_write_coefficients(out, coefficients);
    lib_jpeg_finish_compress(out);
    lib_jpeg_finish_decompress(in);
}

/* The JPEG `data` with a restart marker every `interval` MCUs: `*made` is for `prep_free`. Returns its bytes, 0 if it is
 * refused. */
size_t prep_rewrite(const uint8_t *data, size_t size, unsigned interval, uint8_t **made) {
    struct job *const job = is_bound && interval <= 65535 ? calloc(1, sizeof *job) : NULL;
    if (job == NULL)
        return 0;
    job->room = size < FIRST_ROOM ? FIRST_ROOM : size;
    job->source = (struct jpeg_source_mgr){data, size, no_source_step, truncated, skip_bytes, refuse_resync, no_source_step};
    job->to = (struct jpeg_destination_mgr){NULL, 0, no_more_room, grow, no_more_room};
    job->progress.progress_monitor = count_scans;
    job->in.err = job->out.err = lib_jpeg_std_error(&job->errors);
    job->errors.error_exit = refuse;
    job->errors.emit_message = refuse_warning;
    job->errors.output_message = no_text;
    job->in.client_data = job->out.client_data = job;
    volatile size_t written = 0;
    if (setjmp(job->refused) == 0) {
        lib_jpeg_CreateDecompress(&job->in, JPEG_LIB_VERSION, sizeof job->in);
        lib_jpeg_CreateCompress(&job->out, JPEG_LIB_VERSION, sizeof job->out);
        job->to.next_output_byte = job->made = malloc(job->room);
        job->to.free_in_buffer = job->room;
        if (job->made != NULL) {
            rewrite(job, interval);
            *made = job->made;
            job->made = NULL;
            written = job->room - job->to.free_in_buffer;
        }
    }
    /* Both do nothing to one that was not made. */
    lib_jpeg_destroy_compress(&job->out);
    lib_jpeg_destroy_decompress(&job->in);
    free(job->made);
    free(job);
    return written;
}

void prep_free(uint8_t *made) {
    free(made);
}
