// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The rates that peers were granted, by their sockets, in bytes a second. The program that grants a rate writes it here even if
// a lower limit holds; the program that sets and ends limits reads it. Both are loaded with one map.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u32);
} granted_rates SEC(".maps");
