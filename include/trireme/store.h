/**
 * @file store.h
 * @brief The job's small key-value store, by which its processes find and count each other.
 *
 * One process serves the store at an address, or the store is a file that all processes reach.
 * Every process of the job, in any language, connects to it. Keys are UTF-8 of 1 to 1024 bytes.
 * Values are bytes, up to 1 MiB. docs/store.md has an example.
 *
 * Token: over the network both ends of every connection prove that they know the job's token. The
 * token itself is never sent. It has 16 to 1024 bytes. It comes from the first of these that is
 * set:
 *
 * - TRIREME_TOKEN_FILE: the path of a file that others may not read.
 * - TRIREME_TOKEN_FD: a descriptor, which the library reads once to its end and closes.
 * - TRIREME_TOKEN: the token itself.
 *
 * Ownership: the caller creates a store with trireme_store_serve() or trireme_store_connect() and
 * destroys it with trireme_store_destroy(). No function here keeps a pointer of the caller.
 *
 * Thread safety: every function here may run on any thread concurrently with other calls on the
 * same store. A call that waits does not keep other calls waiting.
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

/** Options of a store. Start from TRIREME_STORE_OPTIONS_INIT. 0 means the default. */
typedef struct trireme_store_options {
    /** sizeof this struct as the caller knows it. */
    uint32_t struct_size;
    /** Must be 0. */
    uint32_t flags;
    /** Longest time in ns in which the store must answer a call. Default: 300 s. */
    uint64_t timeout_ns;
} trireme_store_options; /* since 1.0 */

/** Options with all defaults. */
#define TRIREME_STORE_OPTIONS_INIT TRIREME_INIT(trireme_store_options)

/**
 * Serves a store from this process until the store is destroyed, and connects to it.
 *
 * Does not wait for others. Listens at exactly the address named, never at all addresses of a
 * host. The store's content lies in the memory of this process alone. It holds at most 65536 keys,
 * and 64 MiB of keys and values.
 *
 * @param url       "tcp://ADDRESS:PORT". With port 0 the system chooses one, which
 *                  trireme_store_get_address() tells. Or "env://": the URL in TRIREME_STORE, or
 *                  else the address in MASTER_ADDR and MASTER_PORT. NULL: "tcp://127.0.0.1:0".
 * @param options   NULL for the defaults.
 * @param[out] out_store  The store; free it with trireme_store_destroy(). Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_store is NULL, or an option is out of range. Or `url`
 *                  is none of these, names every address of a host, or names an unknown host.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_AUTHENTICATION  The environment has no valid token.
 * @retval TRIREME_ERROR_INVALID_STATE  This process was forked by one that had used the library.
 * @retval TRIREME_ERROR_TIMEOUT  The timeout of the options was too short.
 * @retval TRIREME_ERROR_SYSTEM  The address is taken or not of this host, or the system has no
 *                  socket or thread left.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_store_serve(
    const char *url, const trireme_store_options *options, trireme_store **out_store);

/**
 * Connects to a store.
 *
 * Blocks until the store has proved that it knows the job's token, up to the timeout of the
 * options. The server may start later: this call tries again until then.
 *
 * @param url       One of these. NULL: "env://".
 *                  "tcp://ADDRESS:PORT": the address at which a process serves the store.
 *                  "file:///PATH": a file that all processes of the job reach. Only their user can
 *                  read and write it. The call makes the file if it is not there. No process
 *                  removes it, so each job needs a file of its own.
 *                  "env://": as for trireme_store_serve(), and TRIREME_STORE may name a file.
 * @param options   NULL for the defaults.
 * @param[out] out_store  The store; free it with trireme_store_destroy(). Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  out_store is NULL, or an option is out of range. Or `url`
 *                  is none of these, or names no regular file.
 * @retval TRIREME_ERROR_UNSUPPORTED  `options` sets a field newer than this library.
 * @retval TRIREME_ERROR_AUTHENTICATION  The environment has no valid token, or the server does not
 *                  know it. Or the file belongs to another job, or others can read or write it.
 * @retval TRIREME_ERROR_MISMATCH  The server belongs to this job, but is no store or speaks
 *                  another version.
 * @retval TRIREME_ERROR_TIMEOUT  No store serves there; the message names the last reason.
 * @retval TRIREME_ERROR_CORRUPT  The file is damaged.
 * @retval TRIREME_ERROR_INVALID_STATE  This process was forked by one that had used the library.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be made or read, or the system has no socket left.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_store_connect(
    const char *url, const trireme_store_options *options, trireme_store **out_store);

/**
 * Leaves a store. A store that this process serves is then gone for all.
 *
 * Never waits for others. Calls under way on other threads fail with TRIREME_ERROR_CANCELLED.
 *
 * @param store  A store; NULL and a stale handle are ignored.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_API void TRIREME_CALLCONV trireme_store_destroy(trireme_store *store);

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
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_store_get_address(
    const trireme_store *store, char *text, uint64_t capacity, uint64_t *out_length);

/**
 * Puts a value under a key, in place of the one before.
 *
 * Blocks until the store has answered, up to its timeout. If the connection breaks, the library
 * connects again and repeats the request; the store carries it out once. After TIMEOUT, PEER_LOST
 * or CANCELLED the store may or may not have carried it out.
 *
 * @param store  The store.
 * @param key    1 to 1024 bytes of UTF-8.
 * @param value  The value's bytes; may be NULL if `bytes` is 0.
 * @param bytes  Number of these bytes; at most 1 MiB.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or the value is too long. Or the key
 *                  is empty, too long or no UTF-8.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  The store is full, or host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  The store does not answer.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost its content.
 * @retval TRIREME_ERROR_CORRUPT  Bytes from the store or in the file are damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be written.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_store_set(trireme_store *store,
                                                                   const char *key,
                                                                   const void *value,
                                                                   uint64_t bytes);

/**
 * Gives the value of a key, if it has one.
 *
 * Blocks until the store has answered, up to its timeout. It does not wait for the key to get a
 * value; trireme_store_wait() does.
 *
 * @param store         The store.
 * @param key           1 to 1024 bytes of UTF-8.
 * @param[out] value    Memory for the value; NULL to ask for its length only. Bytes that do not fit
 *                      are left out.
 * @param capacity      Bytes at `value`.
 * @param[out] out_bytes  Bytes of the whole value, 0 if there is none; may be NULL. By the next
 *                      call the value may have grown.
 * @param[out] out_found  1 if the key has a value, else 0.
 * @retval TRIREME_OK  Also if the key has no value.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  key or out_found is NULL, or value is NULL while capacity
 *                  is not 0. Or the key is empty, too long or no UTF-8.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  The store does not answer.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost its content.
 * @retval TRIREME_ERROR_CORRUPT  Bytes from the store or in the file are damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be read.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_store_get(trireme_store *store,
                                                                   const char *key, void *value,
                                                                   uint64_t capacity,
                                                                   uint64_t *out_bytes,
                                                                   int32_t *out_found);

/**
 * Waits until all of these keys have a value.
 *
 * Blocks up to timeout_ns. If the store does not answer at all, the call returns up to 1 s later.
 *
 * @param store       The store.
 * @param keys        Keys of 1 to 1024 bytes of UTF-8, together at most 256 KiB.
 * @param key_count   Number of keys; at most 4096. With 0 the call returns when the store has
 *                    answered.
 * @param timeout_ns  Longest wait in ns; 0 asks without waiting.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  A pointer is NULL, or there are too many keys. Or a key
 *                  is empty, too long or no UTF-8.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  Host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  A key has no value yet. The message names it, and how many keys
 *                  have one.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost its content.
 * @retval TRIREME_ERROR_CORRUPT  Bytes from the store or in the file are damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be read.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_store_wait(trireme_store *store,
                                                                    const char *const *keys,
                                                                    uint64_t key_count,
                                                                    uint64_t timeout_ns);

/**
 * Adds to the number under a key and gives the sum. A key without a value counts as 0.
 *
 * Atomic: if many callers add 1, each gets another sum. The value of the key is the number as
 * decimal text. Blocks and repeats the request as trireme_store_set() does.
 *
 * @param store   The store.
 * @param key     1 to 1024 bytes of UTF-8.
 * @param amount  Number to add; may be negative, or 0 to read the number.
 * @param[out] out_sum  The number afterwards; may be NULL. Not written on failure.
 * @retval TRIREME_OK
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  key is NULL, empty, too long or no UTF-8.
 * @retval TRIREME_ERROR_INVALID_STATE  The key's value is no number, or the sum does not fit 64
 *                  bits. Nothing has changed.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  The store is full, or host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  The store does not answer.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost its content.
 * @retval TRIREME_ERROR_CORRUPT  Bytes from the store or in the file are damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be written.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_store_add(trireme_store *store,
                                                                   const char *key, int64_t amount,
                                                                   int64_t *out_sum);

/**
 * Puts a value under a key if the key has the value that the caller expects.
 *
 * Atomic. Blocks and repeats the request as trireme_store_set() does.
 *
 * @param store          The store.
 * @param key            1 to 1024 bytes of UTF-8.
 * @param expected       The value that the key must have; NULL: the key must have none.
 * @param expected_bytes  Bytes at `expected`; 0 if it is NULL.
 * @param value          The value's bytes; may be NULL if `bytes` is 0.
 * @param bytes          Number of these bytes; at most 1 MiB.
 * @param[out] out_exchanged  1 if the key has the new value, 0 if it did not have the expected one.
 *                       Not written on failure.
 * @retval TRIREME_OK  Also if the key did not have the expected value.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  key or out_exchanged is NULL, or a pointer is NULL while
 *                  its bytes are not 0. Or the key is empty, too long or no UTF-8. Or a value is
 * too long.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  The store is full, or host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  The store does not answer.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost its content.
 * @retval TRIREME_ERROR_CORRUPT  Bytes from the store or in the file are damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be written.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_store_compare_exchange(
    trireme_store *store, const char *key, const void *expected, uint64_t expected_bytes,
    const void *value, uint64_t bytes, int32_t *out_exchanged);

/**
 * Deletes a key and its value.
 *
 * Blocks and repeats the request as trireme_store_set() does.
 *
 * @param store  The store.
 * @param key    1 to 1024 bytes of UTF-8.
 * @param[out] out_deleted  1 if the key had a value, else 0; may be NULL. Not written on failure.
 * @retval TRIREME_OK  Also if the key had no value.
 * @retval TRIREME_ERROR_INVALID_HANDLE  No live store of this process.
 * @retval TRIREME_ERROR_INVALID_ARGUMENT  key is NULL, empty, too long or no UTF-8.
 * @retval TRIREME_ERROR_OUT_OF_MEMORY  The file is full, or host memory has run out.
 * @retval TRIREME_ERROR_TIMEOUT  The store does not answer.
 * @retval TRIREME_ERROR_PEER_LOST  The store is gone, or was started anew and has lost its content.
 * @retval TRIREME_ERROR_CORRUPT  Bytes from the store or in the file are damaged.
 * @retval TRIREME_ERROR_AUTHENTICATION  Another program serves there now.
 * @retval TRIREME_ERROR_MISMATCH  Another version of the library serves there now.
 * @retval TRIREME_ERROR_SYSTEM  The file cannot be written.
 * @retval TRIREME_ERROR_CANCELLED  The store was destroyed meanwhile.
 *
 * Thread safety: any thread, also concurrently.
 * @since 1.0
 */
TRIREME_FALLIBLE trireme_status TRIREME_CALLCONV trireme_store_delete(trireme_store *store,
                                                                      const char *key,
                                                                      int32_t *out_deleted);

TRIREME_END_C

#endif
