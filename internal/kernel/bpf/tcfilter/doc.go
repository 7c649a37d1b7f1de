// Package tcfilter maintains our eBPF programs at tc's hooks, one filter for each program and interface, without
// disturbing the filters of other programs. It also finds the maps of programs that an earlier process left there, and
// explains why a kernel refuses a program. It does not depend on what the programs do. Only packages below
// internal/kernel/bpf may import it.
package tcfilter
