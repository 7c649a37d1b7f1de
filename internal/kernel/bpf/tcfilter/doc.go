// Package tcfilter keeps our eBPF programs at tc's hooks, one filter a program and interface, beside
// the filters of others; it finds the maps of programs that an earlier process left there; and it says
// why a kernel refuses a program. It knows nothing of what programs do. Only packages below
// internal/kernel/bpf may import it.
package tcfilter
