/* A plugin of qemu that counts the instructions that a program executes: qemu-aarch64 -plugin count.so,out=FILE PROGRAM
 * writes a line for each function: how many, and its name, where the program has it.
 *
 * What it uses of qemu's interface is declared here, since distributions leave qemu-plugin.h out. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info;

EXPORT int qemu_plugin_version = 1;
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int operation, void *to, uint64_t number);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const char *qemu_plugin_insn_symbol(const struct qemu_plugin_insn *);

enum { ADD = 0 };

struct function {
    uint64_t count; /* first: qemu adds to it */
    char *name;
    struct function *next;
};

static struct function *functions;
static char *out;

static struct function *function_of(const char *name)
{
    for (struct function *found = functions; found; found = found->next)
        if (!strcmp(found->name, name))
            return found;
    struct function *made = calloc(1, sizeof *made);
    if (!made || !(made->name = strdup(name)))
        abort();
    made->next = functions;
    return functions = made;
}

static void translated(plugin_id id, struct qemu_plugin_tb *block)
{
    (void)id;
    const char *name = qemu_plugin_insn_symbol(qemu_plugin_tb_get_insn(block, 0));
    struct function *function = function_of(name && *name ? name : "?");
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD, &function->count, qemu_plugin_tb_n_insns(block));
}

static void ended(plugin_id id, void *unused)
{
    (void)id;
    (void)unused;
    FILE *file = fopen(out, "w");
    for (struct function *one = functions; file && one; one = one->next)
        fprintf(file, "%llu %s\n", (unsigned long long)one->count, one->name);
    if (!file || fclose(file))
        abort();
}

EXPORT int qemu_plugin_install(plugin_id id, const struct qemu_info *info, int num, char **arguments)
{
    (void)info;
    if (num != 1 || strncmp(arguments[0], "out=", 4) || !(out = strdup(arguments[0] + 4)))
        return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
