/* Begins a program with a view of its own: paths that it can only read, and paths that it can't see.
 *
 * Runs inside a container, by a privileged exec of the daemon, and is therefore written for a hostile place: it is
 * static, uses no library and no file of the container, comes from a volume that is mounted read-only, and closes or
 * gives up everything before it becomes the program. Built by tools/build-enter for each architecture.
 *
 *   enter whoami TOKEN          says "TOKEN uid gid group,group,… home": who the daemon makes of a user
 *   enter wait                  sleeps a minute: the first process of the container in which views are tried
 *   enter view TOKEN UID GID GROUPS FLAGS ROWS COLUMNS CWD READ-ONLY HIDDEN VARIABLES [path…] [path…] [variable…] argv…
 *
 * The three numbers say how many words of each kind follow. In words from CWD on, \ooo stands for a byte. FLAGS: `n` for
 * no input, `t` for a terminal. The first line of the output is "TOKEN pid" for a program that is begun now, else what
 * went wrong, as "TOKEN step errno index", and then nothing was run.
 *
 * CORRAL_VIEW_KEY, which no process inside can read, is the number that the container's system call filter wants to see
 * beside the arguments of unshare, open_tree, mount_setattr and move_mount. Nobody else inside can call them at all.
 */

typedef unsigned long word;
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

#define FOLDER "/.corral"
#define EMPTY_FILE FOLDER "/file"
#define EMPTY_FOLDER FOLDER "/folder"
#define KEY_NAME "CORRAL_VIEW_KEY="
#define USUAL_PATH "/usr/local/bin:/usr/bin:/bin"

/* System calls. */

#if defined(__x86_64__)
enum {
  NR_WRITE = 1, NR_CLOSE = 3, NR_MMAP = 9, NR_IOCTL = 16, NR_DUP3 = 292, NR_NANOSLEEP = 35, NR_GETPID = 39,
  NR_EXECVE = 59, NR_EXIT_GROUP = 231, NR_CHDIR = 80, NR_FCHOWN = 93, NR_GETUID = 102, NR_GETGID = 104,
  NR_GETGROUPS = 115, NR_SETGROUPS = 116, NR_SETRESUID = 117, NR_SETRESGID = 119, NR_CAPGET = 125, NR_CAPSET = 126,
  NR_PRCTL = 157, NR_OPENAT = 257, NR_READLINKAT = 267, NR_UNSHARE = 272, NR_READ = 0, NR_STATX = 332
};
static long call(long number, word a, word b, word c, word d, word e, word f) {
  long result;
  register word r10 __asm__("r10") = d;
  register word r8 __asm__("r8") = e;
  register word r9 __asm__("r9") = f;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}
__asm__(".globl _start\n_start:\n  xor %ebp, %ebp\n  mov %rsp, %rdi\n  and $-16, %rsp\n  call begin\n  hlt\n");
#elif defined(__aarch64__)
enum {
  NR_WRITE = 64, NR_CLOSE = 57, NR_MMAP = 222, NR_IOCTL = 29, NR_DUP3 = 24, NR_NANOSLEEP = 101, NR_GETPID = 172,
  NR_EXECVE = 221, NR_EXIT_GROUP = 94, NR_CHDIR = 49, NR_FCHOWN = 55, NR_GETUID = 174, NR_GETGID = 176,
  NR_GETGROUPS = 158, NR_SETGROUPS = 159, NR_SETRESUID = 147, NR_SETRESGID = 149, NR_CAPGET = 90, NR_CAPSET = 91,
  NR_PRCTL = 167, NR_OPENAT = 56, NR_READLINKAT = 78, NR_UNSHARE = 97, NR_READ = 63, NR_STATX = 291
};
static long call(long number, word a, word b, word c, word d, word e, word f) {
  register long x8 __asm__("x8") = number;
  register word x0 __asm__("x0") = a;
  register word x1 __asm__("x1") = b;
  register word x2 __asm__("x2") = c;
  register word x3 __asm__("x3") = d;
  register word x4 __asm__("x4") = e;
  register word x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return (long)x0;
}
__asm__(".globl _start\n_start:\n  mov x29, xzr\n  mov x30, xzr\n  mov x0, sp\n  and sp, x0, #-16\n  bl begin\n  brk #0\n");
#else
#error "an architecture whose numbers are not known here"
#endif
enum { /* the same everywhere */
  NR_OPEN_TREE = 428, NR_MOVE_MOUNT = 429, NR_CLOSE_RANGE = 436, NR_OPENAT2 = 437, NR_MOUNT_SETATTR = 442,
  NR_LANDLOCK_CREATE = 444, NR_LANDLOCK_ADD = 445, NR_LANDLOCK_RESTRICT = 446
};

#define HERE ((word)-100L)
#define O_RDWR 02
#define O_CLOEXEC 02000000
#define O_PATH 010000000
#define RESOLVE_NO_MAGICLINKS 2
#define RESOLVE_NO_SYMLINKS 4
#define AT_EMPTY_PATH 0x1000
#define AT_RECURSIVE 0x8000
#define OPEN_TREE_CLONE 1
#define MOVE_BOTH_BY_DESCRIPTOR 0x44
#define MOUNT_ATTR_RDONLY 1
#define MS_PRIVATE (1 << 18)
#define CLONE_NEWNS 0x20000
#define STATX_WANTED 0x17ff /* the usual ones, and the mount */
#define STATX_IS_MOUNT 0x2000
#define PATH_BYTES 4096
#define S_IFMT 0170000
#define S_IFDIR 0040000
#define S_IFIFO 0010000
#define S_IFCHR 0020000
#define TIOCSWINSZ 0x5414
#define PR_SET_DUMPABLE 4
#define PR_CAPBSET_DROP 24
#define PR_SET_NO_NEW_PRIVS 38
#define PR_CAP_AMBIENT 47
#define PR_CAP_AMBIENT_CLEAR_ALL 4
#define CAPABILITY_VERSION_3 0x20080522
#define LANDLOCK_VERSION 1
#define LANDLOCK_MAKE_BLOCK (1 << 10)
#define LANDLOCK_REFER (1 << 13)
#define ENOENT 2
#define E2BIG 7
#define ENOEXEC 8
#define EAGAIN 11
#define EACCES 13
#define EBUSY 16
#define ENOTDIR 20
#define EINVAL 22
#define ENAMETOOLONG 36

struct status {
  u32 mask, block;
  u64 attributes;
  u32 links, uid, gid;
  u16 mode, pad;
  u64 inode, size, blocks, attributes_mask, times[8];
  u32 device_kind_major, device_kind_minor, device_major, device_minor;
  u64 mount, rest[14];
};
struct attributes { u64 set, clear, propagation, user_namespace; };
struct how { u64 flags, mode, resolve; };
struct rule { u64 access; int parent; } __attribute__((packed));

/* Text. */

static const char *token;
static word key;

void *memset(void *target, int value, word length) {
  for (word at = 0; at < length; at++) ((volatile u8 *)target)[at] = (u8)value;
  return target;
}

static word length_of(const char *text) {
  word length = 0;
  while (text[length]) length++;
  return length;
}

static int begins_with(const char *text, const char *start) {
  while (*start) if (*text++ != *start++) return 0;
  return 1;
}

static int equals(const char *one, const char *other) {
  return begins_with(one, other) && length_of(one) == length_of(other);
}

static word number_of(const char **text) {
  word number = 0;
  while (**text >= '0' && **text <= '9') number = number * 10 + (word)(*(*text)++ - '0');
  return number;
}

static word whole_number(const char *text) { return number_of(&text); }

static char *put_text(char *at, const char *text) {
  while (*text) *at++ = *text++;
  return at;
}

static char *put_number(char *at, word number) {
  char digits[24];
  int count = 0;
  do digits[count++] = (char)('0' + number % 10); while (number /= 10);
  while (count) *at++ = digits[--count];
  return at;
}

static void decode(char *text) {
  char *to = text;
  while (*text) {
    if (text[0] == '\\' && text[1] && text[2] && text[3]) {
      *to++ = (char)(((text[1] - '0') << 6) | ((text[2] - '0') << 3) | (text[3] - '0'));
      text += 4;
    } else {
      *to++ = *text++;
    }
  }
  *to = 0;
}

/* Ends. */

__attribute__((noreturn)) static void leave(int code) {
  for (;;) call(NR_EXIT_GROUP, (word)code, 0, 0, 0, 0, 0);
}

static void say(int descriptor, const char *text, word length) {
  while (length) {
    long written = call(NR_WRITE, (word)descriptor, (word)text, length, 0, 0, 0);
    if (written <= 0) return;
    text += written;
    length -= (word)written;
  }
}

__attribute__((noreturn)) static void refuse(const char *step, long result, word index) {
  char line[160], *at = line;
  if (length_of(token) < 64) at = put_text(at, token);
  at = put_text(put_text(at, " "), step);
  at = put_number(put_text(at, " "), (word)(result < 0 ? -result : result));
  at = put_number(put_text(at, " "), index);
  *at++ = '\n';
  say(1, line, (word)(at - line));
  leave(125);
}

static long must(const char *step, long result) {
  if (result < 0) refuse(step, result, 0);
  return result;
}

/* The view. */

static void look(int descriptor, const char *path, struct status *status) {
  memset(status, 0, sizeof *status);
  must("stat", call(NR_STATX, (word)descriptor, (word)path, *path ? 0 : AT_EMPTY_PATH, STATX_WANTED, (word)status, 0));
}

static int is_same(const struct status *one, const struct status *other) {
  return one->inode == other->inode && one->device_major == other->device_major &&
         one->device_minor == other->device_minor;
}

static int is_root(const struct status *one) {
  struct status root;
  look((int)HERE, "/", &root);
  return is_same(one, &root) && one->mount == root.mount;
}

static int find(const char *step, const char *path, word index, u64 resolve) {
  struct how how = {O_PATH | O_CLOEXEC, 0, resolve};
  long found = call(NR_OPENAT2, HERE, (word)path, (word)&how, sizeof how, 0, 0);
  if (found < 0) refuse(step, found, index);
  return (int)found;
}

static void set_attributes(const char *step, int descriptor, const char *path, u64 set, u64 propagation) {
  struct attributes wanted = {set, 0, propagation, 0};
  word flags = AT_RECURSIVE | (*path ? 0 : AT_EMPTY_PATH);
  must(step, call(NR_MOUNT_SETATTR, (word)descriptor, (word)path, flags, (word)&wanted, sizeof wanted, key));
}

/* Lays a copy of a place over it, with all that is mounted below. */
static void mount_onto_itself(int place, u64 set) {
  word flags = OPEN_TREE_CLONE | O_CLOEXEC | AT_RECURSIVE | AT_EMPTY_PATH;
  long copy = must("open_tree", call(NR_OPEN_TREE, (word)place, (word)"", flags, 0, 0, key));
  if (set) set_attributes("attributes", (int)copy, "", set, 0);
  must("move", call(NR_MOVE_MOUNT, (word)copy, (word)"", (word)place, (word)"", MOVE_BOTH_BY_DESCRIPTOR, key));
  call(NR_CLOSE, (word)copy, 0, 0, 0, 0, 0);
}

static void make_read_only(const char *path, word index) {
  int place = find("read_only", path, index, RESOLVE_NO_MAGICLINKS);
  struct status status;
  look(place, "", &status);
  if (is_root(&status)) { /* what is mounted over the root is not seen by those who are in it already */
    set_attributes("attributes", (int)HERE, "/", MOUNT_ATTR_RDONLY, 0);
  } else {
    mount_onto_itself(place, MOUNT_ATTR_RDONLY);
  }
  call(NR_CLOSE, (word)place, 0, 0, 0, 0, 0);
}

/* The folders above a path, which has no links, keep their names for this call: what is mounted can't be renamed. Else
 * a program could call one otherwise, and the next call, to which a path is hidden by the same name, would see what lies
 * there. */
static void hold_folders_above(char *path, u32 uid, word index) {
  struct status status;
  look((int)HERE, "/", &status);
  for (char *end = path + 1; *end; end++) { /* from the outside in */
    if (*end != '/') continue;
    *end = 0;
    int place = find("hidden", path, index, RESOLVE_NO_SYMLINKS);
    *end = '/';
    int can_rename = uid == 0 || status.uid != 0 || status.mode & 022; /* by what the folder around it is */
    look(place, "", &status);
    if (can_rename && !(status.attributes & STATX_IS_MOUNT)) mount_onto_itself(place, 0);
    call(NR_CLOSE, (word)place, 0, 0, 0, 0, 0);
  }
}

/* The path of what was found, as the kernel says it. By a descriptor, since /proc may be among what is hidden. */
static void name(int descriptors, int place, char *path, word index) {
  char number[24];
  *put_number(number, (word)place) = 0;
  long length = call(NR_READLINKAT, (word)descriptors, (word)number, (word)path, PATH_BYTES, 0, 0);
  if (length >= PATH_BYTES) length = -ENAMETOOLONG;
  if (length < 0) refuse("hidden", length, index);
  path[length] = 0;
}

static void hide(int descriptors, const char *path, u32 uid, word index) {
  static char real[PATH_BYTES];
  int place = find("hidden", path, index, RESOLVE_NO_MAGICLINKS);
  struct status before, status;
  look(place, "", &before);
  if (is_root(&before)) refuse("hidden", EBUSY, index);
  name(descriptors, place, real, index);
  hold_folders_above(real, uid, index);
  call(NR_CLOSE, (word)place, 0, 0, 0, 0, 0);
  place = find("hidden", real, index, RESOLVE_NO_SYMLINKS); /* in the mounts that are seen now */
  look(place, "", &status);
  if (!is_same(&before, &status)) refuse("hidden", EAGAIN, index); /* somebody laid another there meanwhile */
  const char *empty = (status.mode & S_IFMT) == S_IFDIR ? EMPTY_FOLDER : EMPTY_FILE;
  long copy = must("open_tree", call(NR_OPEN_TREE, HERE, (word)empty, OPEN_TREE_CLONE | O_CLOEXEC, 0, 0, key));
  long moved = call(NR_MOVE_MOUNT, (word)copy, (word)"", (word)place, (word)"", MOVE_BOTH_BY_DESCRIPTOR, key);
  if (moved < 0) refuse("hidden", moved, index);
  call(NR_CLOSE, (word)copy, 0, 0, 0, 0, 0);
  call(NR_CLOSE, (word)place, 0, 0, 0, 0, 0);
}

/* Rights. */

/* A privileged exec leaves AppArmor's profile, in which the container is: the program is to be in it again. */
static void take_profile(void) {
  char label[512] = "exec ";
  int source = (int)call(NR_OPENAT, HERE, (word) "/proc/1/attr/apparmor/current", O_CLOEXEC, 0, 0, 0);
  if (source < 0) return; /* a kernel that has none */
  long length = call(NR_READ, (word)source, (word)(label + 5), sizeof label - 6, 0, 0, 0);
  call(NR_CLOSE, (word)source, 0, 0, 0, 0, 0);
  if (length == -EINVAL) return; /* or where it is off */
  must("profile", length);
  word end = 5;
  while (end < 5 + (word)length && label[end] && label[end] != '\n' && label[end] != ' ') end++;
  label[end] = 0;
  if (equals(label + 5, "unconfined")) return;
  int target = (int)must("profile", call(NR_OPENAT, HERE, (word) "/proc/self/attr/apparmor/exec", O_RDWR | O_CLOEXEC, 0, 0, 0));
  must("profile", call(NR_WRITE, (word)target, (word)label, end, 0, 0, 0));
  call(NR_CLOSE, (word)target, 0, 0, 0, 0, 0);
}

/* Whoever is in a Landlock domain reaches into no process outside of it: else /proc/PID/root would be a way round. */
static void forbid_looking_at_others(void) {
  long version = must("landlock", call(NR_LANDLOCK_CREATE, 0, 0, LANDLOCK_VERSION, 0, 0, 0));
  u64 handled = version > 1 ? LANDLOCK_REFER : LANDLOCK_MAKE_BLOCK;
  int rules = (int)must("landlock", call(NR_LANDLOCK_CREATE, (word)&handled, sizeof handled, 0, 0, 0, 0));
  if (version > 1) { /* moving files between folders, which is forbidden unless it is said, stays as it was */
    struct rule rule = {LANDLOCK_REFER, find("landlock", "/", 0, RESOLVE_NO_MAGICLINKS)};
    must("landlock", call(NR_LANDLOCK_ADD, (word)rules, 1, (word)&rule, 0, 0, 0));
  }
  must("landlock", call(NR_LANDLOCK_RESTRICT, (word)rules, 0, 0, 0, 0, 0));
}

static void own_streams(u32 uid, u32 gid) {
  struct status status;
  for (int descriptor = 0; descriptor < 3; descriptor++) {
    look(descriptor, "", &status);
    int terminal = (status.mode & S_IFMT) == S_IFCHR && status.device_kind_major >= 136 && status.device_kind_major < 144;
    if (terminal || (status.mode & S_IFMT) == S_IFIFO) call(NR_FCHOWN, (word)descriptor, uid, gid, 0, 0, 0);
  }
}

static void give_up_rights(u32 uid, u32 gid, const char *groups) {
  u32 list[256];
  word count = 0;
  while (*groups && count < 256) {
    list[count++] = (u32)number_of(&groups);
    if (*groups == ',') groups++;
    else break;
  }
  must("drop", call(NR_PRCTL, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0));
  must("drop", call(NR_PRCTL, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0, 0));
  for (word capability = 0; capability < 64; capability++) {
    long dropped = call(NR_PRCTL, PR_CAPBSET_DROP, capability, 0, 0, 0, 0);
    if (dropped == -EINVAL) break;
    must("drop", dropped);
  }
  must("drop", call(NR_SETGROUPS, count, (word)list, 0, 0, 0, 0));
  must("drop", call(NR_SETRESGID, gid, gid, gid, 0, 0, 0));
  must("drop", call(NR_SETRESUID, uid, uid, uid, 0, 0, 0));
  struct { u32 version; int pid; } header = {CAPABILITY_VERSION_3, 0};
  u32 none[6], left[6];
  memset(none, 0, sizeof none);
  memset(left, 0xff, sizeof left);
  must("drop", call(NR_CAPSET, (word)&header, (word)none, 0, 0, 0, 0));
  must("drop", call(NR_CAPGET, (word)&header, (word)left, 0, 0, 0, 0));
  for (int at = 0; at < 6; at++) if (left[at]) refuse("drop", EBUSY, 0);
  if (call(NR_GETUID, 0, 0, 0, 0, 0, 0) != (long)uid) refuse("drop", EBUSY, 1);
}

/* The program. */

static char *find_variable(char **env, const char *start) {
  for (; *env; env++) if (begins_with(*env, start)) return *env + length_of(start);
  return 0;
}

static u64 hexadecimal(const char *text) {
  u64 value = 0;
  for (; *text; text++) value = value * 16 + (u64)(*text <= '9' ? *text - '0' : *text - 'a' + 10);
  return value;
}

static char **make_environment(char **env, char **more, word count) {
  word known = 0, used = 0;
  while (env[known]) known++;
  long memory = must("memory", call(NR_MMAP, 0, (known + count + 1) * sizeof *env, 3, 0x22, (word)-1L, 0));
  char **made = (char **)memory;
  for (word at = 0; at < known; at++) if (!begins_with(env[at], KEY_NAME)) made[used++] = env[at];
  for (word at = 0; at < count; at++) made[used++] = more[at];
  made[used] = 0;
  return made;
}

__attribute__((noreturn)) static void fail(const char *name, const char *why, int code) {
  say(2, "corral: ", 8);
  say(2, name, length_of(name));
  say(2, ": ", 2);
  say(2, why, length_of(why));
  say(2, "\n", 1);
  leave(code);
}

static long try(char *path, char **argv, char **env) {
  long result = call(NR_EXECVE, (word)path, (word)argv, (word)env, 0, 0, 0);
  if (result == -ENOEXEC) { /* a script without #!, as execvp and every shell do; argv has a free word before it */
    char *shell = "/bin/sh", *name = argv[0];
    argv[-1] = shell;
    argv[0] = path;
    call(NR_EXECVE, (word)shell, (word)(argv - 1), (word)env, 0, 0, 0);
    argv[0] = name;
  }
  return result;
}

__attribute__((noreturn)) static void execute(char **argv, char **env) {
  static char path[8192];
  const char *name = argv[0], *folders = find_variable(env, "PATH=");
  long refusal = 0;
  int has_slash = 0;
  for (const char *at = name; *at; at++) has_slash |= *at == '/';
  if (has_slash) {
    refusal = try(argv[0], argv, env);
    if (refusal == -ENOENT || refusal == -ENOTDIR) refusal = 0;
  } else {
    for (folders = folders ? folders : USUAL_PATH; *name; folders++) {
      word length = 0;
      while (folders[length] && folders[length] != ':') length++;
      if (length + length_of(name) + 2 < sizeof path) {
        char *at = path;
        for (word copied = 0; copied < length; copied++) *at++ = folders[copied];
        if (length) *at++ = '/';
        *put_text(at, name) = 0;
        long result = try(path, argv, env);
        if (result != -ENOENT && result != -ENOTDIR) refusal = result;
      }
      folders += length;
      if (!*folders) break;
    }
  }
  if (refusal == -E2BIG) fail(name, "Argument list too long", 126);
  if (refusal == -ENOEXEC) fail(name, "Exec format error", 126);
  if (refusal) fail(name, "Permission denied", 126);
  fail(name, "command not found", 127);
}

static void begin_program(char **words, word count, char **env) {
  if (count < 11) leave(125);
  u32 uid = (u32)whole_number(words[1]), gid = (u32)whole_number(words[2]);
  const char *groups = words[3], *flags = words[4];
  word read_only = whole_number(words[8]), hidden = whole_number(words[9]), variables = whole_number(words[10]);
  int has_input = 1, has_terminal = 0;
  token = words[0];
  for (; *flags; flags++) {
    has_input &= *flags != 'n';
    has_terminal |= *flags == 't';
  }
  char **rest = words + 11;
  if (read_only > count || hidden > count || variables > count || read_only + hidden + variables + 12 > count) leave(125);
  for (word at = 7; at < count; at++) decode(words[at]);
  must("drop", call(NR_PRCTL, PR_SET_DUMPABLE, 0, 0, 0, 0, 0));
  char *secret = find_variable(env, KEY_NAME);
  if (!secret) leave(125);
  key = (word)hexadecimal(secret);
  memset(secret, '-', length_of(secret)); /* also for those who look before the program is there */

  take_profile();
  must("unshare", call(NR_UNSHARE, CLONE_NEWNS, 0, 0, 0, 0, key));
  set_attributes("private", (int)HERE, "/", 0, MS_PRIVATE);
  for (word at = 0; at < read_only; at++) make_read_only(rest[at], at);
  int descriptors = hidden ? find("descriptors", "/proc/self/fd", 0, RESOLVE_NO_MAGICLINKS) : -1;
  for (word at = 0; at < hidden; at++) hide(descriptors, rest[read_only + at], uid, at);
  rest += read_only + hidden;
  key = 0;

  if (has_terminal) {
    u16 size[4] = {(u16)whole_number(words[5]), (u16)whole_number(words[6]), 0, 0};
    call(NR_IOCTL, 0, TIOCSWINSZ, (word)size, 0, 0, 0);
  }
  if (!has_input) {
    int null = (int)must("input", call(NR_OPENAT, HERE, (word) "/dev/null", 0, 0, 0, 0));
    must("input", call(NR_DUP3, (word)null, 0, 0, 0, 0, 0));
  }
  own_streams(uid, gid);
  must("close", call(NR_CLOSE_RANGE, 3, 0xffffffff, 0, 0, 0, 0));
  forbid_looking_at_others();
  must("close", call(NR_CLOSE_RANGE, 3, 0xffffffff, 0, 0, 0, 0));
  give_up_rights(uid, gid, groups);
  long entered = call(NR_CHDIR, (word)words[7], 0, 0, 0, 0, 0);
  if (entered < 0) refuse("cwd", entered, 0);

  char **made = make_environment(env, rest, variables);
  char line[160], *at = line;
  if (length_of(token) < 64) at = put_text(at, token);
  at = put_number(put_text(at, " "), (word)call(NR_GETPID, 0, 0, 0, 0, 0, 0));
  *at++ = '\n';
  say(1, line, (word)(at - line));
  execute(rest + variables, made);
}

static void say_who(char **env) {
  u32 list[256];
  char line[4096], *at = line;
  long count = must("groups", call(NR_GETGROUPS, 256, (word)list, 0, 0, 0, 0));
  const char *home = find_variable(env, "HOME=");
  if (length_of(token) < 64) at = put_text(at, token);
  at = put_number(put_text(at, " "), (word)call(NR_GETUID, 0, 0, 0, 0, 0, 0));
  at = put_number(put_text(at, " "), (word)call(NR_GETGID, 0, 0, 0, 0, 0, 0));
  at = put_text(at, " ");
  for (long group = 0; group < count; group++) at = put_text(put_number(at, list[group]), ",");
  at = put_text(at, " ");
  if (home && length_of(home) < 1000) at = put_text(at, home);
  *at++ = '\n';
  say(1, line, (word)(at - line));
  leave(0);
}

__attribute__((used, noreturn)) void begin(word *stack) {
  word count = stack[0];
  char **words = (char **)(stack + 1), **env = words + count + 1;
  const char *what = count > 1 ? words[1] : "";
  token = "-";
  if (equals(what, "view")) begin_program(words + 2, count - 2, env);
  if (equals(what, "whoami") && count > 2) {
    token = words[2];
    say_who(env);
  }
  if (equals(what, "wait")) {
    word minute[2] = {60, 0};
    call(NR_NANOSLEEP, (word)minute, 0, 0, 0, 0, 0);
    leave(0);
  }
  leave(125);
}
