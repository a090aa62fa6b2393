/**
 * @file store.h
 * @brief The job's small key-value store, by which its processes find and count each other.
 *
 * One process serves it at an address, or it is a file that all of them reach; every process of
 * the job, in any language, connects to it. Keys are UTF-8 of 1 to 1024 bytes, values are bytes,
 * up to 1 MiB. Over the network every connection is authenticated in both directions by the job's
 * token: 16 to 1024 bytes, from the file named by TRIREME_TOKEN_FILE, which others may not read,
 * or else from the descriptor TRIREME_TOKEN_FD, which is read once to its end and closed, or else
 * from TRIREME_TOKEN. It is never sent.
 *
 * Ownership: a store is created by trireme_store_serve() or trireme_store_connect() and destroyed
 * by trireme_store_destroy(). Nothing here keeps a pointer of the caller's.
 *
 * Thread safety: every function here may run on any thread concurrently with other calls on the
 * same store. A call that waits keeps no other call waiting.
 */
#ifndef TRIREME_STORE_H
#define TRIREME_STORE_H

#include <stdint.h>
#include <trireme/export.h>
#include <trireme/status.h>
#include <trireme/types.h>

TRIREME_BEGIN_C

/** The key-value store of a job. */
typedef struct trireme_store trireme_store;

/** Start from TRIREME_STORE_OPTIONS_INIT. In every field 0 means the default. */
typedef struct trireme_store_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** Longest any call may take to be answered. Default: 300 s. */
    uint64_t timeout_ns;
} trireme_store_options; /* since 1.0 */

/** The defaults. */
#define TRIREME_STORE_OPTIONS_INIT { sizeof(trireme_store_options), 0, 0 }

/**
 * Serves a store from this process until it is destroyed, and is connected to it.
 *
 * Does not wait for others. Listens at exactly the address named, never at all addresses of a
 * host. The store's content is in this process' memory alone: at most 65536 keys, and 64 MiB of
 * keys and values.
 *
 * @param url       "tcp://ADDRESS:PORT"; with port 0 the system chooses one, which
 *                  trireme_store_get_address() tells. "env://": the URL in TRIREME_STORE, or the
 *                  address in MASTER_ADDR and MASTER_PORT. NULL: "tcp://127.0.0.1:0".
 * @param options   NULL for the defaults.
 * @param[out] out_store  The store; free it with trireme_store_destroy(). Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_store is NULL, `url` is none of these, names every
 *                  address of a host or a host that is not known, or an option is out of range.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_AUTHENTICATION  The environment names no token that could be one.
 * @retval TRIREME_ERROR_INVALID_STATE  This process was forked by one that had used the library.
 * @retval TRIREME_ERROR_TIMEOUT  The timeout of the options was too short.
 * @retval TRIREME_ERROR_SYSTEM  The address is taken or not of this host, or the system has no
 *                  socket or thread left.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_store_serve(const char *url, const trireme_store_options *options,
                    trireme_store **out_store);

/**
 * Connects to a store.
 *
 * Blocks until it is there and has proved that it knows the job's token, up to the timeout of the
 * options: who serves it may come later. In the time between, it is tried again and again.
 *
 * @param url       "tcp://ADDRESS:PORT"; "file:///PATH": a file that all processes of the job reach
 *                  and only their user can read and write, made if it is not there and left behind
 *                  by all of them, so that each job needs one of its own; or "env://", as for
 *                  trireme_store_serve(). NULL: "env://".
 * @param options   NULL for the defaults.
 * @param[out] out_store  The store; free it with trireme_store_destroy(). Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_store is NULL, `url` is none of these or no regular
 *                  file, or an option is out of range.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_AUTHENTICATION  The environment names no token that could be one; who
 *                  serves there does not know it; or the file is of another job, or others can
 *                  read or write it.
 * @retval TRIREME_ERROR_MISMATCH  Who serves there is of this job, but is no store or speaks
 *                  another version.
 * @retval TRIREME_ERROR_TIMEOUT  Nobody serves there; names the last reason.
 * @retval TRIREME_ERROR_CORRUPT  The file is damaged.
 * @retval TRIREME_ERROR_INVALID_STATE  This process was forked by one that had used the library.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be made or read, or the system has no socket left.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_store_connect(const char *url, const trireme_store_options *options,
                      trireme_store **out_store);

/**
 * Leaves a store; one that is served from here is gone for all.
 *
 * Never waits for others. Calls under way on other threads fail with TRIREME_ERROR_CANCELLED.
 *
 * @param store  A store; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALL trireme_store_destroy(trireme_store *store);

/**
 * Tells the URL by which others connect, for example "tcp://10.0.0.2:29401".
 *
 * Does not block. Copies the text with its final 0 into the caller's memory.
 *
 * @param store         The store.
 * @param[out] text     Memory for the text; NULL to ask for the length only.
 * @param capacity      Bytes at `text`; a longer text is cut so that the final 0 fits.
 * @param[out] out_length  Bytes of the whole text without its final 0; may be NULL.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  text is NULL while capacity is not 0.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_store_get_address(const trireme_store *store, char *text, uint64_t capacity,
                      uint64_t *out_length);

/**
 * Puts a value under a key, in place of the one before.
 *
 * Blocks until the store has answered, up to its timeout. If the connection breaks, it is made
 * anew and the request repeated; the store carries it out once. After a failure by TIMEOUT,
 * PEER_LOST or CANCELLED it may or may not have been done.
 *
 * @param store  The store.
 * @param key    1 to 1024 bytes of UTF-8.
 * @param value  The value's bytes; may be NULL if `size` is 0.
 * @param size   How many; at most 1 MiB.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, the key is empty, too long or no
 *                  UTF-8, or the value is too long.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  The store is full, or host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  The store does not answer.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost what it held.
 * @retval TRIREME_ERROR_CORRUPT  What came from the store or stands in the file is damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be written.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_store_set(trireme_store *store, const char *key, const void *value, uint64_t size);

/**
 * Gives the value of a key, if it has one.
 *
 * Blocks until the store has answered, up to its timeout, but does not wait for the key:
 * trireme_store_wait() does.
 *
 * @param store         The store.
 * @param key           1 to 1024 bytes of UTF-8.
 * @param[out] value    Memory for the value; NULL to ask for its size only. Bytes that do not fit
 *                      are left out.
 * @param capacity      Bytes at `value`.
 * @param[out] out_size  Bytes of the whole value, 0 if there is none; may be NULL. It may grow until
 *                      the next call.
 * @param[out] out_found  1 if the key has a value, else 0.
 * @retval TRIREME_OK  Also if the key has no value.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  key or out_found is NULL, value is NULL while capacity is
 *                  not 0, or the key is empty, too long or no UTF-8.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  The store does not answer.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost what it held.
 * @retval TRIREME_ERROR_CORRUPT  What came from the store or stands in the file is damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be read.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_store_get(trireme_store *store, const char *key, void *value, uint64_t capacity,
                  uint64_t *out_size, int32_t *out_found);

/**
 * Waits until all of these keys have a value.
 *
 * Blocks up to timeout_ns; a store that does not answer is noticed up to a second later.
 *
 * @param store       The store.
 * @param keys        Keys of 1 to 1024 bytes of UTF-8, together at most 256 KiB.
 * @param key_count   How many; at most 4096. 0 returns when the store has answered.
 * @param timeout_ns  Longest wait; 0 asks without waiting.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, a key is empty, too long or no UTF-8,
 *                  or there are too many.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  A key has no value yet; names it, and how many have one.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost what it held.
 * @retval TRIREME_ERROR_CORRUPT  What came from the store or stands in the file is damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be read.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_store_wait(trireme_store *store, const char *const *keys, uint64_t key_count,
                   uint64_t timeout_ns);

/**
 * Adds to the number under a key, which is 0 if there is none, and gives the sum.
 *
 * Atomic: of many that add 1, each gets another sum. The value of the key is the number as decimal
 * text. Blocks and repeats as trireme_store_set() does.
 *
 * @param store   The store.
 * @param key     1 to 1024 bytes of UTF-8.
 * @param amount  What to add; may be negative, or 0 to read the number.
 * @param[out] out_sum  The number afterwards; may be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  key is NULL, empty, too long or no UTF-8.
 * @retval TRIREME_ERROR_INVALID_STATE  The key's value is no number, or the sum has more than 64
 *                  bits; nothing has changed.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  The store is full, or host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  The store does not answer.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost what it held.
 * @retval TRIREME_ERROR_CORRUPT  What came from the store or stands in the file is damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be written.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_store_add(trireme_store *store, const char *key, int64_t amount, int64_t *out_sum);

/**
 * Puts a value under a key if what is there is what the caller expects.
 *
 * Atomic. Blocks and repeats as trireme_store_set() does.
 *
 * @param store          The store.
 * @param key            1 to 1024 bytes of UTF-8.
 * @param expected       The value that must be there; NULL: the key must have none.
 * @param expected_size  Bytes at `expected`; 0 if it is NULL.
 * @param value          The value's bytes; may be NULL if `size` is 0.
 * @param size           How many; at most 1 MiB.
 * @param[out] out_exchanged  1 if it was put there, 0 if something else is there. Not written on
 *                       failure.
 * @retval TRIREME_OK  Also if something else is there.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  key or out_exchanged is NULL, a pointer is NULL while its
 *                  size is not 0, the key is empty, too long or no UTF-8, or a value is too long.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  The store is full, or host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  The store does not answer.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost what it held.
 * @retval TRIREME_ERROR_CORRUPT  What came from the store or stands in the file is damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be written.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_store_compare_exchange(trireme_store *store, const char *key, const void *expected,
                               uint64_t expected_size, const void *value, uint64_t size,
                               int32_t *out_exchanged);

/**
 * Takes a key and its value away.
 *
 * Blocks and repeats as trireme_store_set() does.
 *
 * @param store  The store.
 * @param key    1 to 1024 bytes of UTF-8.
 * @param[out] out_deleted  1 if it had a value, else 0; may be NULL. Not written on failure.
 * @retval TRIREME_OK  Also if the key had no value.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  key is NULL, empty, too long or no UTF-8.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  The file is full, or host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  The store does not answer.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost what it held.
 * @retval TRIREME_ERROR_CORRUPT  What came from the store or stands in the file is damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be written.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALL
trireme_store_delete(trireme_store *store, const char *key, int32_t *out_deleted);

TRIREME_END_C

#endif
