/* A program with CPython in it: the interpreter runs on a thread of its own, not on the process's first.
   Takes Python's arguments. Declared here, so that no headers of any version are needed. */
#include <pthread.h>

int Py_BytesMain(int argc, char **argv);

struct arguments {
    int count;
    char **words;
};

static void *interpreter(void *of)
{
    struct arguments *arguments = of;
    arguments->count = Py_BytesMain(arguments->count, arguments->words);
    return NULL;
}

int main(int argc, char **argv)
{
    struct arguments arguments = {argc, argv};
    pthread_t thread;
    if (pthread_create(&thread, NULL, interpreter, &arguments) != 0)
        return 1;
    pthread_join(thread, NULL);
    return arguments.count;
}
