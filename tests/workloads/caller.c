/* Calls what allocates, so that the caller is this library. */
int call(int (*allocate)(void **, unsigned long), void **pointer, unsigned long bytes) {
    /* volatile: a call in the tail would return to someone else. */
    volatile int result = allocate(pointer, bytes);
    return result;
}
