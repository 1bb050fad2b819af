/* Hide bf16 and AMX from the process that this library is preloaded into, and from its children.
 *
 * Linux on x86-64 can make CPUID fault (arch_prctl ARCH_SET_CPUID). The handler executes it and
 * clears the bits of the instructions that an older CPU does not have, so every library, oneDNN
 * and OpenVINO included, finds the older CPU. Built and run by without_bf16.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))

typedef int sigaction_t(int, const struct sigaction *, struct sigaction *);

static struct sigaction of_the_program; /* faults other than CPUID go there */
static int is_active;

static sigaction_t *real_sigaction(void) {
    static sigaction_t *found;
    if (!found) found = (sigaction_t *)dlsym(RTLD_NEXT, "sigaction");
    return found;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *instruction = (const unsigned char *)r[REG_RIP];
    if (info->si_code == SI_KERNEL && instruction[0] == 0x0f && instruction[1] == 0xa2) {
        unsigned a = (unsigned)r[REG_RAX], b, c = (unsigned)r[REG_RCX], d;
        const unsigned leaf = a, part = c;
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1L);
        __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0L);
        if (leaf == 7 && part == 0) d &= ~(BIT(22) | BIT(23) | BIT(24) | BIT(25)); /* AMX, FP16 */
        if (leaf == 7 && part == 1) {
            a &= ~(BIT(5) | BIT(21)); /* AVX512-BF16, AMX-FP16 */
            d &= ~BIT(5);             /* AVX-NE-CONVERT */
        }
        r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d;
        r[REG_RIP] += 2;
    } else if (of_the_program.sa_flags & SA_SIGINFO) {
        of_the_program.sa_sigaction(number, info, context);
    } else if (of_the_program.sa_handler != SIG_DFL && of_the_program.sa_handler != SIG_IGN) {
        of_the_program.sa_handler(number);
    } else {
        real_sigaction()(SIGSEGV, &of_the_program, NULL); /* the instruction faults once more, */
        if (info->si_code <= 0) raise(number);            /* but what was sent does not */
    }
}

int sigaction(int number, const struct sigaction *action, struct sigaction *before) {
    if (number != SIGSEGV || !is_active) return real_sigaction()(number, action, before);
    if (before) *before = of_the_program;
    if (action) of_the_program = *action;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    return sigaction(number, &action, &before) ? SIG_ERR : before.sa_handler;
}

__attribute__((constructor)) static void hide(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    if (real_sigaction()(SIGSEGV, &action, &of_the_program) ||
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0L)) {
        fprintf(stderr, "without_bf16: CPUID cannot be made to fault: %s\n", strerror(errno));
        exit(125);
    }
    is_active = 1;
}
