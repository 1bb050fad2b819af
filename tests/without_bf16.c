/* Hide bf16 and AMX from the process that this library is preloaded into, and from its children.
 *
 * Linux on x86-64 can make CPUID fault on some CPUs (arch_prctl ARCH_SET_CPUID). The handler
 * executes it and clears the bits of the instructions that an older CPU does not have, so every
 * library, oneDNN and OpenVINO included, finds the older CPU. On other CPUs WITHOUT_BF16_SITES
 * names a file of lines `LIBRARY OFFSET`, where the library has a CPUID: as an auditor (LD_AUDIT)
 * this library is told of each library before its constructors run, and replaces those
 * instructions by ones that are illegal. Built and run by without_bf16.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define ARCH_SET_CPUID 0x1012
#define BIT(n) (1u << (n))
#define MOST_SITES 1024

typedef int sigaction_t(int, const struct sigaction *, struct sigaction *);

static struct sigaction of_the_program; /* faults other than CPUID go there */
static int watched;                     /* the signal that CPUID raises */
static greg_t replaced[MOST_SITES];     /* where a CPUID was */
static int n_replaced;

static sigaction_t *real_sigaction(void) {
    static sigaction_t *found;
    if (!found) found = (sigaction_t *)dlsym(RTLD_NEXT, "sigaction");
    return found;
}

static void execute_cpuid(greg_t *r) { /* as an older CPU does */
    unsigned a = (unsigned)r[REG_RAX], b, c = (unsigned)r[REG_RCX], d;
    const unsigned leaf = a, part = c;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (leaf == 7 && part == 0) d &= ~(BIT(22) | BIT(23) | BIT(24) | BIT(25)); /* AMX, FP16 */
    if (leaf == 7 && part == 1) {
        a &= ~(BIT(5) | BIT(21)); /* AVX512-BF16, AMX-FP16 */
        d &= ~BIT(5);             /* AVX-NE-CONVERT */
    }
    r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d;
    r[REG_RIP] += 2;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const unsigned char *instruction = (const unsigned char *)r[REG_RIP];
    if (info->si_code == SI_KERNEL && instruction[0] == 0x0f && instruction[1] == 0xa2) {
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 1L);
        execute_cpuid(r);
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0L);
    } else if (of_the_program.sa_flags & SA_SIGINFO) {
        of_the_program.sa_sigaction(number, info, context);
    } else if (of_the_program.sa_handler != SIG_DFL && of_the_program.sa_handler != SIG_IGN) {
        of_the_program.sa_handler(number);
    } else {
        real_sigaction()(SIGSEGV, &of_the_program, NULL); /* the instruction faults once more, */
        if (info->si_code <= 0) raise(number);            /* but what was sent does not */
    }
}

static void on_illegal(int number, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    (void)info;
    for (int i = 0; i < n_replaced; i++)
        if (replaced[i] == r[REG_RIP]) {
            execute_cpuid(r);
            return;
        }
    signal(number, SIG_DFL); /* the instruction is met once more */
}

int sigaction(int number, const struct sigaction *action, struct sigaction *before) {
    if (number != watched) return real_sigaction()(number, action, before);
    if (before) *before = of_the_program;
    if (action) of_the_program = *action;
    return 0;
}

sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    return sigaction(number, &action, &before) ? SIG_ERR : before.sa_handler;
}

static void quit(const char *what) {
    fprintf(stderr, "without_bf16: %s: %s\n", what, strerror(errno));
    exit(125);
}

unsigned la_version(unsigned version) {
    struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    if (real_sigaction()(SIGILL, &action, NULL)) quit("no handler");
    return version;
}

static void replace(unsigned char *instruction) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *begin = (unsigned char *)((size_t)instruction & ~(page - 1));
    if (instruction[0] != 0x0f || instruction[1] != 0xa2 || n_replaced == MOST_SITES ||
        mprotect(begin, 2 * page, PROT_READ | PROT_WRITE))
        quit("this is not where a CPUID is");
    instruction[1] = 0x0b; /* UD2 */
    if (mprotect(begin, 2 * page, PROT_READ | PROT_EXEC)) quit("no CPUID can be replaced");
    replaced[n_replaced++] = (greg_t)instruction;
}

unsigned la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie) {
    char library[256];
    size_t offset;
    const char *name = strrchr(map->l_name, '/');
    FILE *sites = name ? fopen(getenv("WITHOUT_BF16_SITES"), "r") : NULL;
    (void)namespace, (void)cookie;
    while (sites && fscanf(sites, "%255s %zx", library, &offset) == 2)
        if (!strcmp(library, name + 1)) replace((unsigned char *)map->l_addr + offset);
    if (sites) fclose(sites);
    return 0;
}

__attribute__((constructor)) static void hide(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    if (getenv("WITHOUT_BF16_SITES")) {
        watched = SIGILL; /* the auditor's, which nobody may take away */
        return;
    }
    if (real_sigaction()(SIGSEGV, &action, &of_the_program) ||
        syscall(SYS_arch_prctl, ARCH_SET_CPUID, 0L))
        quit("CPUID cannot be made to fault");
    watched = SIGSEGV;
}
