/* Calls what allocates, so that the caller is this library. */

typedef int allocate_function(void **, unsigned long);

int call(allocate_function *allocate, void **pointer, unsigned long bytes) {
    /* volatile: a call in the tail would return to someone else. */
    volatile int result = allocate(pointer, bytes);
    return result;
}

/* `library::other(void*)`, as a C++ compiler names it. */
int _ZN7library5otherEPv(allocate_function *allocate, void **pointer, unsigned long bytes) {
    volatile int result = allocate(pointer, bytes);
    return result;
}

/* Without a name where the library is stripped. */
__attribute__((noinline, noclone)) static int hidden(
    allocate_function *allocate, void **pointer, unsigned long bytes) {
    volatile int result = allocate(pointer, bytes);
    return result;
}

int call_hidden(allocate_function *allocate, void **pointer, unsigned long bytes) {
    volatile int result = hidden(allocate, pointer, bytes);
    return result;
}
