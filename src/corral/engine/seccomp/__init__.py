"""The syscall filter: one policy table, from which come the kernel's BPF, Docker's JSON, the docs and the tests.

- policy.py   syscall name -> rule (the only place where a decision is made)
- rule.py     what a rule can say
- numbers.py  syscall numbers per machine
- bpf.py      table -> classic BPF
- install.py  BPF -> kernel
- docker.py   table -> Docker seccomp profile

Nothing is exported here: the launcher loads only what it installs.
"""
