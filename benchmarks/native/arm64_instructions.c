// A plugin of qemu that counts the instructions of an emulated arm64 program; see arm64_instructions.py. It prints how
// many there were so far to standard error whenever the program asks for a process group (getpgid), which few others
// do. The declarations are those of version 1 of the plugin interface, which qemu 4.2 to 8.2 have.

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>

struct qemu_plugin_tb;
typedef uint64_t plugin_id;
enum operation { ADD_U64 };

extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*call)(plugin_id, struct qemu_plugin_tb*));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb* block, enum operation what, void* to,
                                                     uint64_t value);
typedef void on_syscall(plugin_id id, unsigned int cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                        uint64_t e, uint64_t f, uint64_t g, uint64_t h);
extern void qemu_plugin_register_vcpu_syscall_cb(plugin_id id, on_syscall* call);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t instructions;  // not atomic: of programs with one thread at work

static void translated(plugin_id id, struct qemu_plugin_tb* block) {
  (void)id;
  qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &instructions, qemu_plugin_tb_n_insns(block));
}

static void asked(plugin_id id, unsigned int cpu, int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                  uint64_t e, uint64_t f, uint64_t g, uint64_t h) {
  (void)id, (void)cpu, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
  const int64_t getpgid_on_arm64 = 155;
  if (number == getpgid_on_arm64) fprintf(stderr, "instructions: %" PRIu64 "\n", instructions);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void* info, int argc, char** argv) {
  (void)info;
  (void)argc;
  (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_vcpu_syscall_cb(id, asked);
  return 0;
}
